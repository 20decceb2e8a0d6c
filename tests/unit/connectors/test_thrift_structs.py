"""Structs of Thrift are read as pyarrow reads them, or refused."""

from __future__ import annotations

from io import BytesIO

import pytest

from kafka_eos.connectors._shared.thrift_structs import Fields, ThriftType, read_struct

FIELDS: Fields = {1: ThriftType.INT, 2: [ThriftType.LONG], 3: {1: ThriftType.BINARY}, 4: [{1: ThriftType.INT}]}


def test_known_fields_are_returned_and_others_are_skipped() -> None:
    known = b"\x15\x03" + b"\x19\x26\x02\x04" + b"\x1c\x18\x02ab\x00" + b"\x19\x1c\x15\x08\x00"
    others = b"\x11" + b"\x17" + bytes(8) + b"\x19\x21\x01\x02" + b"\x19\x28\x01a\x00" + b"\x1c\x15\x02\x00"

    found = read_struct(BytesIO(known + others + b"\x00"), FIELDS)

    assert found == {1: -2, 2: [1, 2], 3: {1: 2}, 4: [{1: 4}]}


@pytest.mark.parametrize(
    "data",
    {
        "a list with elements of another type": b"\x29\x25\x02\x04\x00",
        "a field with another type": b"\x16\x02\x00",
        "a struct that occurs twice": b"\x3c\x00\x0c\x06\x00\x00",
        "a number that is too large": b"\x15\xff\xff\xff\xff\xff\x01\x00",
        "a field whose number wraps around": b"\x05\x80\x80\x08\x02\x00",
        "a field whose number is negative": b"\x05\x01\x02\x00",
        "a text longer than a Thrift text": b"\x58\xff\xff\xff\xff\x7f",
        "a list longer than a Thrift list": b"\x59\xf5\xff\xff\xff\xff\x7f",
        "a map": b"\x5b\x00\x00",
        "a stop with a number": b"\x10",
        "structs in structs": b"\x5c" + b"\x1c" * 40,
        "lists in lists": b"\x59" + b"\x19" * 40,
    }.values(),
)
def test_what_another_reader_understands_differently_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="field|struct|number|too long"):
        read_struct(BytesIO(data), FIELDS)


@pytest.mark.parametrize("data", [b"", b"\x15", b"\x29\x26\x02", b"\x57\x00\x00", b"\x59\xf7\xff\xff\xff\xff\x07"])
def test_a_struct_that_is_cut_off_is_an_error_at_once(data: bytes) -> None:
    with pytest.raises(EOFError):
        read_struct(BytesIO(data), FIELDS)
