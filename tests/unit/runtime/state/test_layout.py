"""Row keys are pinned for ever, tell their parts apart, and keep the rows of a key together."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import BytesCodec, KeyCodec, MsgpackCodec
from kafka_eos.runtime.state.entry_states import ElementNumberCodec
from kafka_eos.runtime.state.key_groups import group_of
from kafka_eos.runtime.state.row_keys import RowKeyCodec, compute_upper_bound

RAW: Any = BytesCodec()
SHAPES: dict[str, Any] = {
    "value": {},
    "value with namespace": {"namespace": RAW},
    "map": {"kind": "map", "entry": RAW},
    "map with namespace": {"kind": "map", "namespace": RAW, "entry": RAW},
}
parts = st.binary(max_size=6) | st.binary(min_size=250, max_size=300)


def layout(key: Any = RAW, **shape: Any) -> RowKeyCodec:
    return RowKeyCodec(StateDescriptor("s", key, RAW, **shape))


def test_row_keys_are_pinned() -> None:
    """Changing any of these makes every stored state unreadable."""
    long, group = b"x" * 300, b"\x00\x60"

    assert layout().row_keys([b"user-1"]) == [group + b"user-1"]
    assert layout(**SHAPES["value with namespace"]).row_keys([(b"user-1", b"w")]) == [group + b"\x06user-1w"]
    assert layout(**SHAPES["map"]).row_keys([(b"user-1", b"e")]) == [group + b"\x06user-1e"]
    assert layout(**SHAPES["map with namespace"]).row_keys([(b"user-1", b"w", b"e")]) == [group + b"\x06user-1\x01we"]
    assert layout(**SHAPES["map with namespace"]).row_keys([(b"user-1", long, b"e")]) == [
        group + b"\x06user-1\xff\x00\x00\x01\x2c" + long + b"e"
    ]
    assert ElementNumberCodec().encode(258) == b"\0\0\0\0\0\0\x01\x02"
    assert KeyCodec().encode(None) == b"\xc0"


@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_a_row_key_gives_its_place_back_and_no_two_places_share_one(shape: str, data: st.DataObject) -> None:
    rows = layout(**SHAPES[shape])
    place = parts if rows.is_single_part else st.tuples(*[parts] * len(rows.codecs))
    places = data.draw(st.lists(place, unique=True, max_size=8))
    keys = rows.row_keys(places)

    assert [rows.decode(key) for key in keys] == places
    assert len(set(keys)) == len(keys)


def test_the_border_between_parts_counts() -> None:
    rows = layout(**SHAPES["map"])

    assert rows.row_keys([(b"a", b"bc")]) != rows.row_keys([(b"ab", b"c")])
    with_namespace = layout(**SHAPES["map with namespace"])
    assert len(set(with_namespace.row_keys([(b"a", b"b", b"c"), (b"a", b"", b"bc"), (b"a", b"bc", b"")]))) == 3


@given(places=st.lists(st.tuples(parts, parts, parts), min_size=1, unique=True, max_size=12))
def test_rows_of_a_key_and_of_a_namespace_are_neighbours_within_the_group(
    places: list[tuple[bytes, bytes, bytes]],
) -> None:
    rows = layout(**SHAPES["map with namespace"])
    in_order = [rows.decode(key) for key in sorted(rows.row_keys(places))]
    for size in (1, 2):
        runs = [prefix for prefix, _ in itertools.groupby(in_order, key=lambda place: place[:size])]

        assert len(runs) == len(set(runs))
        for prefix in runs:
            first = rows.prefix(prefix)
            within = [k for k in rows.row_keys(places) if first <= k < compute_upper_bound(first)]

            assert {rows.decode(key) for key in within} == {place for place in places if place[:size] == prefix}
    assert all(key[:2] == group_of(place[0]).to_bytes(2, "big") for key, place in
               zip(rows.row_keys(places), places, strict=True))  # fmt: skip


@pytest.mark.parametrize("damaged", [b"\x00\x14", b"\x00\x14\x06user", b"\x00\x14\xff\0\0", b"\x00\x14\xff\0\0\0\x09x"])
def test_a_damaged_row_key_is_an_error(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="ends within a part"):
        layout(**SHAPES["map"]).decode(damaged)


def test_the_codec_of_keys_may_be_any() -> None:
    rows = layout(key=MsgpackCodec(Any), **SHAPES["map"])

    assert rows.decode(rows.row_keys([([1, "a"], b"e")])[0]) == ([1, "a"], b"e")
