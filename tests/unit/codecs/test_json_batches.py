"""Many JSON values at once are encoded and decoded as one by one, or not at all."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.codecs.json_codec import JsonCodec
from tests.examples import examples


class Order(msgspec.Struct):
    id: int = 0
    note: Any = None


@dataclasses.dataclass
class Payment:
    id: int
    amount: float


class Raw(msgspec.Struct):
    inner: msgspec.Raw


ORDERS = JsonCodec[Order](Order)
plain = st.none() | st.integers() | st.text() | st.floats() | st.lists(st.integers() | st.text(), max_size=2)
orders = st.builds(Order, st.integers(-3, 2**70) | st.text(max_size=2), plain)
pieces = st.sampled_from(
    [
        *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\n", b" ", b"\r"),
        *(b'{"id":1}', b'{"id":', b'"note":', b"1", b"null", b'{"note":{"x":"}', b'","y":[{', b"}]}"),
    ]
)
data = st.lists(pieces, max_size=6).map(b"".join)


@examples(300)
@given(st.lists(data | orders.map(msgspec.json.encode), max_size=5))
def test_records_are_decoded_at_once_as_one_by_one(records: list[bytes]) -> None:
    """Whatever they are: not even three of which one has two values and the two others half of one each."""
    found = ORDERS.decode_batch(records)

    if found is not None:
        assert found == [ORDERS.decode(record) for record in records]


@examples(100)
@given(st.lists(orders, max_size=4))
def test_values_are_encoded_at_once_as_one_by_one(values: list[Order]) -> None:
    encoded = ORDERS.encode_batch(values)

    try:
        one_by_one = [ORDERS.encode(value) for value in values]
    except ValueError:
        assert encoded is None
    else:
        assert encoded in (None, one_by_one)


def test_usual_records_are_not_taken_one_by_one() -> None:
    values = [Payment(1, 2.5), Payment(2, 0.1)]
    codec = JsonCodec[Payment](Payment)

    encoded = codec.encode_batch(values)

    assert encoded == [b'{"id":1,"amount":2.5}', b'{"id":2,"amount":0.1}']
    assert codec.decode_batch(encoded) == values


@pytest.mark.parametrize(
    "records",
    [
        [b'{"id":1}', b""],
        [b'{"id":1}', b'{"id":"one"}'],
        [b'{"note":[1', b"2]}", b'{"id":1}{"id":2}'],
        [b'{"id":1}', b'{"id":1}{"id":2}'],
        [b"null"],
    ],
)
def test_a_record_that_cannot_be_decoded_sends_all_one_by_one(records: list[bytes]) -> None:
    assert ORDERS.decode_batch(records) is None


def test_one_value_that_would_come_back_as_another_sends_all_one_by_one() -> None:
    codec = JsonCodec[Payment](Payment)

    assert codec.encode_batch([Payment(1, 2.5), Payment(2, math.nan)]) is None
    with pytest.raises(ValueError, match="could not be read back"):
        codec.encode(Payment(2, math.nan))


def test_a_decoder_that_ends_the_loop_early_sends_all_one_by_one() -> None:
    class Counted(pydantic.BaseModel):
        id: int

        @pydantic.model_validator(mode="after")
        def stop(self) -> Counted:
            if self.id == 2:
                raise StopIteration
            return self

    codec = JsonCodec[Counted](Counted)

    assert codec.decode_batch([b'{"id":1}', b'{"id":3}']) == [Counted(id=1), Counted(id=3)]
    assert codec.decode_batch([b'{"id":1}', b'{"id":2}', b'{"id":3}']) is None


def test_raw_json_may_have_lines_of_its_own() -> None:
    codec = JsonCodec[Raw](Raw)

    assert codec.encode_batch([Raw(msgspec.Raw(b"[1,\n2]"))]) is None
