"""Metrics of a worker: its progress and its use of time; and the merged metrics of all workers of an attempt.

Rule: a metric may cost something per batch, never per row. Metrics are sent twice a second; no decision depends on
them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from kafka_eos.abc.source import total_lag
from kafka_eos.core.json_values import Position
from kafka_eos.core.records import MIN_EVENT_TIME
from kafka_eos.runtime.epoch_reports import sum_by_name, sum_counters


class ChainTimes(Struct):
    """Seconds that an operator chain was busy, reading, and blocked by back-pressure.

    The rest of the time it waits for rows and barriers. ``busy``: operators and writers; ``reading``: reads that
    returned rows; ``blocked``: time without room downstream. The chains of a worker share one thread: while one is
    blocked, another may be busy.
    """

    busy: float = 0.0
    reading: float = 0.0
    blocked: float = 0.0
    _since: float | None = None

    def note_room(self, there_is: bool) -> bool:
        """Record whether there is room downstream now; return its argument."""
        if there_is is (self._since is not None):
            now = time.perf_counter()
            self.blocked += 0.0 if self._since is None else now - self._since
            self._since = None if there_is else now
        return there_is

    def seconds(self) -> dict[str, float]:
        """Return the seconds up to now."""
        under_way = 0.0 if self._since is None else time.perf_counter() - self._since
        return {"busy": self.busy, "reading": self.reading, "blocked": self.blocked + under_way}


class SplitMetrics(msgspec.Struct, frozen=True):
    """Position and lag of a split that a worker reads; lag is None if unknown."""

    position: Position
    lag: int | None


class SourceMetrics(msgspec.Struct, frozen=True):
    """Records read from a source since the session began, and its splits."""

    records: int
    splits: dict[str, SplitMetrics]


class AlignmentStatus(msgspec.Struct, frozen=True):
    """Splits of one alignment group that are paused, and the slowest split they wait for.

    ``slowest`` is its source and split, if there is one, and ``time`` its event time; ``waiting`` are splits by source.
    """

    slowest: tuple[str, str] | None
    time: int
    waiting: dict[str, list[str]]


class OperatorMetrics(msgspec.Struct, frozen=True):
    """Metrics of one operator in one worker since the session began; times in seconds.

    The times add up to the elapsed time. ``busy``: its own code; of a source, reads that returned rows. ``blocked``: no
    room downstream of its chain. ``idle``: the rest: it waited for rows, or for other chains of its worker.
    """

    rows_in: int
    rows_out: int
    busy: float
    blocked: float
    idle: float
    cache_misses: int = 0
    """State reads of keys that were not in memory."""
    entries: int = 0
    """Objects of its state that are in memory now."""


class EventTimeMetrics(msgspec.Struct, frozen=True):
    """The watermark that an operator has emitted in one worker, and the split there that holds it back."""

    watermark: int
    idle: bool
    slowest: tuple[int, str] | None
    """The lowest watermark of the splits that are not idle, and its split."""


class WorkerMetrics(msgspec.Struct, frozen=True):
    """Metrics of one worker since its session began. ``written`` counts rows by sink."""

    read: dict[str, SourceMetrics]
    written: dict[str, int]
    lag: int | None
    groups: dict[str, AlignmentStatus]
    segments: dict[str, dict[str, float]]
    operators: dict[str, OperatorMetrics]
    open: dict[str, int]
    """Writers with rows of an open epoch, by sink; 0 where there are none."""
    user_counters: dict[str, dict[str, int]] = {}
    """Counters of the user's functions, by operator and name."""
    event_time: dict[str, EventTimeMetrics] = {}
    """Watermarks by the operator that generates them."""


NOTHING = WorkerMetrics({}, {}, None, {}, {}, {}, {})
"""Metrics of a worker that has not reported yet."""


def merge(workers: Sequence[WorkerMetrics]) -> dict[str, object]:
    """Merge the metrics of all workers into JSON values for observers."""
    written: Counter[str] = Counter()
    seconds: dict[str, Counter[str]] = {}
    for each in workers:
        written.update(each.written)
        for segment, spent in each.segments.items():
            seconds.setdefault(segment, Counter()).update(spent)
    return {
        "records_in": sum(read.records for each in workers for read in each.read.values()),
        "records_out": written.total(),
        "lag": total_lag(each.lag for each in workers),
        "read": _read(workers),
        "written": dict(written),
        "segments": {segment: dict(spent) for segment, spent in seconds.items()},
        "operators": _operators(workers),
        "open": sum_by_name(each.open for each in workers),
        **({"user_counters": counters} if (counters := sum_counters(each.user_counters for each in workers)) else {}),
        **({"waiting": waiting} if (waiting := _waiting(workers)) else {}),
        **({"event_time": event_time} if (event_time := _event_time(workers)) else {}),
    }


def _event_time(workers: Sequence[WorkerMetrics]) -> dict[str, object]:
    """Return, by operator, the watermark of all workers, and the split that holds it back: the slowest one that is
    not idle.
    """
    found: dict[str, list[EventTimeMetrics]] = {}
    for each in workers:
        for operator, at in each.event_time.items():
            found.setdefault(operator, []).append(at)
    return {operator: _joined_event_time(several) for operator, several in found.items()}


def _joined_event_time(several: Sequence[EventTimeMetrics]) -> dict[str, object]:
    awake = [at.watermark for at in several if not at.idle]
    together = min(awake) if awake else max(at.watermark for at in several)
    slowest = min((at.slowest for at in several if at.slowest is not None), default=None)
    return {
        "watermark": None if together == MIN_EVENT_TIME else together,
        "waits_for": None if slowest is None else slowest[1],
    }


def _read(workers: Sequence[WorkerMetrics]) -> dict[str, object]:
    found: dict[str, tuple[int, dict[str, object]]] = {}
    for each in workers:
        for source, read in each.read.items():
            records, splits = found.get(source, (0, {}))
            splits.update({name: {"position": at.position, "lag": at.lag} for name, at in read.splits.items()})
            found[source] = records + read.records, splits
    return {source: {"records": records, "splits": splits} for source, (records, splits) in found.items()}


def _operators(workers: Sequence[WorkerMetrics]) -> dict[str, dict[str, float]]:
    operators: dict[str, dict[str, float]] = {}
    for each in workers:
        for name, done in each.operators.items():
            so_far = operators.get(name, {})
            operators[name] = {figure: n + so_far.get(figure, 0) for figure, n in msgspec.structs.asdict(done).items()}
    return operators


def _waiting(workers: Sequence[WorkerMetrics]) -> dict[str, object]:
    """Return, by group, which splits wait, and the slowest split of all workers."""
    groups: dict[str, tuple[AlignmentStatus, dict[str, list[str]]]] = {}
    for each in workers:
        for group, held in each.groups.items():
            slowest, waiting = groups.get(group, (held, {}))
            for source, splits in held.waiting.items():
                waiting.setdefault(source, []).extend(splits)
            later = slowest.slowest is not None and (held.slowest is None or slowest.time <= held.time)
            groups[group] = slowest if later else held, waiting
    return {group: {**_named(held), "waiting": waiting} for group, (held, waiting) in groups.items()}


def _named(held: AlignmentStatus) -> dict[str, object]:
    if held.slowest is None:
        return {"slowest": None}
    source, split = held.slowest
    return {"slowest": {"source": source, "split": split, "time": None if held.time == MIN_EVENT_TIME else held.time}}
