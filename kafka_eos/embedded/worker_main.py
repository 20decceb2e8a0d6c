"""The worker process: ``python -m kafka_eos.embedded.worker_main CONTROL SUBTASK APP CONFIG_FD PARENT``.

``CONTROL`` is ``unix:FD``, a Unix socket to the supervisor, or ``tcp:FD``, a file with a ``WorkerTicket``. ``SUBTASK``
names the process until a session gives it a subtask.

Rule: it never outlives the supervisor. The end of the control socket ends it; on Linux the kernel also kills it when
the parent dies.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # imported objects stay alive; the collector runs when the pipeline is loaded

import os
import signal
import socket
import sys

import msgspec

from kafka_eos._util import thread_dumps as stacks
from kafka_eos._util.gc_tuning import freeze_imports
from kafka_eos._util.parent_death import die_with_parent
from kafka_eos.core.ids import AppRef
from kafka_eos.runtime.worker.control_messages import WorkerConfig
from kafka_eos.runtime.worker.worker import Worker
from kafka_eos.runtime.worker.worker_connections import UnixConnections, WorkerConnections

EXIT_SUPERVISOR_GONE = 70


def main() -> None:
    """Run a worker until the supervisor exits."""
    freeze_imports()
    control, subtask, app, config_fd, parent = sys.argv[1:6]
    if not die_with_parent(int(parent)):
        os._exit(EXIT_SUPERVISOR_GONE)
    with os.fdopen(int(config_fd), "rb") as file:
        config = msgspec.json.decode(file.read(), type=WorkerConfig)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # both may reach the whole process group; the supervisor drains us
    stacks.enable_dumps(f"worker {subtask}")
    connections, name = _connect(control, config), f"worker {subtask}"
    Worker(AppRef.parse(app), config, name, connections, lambda: os._exit(EXIT_SUPERVISOR_GONE)).run()
    sys.exit(1)


def _connect(control: str, config: WorkerConfig) -> WorkerConnections:
    kind, _, fd = control.partition(":")
    if kind == "unix":
        return UnixConnections(socket.socket(fileno=int(fd)))
    from kafka_eos.runtime.worker.local_state import list_largest_files
    from kafka_eos.runtime.worker.tcp_connections import TcpConnections
    from kafka_eos.runtime.worker.worker_ticket import WorkerTicket

    with os.fdopen(int(fd), "rb") as file:
        ticket = msgspec.json.decode(file.read(), type=WorkerTicket)
    return TcpConnections(ticket, list_largest_files(config.resolve_settings().local_dirs(config.job)))


if __name__ == "__main__":
    main()
