"""A run of a job under its job master, whose attempts a test brings."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kafka_eos import Pipeline
from kafka_eos.abc.context import TaskContext
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_master import JobMaster
from kafka_eos.core.records import Batch
from kafka_eos.runtime.epoch_reports import EpochContents
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin
from tests.waiting import eventually

JOB = "orders"
Attempt = Callable[[Coordinator], None]


class Run:
    """One run of a job. Its attempts are ``attempts``, one after the other; without one it ends by itself."""

    def __init__(self, root: Path, *attempts: Attempt, sink: MemorySink | None = None, **settings: Any) -> None:
        self.root, self.sink = root, sink or MemorySink()
        self.told: list[tuple[str, Mapping[str, Any]]] = []
        self.released: list[BaseException] = []
        self.woken = 0
        self.on: Callable[[str, Mapping[str, Any]], object] = lambda event, facts: None
        """Hears what happens, too."""
        self._attempts = iter(attempts)
        pipeline = Pipeline(JOB)
        pipeline.source(ListSource([1]), name="numbers").sink(self.sink, name="out")
        given = {"checkpoint_dir": root, "restart_backoff_initial": 0.0, **settings}
        self.master = JobMaster(
            pipeline.plan(),
            Settings.resolve(code=given),
            (self._observe,),
            lambda coordinator: next(self._attempts, lambda _: None)(coordinator),
            self.released.append,
            self._wake,
        )

    def _observe(self, event: str, facts: Mapping[str, Any]) -> None:
        self.told.append((event, facts))
        self.on(event, facts)

    def _wake(self) -> None:
        self.woken += 1

    def of(self, event: str) -> list[Mapping[str, Any]]:
        return [facts for told, facts in self.told if told == event]

    @property
    def storage(self) -> LocalStorage:
        return LocalStorage(self.root / JOB)

    def claims(self) -> int:
        return len([name for name in self.storage.list(paths.TERMS) if "claim" in name])

    def recovers(self, coordinator: Coordinator) -> None:
        coordinator.recovery.restore()
        self.master.on_recovered()

    def prepares(self, coordinator: Coordinator) -> EpochContents:
        """An output that is prepared and not decided."""
        writer = self.sink.writer(TaskContext(coordinator.ownership.load_identity(), 0, 1, "out"))
        writer.write(Batch([1], range(1), ListOrigin("numbers", "list", 0, 0, [1])))
        return EpochContents({"numbers": {}}, (), tuple(writer.seal(coordinator.ownership.next_epoch())()))

    def decides(self, coordinator: Coordinator) -> None:
        """An epoch with output that is decided and not committed."""
        epoch = coordinator.ownership.next_epoch()
        writer = self.sink.writer(TaskContext(coordinator.ownership.load_identity(), 0, 1, "out"))
        writer.write(Batch([2], range(1), ListOrigin("numbers", "list", 0, 0, [2])))
        coordinator.epochs.decide(epoch, EpochContents({"numbers": {}}, (), tuple(writer.seal(epoch)())))


def signalled(run: Run, *numbers: int) -> None:
    """The process of a run gets these signals."""
    for number in numbers:
        assert signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler), "it would end the tests"
        os.kill(os.getpid(), number)
    eventually(
        run.master.stop_timed_out.is_set if numbers[1:] else run.master.stop_requested.is_set, "the signal is heard"
    )


def fails(error: Exception, times: int = 1) -> list[Attempt]:
    def attempt(coordinator: Coordinator) -> None:
        raise error

    return [attempt] * times
