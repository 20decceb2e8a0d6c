"""Which texts count as the same where parts were added up in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from pyspark.sql import functions as F

from kafka_eos.abc.codec import Codec
from kafka_eos.audit.tables.float_tolerance import floats, same_value, value_hash
from kafka_eos.audit.tables.readable_values import text_of
from kafka_eos.codecs import AvroCodec, MsgpackCodec

Pair = tuple[bytes | None, bytes | None]


def same(spark: Any, pairs: Sequence[Pair], *, summed: bool = True) -> list[bool]:
    """Of each pair, whether its two count as the same."""
    rows = [(n, *pair, summed) for n, pair in enumerate(pairs)]
    table = spark.createDataFrame(rows, "n int, one binary, other binary, summed boolean")
    said = table.select(
        "n",
        *(
            made.alias(f"{prefix}{name}")
            for column, prefix in (("one", ""), ("other", "e_"))
            for name, made in (
                ("value_hash", value_hash(F.col(column), F.col("summed"))),
                ("floats", floats(F.col(column), F.col("summed"))),
            )
        ),
    )
    return [bool(row["same"]) for row in said.select("n", same_value().alias("same")).orderBy("n").collect()]


NEAR: Sequence[Pair] = (
    (b'{"a":0.30000000000000004}', b'{"a":0.3}'),
    (b"[1.0,-2.5e-7]", b"[1.0000000000000002,-2.5000000000000001e-07]"),
    (b"1e+16", b"1.0000000000000002e16"),
    (b"ann=0.1", b"ann=0.10000000000000001"),
    (b"-0.0", b"0.0"),
    (b"\xff\xfe", b"\xff\xfe"),
    (None, None),
)
DIFFERENT: Sequence[Pair] = (
    (b'{"a":0.3}', b'{"a":0.30000001}'),
    (b'{"a":0.3,"b":1.5}', b'{"a":1.5,"b":0.3}'),
    (b'{"a":[0.3]}', b'{"a":[0.3,0.3]}'),
    (b'{"a":3}', b'{"a":4}'),
    (b'{"a":1000000000000001}', b'{"a":1000000000000002}'),
    (b'{"v":"x1.50000000001"}', b'{"v":"x1.50000000002"}'),
    (b'{"v":"1.50000000001"}', b'{"v":"1.50000000002"}'),
    (b'{"a":0.3}', b'{"b":0.3}'),
    (b"\xff\xfe", b"\xfe\xff"),
    (b"0.1", None),
)


def test_floats_that_are_near_are_the_same(spark: Any) -> None:
    assert same(spark, NEAR) == [True] * len(NEAR)
    assert same(spark, NEAR, summed=False) == [one == other for one, other in NEAR]


def test_all_else_is_compared_byte_for_byte(spark: Any) -> None:
    assert same(spark, DIFFERENT) == [False] * len(DIFFERENT)


class Part(msgspec.Struct):
    name: str
    sums: list[float]


class Rounding(Codec[Any]):
    """A codec that keeps one digit, and takes any text in place of a number's end."""

    name, schema = "rounding", None

    def encode(self, value: Any) -> bytes:
        return b"%.1f" % value[0]

    def decode(self, data: bytes) -> Any:
        return [float(data[:3])]


def test_a_format_that_is_no_text_is_compared_by_what_it_decodes_to() -> None:
    codec = AvroCodec(Part)
    data = codec.encode(Part("at 1.5", [0.1 + 0.2, 1e300, float("inf")]))

    assert "{'name': 'at 1.5', 'sums': [0.30000000000000004, 1e+300, inf]}" == text_of(codec, data)
    assert "[1, 0.5]" == text_of(MsgpackCodec(Any), MsgpackCodec(Any).encode([1, 0.5]))


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (AvroCodec(Part), b"\xff"),  # nothing that the codec wrote
        (AvroCodec(Part), AvroCodec(Part).encode(Part("a", [])) + b"!"),
        (MsgpackCodec(str), MsgpackCodec(str).encode("0.3")),  # a text, which needs no other
        (Rounding(), b"1.5 and more"),
    ],
)
def test_bytes_that_say_more_than_they_decode_to_stay_what_they_are(codec: Any, data: bytes) -> None:
    assert text_of(codec, data) is None
