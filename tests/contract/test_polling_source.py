"""A source of four methods keeps the contract, with several splits; what cannot be read on is told."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.connectors.polling_source import PollingReader, PollingSource, _offset
from kafka_eos.core.errors import ConfigError, InputLost, PoisonRecord
from kafka_eos.core.ids import SplitId, Term
from kafka_eos.core.json_values import Json, Positions
from kafka_eos.core.records import Batch, RawRecord
from kafka_eos.testing import ContractBroken, SourceUnderTest, check_source

CTX = JobContext("job", Term(1), {})
Held = dict[str, dict[int, str]]
"""Numbers as text by split and offset."""


class Numbers(PollingSource[int]):
    def __init__(self, held: Held) -> None:
        self.held = held

    def describe(self) -> Mapping[str, Json]:
        return {"connector": "numbers"}

    def splits(self) -> Mapping[str, range]:
        return {split: range(min(rows), max(rows) + 1) for split, rows in self.held.items()}

    def read(self, split: str, first: int, most: int) -> Sequence[tuple[int, bytes]]:
        rows = self.held[split]
        return [(offset, rows[offset].encode()) for offset in sorted(rows) if offset >= first][:most]

    def decode(self, data: bytes) -> int:
        return int(data)


def opened(source: Numbers, positions: Any = None, services: Services | None = None) -> Any:
    positions = source.discover(CTX, None) if positions is None else positions
    return source.reader(TaskContext(CTX, 0, 1, "numbers", services or Services()), positions)


def numbers(reader: type[PollingReader[int]] = PollingReader) -> Callable[[], SourceUnderTest]:
    class Source(Numbers):
        def reader(self, ctx: TaskContext, positions: Positions) -> PollingReader[int]:
            return reader(self, ctx, positions)

    def fresh() -> SourceUnderTest:
        held: Held = {"a/0": {7: "1", 8: "2", 9: "3"}, "a/1": {0: "4", 1: "5"}, "b/0": {0: "6"}}

        def grow() -> Sequence[int]:
            held["a/1"] |= {2: "7", 3: "8"}
            held["c/0"] = {5: "9"}
            return [7, 8, 9]

        def lose() -> None:
            for rows in held.values():
                for offset in [*rows][:-1]:
                    del rows[offset]

        def spoil() -> Sequence[int]:
            held["a/1"] |= {2: "x", 3: "x", 4: "7", 5: "x"}
            held["b/0"] |= {1: "x", 2: "8"}
            return [7, 8]

        return SourceUnderTest(lambda: Source(held), [1, 2, 3, 4, 5, 6], grow, lose, spoil, timeout=1.0)

    return fresh


def test_it_keeps_the_contract_of_a_source() -> None:
    check_source(numbers())


class Passing(PollingReader[int]):
    """A record that has stopped the job is not read again."""

    def _decoded(self, raws: Sequence[RawRecord]) -> Batch[int]:
        try:
            return super()._decoded(raws)
        except PoisonRecord:
            self._next[SplitId(f"{raws[0].topic}/{raws[0].partition}")] += len(raws)
            raise


class Miscounting(PollingReader[int]):
    """Its position counts the values that it returns, and not the records that it passes."""

    def _decoded(self, raws: Sequence[RawRecord]) -> Batch[int]:
        batch = super()._decoded(raws)
        self._next[SplitId(f"{raws[0].topic}/{raws[0].partition}")] -= len(raws) - len(batch)
        return batch


class Unassigned(PollingReader[int]):
    """It has reached the end of whatever it does not read."""

    def has_reached(self, ends: Positions) -> bool:
        return super().has_reached({split: end for split, end in ends.items() if split in self._next})


class Behind(PollingReader[int]):
    """It has reached an end when it is behind it."""

    def has_reached(self, ends: Positions) -> bool:
        return super().has_reached({split: {"offset": _offset(end) + 1} for split, end in ends.items()})


@pytest.mark.parametrize(
    ("reader", "check", "why"),
    [
        (Passing, "refused", "were rejected, not"),
        (Miscounting, "refused", "is short of"),
        (Unassigned, "grows", "reached the ends of {'c/0'}, which it was not assigned"),
        (Behind, "ends-stay", "has not reached its own positions"),
    ],
)
def test_a_reader_that_breaks_the_contract_is_named(reader: type[PollingReader[int]], check: str, why: str) -> None:
    with pytest.raises(ContractBroken, match=f"(?s)^{check}: .*{why}"):
        check_source(numbers(reader), check)


def test_a_record_that_cannot_be_decoded_is_refused_and_its_neighbours_are_read() -> None:
    refused: list[tuple[int, bytes | None]] = []

    def refuse(operator: str, raw: RawRecord, error: Exception) -> None:
        refused.append((raw.offset, raw.value))

    reader = opened(Numbers({"a/0": {0: "1", 1: "x", 2: "3"}}), services=Services(refuse))
    batch = reader.poll(10, 0.0)

    assert (batch.values, [batch.origin.offsets[row] for row in batch.origin_rows]) == ([1, 3], [0, 2])
    assert refused == [(1, b"x")]


def test_splits_are_read_in_turn() -> None:
    reader = opened(Numbers({f"a/{n}": {offset: str(n) for offset in range(5)} for n in range(2)}))

    assert [reader.poll(1, 0.0).values for _ in range(4)] == [[0], [1], [0], [1]]


def test_a_gap_is_lost_input_and_nothing_has_moved() -> None:
    reader = opened(Numbers({"a/0": {0: "1", 2: "3"}}))

    with pytest.raises(InputLost, match="a/0: offset 1 is missing.*the next one is 2"):
        reader.poll(10, 0.0)
    assert reader.positions() == {"a/0": {"offset": 0}}


def test_a_record_of_before_is_not_taken_for_the_next_one() -> None:
    reader = opened(Answering({"a/0": range(3)}, [(0, b"1")]))
    assert reader.poll(1, 0.0).values == [1]

    with pytest.raises(InputLost, match="a/0: offset 1 is missing.*the next one is 0"):
        reader.poll(1, 0.0)


def test_a_split_that_has_nothing_holds_back_no_other_one() -> None:
    assert opened(Numbers({"a/0": {}, "a/1": {0: "1"}}), {"a/0": {"offset": 0}, "a/1": {"offset": 0}}).poll(1, 0.0)


@pytest.mark.parametrize(
    ("known", "error", "said"),
    [
        ({"a/0": {"offset": 4}}, InputLost, "a/0 was read up to offset 4 but now has 5 to 6"),
        ({"a/0": {"offset": 8}}, InputLost, "a/0 was read up to offset 8 but now has 5 to 6"),
        ({"b/0": {"offset": 5}}, ConfigError, "the checkpoint contains b/0, which does not exist"),
        ({"a/0": {"row": 5}}, ConfigError, "not a position of this source"),
    ],
    ids=["expired", "begun anew", "another input", "another source"],
)
def test_a_position_that_cannot_be_served_is_told(known: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Numbers({"a/0": {5: "1", 6: "2"}}).discover(CTX, {SplitId(split): at for split, at in known.items()})


class Answering(Numbers):
    """Answers what it is told to answer."""

    def __init__(self, splits: Any, records: Any = ()) -> None:
        super().__init__({})
        self.there, self.records = splits, records

    def splits(self) -> Mapping[str, range]:
        return self.there  # type: ignore[no-any-return]

    def read(self, split: str, first: int, most: int) -> Sequence[tuple[int, bytes]]:
        return self.records  # type: ignore[no-any-return]


def test_a_split_that_was_emptied_is_told_with_what_to_do() -> None:
    with pytest.raises(InputLost, match="a/0 was read up to offset 1 but now has nothing: .* a new name"):
        Answering({"a/0": range(0)}).discover(CTX, {SplitId("a/0"): {"offset": 1}})


@pytest.mark.parametrize(
    ("splits", "said"),
    [
        ({"a": range(1)}, "splits() has 'a', which is not a split name: use TOPIC/PARTITION"),
        ({"/0": range(1)}, "splits() has '/0', which is not a split name"),
        ({"a/x": range(1)}, "splits() has 'a/x', which is not a split name"),
        ({"a/0": (0, 5)}, "splits() has (0, 5) for a/0: return range(first, end)"),
        ({"a/0": range(0, 9, 2)}, "splits() has range(0, 9, 2) for a/0"),
        ({"a/0": range(-1, 9)}, "splits() has range(-1, 9) for a/0"),
    ],
)
def test_splits_that_are_none_are_told_with_what_to_return(splits: Any, said: str) -> None:
    for ask in (lambda source: source.discover(CTX, None), lambda source: source.get_end_positions(CTX)):
        with pytest.raises(ConfigError, match=re.escape(f"Answering.{said}")):
            ask(Answering(splits))


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (None, "returned None: return a list of (offset, bytes), which is empty if"),
        ([b"1"], "returned a record b'1': return pairs of an int, the offset, and bytes"),
        ([(0, "1")], "returned a record (0, '1'): return pairs"),
        ([("0", b"1")], "returned a record ('0', b'1'): return pairs"),
        ([(0, b"1"), (1, b"2"), (2, b"3")], "returned 3 records: return at most 2"),
    ],
)
def test_records_that_are_none_are_told_with_what_to_return_and_nothing_has_moved(records: Any, said: str) -> None:
    reader = opened(Answering({"a/0": range(3)}, records))

    with pytest.raises(ConfigError, match=re.escape(f"Answering.read('a/0', 0, 2) {said}")):
        reader.poll(2, 0.0)
    assert reader.positions() == {"a/0": {"offset": 0}}


def test_check_source_ends_when_an_end_is_never_reached() -> None:
    """As of a source that says a range of what may come one day."""
    source = Answering({"a/0": range(10)})

    with pytest.raises(ContractBroken, match=r"^reads-all: .*\n  no record arrived within 0.1 seconds: .*'offset': 0"):
        check_source(lambda: SourceUnderTest(lambda: source, [1, 2, 3, 4], timeout=0.1))
