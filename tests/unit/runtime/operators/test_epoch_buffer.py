"""The rows of an epoch by key: each key once, with the origin of its last row, whether it was in memory or not."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_eos.core.records import Batch, RawOrigin, RawRecord
from kafka_eos.runtime.operators.epoch_buffer import BundleOrigin, KeyedBundle
from kafka_eos.runtime.operators.operator import OperatorContext
from kafka_eos.runtime.state.epoch_scratch import MemorySpillStore, SpillStore
from tests.limits import set_limits


def raw(offset: int, topic: str = "rows") -> RawRecord:
    return RawRecord(topic, 2, offset, 1000 + offset, b"k%d" % offset, b"v", (("h", b"1"),))


def no_state(*_: Any) -> Any:
    raise AssertionError("a bundle has no state")


def bundle(scratch: SpillStore, keeps_raw: bool = True) -> KeyedBundle:
    return KeyedBundle(
        OperatorContext(
            "sum", no_state, no_state, scratch=lambda: scratch, writes_dead_letters=lambda source: keeps_raw
        )
    )


def batch(*offsets: int, topic: str = "rows", **columns: Any) -> Batch[Any]:
    origin = RawOrigin("in", [raw(offset, topic) for offset in offsets])
    return Batch(list(offsets), range(len(offsets)), origin, **columns)


def test_a_row_has_its_undecoded_record_where_one_was_kept_and_its_place_where_none_was() -> None:
    stream = ("in", "rows", 0)
    kept = raw(7)
    origin = BundleOrigin("in", "rows", [(stream, 1, 5, 50, "", None), (stream, 2, 7, 70, "", kept)])

    assert (origin.partitions, origin.offsets, origin.timestamps()) == ([1, 2], [5, 7], [50, 70])
    assert origin.raw(0) == RawRecord("rows", 1, 5, 50, None, None, ())
    assert origin.raw(1) is kept


@pytest.mark.parametrize("in_memory", [1, 100])
@pytest.mark.parametrize("keeps_raw", [True, False])
def test_each_key_comes_once_with_its_last_row(in_memory: int, keeps_raw: bool) -> None:
    scratch = MemorySpillStore(in_memory)
    found = bundle(scratch, keeps_raw)
    with set_limits(partial_aggregate_buckets=2, keys_per_partial_aggregate=2):
        found.note(batch(1, 2, 3), {"a": 0, "b": 2})
        found.note(batch(4, 5, 6, branch=["", "1-", "2-"]), {"c": 0, "a": 1})
        found.note(batch(8), {})
        found.note(batch(7, lane=3), {"d": 0})
        found.note(batch(9, topic="others"), {(1, "e"): 0})
        parts = list(found.drain())

        rows = {
            key: (out.origin.topic, out.lane, (out.branch or [""] * len(keys))[at], out.origin.raw(row))
            for keys, sums, out in parts
            for at, (key, row) in enumerate(zip(keys, out.origin_rows, strict=True))
        }
        assert sum(len(keys) for keys, _, _ in parts) == len(rows)
        assert all(sums == [] for _, sums, _ in parts)
        assert list(found.drain()) == []

    def kept(offset: int, topic: str = "rows") -> RawRecord:
        return raw(offset, topic) if keeps_raw else RawRecord(topic, 2, offset, 1000 + offset, None, None, ())

    assert rows == {
        "a": ("rows", 0, "1-", kept(5)),
        "b": ("rows", 0, "", kept(3)),
        "c": ("rows", 0, "", kept(4)),
        "d": ("rows", 3, "", kept(7)),
        (1, "e"): ("others", 0, "", kept(9, "others")),
    }


def test_another_epoch_begins_with_nothing_of_the_one_before() -> None:
    found = bundle(MemorySpillStore(1))
    found.note(batch(1, 2), {"a": 0, "b": 1})
    assert sorted(key for keys, _, _ in found.drain() for key in keys) == ["a", "b"]

    found.note(batch(3), {"b": 0})
    ((keys, _, rows),) = found.drain()
    assert (keys, list(rows.origin.offsets)) == (["b"], [3])


def test_what_was_set_aside_is_gone_when_it_is_closed() -> None:
    scratch = MemorySpillStore(1)
    found = bundle(scratch)
    found.note(batch(1, 2), {"a": 0, "b": 1})

    found.close()

    assert list(scratch.drain()) == []


def test_keys_are_set_aside_when_there_are_more_than_may_be_in_memory() -> None:
    scratch = MemorySpillStore(2)
    found = bundle(scratch)
    found.note(batch(1, 2), {"a": 0, "b": 1})
    assert list(scratch.drain()) == []

    found.note(batch(3), {"c": 0})
    assert list(scratch.drain()) != []
