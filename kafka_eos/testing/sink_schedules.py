"""Schedules for ``check_sink``: steps of a job's epochs in any order that an engine takes, and what readers see then.

Pure; ``sink_run`` executes the steps. An engine keeps these rules:

- Each writer reaches each barrier once, in the order of epochs and at its own time. A worker prepares its output of an
  epoch when all of its writers have sealed it, one epoch after the other.
- An epoch is triggered when the previous one is prepared everywhere. On some engines this happens while that one is
  committed (``protocol.checkpoint_schedule.Flights``), however long the commit takes. So at most two epochs are in
  flight.
- The newest epoch may be aborted as long as it is not decided: because a subtask is late, or could not store its state.
  All writers still seal it and prepare it before another one is triggered: its output belongs to the next epoch that is
  decided. So any number of aborted epochs may be prepared, also while an older one is committed.
- Epochs are decided in order, each when the previous one is committed. A manifest names all output that was prepared
  since the previous manifest, and its committables are committed in any order. So no engine commits an epoch while
  output of an older one may still be aborted.
- Writers are notified of commits in the order of epochs, never before the commit and never of an aborted epoch. The
  notification may be late, repeated, or missing if the attempt ends before.
- An attempt ends between any two steps, also between two commits. The next term finishes the newest manifest, aborts
  all other output of older terms, and counts its epochs from that manifest on: numbers of undecided epochs are reused.
- A worker of an older term may have been frozen, and continue later. So may a coordinator: it commits again what was
  decided once.

Rule: no row is written twice. If an attempt wrote a row again after a restart, it would hide the row that the previous
attempt left.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafka_eos.core.errors import Bug

MOST_IN_FLIGHT: Final = 2
MOST_ROWS: Final = 2
"""Rows of a batch."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that an engine does."""


@dataclass(frozen=True, slots=True)
class WriteStep(Step):
    """A writer gets a batch of so many rows."""

    writer: int = 0
    rows: int = 1


@dataclass(frozen=True, slots=True)
class SealStep(Step):
    """A writer reaches its next barrier."""

    writer: int = 0


@dataclass(frozen=True, slots=True)
class PrepareStep(Step):
    """A worker runs the pre-commits of its next epoch."""

    worker: int = 0


@dataclass(frozen=True, slots=True)
class AbortStep(Step):
    """The newest epoch is aborted."""


@dataclass(frozen=True, slots=True)
class CommitStep(Step):
    """The oldest epoch in flight is decided, and committed.

    ``newest_first``  commit the newest output of the manifest first
    ``dies_after``    the coordinator is killed after so many calls of its committer; None: it is not
    """

    newest_first: bool = False
    dies_after: int | None = None


@dataclass(frozen=True, slots=True)
class NotifyStep(Step):
    """Writers are notified of the next commit that they have not heard of; ``again``: of the last one once more."""

    again: bool = False


@dataclass(frozen=True, slots=True)
class RestartStep(Step):
    """A new term begins. ``killed``: in new processes; otherwise workers discard their writers and continue."""

    killed: bool = True


@dataclass(frozen=True, slots=True)
class WakeStep(Step):
    """The workers of the last killed term continue."""


@dataclass(frozen=True, slots=True)
class CommitAgainStep(Step):
    """The first committer of a manifest commits it again; ``ago``: how many manifests were decided since."""

    ago: int = 0


_WEIGHTS: Final[Mapping[type[Step], int]] = {
    WriteStep: 10,
    SealStep: 8,
    PrepareStep: 10,
    CommitStep: 8,
    NotifyStep: 4,
    AbortStep: 1,
    RestartStep: 1,
    WakeStep: 1,
    CommitAgainStep: 1,
}


@dataclass(frozen=True, slots=True)
class DecidedEpoch:
    """A manifest: the epoch, its term, and the oldest epoch whose output it names."""

    epoch: int
    term: int
    since: int

    @property
    def epochs(self) -> range:
        """The aborted epochs before it, and itself."""
        return range(self.since, self.epoch + 1)


class JobModel:
    """The epochs of a job with one sink. Each operation is a step. Raise Bug if no engine could take it now."""

    def __init__(self, workers: Sequence[int], rows: int) -> None:
        """``workers``: the worker of each writer, from 0; ``rows``: as many may be written in all."""
        self.workers = workers
        self._rows, self._written = rows, 0
        self.term = 1
        self.manifests: list[DecidedEpoch] = []
        self.visible: list[list[int]] = [[] for _ in workers]
        """The rows that readers see now, by writer; undefined after an interrupted commit."""
        self.cut_short = False
        self.asleep = False
        """Whether the workers of an older term may wake up."""
        self._begin()

    def _begin(self) -> None:
        """A term begins: nothing is known of what was written after the newest manifest."""
        decided = self.manifests[-1].epoch if self.manifests else 0
        self.first = decided + 1
        self._decided = decided
        self._sealed = [decided for _ in self.workers]
        self._prepared = [decided for _ in {*self.workers}]
        self._open: list[list[int]] = [[] for _ in self.workers]
        self._output: list[dict[int, list[int]]] = [{} for _ in self.workers]
        self._aborted: set[int] = set()
        self._to_notify: list[int] = []
        self._notified: int | None = None

    # ------------------------------------------------------------ what may come next

    def possible_steps(self) -> list[Step]:
        """Return all steps that an engine may take now."""
        if self.cut_short:
            return [RestartStep()]
        left = min(MOST_ROWS, self._rows - self._written)
        found: list[Step] = [WriteStep(writer, rows + 1) for writer in range(len(self.workers)) for rows in range(left)]
        room = len(self._in_flight) < MOST_IN_FLIGHT and all(map(self._is_complete, self._in_flight))
        found += [SealStep(writer) for writer, at in enumerate(self._sealed) if room or at < self._triggered]
        found += [PrepareStep(worker) for worker in range(len(self._prepared)) if self._is_sealed(worker)]
        found += [AbortStep()] if self._triggered in self._in_flight else []
        if self._in_flight and self._is_complete(self._in_flight[0]):
            found += [CommitStep(), CommitStep(newest_first=True)] * 3
            found += [CommitStep(dies_after=0), CommitStep(newest_first=True, dies_after=1)]
        found += [NotifyStep()] if self._to_notify else []
        found += [] if self._notified is None else [NotifyStep(again=True)]
        found += [RestartStep(), RestartStep(killed=False)]
        found += [WakeStep()] if self.asleep else []
        return found + [CommitAgainStep(ago) for ago in range(min(3, len(self.manifests)))]

    def choose_step(self, choice: int) -> Step:
        """Return the step for a number: 0 is the simplest one."""
        found = self.possible_steps()
        kinds = [kind for kind in _WEIGHTS if any(isinstance(step, kind) for step in found)]
        weighted = [kind for kind in kinds for _ in range(_WEIGHTS[kind])]
        which, kind = divmod(choice, len(weighted))
        variants = [step for step in found if isinstance(step, weighted[kind])]
        return variants[which % len(variants)]

    def check_possible(self, step: Step) -> None:
        """Raise Bug if no engine takes this step now."""
        if step not in self.possible_steps():
            raise Bug(f"the step {step} is not possible now; possible: {self.possible_steps()}")

    # ------------------------------------------------------------ steps

    def write(self, writer: int, rows: int) -> range:
        """Returns which rows."""
        found = range(self._written, self._written + rows)
        self._written = found.stop
        self._open[writer] += found
        return found

    def seal(self, writer: int) -> int:
        """Returns the epoch."""
        self._sealed[writer] += 1
        self._output[writer][self._sealed[writer]], self._open[writer] = self._open[writer], []
        return self._sealed[writer]

    def prepare(self, worker: int) -> int:
        """Returns the epoch."""
        self._prepared[worker] += 1
        return self._prepared[worker]

    def abort(self) -> tuple[int, list[int], list[int]]:
        """Returns the epoch, the writers that have not sealed it, and the workers that have not prepared it."""
        epoch = self._triggered
        self._aborted.add(epoch)
        unsealed = [writer for writer, at in enumerate(self._sealed) if at < epoch]
        return epoch, unsealed, [worker for worker, at in enumerate(self._prepared) if at < epoch]

    def commit(self, *, whole: bool) -> DecidedEpoch:
        """Returns the manifest. If not all of it is committed, only a restart may follow."""
        epoch = self._in_flight[0]
        decided = DecidedEpoch(epoch, self.term, self._decided + 1)
        self._decided = epoch
        self.manifests.append(decided)
        self._aborted -= {*decided.epochs}
        self.cut_short = not whole
        if whole:
            self._to_notify.append(epoch)
        for rows, output in zip(self.visible, self._output, strict=True):
            rows += [row for part in decided.epochs for row in output.pop(part)]
        return decided

    def notify(self, *, again: bool) -> int:
        """Returns the epoch."""
        if not again:
            self._notified = self._to_notify.pop(0)
        assert self._notified is not None
        return self._notified

    def restart(self, *, killed: bool) -> DecidedEpoch | None:
        """Returns the manifest that is to be finished first; None if that was done."""
        unfinished = self.manifests[-1] if self.cut_short else None
        self.cut_short, self.term = False, self.term + 1
        self.asleep = self.asleep or killed
        self._begin()
        return unfinished

    def wake(self) -> range:
        """Wake the workers of an older term; return a row that they may still write."""
        self.asleep = False
        row = min(self._written, self._rows - 1)
        return range(row, row + 1)

    # ------------------------------------------------------------ what the steps ask

    @property
    def oldest_open(self) -> int:
        """Return the first row whose epoch is not committed; the number of rows if all are committed."""
        open_ = [row for rows in self._open for row in rows]
        sealed = [row for output in self._output for rows in output.values() for row in rows]
        return min([*open_, *sealed], default=self._rows)

    @property
    def _triggered(self) -> int:
        """Return the newest epoch whose barrier has reached a writer."""
        return max(self._sealed)

    @property
    def _in_flight(self) -> Sequence[int]:
        """Epochs that may still be decided, the oldest first."""
        return [epoch for epoch in range(self._decided + 1, self._triggered + 1) if epoch not in self._aborted]

    def _is_sealed(self, worker: int) -> bool:
        """Return whether all writers of a worker have sealed the epoch that the worker prepares next."""
        return all(self._sealed[writer] > self._prepared[worker] for writer in self.writers_of(worker))

    def _is_complete(self, epoch: int) -> bool:
        return min(self._prepared) >= epoch

    def writers_of(self, worker: int) -> Collection[int]:
        return [writer for writer, of in enumerate(self.workers) if of == worker]
