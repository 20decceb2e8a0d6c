"""The values that an engine and the coordinator exchange. Rule: plain values; neither side knows their transport."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct, field

from kafka_eos.abc.committer import Committable
from kafka_eos.abc.sink import PreCommit
from kafka_eos.abc.state import InFlightRows, StateHandle
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import RecordCounts
from kafka_eos.runtime.state.key_groups import key_group_range
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.object_names import IMMUTABLE_SUFFIX


class RestorePoint(Struct, frozen=True):
    """The starting point of an attempt: term, decided epoch, state, positions, in-flight rows."""

    identity: JobIdentity
    term: Term
    base: EpochId
    first_epoch: Epoch
    states: tuple[StateHandle, ...]
    positions: Mapping[str, Positions]
    in_flight: tuple[InFlightRows, ...]

    def list_state_files(self, subtask: int, parallelism: int) -> list[int]:
        """Return the sizes of the immutable state files that a subtask opens."""
        groups = key_group_range(subtask, parallelism)
        return [
            file.size
            for state in self.states
            if state.key_groups[0] < groups.stop and groups.start <= state.key_groups[1]
            for file in state.files
            if file.name.endswith(IMMUTABLE_SUFFIX)
        ]


class EpochContents(Struct, frozen=True):
    """The parts of all subtasks in one epoch: positions, state, committables."""

    positions: Mapping[str, Positions]
    states: tuple[StateHandle, ...]
    committables: tuple[Committable, ...]
    in_flight: tuple[InFlightRows, ...] = ()
    parallelism: int = 1
    tally: RecordCounts = field(default_factory=RecordCounts)
    """Records that were read, rejected, or late in this epoch."""
    watermarks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The watermark of each split, by the operator that generates it."""
    timers: Mapping[str, int] = field(default_factory=dict)
    """Pending timers by operator."""

    @property
    def metrics(self) -> dict[str, object]:
        """Return the metrics reported for the epoch."""
        sizes: Counter[str] = Counter()
        for handle in self.states:
            sizes[handle.operator] += sum(file.size for file in handle.files)
        shown: dict[str, object] = {
            "state_bytes": sizes.total(),
            "state_bytes_by_operator": dict(sorted(sizes.items())),
            "committables": len(self.committables),
            "read": dict(self.tally.read),
            "records_by_sink": count_records_by_sink(self.committables),
        }
        if self.timers:
            shown["pending_timers"] = dict(sorted(self.timers.items()))
        return {**shown, "watermarks": self.watermarks} if self.watermarks else shown


class PhaseSpan(msgspec.Struct, frozen=True, array_like=True):
    """Start and end of one phase of an epoch in one subtask. ``operator``: the operator concerned, if only one.

    Phases are ``align`` (first barrier to last) and ``snapshot`` of an operator chain, ``upload`` of state and
    in-flight rows, ``prepare`` of a sink.
    """

    phase: str
    started: float
    ended: float
    operator: str = ""


def spans_to_json(spans: Iterable[tuple[int, PhaseSpan]]) -> list[dict[str, object]]:
    """Convert spans of subtasks to JSON values."""
    return [{"worker": subtask, **msgspec.structs.asdict(span)} for subtask, span in spans]


class TimedPreCommit(Struct):
    """A sink's pre-commit, with its duration."""

    sink: str
    work: PreCommit
    spans: list[PhaseSpan] = field(default_factory=list)

    def __call__(self) -> Sequence[Committable]:
        began = time.time()
        committables = self.work()
        self.spans.append(PhaseSpan("prepare", began, time.time(), self.sink))
        return committables


class CommitResult(Struct, frozen=True):
    """The commit of a decided epoch, for metrics.

    ``expires_in`` and ``timeout`` are seconds: the time that was left for the commit of the epoch's output, and its
    limit; infinite without one. ``commits`` has, by sink, the start of the first commit and the end of the last one, in
    seconds since the Unix epoch. ``set_aside`` has, by sink, the number of rows that the receiver refused.
    """

    expires_in: float = math.inf
    timeout: float = math.inf
    commits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    set_aside: Mapping[str, int] = field(default_factory=dict)


def commit_metrics(manifest: Manifest, finished: CommitResult) -> dict[str, object]:
    """Return the metrics reported for a committed epoch."""
    staged = count_records_by_sink(manifest.committables)
    return {
        "epoch": manifest.epoch,
        "records": sum(each.records for each in manifest.committables) - sum(finished.set_aside.values()),
        "records_by_sink": {sink: count - finished.set_aside.get(sink, 0) for sink, count in staged.items()},
        "expires_in": _finite(finished.expires_in),
        "timeout": _finite(finished.timeout),
        "commits": {sink: list(span) for sink, span in finished.commits.items()},
    }


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def count_records_by_sink(committables: Iterable[Committable]) -> dict[str, int]:
    """Count the records that these committables make visible, by sink."""
    return dict(sorted(sum_by_name(committable.by_sink for committable in committables).items()))


def sum_by_name(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up counts of several parts, by name."""
    found: dict[str, int] = {}
    for each in parts:
        for name, count in each.items():
            found[name] = found.get(name, 0) + count
    return found


def sum_counters(parts: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Add up user counters of several parts, by operator and name."""
    found: dict[str, dict[str, int]] = {}
    for each in parts:
        for operator, counters in each.items():
            found[operator] = sum_by_name((found.get(operator, {}), counters))
    return found


def merge_watermarks(parts: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    """Merge the watermarks of all subtasks, by operator and split."""
    found: dict[str, dict[str, int]] = {}
    for each in parts:
        for operator, splits in each.items():
            found.setdefault(operator, {}).update(splits)
    return found
