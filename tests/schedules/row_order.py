"""Rows of a key keep their order, and none comes twice or not at all: on every way from the source to a sink.

A row says which it is of its key and its split. Operators with state count along, so that they fail at the first row
that is lost, comes twice, or overtakes another, whenever workers die and with however many the job goes on. Sinks are
compared in order, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from kafka_eos import ProcessContext, ProcessFunction, Stream
from kafka_eos.abc.sink import DeadLetters
from tests.schedules.job import ProvenanceSink, RandomSplitSource
from tests.schedules.pipelines import Case

_SPLITS = range(4)
_KEYS = "abcde"
Row = tuple[str, int, int]
"""Key, split, and how many rows of both were before it."""


def _random_splits(case: Case) -> dict[int, list[Row]]:
    """Of each split."""
    found: dict[int, list[Row]] = {}
    for split in _SPLITS:
        before = Counter[str]()
        found[split] = []
        for _ in range(case.chance.randint(case.max_rows // 2, 2 * case.max_rows)):
            key = case.chance.choice(_KEYS)
            found[split].append((key, split, before[key]))
            before[key] += 1
    return found


class OrderCheck(ProcessFunction[Any, Row, Row]):
    """Hands rows on as they come, and fails unless each is the one behind the last of its key and split."""

    def open(self, ctx: ProcessContext) -> None:
        self.next = ctx.map_state("next", tuple[str, int], int)

    def process(self, key: Any, value: Row) -> Iterable[Row]:
        *of, number = value
        place = tuple(of)
        due = self.next.get(place) or 0
        assert number == due, f"row {number} of {place} comes where {due} is due"
        self.next.put(place, due + 1)
        yield value


def ordered(case: Case) -> None:
    """Through one exchange by key, through two, and where rows of both, which stay where they are, meet."""
    splits = _random_splits(case)
    letters = case.sinks["letters"] = ProvenanceSink()
    source = RandomSplitSource("stream", splits, case.chance)
    stream: Stream[Row] = case.pipeline.source(source, name="stream", on_error=DeadLetters(letters))
    once = stream.key_by(_key, name="by-key", values=Row).process(OrderCheck, name="first")
    pairs = once.key_by(_pair, name="by-pair", values=Row)
    twice = pairs.process(OrderCheck, name="second")
    together = twice.map(_second, name="behind-second").union(once.map(_first, name="behind-first"), name="both")
    for name, found in {"once": once, "twice": twice, "both": together}.items():
        case.sink(found, name)
        case.checks.append(partial(_check_order, case, name, splits))
    sums = stream.key_by(_key, name="by-key-again", values=Row).fold(
        name="sum", init=int, step=lambda count, row: count + 1, merge=lambda one, other: one + other
    )
    case.sink(sums, "sums")
    case.checks.append(partial(_check_sums, case, splits))
    for name, found in {"early": stream, "late": twice}.items():
        case.sink(found.map(_refuse_some, name=f"refused-{name}"), name)
    case.checks.append(partial(_check_letters, case, splits))


def _refuse_some(row: Row) -> Row:
    if row[2] % 3 == 0:
        raise ValueError("refused")
    return row


def _key(row: Row) -> str:
    return row[0]


def _pair(row: Row) -> tuple[str, int]:
    return ("ab" if row[0] in "ab" else "cde", row[1] % 2)


def _first(row: Row) -> tuple[str, Row]:
    return "first", row


def _second(row: Row) -> tuple[str, Row]:
    return "second", row


def _check_order(case: Case, name: str, splits: Mapping[int, list[Row]]) -> None:
    found: dict[Any, list[int]] = defaultdict(list)
    for _, value in case.sinks[name].committed:
        way, row = value if name == "both" else ("", value)
        key, split, number = row
        found[way, key, split].append(number)
    counts = Counter((key, split) for rows in splits.values() for key, split, _ in rows)
    ways = ("first", "second") if name == "both" else ("",)
    assert found == {(way, *of): list(range(count)) for of, count in counts.items() for way in ways}, name


def _check_sums(case: Case, splits: Mapping[int, list[Row]]) -> None:
    """In each epoch, also in an aborted one, a key has one sum at most. They grow; the last is of all its rows."""
    found: dict[str, int] = {}
    for values in case.sinks["sums"].by_epoch.values():
        assert len(values) == len(dict(values)), "an epoch has two sums of one key"
        assert all(found.get(key, 0) < count for key, count in values), "a sum does not grow"
        found.update(values)
    assert found == Counter(key for rows in splits.values() for key, *_ in rows)


def _check_letters(case: Case, splits: Mapping[int, list[Row]]) -> None:
    """Two operators refuse the same records, which are written in two places of a worker."""
    refused, kept = Counter[Any](), Counter[Row]()
    for split, rows in splits.items():
        for offset, row in enumerate(rows):
            if row[2] % 3:
                kept[row] += 1
            else:
                refused.update((split, offset, f"refused-{name}") for name in ("early", "late"))
    letters = ((each.raw.partition, each.raw.offset, each.operator) for _, each in case.sinks["letters"].committed)
    assert Counter(letters) == refused
    assert case.values("early") == case.values("late") == kept


def async_requests(case: Case) -> None:
    """Through requests whose rows wait at barriers, before and behind an exchange."""
    splits = _random_splits(case)

    async def ask(row: Row) -> Row:
        for _ in range(case.chance.randint(0, 3)):
            await asyncio.sleep(0)
        return row

    given: dict[str, Any] = {"values": Row, "capacity": case.chance.choice([1, 3])}
    stream: Stream[Row] = case.pipeline.source(RandomSplitSource("stream", splits, case.chance), name="stream")
    answered = stream.async_map(ask, name="ask", **given)
    once = answered.key_by(_key, name="by-key", values=Row).process(OrderCheck, name="first")
    again = once.async_map(ask, name="ask-again", **given)
    twice = again.key_by(_pair, name="by-pair", values=Row).process(OrderCheck, name="second")
    for name, found in {"answered": answered, "once": once, "again": again, "twice": twice}.items():
        case.sink(found, name)
        case.checks.append(partial(_check_order, case, name, splits))


def rounds(case: Case) -> None:
    """Rows go round a loop, each as often as all others, and to the owner of their key each time."""
    splits = _random_splits(case)
    times = case.chance.randint(1, 4)
    stream: Stream[Row] = case.pipeline.source(RandomSplitSource("stream", splits, case.chance), name="stream")

    def body(rows: Stream[_Turn]) -> tuple[Stream[_Turn], Stream[_Turn]]:
        turned = rows.key_by(_key_of_turn, name="in-loop", values=_Turn).process(TurnCount, name="turn")
        return turned.filter(lambda turn: turn[1] < times, name="again"), turned.filter(lambda turn: turn[1] >= times)

    begun = stream.map(lambda row: (row, 0), name="begin")
    case.sink(begun.iterate(body, name="rounds", values=_Turn), "rounds")
    case.expect(["rounds"], lambda: Counter((row, times) for rows in splits.values() for row in rows))


_Turn = tuple[Row, int]
"""A row, and how often it has gone round."""


class TurnCount(ProcessFunction[str, _Turn, _Turn]):
    """Counts along how often each row has gone round."""

    def open(self, ctx: ProcessContext) -> None:
        self.turns = ctx.map_state("turns", Row, int)

    def process(self, key: str, value: _Turn) -> Iterable[_Turn]:
        row, turn = value
        due = self.turns.get(row) or 0
        assert turn == due, f"{row} is at turn {turn}, where {due} is due"
        self.turns.put(row, turn + 1)
        yield row, turn + 1


def _key_of_turn(turn: _Turn) -> str:
    return turn[0][0]


CASES: Mapping[str, Callable[[Case], None]] = {"ordered": ordered, "requests": async_requests, "rounds": rounds}
