"""JSON in Confluent's wire format, with a registry in memory: what is written fits its schema, what is read a type."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import struct
from collections.abc import Iterator
from decimal import Decimal
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest
from jsonschema import Draft7Validator
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, computed_field

from kafka_eos.codecs import Registry, json_schema
from kafka_eos.codecs.comparison_lines import collect_lines
from kafka_eos.codecs.json_schema.differences import SchemaSide, as_text, differences, obstacles
from kafka_eos.codecs.json_schema.draft_07 import DRAFT, closed, draft_07, of_document
from kafka_eos.codecs.registry.registry_client import Reference, RegisteredSchema
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.core.errors import ConfigError, PlanError
from kafka_eos.core.fault_attribution import ErrorRules, Fault
from tests.unit.codecs.test_hostile import Tree, Twig, tree, twig


class Line(BaseModel):
    article: str
    quantity: int = 1


class Order(BaseModel):
    user: str
    amount: float = Field(ge=0)
    lines: list[Line] = []
    tags: set[str] = set()
    place: tuple[int, str] | None = None


@dataclasses.dataclass
class Total:
    user: str
    total: float


class Deep(msgspec.Struct):
    line: Line
    others: list[Line] = []


ORDER = Order(user="ann", amount=1.5, lines=[Line(article="a")], tags={"x", "y"}, place=(1, "b"))


@pytest.fixture
def registry() -> Registry:
    """One in memory, which only this test has."""
    return Registry(f"mock://{uuid4()}")


def codec(tp: Any, registry: Registry, **options: Any) -> Any:
    """Of a job that has started, unless nothing is to be registered."""
    made: Any = json_schema(tp, registry=registry, **{"auto_register": True, **options}).for_topic("orders", "value")
    if options.get("auto_register", True):
        made.check()
    return made


def by_others(registry: Registry, schema: Any, data: Any, *references: Reference) -> bytes:
    """A record that another program has written."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    schema_id = registry.register("theirs", RegisteredSchema("JSON", text, references))
    return struct.pack(">bI", 0, schema_id) + (data if isinstance(data, bytes) else json.dumps(data).encode())


@pytest.mark.parametrize(
    "value",
    [ORDER, Order(user="", amount=0), Total("ann", 2), Deep(Line(article="a")), tree(2), twig(2)],
    ids=lambda value: type(value).__name__,
)
def test_a_value_comes_back_and_fits_the_schema_that_is_registered(registry: Registry, value: Any) -> None:
    made = codec(type(value), registry)
    data = made.encode(value)

    assert made.decode(data) == value
    newest = registry.get_latest_version("orders-value")
    assert newest is not None
    schema = json.loads(newest.schema.text)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert "$defs" not in newest.schema.text
    Draft7Validator.check_schema(schema)
    Draft7Validator(schema).validate(json.loads(data[5:]))


@pytest.mark.parametrize("tp", [str, int, list[int], dict[str, Line], Order], ids=str)
def test_keys_and_values_may_be_of_any_type(registry: Registry, tp: Any) -> None:
    keys: Any = json_schema(tp, registry=registry, auto_register=True).for_topic("orders", "key")
    keys.check()
    value: Any = {str: "é", int: 7, Order: ORDER}.get(tp, [1] if tp == list[int] else {"a": Line(article="b")})

    assert keys.subject == "orders-key"
    assert keys.decode(keys.encode(value)) == value


@pytest.mark.parametrize(
    "wrong",
    [
        Order.model_construct(user="ann", amount="1.5", lines=[], tags=set(), place=None),
        Order.model_construct(user=7, amount=1.0, lines=[], tags=set(), place=None),
        Order.model_construct(user="ann", amount=-1.0, lines=[], tags=set(), place=None),
        Order.model_construct(user="ann", amount=float("nan"), lines=[], tags=set(), place=None),
        Order.model_construct(user="ann"),
        {"user": "ann", "amount": 1.0},
        None,
    ],
    ids=["text", "number", "constraint", "nan", "missing", "dict", "none"],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_what_would_not_fit_its_schema_is_refused_when_it_is_written(registry: Registry, wrong: Any) -> None:
    with pytest.raises(ValueError, match="Order") as refused:
        codec(Order, registry).encode(wrong)

    assert ErrorRules().classify(refused.value) is Fault.RECORD


class Loose(msgspec.Struct):
    place: Any


def test_a_value_that_fits_its_schema_but_would_come_back_as_another_is_refused(registry: Registry) -> None:
    with pytest.raises(ValueError, match="would come back") as refused:
        codec(Loose, registry).encode(Loose((1, 2)))

    assert ErrorRules().classify(refused.value) is Fault.RECORD
    assert codec(Loose, registry).encode(Loose([1, 2])).endswith(b'{"place":[1,2]}')


def test_a_class_below_the_declared_one_is_refused_if_it_writes_more(registry: Registry) -> None:
    class Bigger(Twig):
        more: int = 1

    with pytest.raises(ValueError, match="'more' was unexpected"):
        codec(Twig, registry).encode(Bigger("t"))


class Texts(BaseModel):
    at: datetime.datetime = datetime.datetime(2024, 1, 2, 3, 4, 5)
    day: datetime.date = datetime.date(2024, 1, 2)
    time: datetime.time = datetime.time(1, 2, 3, 4)
    took: datetime.timedelta = -datetime.timedelta(days=400, seconds=0.5)
    number: UUID = UUID(int=1)
    host: IPv6Address = IPv6Address("fe80::1%eth0")
    url: AnyUrl = AnyUrl("http://ü.de/a b?x={}")
    price: Decimal = Decimal("1E+5")
    raw: bytes = b"\n"
    path: Path = Path("/tmp")
    pattern: re.Pattern[str] = re.compile(r"(?P<name>x)\Z")


def test_whatever_pydantic_writes_as_text_fits_its_schema(registry: Registry) -> None:
    made = codec(Texts, registry)

    assert made.decode(made.encode(Texts())) == Texts()


@pytest.mark.parametrize("name", ["at", "day", "time", "took", "number"])
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_text_that_is_none_of_its_format_is_refused_when_it_is_written(registry: Registry, name: str) -> None:
    with pytest.raises(ValueError, match=f'not a valid Texts: {name}: "yesterday" does not match'):
        codec(Texts, registry).encode(Texts().model_copy(update={name: "yesterday"}))


@pytest.mark.parametrize(
    ("extra", "wrong"),
    [
        ({"pattern": "("}, 'is not a "regex"'),
        ({"$ref": "http://127.0.0.1:1/x.json"}, "x.json, which is not part of it"),
    ],
    ids=["pattern", "reference"],
)
def test_a_schema_that_nobody_can_compare_is_refused_with_the_plan(
    registry: Registry, extra: dict[str, str], wrong: str
) -> None:
    class Odd(BaseModel):
        user: str = Field(json_schema_extra=lambda schema: schema.update(extra))

    with pytest.raises(PlanError, match=rf"the JSON schema of Odd cannot be checked.*{wrong}"):
        json_schema(Odd, registry=registry)


def test_the_same_number_is_the_same_value(registry: Registry) -> None:
    made = codec(Total, registry)

    assert made.decode(made.encode(Total("ann", 2))) == Total("ann", 2.0)


def test_what_is_written_has_no_other_fields_unless_the_type_says_so(registry: Registry) -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        user: str

        @computed_field  # type: ignore[prop-decorator]
        @property
        def shout(self) -> str:
            return self.user.upper()

    made = codec(Open, registry)
    value = Open(user="ann", more=1)  # type: ignore[call-arg]

    assert made.schema["additionalProperties"] is True
    assert made.schema["properties"].keys() == {"user", "shout"}
    assert made.decode(made.encode(value)).more == 1
    assert codec(Line, registry, subject=lambda *_: "lines").schema["additionalProperties"] is False


def test_a_type_without_a_json_schema_is_refused_with_the_plan(registry: Registry) -> None:
    class Odd(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        it: Registry

    with pytest.raises(PlanError, match="type Odd has no JSON schema"):
        json_schema(Odd, registry=registry)


def test_two_definitions_of_one_name_are_refused_with_the_plan(registry: Registry) -> None:
    def made(tp: Any) -> Any:
        class Inner(BaseModel):
            it: tp  # type: ignore[valid-type]

        class Outer(BaseModel):
            inner: Inner

        return Outer

    both: Any = msgspec.defstruct("Both", [("a", made(int)), ("b", made(str))])

    with pytest.raises(PlanError, match="two of its definitions are called Inner"):
        json_schema(both, registry=registry)


# ---------------------------------------------------------------- what others have written


def test_each_record_is_read_as_the_type_whatever_schema_it_was_written_with(registry: Registry) -> None:
    lines = codec(Line, registry, auto_register=False)

    assert lines.decode(by_others(registry, {}, {"article": "a"})) == Line(article="a")
    assert lines.decode(by_others(registry, True, {"article": "a", "quantity": 2, "x": 1})) == Line(
        article="a", quantity=2
    )
    for data in ({"quantity": 2}, {"article": 1}, [], b"{", b"", b"\xff"):
        with pytest.raises(ValueError, match="not a valid Line"):
            lines.decode(by_others(registry, {"type": "object"}, data))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("[]", "it is not a JSON schema"),
        ("{", "Expecting"),
        ('{"properties": []}', "it is not a JSON schema"),
        ('{"anyOf": {}}', "it is not a JSON schema"),
        ('{"required": [[]]}', "required must list names"),
        ('{"required": ["a", []]}', "required must list names"),
        ('{"required": 5}', "required is 5"),
        ('{"minimum": "a"}', "minimum is 'a'"),
        ('{"$ref": 1}', "is 1"),
        ('{"not":' * 200 + "{}" + "}" * 200, "nested too deeply"),
    ],
)
def test_a_schema_that_is_none_is_the_records_fault(registry: Registry, schema: str, said: str) -> None:
    lines = codec(Line, registry, auto_register=False)

    with pytest.raises(ValueError, match=said) as refused:
        lines.decode(by_others(registry, schema, {"article": "a"}))

    assert ErrorRules().classify(refused.value) is Fault.RECORD


def test_a_schema_of_another_kind_is_refused(registry: Registry) -> None:
    schema_id = registry.register("theirs", RegisteredSchema("AVRO", '"string"'))

    with pytest.raises(ValueError, match="is one of kind AVRO, not JSON"):
        codec(Line, registry, auto_register=False).decode(struct.pack(">bI", 0, schema_id) + b"{}")


# ---------------------------------------------------------------- schemas beside each other


def test_nothing_is_registered_unless_asked_for_and_what_differs_is_told(registry: Registry) -> None:
    theirs = {
        "type": "object",
        "properties": {
            "user": {"type": "integer"},
            "amount": {"type": "number", "minimum": 1},
            "when": {"type": "string", "format": "date"},
            "lines": {"type": "array", "items": {"type": "object", "properties": {"article": {"enum": ["a", "b"]}}}},
        },
        "required": ["user"],
    }
    registry.register("orders-value", RegisteredSchema("JSON", json.dumps(theirs)))
    orders = codec(Order, registry, auto_register=False)

    with pytest.raises(ConfigError) as refused:
        orders.encode(ORDER)

    _, _, said = str(refused.value).partition("In its newest version, 1, it differs: ")
    assert said.partition(". Register it")[0].split("; ") == [
        "user is integer there, string here",
        "amount has minimum 1 there, minimum 0 here",
        "when (string (date)) is only there",
        'lines[].article is one of "a", "b" there, string here',
        "lines[].quantity (integer) is only here",
        "lines[].article must be here, but not there",
        "lines[]{} is anything there, nothing here",
        "tags (array of string) is only here",
        "place (array | null) is only here",
        "amount must be here, but not there",
        "{} is anything there, nothing here",
    ]
    wrong = orders.compare_schema(reading=True).problems
    assert wrong == [
        "user is integer there, string here",
        "amount may be missing there, and must be here",
        "lines[].article may be missing there, and must be here",
    ]


def test_what_describes_makes_no_difference(registry: Registry) -> None:
    """A schema that means the same is written with, as one of another program with comments."""
    schema = codec(Line, registry, subject=lambda *_: "other").schema
    theirs = {**schema, "title": "Their line", "description": "of theirs", "$id": "http://shop"}
    registry.register("orders-value", RegisteredSchema("JSON", json.dumps(theirs)))

    lines = codec(Line, registry, auto_register=False)

    assert lines.decode(lines.encode(Line(article="a"))) == Line(article="a")
    assert list(lines.compare_schema(reading=False).problems) == []


def test_schemas_that_refer_to_others_are_compared(registry: Registry) -> None:
    registry.register(
        "line", RegisteredSchema("JSON", '{"type": "object", "properties": {"article": {"type": "null"}}}')
    )
    order = {"type": "object", "properties": {"lines": {"type": "array", "items": {"$ref": "line.json"}}}}
    theirs = RegisteredSchema("JSON", json.dumps(order), (Reference("line.json", "line", 1),))
    registry.register("orders-value", theirs)

    wrong = codec(Order, registry, auto_register=False).compare_schema(reading=True).problems

    assert "lines[].article is null there, string here" in wrong


def side(schema: Any) -> SchemaSide:
    return SchemaSide(draft_07(schema), {})


TEXT, NUMBER, WHOLE, EMPTY = {"type": "string"}, {"type": "number"}, {"type": "integer"}, {"type": "null"}


def thing(required: bool = False, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **({"required": list(properties)} if required else {})}


@pytest.mark.parametrize(
    ("there", "here", "wrong"),
    [
        (WHOLE, NUMBER, []),
        (NUMBER, WHOLE, ["the value is number there, integer here"]),
        (WHOLE, {}, []),
        ({}, WHOLE, ["the value is anything there, integer here"]),
        (WHOLE, {"anyOf": [TEXT, NUMBER]}, []),
        ({"anyOf": [TEXT, EMPTY]}, TEXT, ["the value is null there, string here"]),
        ({"type": ["string", "null"]}, {"anyOf": [EMPTY, TEXT]}, []),
        ({"enum": ["a"]}, TEXT, []),
        ({"enum": ["a", 1]}, TEXT, ['the value is one of "a", 1 there, string here']),
        ({"enum": ["a"]}, {"enum": ["a", "b"]}, []),
        (TEXT, {"const": "a"}, ['the value is string there, "a" here']),
        ({"const": 1}, NUMBER, []),
        ({**WHOLE, "minimum": 3}, {**WHOLE, "minimum": 2}, []),
        ({**WHOLE, "minimum": 1}, {**WHOLE, "minimum": 2}, ["the value has minimum 1 there, minimum 2 here"]),
        ({**WHOLE, "maximum": 3}, {**WHOLE, "maximum": 2}, ["the value has maximum 3 there, maximum 2 here"]),
        (TEXT, {**TEXT, "format": "uuid"}, ['the value has no format there, format "uuid" here']),
        (thing(a=TEXT), thing(b=TEXT), []),
        (thing(a=TEXT), thing(True, a=TEXT), ["a may be missing there, and must be here"]),
        (thing(True, a=TEXT), thing(True, a=TEXT, b=TEXT), ["b is only here"]),
        (thing(a=TEXT), {**thing(), "additionalProperties": False}, ["a may not be here", "{} may not be here"]),
        (thing(a=TEXT), {"type": "object", "additionalProperties": WHOLE},
         ["a is string there, integer here", "{} is anything there, integer here"]),
        ({"type": "object", "additionalProperties": WHOLE}, {"type": "object", "additionalProperties": NUMBER}, []),
        ({"type": "object", "additionalProperties": TEXT}, thing(a=WHOLE), ["a is string there, integer here"]),
        ({"type": "array", "items": TEXT}, {"type": "array", "items": WHOLE}, ["[] is string there, integer here"]),
        ({"prefixItems": [TEXT], "type": "array"}, {"prefixItems": [WHOLE], "type": "array"},
         ["[0] is string there, integer here"]),
        ({"items": [TEXT, WHOLE], "type": "array"}, {"items": WHOLE, "type": "array"},
         ["[0] is string there, integer here"]),
        ({"items": WHOLE, "type": "array"}, {"items": [WHOLE, TEXT], "type": "array"},
         ["[1] is integer there, string here"]),
        (False, WHOLE, []),
        (True, False, ["the value may not be here"]),
        ({}, NUMBER, ["the value is anything there, number here"]),
        ({"enum": [1, 1.5]}, NUMBER, []),
        ({"enum": [1]}, TEXT, ["the value is 1 there, string here"]),
        ({"enum": ["a"]}, NUMBER, ['the value is "a" there, number here']),
        ({"enum": ["a", "b"]}, {"enum": ["b", "a"]}, []),
        (TEXT, {**TEXT, "pattern": "a"}, ['the value has no pattern there, pattern "a" here']),
        ({**TEXT, "pattern": "b"}, {**TEXT, "pattern": "a"}, ['the value has pattern "b" there, pattern "a" here']),
        ({"type": "array"}, {"type": "array", "uniqueItems": True},
         ["the value has no uniqueItems there, uniqueItems true here"]),
        ({"type": "object", "additionalProperties": TEXT}, thing(True, a=WHOLE), ["a is only here"]),
        ({"type": "object"}, {**thing(), "additionalProperties": False}, []),
        ({"type": "object", "additionalProperties": TEXT}, {**thing(), "additionalProperties": False},
         ["{} may not be here"]),
        ({"type": "object"}, {"type": "object", "additionalProperties": TEXT},
         ["{} is anything there, string here"]),
        (thing(x=thing(a=TEXT)), thing(x=thing(True, a=WHOLE, b=TEXT)),
         ["x.a is string there, integer here", "x.a may be missing there, and must be here", "x.b is only here"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_may_be_refused_is_told(there: Any, here: Any, wrong: list[str]) -> None:
    assert obstacles(side(there), side(here)) == wrong


BOTH = {"a": {"$ref": "#/definitions/x"}, "b": {"$ref": "#/definitions/x"}}


@pytest.mark.parametrize(
    ("there", "here", "told"),
    [
        (thing(a=True, b=True), thing(a=False, b=False), "anything there, nothing here"),
        (thing(a=True, b=True), thing(**BOTH) | {"definitions": {"x": TEXT}}, "anything there, string here"),
        (thing(**BOTH) | {"definitions": {"x": TEXT}}, thing(a=False, b=False), "string there, nothing here"),
    ],
)
def test_what_differs_in_two_places_is_told_of_both(there: Any, here: Any, told: str) -> None:
    assert differences(side(there), side(here)) == [f"a is {told}", f"b is {told}"]
    assert [line[:2] for line in obstacles(side(there), side(here))] == ["a ", "b "]


CIRCLE = {"allOf": [{"$ref": "#/definitions/a"}], "minimum": 1}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/definitions/a", "definitions": {"a": {"$ref": "#/definitions/a"}}},
        {**CIRCLE, "definitions": {"a": CIRCLE}},
        {"$ref": "other.json"},
    ],
)
def test_references_without_an_end_or_a_beginning_are_told(schema: Any) -> None:
    with pytest.raises(ValueError, match="it refers to"):
        differences(side(schema), side(TEXT))


def test_schemas_that_hold_themselves_are_compared() -> None:
    def chain(tp: Any) -> Any:
        node = thing(value=tp, next={"$ref": "#/$defs/Node"})
        return {"$ref": "#/$defs/Node", "$defs": {"Node": node}}

    assert differences(side(chain(TEXT)), side(chain(TEXT))) == []
    assert differences(side(chain(TEXT)), side(chain(WHOLE)))[0] == "value is string there, integer here"
    assert obstacles(side(chain(TEXT)), side(chain(WHOLE)))[0] == "value is string there, integer here"


@pytest.mark.parametrize(
    "node",
    [
        {"type": "object", "properties": {"next": {"allOf": [{"$ref": "#"}], "title": "more"}}},
        {"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}},
        {"anyOf": [{"type": "object", "properties": {"next": {"$ref": "#"}}}, EMPTY]},
    ],
    ids=["beside", "kinds", "any of"],
)
def test_a_schema_that_holds_itself_in_whatever_way_is_compared(node: Any) -> None:
    same = json.loads(json.dumps(node))

    assert differences(side(node), side(same)) == []
    assert obstacles(side(node), side({"anyOf": [same, TEXT]})) == []
    assert obstacles(side(thing(next=node)), side({"anyOf": [thing(True, next=TEXT), WHOLE]})) != []


def test_what_must_be_there_counts_wherever_it_is_said() -> None:
    both = {"required": ["b", "a"]}

    assert differences(side(both), side({})) == [f"{name} must be there, but not here" for name in "ab"]
    assert differences(side({}), side(both)) == [f"{name} must be here, but not there" for name in "ab"]
    assert differences(side(thing(x=thing(a=TEXT))), side(thing(x=thing(True, a=TEXT)))) == [
        "x.a must be here, but not there"
    ]
    assert differences(side(thing(True, a=TEXT)), side(thing())) == ["a (string) is only there"]


def test_a_comparison_of_schemas_that_are_too_deep_is_told() -> None:
    def compare() -> Iterator[str]:
        yield from compare()

    with pytest.raises(ValueError, match="nested too deeply to be compared"):
        collect_lines(compare())


def test_other_words_are_compared_in_their_order() -> None:
    assert differences(side({"minimum": 1, "maximum": 2, "title": "x"}), side({})) == [
        "the value has maximum 2 there, no maximum here",
        "the value has minimum 1 there, no minimum here",
    ]


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"anyOf": [{"const": n} for n in range(8)]}, "0 | 1 | 2 | 3 | 4 | 5 | 6 | 7"),
        ({"anyOf": [{"const": n} for n in range(9)]}, "0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | …"),
        ({"anyOf": [{"anyOf": [{"anyOf": [TEXT, WHOLE]}, TEXT]}, WHOLE]}, "one of several | string | integer"),
        ({"enum": [*range(21)]}, f"one of {', '.join(map(str, range(20)))}"),
        ({"type": "array", "items": {"anyOf": [TEXT, WHOLE]}}, "array of string | integer"),
        ({"type": "array", "items": [TEXT]}, "array"),
        ({"items": TEXT}, "anything"),
        ({"type": "object", "title": "Order"}, "object Order"),
        ({"type": "object"}, "object"),
        ({"type": "string", "title": "Text"}, "string"),
        ({"type": "string", "format": "uuid"}, "string (uuid)"),
        ({"$ref": "#/definitions/x", "definitions": {"x": WHOLE}}, "integer"),
        (True, "anything"),
        (False, "nothing"),
    ],
    ids=str,
)
def test_a_type_is_told_in_a_few_words(schema: Any, told: str) -> None:
    assert as_text(schema, side(schema)) == told


def test_of_a_type_that_is_deep_the_outer_part_is_told() -> None:
    schema: Any = TEXT
    for _ in range(6):
        schema = {"type": "array", "items": schema}

    assert as_text(schema, side(schema)) == "array of array of array of array of array"


def test_what_applies_together_is_put_together_and_the_last_one_wins() -> None:
    first = {"type": "object", "title": "one", **thing(a=TEXT, b=TEXT), "required": ["c", "a"], "minProperties": 1}
    second = {"minProperties": 2, "properties": {"b": WHOLE, "c": TEXT}, "maxProperties": 9}
    third = {"required": ["b"], "properties": {"d": TEXT}}
    whole = {"allOf": [first, {"$ref": "#/definitions/x"}, True, third], "minProperties": 3, "description": "all"}
    both = SchemaSide({**whole, "definitions": {"x": second}}, {})

    assert both.resolved(both.schema) == {
        **thing(a=TEXT, b=WHOLE, c=TEXT, d=TEXT),
        "required": ["a", "b", "c"],
        "title": "one",
        "minProperties": 3,
        "maxProperties": 9,
        "description": "all",
        "definitions": {"x": second},
    }


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_may_not_be_there_by_one_of_them_may_not_be_there(place: int) -> None:
    several: list[Any] = [TEXT, {"minLength": 1}, {"maxLength": 5}]
    several[place] = False

    assert obstacles(side(TEXT), side({"allOf": several})) == ["the value may not be here"]


def test_references_are_followed_through_names_with_signs_and_into_other_schemas() -> None:
    here = {"definitions": {"a/b": {"definitions": {"c~d": WHOLE}}}, "$ref": "#/$defs/a~1b/definitions/c~0d"}
    other = {"definitions": {"x": TEXT}}

    assert SchemaSide(here, {}).resolved(here) == WHOLE
    assert SchemaSide({}, {"o.json": other}).resolved({"$ref": "o.json#/definitions/x"}) == TEXT
    assert SchemaSide({}, {"o.json": other}).resolved({"$ref": "o.json"}) is other
    assert SchemaSide({"definitions": {"x": False}}, {}).resolved({"$ref": "#/definitions/x"}) is False
    for missing in ("o.json#/definitions/y", "o.json#/definitions/x/type", "p.json", "#/definitions/x"):
        with pytest.raises(ValueError, match="which does not exist"):
            SchemaSide({}, {"o.json": other}).resolved({"$ref": missing})


WORDS = [
    *((word, 1, 2, ["the value has {word} 1 there, {word} 2 here"], [])
      for word in ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")),
    *((word, 1, 2, [], ["the value has {word} 2 there, {word} 1 here"])
      for word in ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")),
    *((word, 1, 2, ["the value has {word} 1 there, {word} 2 here"], ["the value has {word} 2 there, {word} 1 here"])
      for word in ("multipleOf",)),
]  # fmt: skip


@pytest.mark.parametrize(("word", "less", "more", "up", "down"), WORDS, ids=[each[0] for each in WORDS])
def test_each_bound_counts_in_its_direction(word: str, less: int, more: int, up: list[str], down: list[str]) -> None:
    low, high = side({word: less}), side({word: more})

    assert obstacles(low, high) == [line.format(word=word) for line in up]
    assert obstacles(high, low) == [line.format(word=word) for line in down]
    assert obstacles(low, low) == obstacles(low, side({})) == []
    assert obstacles(side({}), low) == [f"the value has no {word} there, {word} {less} here"]


def test_several_differences_are_told_in_their_order() -> None:
    there = {"type": "array", "prefixItems": [TEXT, WHOLE, TEXT]}
    here = {"type": "array", "prefixItems": [WHOLE, TEXT, EMPTY]}
    mine = {"anyOf": [thing(a=TEXT, b=TEXT, c=TEXT), WHOLE]}
    theirs = {"anyOf": [thing(a=WHOLE, b=TEXT, c=EMPTY), NUMBER]}

    wanted = [
        "[0] is string there, integer here", "[1] is integer there, string here", "[2] is string there, null here"
    ]  # fmt: skip
    assert obstacles(side(there), side(here)) == differences(side(there), side(here)) == wanted
    assert differences(side(mine), side(theirs)) == [
        "a is string there, integer here",
        "c is string there, null here",
        "the value is integer there, number here",
    ]


def test_schemas_that_nobody_can_compare_are_told() -> None:
    def doubling(tp: Any) -> Any:
        levels = {"l0": tp}
        for n in range(1, 30):
            below = {"$ref": f"#/definitions/l{n - 1}"}
            levels[f"l{n}"] = thing(a={"anyOf": [below, {"allOf": [below]}]})
        return {"$ref": "#/definitions/l29", "definitions": levels}

    with pytest.raises(ValueError, match="too large to be compared"):
        obstacles(side(doubling(TEXT)), side(doubling(WHOLE)))


@pytest.mark.parametrize("tp", [Order, Total, Deep, Tree, Twig], ids=lambda tp: tp.__name__)
def test_what_is_written_can_be_read(registry: Registry, tp: Any) -> None:
    made = codec(tp, registry)

    assert list(made.compare_schema(reading=True).problems) == []
    assert list(made.check_reading()) == list(made.check())


def test_names_that_are_words_of_schemas_are_names() -> None:
    schema = thing(items=TEXT, properties={"$ref": "#/$defs/x"}) | {"$defs": {"x": {"default": {"$defs": 1}}}}

    assert draft_07(schema) == {
        **thing(items=TEXT, properties={"$ref": "#/definitions/x"}),
        "definitions": {"x": {"default": {"$defs": 1}}},
    }
    assert closed(draft_07(thing(a=thing(b=TEXT)))) == {
        **thing(a={**thing(b=TEXT), "additionalProperties": False}),
        "additionalProperties": False,
    }


def test_what_stands_beside_a_reference_is_kept() -> None:
    schema = thing(a={"$ref": "#/$defs/x", "minimum": 1}) | {"$defs": {"x": WHOLE}}

    assert draft_07(schema)["properties"]["a"] == {"allOf": [{"$ref": "#/definitions/x"}], "minimum": 1}  # type: ignore[index]


def test_what_stands_beside_a_reference_is_ignored_by_a_schema_of_draft_07() -> None:
    schema = {"$schema": DRAFT, "definitions": {"x": WHOLE}} | thing(a={"$ref": "#/definitions/x", "minimum": 1})

    assert draft_07(schema)["properties"]["a"] == {"$ref": "#/definitions/x"}  # type: ignore[index]


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        (True, True),
        ({"$id": "#top", **thing(a={"$id": "#a", **TEXT})}, {"$id": "#top", **thing(a={"$id": "#a", **TEXT})}),
        ({"$id": 5}, {"$id": 5}),
        ({"$schema": DRAFT, "$ref": "#/definitions/x", "minimum": 1, "definitions": {"x": WHOLE, "y": TEXT}},
         {**WHOLE, "definitions": {"x": WHOLE, "y": TEXT}}),
        ({"$schema": DRAFT, "discriminator": {"propertyName": "a"}, "oneOf": [TEXT, WHOLE]}, {"oneOf": [TEXT, WHOLE]}),
    ],
)  # fmt: skip
def test_what_a_schema_says_is_the_same_in_draft_07(schema: Any, made: Any) -> None:
    assert draft_07(schema) == made


def test_a_schema_whose_addresses_would_take_too_much_memory_is_none() -> None:
    schema: Any = TEXT
    for _ in range(60):
        schema = thing(**{"x" * 20_000: schema})

    with pytest.raises(ValueError, match="too long names for its size"):
        draft_07(schema)


def test_only_references_within_a_document_become_references_into_it() -> None:
    schema = thing(a={"$ref": "#/definitions/x"}, b={"$ref": "other.json"}, c={"$ref": "#"})

    assert of_document(schema, "mine.json") == thing(
        a={"$ref": "mine.json#/definitions/x"}, b={"$ref": "other.json"}, c={"$ref": "mine.json#"}
    )


BUNDLE: Any = {
    "$id": "https://example.com/order",
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **thing(size={"$ref": "size"}, note={"$ref": "#/$defs/kind"}),
    "$defs": {
        "https://example.com/size": {
            "$id": "https://example.com/size",
            **thing(kind={"$ref": "#/$defs/kind"}),
            "$defs": {"kind": WHOLE},
        },
        "kind": TEXT,
    },
}
"""A bundle as tools for 2020-12 write it: each schema has its id and its own definitions."""
NESTED: Any = thing(
    size=thing(kind={"$ref": "#/properties/size/definitions/kind"}) | {"definitions": {"kind": WHOLE}},
    note={"$ref": "#/definitions/kind"},
) | {"definitions": {"kind": TEXT}}


@pytest.mark.parametrize("schema", [BUNDLE, NESTED], ids=["bundle", "nested"])
def test_definitions_of_one_name_in_several_places_are_told_apart(schema: Any) -> None:
    flat = thing(size=thing(kind=WHOLE), note=TEXT)

    assert list(differences(side(schema), side(flat))) == []
    assert list(differences(side(schema), side(thing(size=thing(kind=TEXT), note=TEXT)))) != []


def test_a_definition_at_the_top_keeps_its_name() -> None:
    assert draft_07(NESTED)["definitions"] == {"kind": TEXT, "kind_2": WHOLE}  # type: ignore[index]


def test_a_reference_may_be_to_anything() -> None:
    assert draft_07({"$ref": "#/definitions/x", "definitions": {"x": True}}) is True
    assert draft_07(thing(a={"$ref": "#/$defs/x"}) | {"$defs": {"x": False}})["definitions"] == {"x": False}  # type: ignore[index]


@pytest.mark.parametrize(
    ("subject", "wanted"), [("topic", "orders-value"), ("record", "Order"), ("topic-record", "orders-Order")]
)
def test_the_subject_is_called_as_the_user_says(registry: Registry, subject: Any, wanted: str) -> None:
    assert codec(Order, registry, subject=subject).subject == wanted


def test_sources_and_sinks_tell_where_their_schemas_come_from(registry: Registry) -> None:
    source: KafkaSource[Order] = KafkaSource("orders", value=json_schema(Order, registry=registry))
    sink: KafkaSink[Order] = KafkaSink("orders", value=json_schema(Order, registry=registry))

    for described in (source.describe(), sink.describe()):
        assert f"JSON Schema Order, subject orders-value of {registry.url}" in str(described)
