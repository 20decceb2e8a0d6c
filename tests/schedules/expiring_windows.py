"""Windows of rows with a time to live under schedules, by either clock, beside a process function that does the same.

Both operators of a pair have got the same rows, in one order, at the same moments: so what they make is the same, and a
record that the one refuses the other refuses too. What no schedule may make of a key is told from its outputs alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

from kafka_eos import ProcessContext, ProcessFunction, Stream, Ttl, Window, agg, global_
from kafka_eos import rows as so_many_rows
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.abc.state import Clocks
from kafka_eos.core.records import Record
from kafka_eos.plan.window_assigners import RowCountWindows
from tests.schedules.job import ProvenanceSink, RandomSplitSource
from tests.schedules.pipelines import Case, all_of, keyed, rows
from tests.unit.runtime.operators.test_windows import Row

_SET_BACK = 400
"""By how much the clock of the state may be ahead of the machine's, which is set back before some runs."""
_BAD = 4
"""Rows of which the number is a multiple of it are refused."""
_LONG = 50.0
"""Seconds that are more than the timestamps of rows differ by, and than a run lasts."""
_KINDS: Mapping[str, RowCountWindows] = {
    "one-by-one": so_many_rows(3, every=1),
    "in-threes": so_many_rows(3),
    "alone": so_many_rows(1),
    "sliding": so_many_rows(4, every=2),
    "uneven": so_many_rows(3, every=2),
    "global": global_(every=2),
}


_Rows = tuple[tuple[int, int], ...]
"""The number of each row, and what the clock showed as it was processed."""


class _Collected(agg.Aggregate[Row, _Rows, _Rows]):
    """All rows as they came."""

    accumulator = returns = _Rows

    def __init__(self, numbered: Callable[[Row], tuple[int, int]]) -> None:
        self._numbered = numbered

    def create(self) -> _Rows:
        return ()

    def add(self, acc: _Rows, value: Row, /) -> _Rows:
        return (*acc, self._numbered(value))

    def merge(self, one: _Rows, other: _Rows, /) -> _Rows:
        return (*one, *other)

    def result(self, acc: _Rows, /) -> _Rows:
        return acc


class _Witness(ProcessFunction[str, Row, Any]):
    """Windows of rows, as anybody would write them by hand."""

    def __init__(self, assigner: RowCountWindows, ttl: Ttl, verb: _Verb) -> None:
        self._assigner, self._ttl, self._verb = assigner, ttl, verb

    def open(self, ctx: ProcessContext) -> None:
        self._held = ctx.value_state("held", list, ttl=self._ttl)

    def process(self, key: str, value: Row) -> Iterable[Any]:
        new = list(self._verb.numbered(value))
        size, every = self._assigner.size, self._assigner.every
        number, held = self._held.get() or (0, [])
        number, held = number + 1, [*held, new]
        held = held if size is None else held[-size:]
        if number % every == 0 and every == size:
            self._held.clear()
        else:
            self._held.put([number, held])
        if number % every == 0:
            yield self._verb.emit(key, Window(number - len(held), number), tuple(map(tuple, held)))


def expiring(case: Case) -> None:
    """Some kinds of windows of rows, each with some verb, and a time to live of some length."""
    chance = case.chance
    clock: Clocks = chance.choice(["processing", "event"])
    ttl = Ttl(chance.choice([0.003, 0.030, 0.200, _LONG]), clock, chance.choice(["write", "read-write"]))
    splits, first = rows(chance, case.max_rows, chance.choice([0, 30])), case.clock - 1_000_000
    splits_of_rows = {
        split: [Record(row[0], row, timestamp=first + row[1] if chance.random() < 0.95 else -1) for row in mine]
        for split, mine in splits.items()
    }
    read: Stream[Any] = case.pipeline.source(
        RandomSplitSource("stream", splits_of_rows, chance, dated=True),
        name="stream",
        on_error=DeadLetters(ProvenanceSink()),
    )
    by_key = keyed(read.map(lambda record: record.value, name="rows"), "by-key")
    for kind in ("one-by-one", *chance.sample(sorted(set(_KINDS) - {"one-by-one"}), 2)):
        assigner = _KINDS[kind]
        # A witness that refuses a result has read its state by then; where reads count that renews it.
        refuses_results = kind != "one-by-one" and ttl.refresh == "write"
        verb = chance.choice([_Folded(case), _Aggregated(case), *([_Processed(case)] if refuses_results else [])])
        case.sink(verb.of(by_key.window(assigner, ttl=ttl), kind), kind)
        case.sink(by_key.process(_Witness(assigner, ttl, verb), name=f"{kind}-witness"), f"{kind}-witness")
        case.expect([kind], partial(case.values, f"{kind}-witness"))
        case.ending.append(kind)
    case.checks.append(partial(_check, case, ttl, all_of(splits)))


class _Verb:
    """What is asked of windows, and what the witness then does."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def __deepcopy__(self, memo: Any) -> _Verb:
        """The clock is that of the case."""
        return self

    def of(self, windows: Any, name: str) -> Stream[Any]:
        raise NotImplementedError

    def numbered(self, row: Row) -> tuple[int, int]:
        """The number of a row, and what the clock shows."""
        if row[2] % _BAD == 0:
            raise ValueError("bad")
        return row[2], self._case.clock

    def emit(self, key: str, window: Window, found: _Rows) -> Any:
        return key, window.start, window.end, tuple(map(tuple, found))


class _Folded(_Verb):
    """An accumulator, which is merged where windows share rows."""

    def of(self, windows: Any, name: str) -> Stream[Any]:
        found: Stream[Any] = windows.fold(
            name=name, init=tuple, step=lambda acc, row: (*acc, self.numbered(row)), merge=lambda a, b: (*a, *b),
            emit=self.emit, state=_Rows,
        )  # fmt: skip
        return found


class _Aggregated(_Verb):
    """An aggregate."""

    def of(self, windows: Any, name: str) -> Stream[Any]:
        found = windows.aggregate(_Collected(self.numbered), name=name)
        result: Stream[Any] = found.map(lambda row: self.emit(row.key, Window(row.start, row.end), row.value))
        return result


class _Processed(_Verb):
    """The rows themselves; a result is refused, and with it the row that it comes from."""

    def of(self, windows: Any, name: str) -> Stream[Any]:
        found: Stream[Any] = windows.process(
            lambda key, window, rows: [self.emit(key, window, tuple(map(self.numbered, rows)))], name=name
        )
        return found

    def numbered(self, row: Row) -> tuple[int, int]:
        return row[2], 0

    def emit(self, key: str, window: Window, found: _Rows) -> Any:
        if found[-1][0] % _BAD == 0:
            raise ValueError("bad")
        return super().emit(key, window, found)


def _check(case: Case, ttl: Ttl, every: list[Row]) -> None:
    """Each row has its one result, of the rows before it, and a key goes on or begins anew as its clock says."""
    found = {held[-1][0]: (key, start, held) for key, start, _, held in case.values("one-by-one").elements()}
    assert len(found) == case.values("one-by-one").total(), "a row has two results"
    assert set(found) == {row[2] for row in every if row[2] % _BAD}, "a row is lost"
    followed = Counter(held[-2][0] for _, _, held in found.values() if len(held) > 1)
    assert max(followed.values(), default=1) == 1, "a row has two that follow"
    ends: dict[str, list[int]] = {}
    for key, start, held in found.values():
        ends.setdefault(key, []).append(start + len(held))
        if len(held) == 1:
            continue
        of, before, earlier = found[held[-2][0]]
        assert (of, before + len(earlier)) == (key, start + len(held) - 1)
        assert held[:-1] == earlier[-(len(held) - 1) :]
        if ttl.clock == "processing":
            assert held[-1][1] - held[-2][1] < ttl.seconds * 1000 + _SET_BACK, "a key outlives its time"
    if ttl.seconds == _LONG:
        _check_whole(ttl, ends, {key: [held[-1][1] for of, _, held in found.values() if of == key] for key in ends})


def _check_whole(ttl: Ttl, ends: Mapping[str, list[int]], times: Mapping[str, list[int]]) -> None:
    """Keys begin anew where the clock has leapt between two runs, and nowhere else."""
    for key, mine in ends.items():
        leaps = sum(later - earlier > ttl.seconds * 1000 + _SET_BACK for earlier, later in pairwise(sorted(times[key])))
        assert mine.count(1) == (1 + leaps if ttl.clock == "processing" else 1), f"{key} begins anew too often"


CASES: Mapping[str, Callable[[Case], None]] = {"expiring": expiring}
