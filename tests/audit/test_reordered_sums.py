"""Which texts count as the same where parts were added up in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from pyspark.sql import functions as F

from kafka_eos.abc.codec import Codec
from kafka_eos.audit import Check
from kafka_eos.audit.checks import database_tables as relations
from kafka_eos.audit.tables.float_tolerance import NEAR, floats, rounding_error, same_value, value_hash
from kafka_eos.audit.tables.readable_values import text_of
from kafka_eos.codecs import AvroCodec, MsgpackCodec

Pair = tuple[bytes | None, bytes | None]


def same(spark: Any, pairs: Sequence[Pair], *, summed: bool = True, tolerance: float = NEAR) -> list[bool]:
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
    return [
        bool(row["same"])
        for row in said.select("n", same_value(tolerance=tolerance).alias("same")).orderBy("n").collect()
    ]


ALIKE: Sequence[Pair] = (
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
    assert same(spark, ALIKE) == [True] * len(ALIKE)
    assert same(spark, ALIKE, summed=False) == [one == other for one, other in ALIKE]


def test_a_sum_that_lacks_small_parts_is_near_and_no_order_of_its_parts_explains_it(spark: Any) -> None:
    """Two of 2.5 were lost from five billion. Of a million times 0.1 the order of additions changes the sixth place."""
    lost = [(b"5000000000.0", b"4999999995.0")]
    parts = [(b"100000.0", b"100000.00000133288")]

    assert [True] == same(spark, lost) == same(spark, parts, tolerance=rounding_error(1_000_000))
    assert [False] == same(spark, lost, tolerance=rounding_error(1_000))
    assert NEAR == rounding_error(10**9)


def test_floats_of_tables_with_one_row_a_key_are_compared(spark: Any) -> None:
    """Where the newest output is not known, the row must be one of the outputs."""
    rows = [(1, b"[0.30000000000000004]", b"[0.3]", "same"), (2, b"[0.4]", b"[0.3]", "other")]
    table = spark.createDataFrame(rows, "key_hash long, seen binary, made binary, sink string")
    place = {"topic": F.lit("t"), "partition": F.lit(0), "offset": F.col("key_hash"), "preview": F.lit("row")}

    def compared(column: str) -> dict[str, Any]:
        value, summed = F.col(column), F.lit(True)
        return {"key_hash": F.col("key_hash"), "value_hash": value_hash(value, summed), "floats": floats(value, summed)}

    there = table.select("sink", *(made.alias(name) for name, made in {**compared("seen"), **place}.items()))
    others = {"update": F.lit(1), "source": F.lit("s"), "lane": F.lit(0)}
    should = {f"e_{name}": made for name, made in {**compared("made"), **place, **others}.items()}
    should |= {"id": F.lit("s/t/0/0/0.0"), "grp": F.col("key_hash"), "loose": F.lit(False)}
    made = table.select("sink", *(column.alias(name) for name, column in should.items()))

    for blind in ([], ["same", "other"]):
        found = relations.flagged(relations.met(there, made, blind)).collect()
        assert [(Check.WRONG_TOTAL.name, "other")] == [(row["check"], row["sink"]) for row in found]


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
