"""Where a schema defines a type and where it only names it depends on the order of fields, and changes nothing."""

from __future__ import annotations

import itertools
import json
from typing import Any

import fastavro
import pytest
from pydantic import BaseModel, create_model

from kafka_eos.codecs.avro.avro_codec import AvroCodec
from kafka_eos.codecs.avro.inlined_types import inline_named_types


class Line(BaseModel):
    n: int


class Node(BaseModel):
    n: int
    below: list[Node] = []
    beside: Node | None = None


TYPES: dict[str, tuple[Any, Any, Any]] = {
    "line": (Line, Line(n=0), Line(n=1)),
    "line or none": (Line | None, None, Line(n=2)),
    "lines": (list[Line], [], [Line(n=3)]),
    "lines or none": (list[Line | None], [], [Line(n=4), None]),
    "by name": (dict[str, Line | None], {}, {"a": Line(n=5)}),
}
"""With a default and a value."""
BECOMES = {"line": "line or none", "lines": "lines or none"}
"""What a field may become, so that old values are still read."""


def model(first: str | None, second: str | None) -> type[BaseModel]:
    """Each field may be left out, and has a default that values of before get."""
    fields = {name: TYPES[kind][:2] for name, kind in (("a", first), ("b", second)) if kind is not None}
    return create_model("Held", id=(int, 0), **fields)  # type: ignore[call-overload, no-any-return]


KINDS = (None, *TYPES)
CHANGES = [
    (before, after)
    for before in itertools.product(KINDS, repeat=2)
    for after in itertools.product(KINDS, repeat=2)
    if all(b == a or a is None or BECOMES.get(b or "") == a for b, a in zip(before, after, strict=True))
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_value_is_read_whatever_stands_before_it(
    before: tuple[str | None, str | None], after: tuple[str | None, str | None]
) -> None:
    stored, here = model(*before), model(*after)
    given = {name: TYPES[kind][2] for name, kind in zip("ab", before, strict=True) if kind is not None}
    old, new = AvroCodec(stored), AvroCodec(here)
    data = old.encode(stored(**given))

    expected = here(**{name: value for name, value in given.items() if name in here.model_fields})
    assert new.reader_of(old.schema).decode(data) == expected
    assert new.foreign(old.schema, ())(data) == expected


def test_a_type_that_holds_itself_does_so_afterwards() -> None:
    codec = AvroCodec(Node)
    tree = Node(n=1, below=[Node(n=2, beside=Node(n=3))], beside=Node(n=4))

    assert codec.decode(codec.encode(tree)) == tree
    assert codec.foreign(codec.schema, ())(codec.encode(tree)) == tree


def test_a_union_at_the_top_keeps_its_names() -> None:
    union = ["null", {"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}]
    parsed = fastavro.parse_schema(json.loads(json.dumps(union)))

    assert inline_named_types(parsed) == parsed and parsed[1]["fields"][0]["type"] == ["null", "R"]
