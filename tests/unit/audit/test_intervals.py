"""Which input an epoch has processed, as the ledger tells it."""

from __future__ import annotations

from msgspec.structs import replace

from kafka_eos.audit.facts.epoch_intervals import intervals, spans, starts
from kafka_eos.core.ids import Epoch, EpochId, SplitId, Term
from kafka_eos.core.json_values import Position
from kafka_eos.storage.epoch_ledger import LedgerEntry


def epoch(number: int, term: int = 1) -> EpochId:
    return EpochId(Epoch(number), Term(term))


def entry(number: int, *, in_flight: bool = False, **splits: int | tuple[int, int]) -> LedgerEntry:
    """``_0=5``: partition 0 of orders is read next at 5; ``_0=(5, 2)``: and was first read at 2."""
    sources = {"orders": {SplitId(f"in/{name[1:]}"): _position(at) for name, at in splits.items()}}
    return LedgerEntry(epoch(number), 0, "", 1, in_flight, sources, {}, 0, {}, {})


def _position(at: int | tuple[int, int]) -> Position:
    return {"offset": at} if isinstance(at, int) else {"offset": at[0], "begin": at[1]}


def found(*entries: LedgerEntry, successor: bool = False) -> list[tuple[int, int, int, int]]:
    """Epoch, partition, begin and end."""
    every = list(intervals(entries, successor))
    return [(each.epoch.epoch.n, each.partition, each.begin, each.end) for each in every]


def test_a_position_that_is_no_offset_tells_nothing() -> None:
    """As that of a row in a file or in a table: an output of it is of no other epoch for that."""

    def read(number: int, row: int, offset: int) -> LedgerEntry:
        told = entry(number, _0=offset)
        return replace(told, sources={**told.sources, "history": {SplitId("purchases/0"): {"row": row}}})

    entries = read(0, 0, 3), read(1, 7, 5)
    assert found(*entries) == [(0, 0, 3, 3), (1, 0, 3, 5)]
    assert starts(entries, successor=False) == {"orders/in": {0: 3}}
    assert spans(entries) == {"orders/in": {0: [3, 5]}}


def test_a_stream_has_the_name_of_its_topic_as_provenance_has_it() -> None:
    read = replace(entry(0), sources={"history": {SplitId("июнь/1/2"): _position(4)}})

    assert starts([read], successor=False) == {"history/%D0%B8%D1%8E%D0%BD%D1%8C%2F1": {2: 4}}


def test_an_epoch_reads_from_where_the_one_before_it_stopped() -> None:
    assert found(entry(0, _0=3, _1=0), entry(1, _0=5, _1=0), entry(2, _0=5, _1=4)) == [
        (0, 0, 3, 3), (0, 1, 0, 0), (1, 0, 3, 5), (1, 1, 0, 0), (2, 0, 5, 5), (2, 1, 0, 4),
    ]  # fmt: skip


def test_of_an_epoch_whose_predecessor_is_unknown_nothing_is_told() -> None:
    assert found(entry(7, _0=5), entry(8, _0=9)) == [(8, 0, 5, 9)]


def test_an_heir_of_a_savepoint_begins_where_that_ended() -> None:
    assert found(entry(7, _0=(5, 1)), entry(8, _0=(9, 1)), successor=True) == [(7, 0, 5, 5), (8, 0, 5, 9)]
    assert starts([entry(7, _0=(5, 1)), entry(8, _0=(9, 1))], successor=True) == {"orders/in": {0: 5}}


def test_a_split_that_came_later_tells_itself_where_it_began() -> None:
    entries = entry(0, _0=3), entry(1, _0=5, _1=(8, 2), _2=6)
    assert found(*entries) == [(0, 0, 3, 3), (1, 0, 3, 5), (1, 1, 2, 8)]
    assert starts(entries, successor=False) == {"orders/in": {0: 3, 1: 2}}


def test_what_was_under_way_is_processed_later() -> None:
    entries = [
        entry(0, _0=0),
        entry(1, _0=5, in_flight=True),
        entry(2, _0=7, in_flight=True),
        entry(3, _0=9),
        entry(4, _0=11),
    ]
    assert found(*entries) == [(0, 0, 0, 0), (1, 0, 0, 5), (2, 0, 0, 7), (3, 0, 0, 9), (4, 0, 9, 11)]


def test_where_a_job_began_is_unknown_if_its_first_epochs_are() -> None:
    assert starts([entry(7, _0=5), entry(8, _0=9, _1=(3, 2))], successor=False) is None


def test_a_span_of_input_ends_where_an_epoch_ended_with_nothing_under_way() -> None:
    entries = [entry(0, _0=0), entry(1, _0=5, in_flight=True), entry(2, _0=7), entry(3, _0=9, _1=4)]
    assert spans(entries) == {"orders/in": {0: [0, 7, 9], 1: [0, 0, 4]}}


def test_what_a_job_went_back_behind_is_no_end_of_a_span() -> None:
    """It went on from a savepoint of epoch 1."""
    entries = [entry(1, _0=5), entry(2, _0=9), entry(3, _0=7)]
    assert spans(entries) == {"orders/in": {0: [5, 7]}}


def test_a_source_that_is_left_out_later_ends_where_it_was_read_last() -> None:
    one = entry(1, _0=5)
    assert spans([one, LedgerEntry(epoch(2), 0, "", 1, False, {}, {}, 0, {}, {})]) == {"orders/in": {0: [5, 5]}}


def test_topics_of_one_source_are_told_apart() -> None:
    """Partition 0 of each; also where a later epoch is the first that knows of one."""
    places = [{"a/0": _position(1)}, {"a/0": _position(3), "b/0": _position((7, 2))}]
    entries = [
        LedgerEntry(
            epoch(n), 0, "", 1, False, {"orders": {SplitId(split): at for split, at in each.items()}}, {}, 0, {}, {}
        )
        for n, each in enumerate(places)
    ]

    assert [(each.stream, each.begin, each.end) for each in intervals(entries, False)] == [
        ("orders/a", 1, 1),
        ("orders/a", 1, 3),
        ("orders/b", 2, 7),
    ]
    assert starts(entries, successor=False) == {"orders/a": {0: 1}, "orders/b": {0: 2}}
