"""Worker processes of this machine that are connected by TCP, as workers on other machines are.

``KAFKA_EOS_WORKER_HOST``, an address of this machine, selects this pool. Tests set it, to run whole jobs over TCP.
Rule: nothing here differs from another remote pool, except that a worker is a child of this process.
"""

from __future__ import annotations

import os
import threading
from typing import Final

import msgspec

from kafka_eos._util.memory_files import open_memory_file
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import AppRef
from kafka_eos.embedded.launched_worker import ChildProcess, WorkerTask
from kafka_eos.embedded.remote_workers import RemotePool
from kafka_eos.embedded.worker_process import allow_open_files, remove_local_state
from kafka_eos.plan import Plan
from kafka_eos.runtime.worker.control_messages import WorkerConfig
from kafka_eos.runtime.worker.worker_ticket import WorkerTicket

ENVIRONMENT: Final = "KAFKA_EOS_WORKER_HOST"
_ANY_PORT: Final = range(1)


class TcpProcessPool(RemotePool):
    """Worker processes of one run of a job, which connect to ``host``."""

    def __init__(self, plan: Plan, app: AppRef, settings: Settings, host: str) -> None:
        super().__init__(settings.parallelism, host, _ANY_PORT)
        self._app = app
        self._settings = settings
        self._job = plan.name
        self._config = msgspec.json.encode(WorkerConfig.of(plan, app, settings))

    def start_workers(self) -> None:
        allow_open_files(self._settings.parallelism)
        super().start_workers()

    def launch(self, subtask: int, ticket: WorkerTicket, replaced: WorkerTask | None) -> ChildProcess:
        file = open_memory_file(msgspec.json.encode(ticket))
        try:
            process = ChildProcess(self._app, subtask, self._config, "tcp", file)
        finally:
            os.close(file)

        def watch() -> None:
            process.wait()
            self.on_task_ended(ticket.number)

        threading.Thread(target=watch, daemon=True, name=f"exit-{subtask}").start()
        return process

    def drop_local_state(self) -> None:
        remove_local_state(self._settings, self._job)
