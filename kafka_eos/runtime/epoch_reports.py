"""What an engine and the coordinator hand to each other. Rule: plain values; neither knows how the other got them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from kafka_eos.abc.committer import Committable
from kafka_eos.abc.sink import PreCommit
from kafka_eos.abc.state import InFlight, StateHandle
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Tally
from kafka_eos.storage.job_records import Manifest


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where an attempt starts: the job's identity, its term, the decided epoch it continues, all positions."""

    identity: JobIdentity
    term: Term
    base: EpochId
    first_epoch: Epoch
    states: tuple[StateHandle, ...]
    positions: Mapping[str, Positions]
    in_flight: tuple[InFlight, ...] = ()


@dataclass(frozen=True, slots=True)
class Acked:
    """What the subtasks acknowledged for one epoch, put together."""

    positions: Mapping[str, Positions]
    states: tuple[StateHandle, ...]
    committables: tuple[Committable, ...]
    in_flight: tuple[InFlight, ...] = ()
    parallelism: int = 1
    tally: Tally = field(default_factory=Tally)
    """What was read in this epoch, what was refused, and what was late."""
    watermarks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """How far each split has come in event time, by the operator that makes its watermarks."""
    timers: Mapping[str, int] = field(default_factory=dict)
    """How many are pending, by operator."""

    @property
    def figures(self) -> dict[str, object]:
        """What is shown of the epoch, whichever engine made it."""
        sizes: Counter[str] = Counter()
        for handle in self.states:
            sizes[handle.operator] += sum(file.size for file in handle.files)
        shown: dict[str, object] = {
            "state_bytes": sizes.total(),
            "state_bytes_by_operator": dict(sorted(sizes.items())),
            "committables": len(self.committables),
            "read": dict(self.tally.read),
            "records_by_sink": by_sink(self.committables),
        }
        if self.timers:
            shown["pending_timers"] = dict(sorted(self.timers.items()))
        return {**shown, "watermarks": self.watermarks} if self.watermarks else shown


class Span(msgspec.Struct, frozen=True, array_like=True):
    """One phase of an epoch in one subtask, in seconds since the Unix epoch. ``operator``: whose it is, if it is one's.

    Phases are ``align`` (first barrier to last) and ``snapshot`` of the segment that begins there, ``upload`` of state
    and rows under way, ``prepare`` of a sink; on Spark ``open``, ``work``, ``upload`` and ``prepare``.
    """

    phase: str
    began: float
    ended: float
    operator: str = ""


def shown(spans: Iterable[tuple[int, Span]]) -> list[dict[str, object]]:
    """Spans of subtasks, as JSON values."""
    return [{"worker": subtask, **msgspec.structs.asdict(span)} for subtask, span in spans]


@dataclass(slots=True)
class Prepare:
    """What ``seal`` of a sink's writer has returned, and how long it took once it is called."""

    sink: str
    work: PreCommit
    spans: list[Span] = field(default_factory=list)

    def __call__(self) -> Sequence[Committable]:
        began = time.time()
        committables = self.work()
        self.spans.append(Span("prepare", began, time.time(), self.sink))
        return committables


@dataclass(frozen=True, slots=True)
class Finished:
    """How a decided epoch was committed, for those who watch.

    ``expires_in`` and ``timeout`` are seconds: for how much longer its output could have waited at the commit, and for
    how long in all; infinite without such a limit. ``commits`` has the time of the first commit's beginning and the
    last one's end by sink, in seconds since the Unix epoch.
    """

    expires_in: float = math.inf
    timeout: float = math.inf
    commits: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def figures_of(manifest: Manifest, finished: Finished) -> dict[str, object]:
    """What is shown of an epoch that is committed."""
    return {
        "epoch": manifest.epoch,
        "records": sum(committable.records for committable in manifest.committables),
        "records_by_sink": by_sink(manifest.committables),
        "expires_in": _finite(finished.expires_in),
        "timeout": _finite(finished.timeout),
        "commits": {sink: list(span) for sink, span in finished.commits.items()},
    }


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def by_sink(committables: Iterable[Committable]) -> dict[str, int]:
    """How many records they make visible, by sink."""
    return dict(sorted(summed(committable.by_sink for committable in committables).items()))


def summed(told: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Of all parts together, by name."""
    found: dict[str, int] = {}
    for each in told:
        for name, count in each.items():
            found[name] = found.get(name, 0) + count
    return found


def counted(told: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """What functions of the user's have counted in all parts, by operator and name."""
    found: dict[str, dict[str, int]] = {}
    for each in told:
        for operator, counters in each.items():
            found[operator] = summed((found.get(operator, {}), counters))
    return found


def by_operator(told: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Watermarks of all splits, of what each subtask has told of its own."""
    found: dict[str, dict[str, int]] = {}
    for each in told:
        for operator, splits in each.items():
            found.setdefault(operator, {}).update(splits)
    return found
