"""What two JSON schemas are said to differ in, against what a validator takes by each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafka_eos.codecs.json_schema.differences import SchemaSide, differences, obstacles
from kafka_eos.codecs.json_schema.draft_07 import draft_07
from tests.examples import examples

Schemas = st.SearchStrategy[Any]
CONSTANTS: tuple[Any, ...] = (None, True, 0, 1, "", "a", "b", [], {})
SIMPLE: tuple[Any, ...] = (None, False, True, -1, 0, 1, 2, 1.5, "", "a", "ab", "abc")
INNER: tuple[Any, ...] = (*SIMPLE, [], [1], ["a", 1], {}, {"a": 1})
VALUES = (
    *INNER,
    *([each] for each in INNER),
    *(["a", each] for each in INNER),
    *({"a": each} for each in INNER),
    *({"a": "a", "b": each} for each in INNER),
    *({"b": 1, "c": each} for each in INNER),
)
"""What is asked about. Of any two schemas below that take different values, most take one of these differently."""
ITEMS: tuple[Any, ...] = (
    {"type": "integer"}, {"type": "string"}, [{"type": "integer"}], [{"type": "string"}], [{"type": "integer"}, True],
)  # fmt: skip
CHANGED = ("properties", "anyOf", "oneOf", "items", "additionalProperties", "required", "enum")
"""Where a schema is changed within."""
NEWEST = "https://json-schema.org/draft/2020-12/schema"
BOUNDS = st.integers(0, 3)


def numbers(kind: str) -> Schemas:
    bounds = {"minimum": BOUNDS, "maximum": BOUNDS, "exclusiveMaximum": BOUNDS}
    return st.fixed_dictionaries({"type": st.just(kind)}, optional=bounds)


ALONE: Schemas = st.one_of(
    st.sampled_from([True, False, {}, {"type": "null"}, {"type": "boolean"}, {"type": ["string", "null"]}]),
    numbers("integer"),
    numbers("number"),
    st.fixed_dictionaries({"type": st.just("string")}, optional={"minLength": BOUNDS, "maxLength": BOUNDS}),
    st.builds(lambda held: {"enum": held}, st.lists(st.sampled_from(CONSTANTS), min_size=1, max_size=3)),
    st.builds(lambda held: {"const": held}, st.sampled_from(CONSTANTS)),
)


def holding(inner: Schemas) -> Schemas:
    """Objects say what else they have: what stands beside their fields is taken for what nobody writes."""
    names = st.sampled_from("abc")
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "additionalProperties": st.just(False) | inner},
        optional={
            "properties": st.dictionaries(names, inner, max_size=3),
            "required": st.lists(names, unique=True, min_size=1, max_size=2),
            "minProperties": BOUNDS,
        },
    )
    arrays = st.fixed_dictionaries({"type": st.just("array")}, optional={"items": inner, "maxItems": BOUNDS})
    several = st.lists(inner, min_size=2, max_size=3).map(lambda schemas: {"anyOf": schemas})
    one = st.tuples(numbers("number"), st.just({"type": "string"})).map(lambda schemas: {"oneOf": [*schemas]})
    return st.one_of(objects, objects, arrays, several, one)


SCHEMAS: Schemas = st.recursive(ALONE, holding, max_leaves=5)


@st.composite
def changed(draw: Any, schema: Any) -> Any:
    """The same schema but for one place, or another one."""
    within = [key for key in CHANGED if schema.get(key)] if isinstance(schema, dict) else []
    if not within or draw(st.integers(0, 3)) == 0:
        return draw(SCHEMAS)
    key = draw(st.sampled_from(within))
    part: Any = schema[key]
    made: Any
    match key:
        case "properties":
            made = {name: draw(changed(each)) if draw(st.booleans()) else each for name, each in part.items()}
            if made and draw(st.booleans()):
                del made[draw(st.sampled_from(sorted(made)))]
        case "anyOf" | "oneOf":
            at = draw(st.integers(0, len(part) - 1))
            other = draw(changed(part[at])) if key == "anyOf" else {**part[at], "type": "boolean"}
            made = [*part[:at], other, *part[at + 1 :]]
        case "items" | "additionalProperties":
            made = draw(changed(part))
        case _:
            made = part[1:] or part
    return {**schema, key: made}


PAIRS = st.tuples(SCHEMAS, SCHEMAS) | SCHEMAS.flatmap(lambda schema: st.tuples(st.just(schema), changed(schema)))


def side(schema: Any) -> SchemaSide:
    return SchemaSide(draft_07(schema), {})


def taken(schema: Any, of: Any = jsonschema_rs.Draft7Validator) -> Sequence[bool]:
    validator = of(schema)
    return [validator.is_valid(value) for value in VALUES]


REFERENCES: Schemas = st.fixed_dictionaries(
    {"$ref": st.sampled_from(["#/$defs/x", "#/$defs/a~1b", "#/definitions/x", "#/definitions/y"])},
    optional={"minimum": BOUNDS, "allOf": st.lists(ALONE, min_size=1, max_size=2)},
)
NEWER: Schemas = st.recursive(
    ALONE | REFERENCES,
    lambda inner: st.one_of(
        holding(inner),
        st.fixed_dictionaries({"prefixItems": st.lists(inner, min_size=1, max_size=2)}, optional={"items": inner}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2), "not": inner}),
    ),
    max_leaves=6,
).filter(lambda schema: isinstance(schema, dict))
"""Schemas of 2020-12, which refer to definitions of a name in two places."""


@given(NEWER, st.tuples(ALONE, holding(ALONE), ALONE))
@example({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, (True, True, True))
@example({"prefixItems": [{"$ref": "#/definitions/y"}], "items": False}, (True, True, {"type": "string"}))
@example({"anyOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/definitions/y"}]}, ({"const": "a"}, True, {"const": 1}))
@example({"$ref": "#/$defs/x", "minimum": 2}, ({"type": "integer"}, True, True))
@examples(40)
def test_a_schema_of_another_draft_takes_the_same_values_in_draft_07(schema: Any, parts: tuple[Any, Any, Any]) -> None:
    first, second, third = parts
    whole = {"$schema": NEWEST, **schema, "$defs": {"x": first, "a/b": second}, "definitions": {"x": first, "y": third}}

    made = draft_07(whole)

    assert taken(made) == taken(whole, jsonschema_rs.Draft202012Validator)
    assert "$defs" not in repr(made) and "$schema" not in repr(made)


@given(PAIRS)
@examples(40)
def test_values_that_are_refused_have_an_obstacle(pair: tuple[Any, Any]) -> None:
    there, here = pair
    if not obstacles(side(there), side(here)):
        wrong = [v for v, theirs, ours in zip(VALUES, taken(there), taken(here), strict=True) if theirs and not ours]
        assert wrong == []


@given(PAIRS)
@examples(40)
def test_schemas_that_take_other_values_differ(pair: tuple[Any, Any]) -> None:
    there, here = pair
    if not differences(side(there), side(here)):
        wrong = [v for v, theirs, ours in zip(VALUES, taken(there), taken(here), strict=True) if theirs != ours]
        assert wrong == []


@pytest.mark.parametrize("one", ITEMS, ids=str)
@pytest.mark.parametrize("other", ITEMS, ids=str)
def test_items_of_an_array_are_the_same_or_differ(one: Any, other: Any) -> None:
    there, here = ({"type": "array", "items": items} for items in (one, other))

    assert (differences(side(there), side(here)) == []) == (one == other)


def test_a_schema_may_refer_to_itself_by_its_id() -> None:
    schema: Any = {"$id": "https://example.com/order", "properties": {"next": {"$ref": "https://example.com/order"}}}

    assert draft_07(schema) == {**schema, "properties": {"next": {"$ref": "#"}}}


@given(SCHEMAS, SCHEMAS)
@examples(20)
def test_a_schema_is_no_other_one_and_has_no_obstacle_to_itself_or_in_a_wider_one(schema: Any, other: Any) -> None:
    assert differences(side(schema), side(schema)) == obstacles(side(schema), side(schema)) == []
    for wider in ({"anyOf": [other, schema]}, {"oneOf": [schema, other]}, {"allOf": [True, schema]}):
        assert obstacles(side(schema), side(wider)) == []
