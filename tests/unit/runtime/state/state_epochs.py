"""The epochs of one operator from barrier to retention, with the records that a coordinator writes for them.

Several may be captured before one is decided. In any order, an epoch may be stored in part, given up, overtaken by a
newer one, decided, dropped by retention, or gone on from. Rule: as in a job, nothing is cleaned up while an epoch is
captured, nor between one that was given up and the next that is decided.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from hypothesis import strategies as st

from kafka_eos.abc.state import StateBackend, StateHandle, StateUpload
from kafka_eos.abc.storage import CheckpointStorage, FileRef
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol.lineage import lineage
from kafka_eos.runtime.state import canonical_savepoint as savepoints
from kafka_eos.storage import retention
from kafka_eos.storage.job_records import Manifest, Receipt, TermBase, TermClaim, publish
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.savepoint_files import SavepointFiles

JOB = "totals"
M = TypeVar("M")
MAX_CAPTURED = 3
"""Epochs that are captured at the same time."""
STEPS = ("capture", "capture", "store", "store", "give up", "fail", "decide", "decide", "clean up")
scripts = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, MAX_CAPTURED - 1)), min_size=4, max_size=8)
"""What becomes of epochs, one after the other; the number says of which, of how many files, or how much is kept."""
starts_back = st.sampled_from([0, 0, 1, 2])
"""From which epoch a job resumes: the newest, or so many before it."""
rounds = st.lists(st.tuples(scripts, starts_back), min_size=2, max_size=3)
"""Each ends with a crash."""


@dataclass
class Captured(Generic[M]):
    """An epoch that is not decided: what its subtasks still have to store, and have stored."""

    number: int
    model: M
    left: list[StateUpload]
    stored: list[StateHandle] = field(default_factory=list)


class FailingStorage:
    """A store that fails at the n-th object."""

    def __init__(self, storage: JobStorage, objects: int) -> None:
        self._storage, self._left = storage, objects

    def upload(self, path: Path, name: str) -> FileRef:
        self._count()
        return self._storage.upload(path, name)

    def publish(self, name: str, data: bytes) -> None:
        self._count()
        self._storage.publish(name, data)

    def read(self, name: str) -> bytes:
        return self._storage.read(name)

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.EIO, "the store is away")


class Epochs(Generic[M]):
    """``model``: what the state must hold in an epoch; a copy is kept with each."""

    def __init__(self, storage: JobStorage, copied: Callable[[M], M], model: M) -> None:
        self.storage, self._copied, self._empty = storage, copied, model
        self.captured: list[Captured[M]] = []
        self._decided: dict[EpochId, tuple[list[StateHandle], M]] = {}
        self._next, self._term, self._given_up = 0, Term(0), False
        self._begin_term(None)

    def follow(self, script: Iterable[tuple[str, int]], capture: Callable[[], None]) -> None:
        """Carry out what can be; ``capture`` calls ``capture`` of this, after some changes of the state or none."""
        for step, number in script:
            which = min(number, len(self.captured) - 1)
            match step:
                case "capture" if len(self.captured) < MAX_CAPTURED:
                    capture()
                case "clean up":
                    self.clean_up(number + 1)
                case "store" if self.captured:
                    self.store(which)
                case "give up" if self.captured:
                    self.give_up(which)
                case "fail" if self.captured:
                    self.fail(which, number)
                case "decide" if self.captured:
                    self.decide(which)

    # ------------------------------------------------------------ one epoch

    def capture(self, backends: Sequence[StateBackend], model: M) -> None:
        """The barrier."""
        uploads = [backend.snapshot(Epoch(self._next)) for backend in backends]
        self.captured.append(Captured(self._next, self._copied(model), uploads))
        self._next += 1

    def store(self, which: int) -> None:
        """One more subtask stores its files."""
        captured = self.captured[which]
        if captured.left:
            captured.stored.append(captured.left.pop(0)(self.storage))

    def fail(self, which: int, files: int) -> None:
        """A subtask stores only so many files, and the epoch is given up."""
        failing: CheckpointStorage = FailingStorage(self.storage, files)  # type: ignore[assignment]
        if self.captured[which].left:
            with suppress(OSError):
                self.captured[which].left[0](failing)
        self.give_up(which)

    def give_up(self, which: int) -> None:
        del self.captured[which]
        self._given_up = True

    def decide(self, which: int) -> None:
        """All subtasks have stored their files; older epochs that have not been decided never will be."""
        captured = self.captured[which]
        while captured.left:
            self.store(which)
        del self.captured[: which + 1]
        epoch = EpochId(Epoch(captured.number), self._term)
        handles = captured.stored
        publish(self.storage, _manifest(epoch, handles))
        publish(self.storage, Receipt(job=JOB, epoch=epoch.epoch.n, term=epoch.term.n, created_at=0, outcomes=()))
        self._decided[epoch] = handles, captured.model
        self._given_up = False

    # ------------------------------------------------------------ all of them

    def clean_up(self, keep: int) -> None:
        """Drop all but so many decided epochs, and files that none of them names."""
        if not self.captured and not self._given_up:
            retention.apply_retention(self.storage, JOB, keep, lambda: None)
            facts = retention.take_inventory(self.storage, JOB)
            kept = lineage(facts.manifests, facts.bases)
            self._decided = {epoch: self._decided[epoch] for epoch in kept}
            assert all(files <= facts.stored for files in facts.manifests.values())

    def go_on_from(self, back: int) -> tuple[list[StateHandle], M]:
        """Another attempt begins, with the newest epoch or so many before it; later ones never happened."""
        self.captured.clear()
        self._given_up = False
        epochs = sorted(self._decided)
        base = epochs[max(0, len(epochs) - 1 - back)] if epochs else None
        for epoch in (epoch for epoch in epochs if base is not None and epoch > base):
            del self._decided[epoch]
        self._begin_term(base)
        handles, model = ([], self._empty) if base is None else self._decided[base]
        return handles, self._copied(model)

    def saved(self, handles: Sequence[StateHandle], target: Path) -> list[StateHandle]:
        """The same state as a savepoint holds it, stored as a job does that begins with it."""
        savepoint = savepoints.write_savepoint(self.storage, _manifest(EpochId(Epoch(0), self._term), handles), target)
        files = SavepointFiles(target)
        for ref in savepoint.files:
            assert self.storage.upload(files.path_of(ref), ref.name) == ref
        return list(savepoint.operators)

    def _begin_term(self, base: EpochId | None) -> None:
        self._term = self._term.next()
        resumed = None if base is None else (base.epoch.n, base.term.n)
        publish(self.storage, TermClaim(job=JOB, term=self._term.n, host="h", pid=1, at=0))
        publish(self.storage, TermBase(job=JOB, term=self._term.n, resumed=resumed, reason="test", at=0))


def _manifest(epoch: EpochId, handles: Sequence[StateHandle]) -> Manifest:
    return Manifest(
        job=JOB,
        epoch=epoch.epoch.n,
        term=epoch.term.n,
        created_at=0,
        plan="f" * 16,
        max_key_groups=128,
        parallelism=len(handles),
        sources={},
        states=tuple(handles),
        committables=(),
        identity="0123456789ab",
    )
