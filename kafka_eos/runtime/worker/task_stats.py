"""How far a worker is, and where its time goes; and the same of all workers of an attempt together.

Rule: a figure may cost something a batch, never anything a row. They are told twice a second; nothing rests on them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from kafka_eos.abc.source import total_lag
from kafka_eos.core.json_values import Position
from kafka_eos.core.records import BEGINNING
from kafka_eos.runtime.epoch_reports import counted, summed


@dataclass(slots=True)
class Spent:
    """Where the time of a segment goes, in seconds. What is left of the clock's is waiting for rows, and barriers.

    ``busy``: operators and writers; ``reading``: reads that brought something; ``blocked``: from when there was no room
    behind it until there was. The segments of a worker share one thread: while one is blocked, another may be busy.
    """

    busy: float = 0.0
    reading: float = 0.0
    blocked: float = 0.0
    _since: float | None = None

    def room(self, there_is: bool) -> bool:
        """To be told at each look; returns ``there_is``."""
        if there_is is (self._since is not None):
            now = time.perf_counter()
            self.blocked += 0.0 if self._since is None else now - self._since
            self._since = None if there_is else now
        return there_is

    def seconds(self) -> dict[str, float]:
        """Up to now."""
        under_way = 0.0 if self._since is None else time.perf_counter() - self._since
        return {"busy": self.busy, "reading": self.reading, "blocked": self.blocked + under_way}


class Split(msgspec.Struct, frozen=True):
    """A split that a worker reads: where it goes on, and how many records are behind that, if that is known."""

    position: Position
    lag: int | None


class Read(msgspec.Struct, frozen=True):
    """What a worker has read of a source since the session began."""

    records: int
    splits: dict[str, Split]


class Held(msgspec.Struct, frozen=True):
    """Splits of one group of a worker that wait for slower ones. ``slowest`` is a source and its split, if there is one
    to wait for, and ``time`` how far that is; ``waiting`` are splits by source.
    """

    slowest: tuple[str, str] | None
    time: int
    waiting: dict[str, list[str]]


class Operator(msgspec.Struct, frozen=True):
    """What one operator has done in one worker since the session began. Times are seconds, and together the clock's.

    ``busy``: its own code; of a source, reads that brought something; ``blocked``: what is behind its segment had no
    room; ``idle``: the rest. It waited for rows, or for others of its worker.
    """

    came: int
    left: int
    busy: float
    blocked: float
    idle: float
    loads: int = 0
    """Places of its state that were not in memory when they were asked for."""
    entries: int = 0
    """Objects of its state that are in memory now."""


class Figures(msgspec.Struct, frozen=True):
    """Of one worker, since the session began. ``written`` counts rows by sink."""

    read: dict[str, Read]
    written: dict[str, int]
    lag: int | None
    groups: dict[str, Held]
    segments: dict[str, dict[str, float]]
    operators: dict[str, Operator]
    open: dict[str, int]
    """Writers that hold rows of an epoch whose barrier has not come, by sink; 0 where there are none."""
    counted: dict[str, dict[str, int]] = {}
    """By functions of the user's: operator and name."""


NOTHING = Figures({}, {}, None, {}, {}, {}, {})
"""Of a worker that has told nothing yet."""


def together(told: Sequence[Figures]) -> dict[str, object]:
    """All workers as one, as JSON values, for those who watch."""
    written: Counter[str] = Counter()
    seconds: dict[str, Counter[str]] = {}
    for each in told:
        written.update(each.written)
        for segment, spent in each.segments.items():
            seconds.setdefault(segment, Counter()).update(spent)
    return {
        "records_in": sum(read.records for each in told for read in each.read.values()),
        "records_out": written.total(),
        "lag": total_lag(each.lag for each in told),
        "read": _read(told),
        "written": dict(written),
        "segments": {segment: dict(spent) for segment, spent in seconds.items()},
        "operators": _operators(told),
        "open": summed(each.open for each in told),
        **({"counted": counters} if (counters := counted(each.counted for each in told)) else {}),
        **({"waiting": waiting} if (waiting := _waiting(told)) else {}),
    }


def _read(told: Sequence[Figures]) -> dict[str, object]:
    found: dict[str, tuple[int, dict[str, object]]] = {}
    for each in told:
        for source, read in each.read.items():
            records, splits = found.get(source, (0, {}))
            splits.update({name: {"position": at.position, "lag": at.lag} for name, at in read.splits.items()})
            found[source] = records + read.records, splits
    return {source: {"records": records, "splits": splits} for source, (records, splits) in found.items()}


def _operators(told: Sequence[Figures]) -> dict[str, dict[str, float]]:
    operators: dict[str, dict[str, float]] = {}
    for each in told:
        for name, done in each.operators.items():
            so_far = operators.get(name, {})
            operators[name] = {figure: n + so_far.get(figure, 0) for figure, n in msgspec.structs.asdict(done).items()}
    return operators


def _waiting(told: Sequence[Figures]) -> dict[str, object]:
    """Who waits for whom, by group: the slowest of all workers is the slowest of all."""
    groups: dict[str, tuple[Held, dict[str, list[str]]]] = {}
    for each in told:
        for group, held in each.groups.items():
            slowest, waiting = groups.get(group, (held, {}))
            for source, splits in held.waiting.items():
                waiting.setdefault(source, []).extend(splits)
            later = slowest.slowest is not None and (held.slowest is None or slowest.time <= held.time)
            groups[group] = slowest if later else held, waiting
    return {group: {**_named(held), "waiting": waiting} for group, (held, waiting) in groups.items()}


def _named(held: Held) -> dict[str, object]:
    if held.slowest is None:
        return {"slowest": None}
    source, split = held.slowest
    return {"slowest": {"source": source, "split": split, "time": None if held.time == BEGINNING else held.time}}
