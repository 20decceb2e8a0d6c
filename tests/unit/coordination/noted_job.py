"""A job with two sinks, two sources and state, whose coordinators note in order what they do.

The store is a directory, the sinks are in memory. Two of everything: a loop that leaves out its first or its last
round, and a step that asks one for all, show.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import CommitOutcome, CommitPermit, Committable, Probe, StagedOutput
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.incarnation import IncarnationSign, SupportsLossCheck
from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History
from kafka_eos.core.ids import EpochId, JobIdentity, SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Batch
from kafka_eos.runtime.epoch_reports import EpochContents
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin
from kafka_eos.testing.memory_sink import MemoryCommitter

JOB = "orders"


class NotedStorage(LocalStorage):
    """Notes what is written and deleted, who is asked for the newest term, and which state files are looked at."""

    def __init__(self, root: Path, steps: list[str]) -> None:
        super().__init__(root)
        self.steps = steps

    def publish(self, name: str, data: bytes) -> None:
        super().publish(name, data)
        self.steps.append(_written(name))

    def delete(self, name: str) -> None:
        super().delete(name)
        self.steps.append(f"delete {name}")

    def append(self, name: str, line: str) -> None:
        super().append(name, line)
        if name == paths.LEDGER:
            self.steps.append("ledger")

    def upload(self, path: Path, name: str) -> FileRef:
        self.steps.append("upload")
        return super().upload(path, name)

    def check_content(self, ref: FileRef) -> None:
        self.steps.append("read state")
        super().check_content(ref)

    def check_size(self, ref: FileRef) -> None:
        self.steps.append("look at state")
        super().check_size(ref)


def _written(name: str) -> str:
    directory = name.partition("/")[0]
    if directory == paths.TERMS:
        term, kind = paths.parse_term_name(name)
        return f"{kind} {term.n}"
    if directory == paths.MANIFESTS:
        return f"manifest {paths.parse_manifest_name(name)}"
    return f"receipt {paths.parse_receipt_name(name)}" if directory == paths.RECEIPTS else name


class NotedSink(MemorySink):
    """``remembers``: its committer tells whether it lacks something, and says ``lacking``."""

    def __init__(self, name: str, steps: list[str], *, remembers: bool = False) -> None:
        super().__init__()
        self.name, self.steps, self.remembers = name, steps, remembers
        self.lacking: str | None = None
        self.asked: list[tuple[EpochId, list[Committable]]] = []
        """What ``lacks`` was asked for."""

    def unfence(self) -> None:
        """Accept writers of old terms again, as a broker does that has not heard of their producers."""
        self._oldest.clear()

    def scope(self, ctx: JobContext) -> str:
        return f"memory:{self.name}"

    def committer(self, ctx: JobContext) -> MemoryCommitter:
        return _Remembering(self) if self.remembers else _Noted(self)


class _Noted(MemoryCommitter):
    def __init__(self, sink: NotedSink) -> None:
        super().__init__(sink)
        self.sink = sink

    def note(self, what: str) -> None:
        self.sink.steps.append(f"{what} {self.sink.name}")

    def probe(self, committable: Committable) -> Probe:
        self.note("probe")
        return super().probe(committable)

    def commit(self, permit: CommitPermit, committable: Committable) -> CommitOutcome:
        self.note("commit")
        return super().commit(permit, committable)

    def list_staged(self, ctx: JobContext) -> Sequence[StagedOutput]:
        return super().list_staged(ctx)

    def abort_leftovers(self, ctx: JobContext) -> Sequence[str]:
        self.note("abort")
        return super().abort_leftovers(ctx)

    def list_incarnations(self, ctx: JobContext) -> Sequence[IncarnationSign]:
        self.note("signs")
        return super().list_incarnations(ctx)

    def register(self, ctx: JobContext) -> None:
        self.note("hold")
        super().register(ctx)

    def retire(self, ctx: JobContext, identity: JobIdentity | None) -> Sequence[str]:
        self.note("succeed")
        return super().retire(ctx, identity)

    def close(self) -> None:
        self.note("close")


class _Remembering(SupportsLossCheck, _Noted):
    def find_missing_commits(self, ctx: JobContext, newest: EpochId, committables: Sequence[Committable]) -> str | None:
        self.note("lacks")
        self.sink.asked.append((newest, list(committables)))
        return self.sink.lacking


class NotedJob:
    """What its coordinators share. ``directory``: where each of its incarnations has one of its own."""

    def __init__(
        self, directory: Path, *, remembers: Collection[str] = (), sources: Sequence[str] = ("n", "m")
    ) -> None:
        self.directory, self.steps, self.said = directory, list[str](), list[str]()
        self.left, self.right = (NotedSink(name, self.steps, remembers=name in remembers) for name in ("left", "right"))
        self.sources: dict[str, Any] = {
            name: ListSource(range(4), splits=2, name=f"list-{name}") for name in ("n", "m")
        }
        self.stop = threading.Event()
        self.incarnation = "a"

    @property
    def root(self) -> Path:
        return self.directory / self.incarnation / JOB

    @property
    def storage(self) -> NotedStorage:
        return NotedStorage(self.root, self.steps)

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(JOB)
        for (name, source), sink in zip(self.sources.items(), (self.left, self.right), strict=True):
            rows: Any = pipeline.source(source, name=name)
            total = rows.key_by(str, name=f"by-{name}").fold(
                name=f"total-{sink.name}", init=int, step=lambda acc, n: acc + n
            )
            total.sink(sink, name=sink.name)
        return pipeline

    def coordinator(self, **options: Any) -> Coordinator:
        storage, patience = self.storage, Retrier(self.stop, self.said.append)
        diary = History(storage, self.said.append)
        return Coordinator(self.pipeline().plan(), storage, diary, patience, {}, 3, home=str(self.root), **options)

    @property
    def positions(self) -> dict[str, Positions]:
        return {name: {split: {"index": 0} for split in source.splits} for name, source in self.sources.items()}

    def state(self, *contents: str) -> tuple[StateHandle, ...]:
        """Of two operators, a file for each content."""
        handles = []
        for operator in ("total-left", "total-right"):
            files = []
            for content in contents:
                path = self.directory / "state.rows"
                path.write_text(f"{operator} {content}")
                files.append(LocalStorage(self.root).upload(path, path.name))
            handles.append(StateHandle(operator, "memory", (0, 127), tuple(files), ()))
        return tuple(handles)

    def prepared(self, coordinator: Coordinator, epoch: EpochId, value: object) -> tuple[Committable, ...]:
        """Output of two subtasks of each sink."""
        return tuple(
            committable
            for sink in (self.left, self.right)
            for subtask in range(2)
            for committable in self._prepared(sink, coordinator, epoch, f"{value}-{subtask}", subtask)
        )

    def _prepared(
        self, sink: NotedSink, coordinator: Coordinator, epoch: EpochId, value: str, subtask: int
    ) -> Sequence[Committable]:
        writer = sink.writer(TaskContext(coordinator.ownership.load_identity(), subtask, 2, sink.name))
        writer.write(Batch([value], range(1), ListOrigin("n", "list", 0, 0, [value])))
        return writer.seal(epoch)()

    def decided(self, coordinator: Coordinator, value: str) -> Manifest:
        """One more epoch, with output of each sink and state; nothing of it is committed."""
        epoch = coordinator.ownership.next_epoch()
        return coordinator.epochs.decide(
            epoch, EpochContents(self.positions, self.state(value), self.prepared(coordinator, epoch, value))
        )

    def begun(self) -> Coordinator:
        """A coordinator that has committed one epoch; nothing of it is noted."""
        coordinator = self.coordinator()
        coordinator.recovery.restore()
        coordinator.epochs.commit(self.decided(coordinator, "one"))
        self.steps.clear()
        return coordinator

    def noted(self) -> list[str]:
        """The steps since it was asked last. What goes on at the same time is in the order of names, each once."""
        steps, self.steps[:] = [*self.steps], []
        return [step for _, group in groupby(steps, lambda step: step.split()[0]) for step in sorted({*group})]

    @property
    def output(self) -> tuple[list[Any], list[Any]]:
        return sorted(self.left.committed), sorted(self.right.committed)


def split(name: str, number: int) -> SplitId:
    return SplitId(f"list-{name}/{number}")
