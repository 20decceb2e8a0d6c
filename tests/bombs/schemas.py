"""Schemas that a registry may answer with, each with records: they double, nest, repeat and name each other."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

from kafka_eos.codecs import AvroCodec
from kafka_eos.codecs.avro.differences import differences as avro_differences
from kafka_eos.codecs.avro.foreign_schemas import parse_schema
from kafka_eos.codecs.avro.generated_models import as_models
from kafka_eos.codecs.json_schema.differences import SchemaSide, obstacles
from kafka_eos.codecs.json_schema.differences import differences as json_differences
from kafka_eos.codecs.json_schema.draft_07 import draft_07
from kafka_eos.codecs.protobuf.descriptor_pools import load_schema
from kafka_eos.codecs.protobuf.message_codec import ProtobufCodec
from kafka_eos.codecs.protobuf.reader_compatibility import differences as proto_differences
from kafka_eos.codecs.protobuf.reader_compatibility import obstacles as proto_obstacles
from tests.bombs import REFUSED, Attempt
from tests.unit.codecs.test_hostile import Tree, message

RECORDS = 4
"""Records with each schema."""
PIECES = (b"\0", b"\x02", b"\x04", b"\x06", b"\x80", b"\xff", b"\x01", b"t", b"\x0a\0", b"\x1a\2\n\0", b"2\0")


def record(chance: random.Random) -> bytes:
    """Noise, or one of few bytes many times."""
    if chance.random() < 0.3:
        return chance.randbytes(chance.randrange(60))
    return b"\x02t" + chance.choice(PIECES) * chance.randrange(chance.choice((2, 50, 20_000)))


def number(chance: random.Random) -> int:
    return chance.choice((0, 1, 2, 3, 17, 40, 100, 700))


# ------------------------------------------------------------------------------------------------------------- Avro


class _AvroMaker:
    """Builds types that use types that were built before, by name."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._count = itertools.count()
        self._known: list[str] = []

    def top(self) -> Any:
        chance = self._chance
        names = ["name", "number", "labels", "children", "data", "weight", "price", "x", "y"]
        fields = [
            {"name": name, "type": "string" if name == "name" else self.type(0)}
            for name in names[: chance.randrange(1, 10)]
        ]
        return {"type": "record", "name": chance.choice(("Tree", "com.shop.Tree")), "fields": fields}

    def type(self, depth: int) -> Any:
        chance = self._chance
        if depth > 6:
            return chance.choice(("null", "int", *self._known[-3:]))
        match chance.randrange(12):
            case 0 | 1:
                return self.doubling(number(chance))
            case 2:
                return self.chain(number(chance))
            case 3:
                return {"type": "array", "items": self.type(depth + 1)}
            case 4:
                return {"type": "map", "values": self.type(depth + 1)}
            case 5:
                return ["null", self.type(depth + 1)]
            case 6:
                return self.recursive()
            case 7:
                return {"type": "fixed", "name": self.name(), "size": chance.choice((0, 1, 1 << 30, 1 << 60))}
            case 8:
                return {"type": "bytes", "logicalType": "decimal", "precision": number(chance) or 1 << 40, "scale": 1}
            case 9:
                return {"type": "enum", "name": self.name(), "symbols": [f"S{n}" for n in range(number(chance))]}
            case 10 if self._known:
                return chance.choice(self._known)
            case _:
                return chance.choice(("null", "int", "long", "string", "bytes", "double", "boolean"))

    def name(self) -> str:
        made = f"R{next(self._count)}" + "x" * self._chance.choice((0, 0, 0, 5000))
        self._known.append(made)
        return made

    def doubling(self, levels: int) -> Any:
        """Records that hold the one below twice."""
        chance = self._chance
        below: Any = chance.choice(("null", "int", {"type": "record", "name": self.name(), "fields": []}))
        for _ in range(min(levels, 100)):
            name = self.name()
            again = below["name"] if isinstance(below, dict) else below
            wrapped = chance.choice((again, again, ["null", again], {"type": "array", "items": again}))
            fields = [{"name": "a", "type": below}, {"name": "b", "type": wrapped}]
            below = {"type": "record", "name": name, "fields": fields}
        return below

    def chain(self, levels: int) -> Any:
        """A record with a field for each level; each level is a record that names the one before."""
        fields, before = [], "int"
        optional = self._chance.random() < 0.5
        for level in range(levels):
            name, inner = self.name(), ["null", before] if optional else before
            one = {"type": "record", "name": name, "fields": [{"name": "x", "type": inner}]}
            fields.append({"name": f"f{level}", "type": ["null", one]})
            before = name
        return {"type": "record", "name": self.name(), "fields": fields}

    def recursive(self) -> Any:
        name = self.name()
        again = self._chance.choice(
            (name, ["null", name], {"type": "array", "items": name}, {"type": "map", "values": name})
        )
        return {"type": "record", "name": name, "fields": [{"name": "x", "type": again}]}


def avro(chance: random.Random) -> Iterator[Attempt]:
    codec = AvroCodec(Tree)
    while True:
        text = json.dumps(_AvroMaker(chance).top())
        records = [record(chance) for _ in range(RECORDS)]

        def attempt(text: str = text, records: list[bytes] = records) -> None:
            schema = json.loads(text)
            avro_differences(*parse_schema(schema), *parse_schema(codec.schema))
            decode = codec.foreign(schema, [])
            try_all(decode, records)
            as_models(schema, [])

        yield attempt


def try_all(decode: Any, records: list[bytes]) -> None:
    for each in records:
        try:
            decode(each)
        except REFUSED:
            continue


# ------------------------------------------------------------------------------------------------------ JSON Schema


def json_schemas(chance: random.Random) -> Iterator[Attempt]:
    here = SchemaSide(draft_07(Tree.model_json_schema()), {})
    while True:
        text = json.dumps(_json_schema(chance))

        def attempt(text: str = text) -> None:
            there = SchemaSide(draft_07(json.loads(text)), {})
            json_differences(there, here)
            obstacles(there, here)

        yield attempt


def _json_schema(chance: random.Random) -> Any:
    definitions: dict[str, Any] = {}
    names = ["name", "number", "labels", "children", "data", "x"]
    properties = {name: _json_part(chance, definitions) for name in names[: chance.randrange(1, 7)]}
    made = {"type": "object", "properties": properties, "definitions": definitions}
    if chance.random() < 0.1:
        made["$id"] = "http://shop/" + "k" * chance.choice((1, 100_000))
    return made


def _json_part(chance: random.Random, definitions: dict[str, Any]) -> Any:
    count, name = number(chance), f"D{len(definitions)}"
    here = f"#/definitions/{name}"
    match chance.randrange(10):
        case 0:  # each level twice
            word = chance.choice(("allOf", "anyOf", "oneOf"))
            levels = [f"{name}_{level}" for level in range(count + 1)]
            for level, below in itertools.pairwise(levels):
                definitions[level] = {word: [{"$ref": f"#/definitions/{below}"}] * 2}
            definitions[levels[-1]] = {"type": "string"}
            return {"$ref": f"#/definitions/{levels[0]}"}
        case 1:  # a circle
            definitions[name] = chance.choice(({"$ref": here}, {"allOf": [{"$ref": here}]}, {"items": {"$ref": here}}))
            return {"$ref": here}
        case 2:  # a chain
            for level in range(count):
                definitions[f"{name}_{level}"] = {"items": {"$ref": f"#/definitions/{name}_{level + 1}"}}
            return {"$ref": f"#/definitions/{name}_0"}
        case 3:  # many of one name
            return {"properties": {f"p{n}": {"definitions": {"a": True}} for n in range(count)}}
        case 4:  # long names
            return {
                "properties": {
                    "k" * chance.choice((1, 100_000)): {"definitions": {f"a{n}": True for n in range(count)}}
                }
            }
        case 5:  # much that is put together
            definitions[name] = {"properties": {f"q{n}": True for n in range(count)}}
            return {"properties": {f"p{n}": {"allOf": [{"$ref": here}], "title": str(n)} for n in range(count)}}
        case 6:  # alternatives in alternatives
            for level in range(4):
                definitions[f"{name}_{level}"] = {"anyOf": [{"$ref": f"#/definitions/{name}_{level + 1}"}] * count}
            definitions[f"{name}_4"] = {"enum": [f"S{n}" for n in range(count)]}
            return {"$ref": f"#/definitions/{name}_0"}
        case 7:  # an expression that backtracks: it is compared, and never run
            return {"type": "string", "pattern": "^(a+)+$" * (count + 1)}
        case 8:
            part: Any = True
            for _ in range(count):
                part = {chance.choice(("not", "items", "contains")): part}
            return part
        case _:
            return chance.choice(
                (True, {"type": "string"}, {"type": [1, {}]}, {"$ref": "#/nowhere"}, {"required": "x"}, 7)
            )


# --------------------------------------------------------------------------------------------------------- Protobuf


def protobuf(chance: random.Random) -> Iterator[Attempt]:
    tp, _ = message()
    codec, here = ProtobufCodec(tp), tp.DESCRIPTOR
    while True:
        text = chance.choice(("", 'syntax = "proto3";\n')) + _proto_text(chance, number(chance) * chance.choice((1, 5)))
        records = [record(chance) for _ in range(RECORDS)]

        def attempt(text: str = text, records: list[bytes] = records) -> None:
            try_all(codec.decode, records)
            for there in load_schema(text, {}).message_types_by_name.values():
                proto_differences(there, here)
                proto_obstacles(there, here)
                proto_obstacles(here, here)

        yield attempt


def _proto_text(chance: random.Random, count: int) -> str:
    numbers = range(1, count + 1)
    forms: Mapping[str, Any] = {
        "nested": lambda: "".join(f"message A{n} {{" for n in numbers) + "}" * count,
        "not closed": lambda: "message Twig {" * count,
        "many": lambda: "".join(f"message A{n} {{}}\n" for n in numbers),
        "the same": lambda: "message Twig {}\n" * count,
        "fields": lambda: "message Twig {" + "".join(f"int32 f{n} = {n};" for n in numbers) + "}",
        "oneofs": lambda: "message Twig {" + "".join(f"oneof o{n} {{int32 f{n} = {n};}}" for n in numbers) + "}",
        "maps": lambda: "message Twig {" + "".join(f"map<string, Twig> f{n} = {n};" for n in numbers) + "}",
        "groups": lambda: "message Twig {" + "".join(f"optional group G{n} = {n} {{" for n in numbers) + "}" * count,
        "options": lambda: "message Twig { int32 x = 1 [" + "(" * count + "a" + ")" * count + " = 1]; }",
        "an option": lambda: "option (a) = " + "{a:" * count + "1" + "}" * count + ";",
        "comments": lambda: "/*" * count,
        "a quote": lambda: "'" + "\\" * count,
        "names": lambda: "message Twig { a" + ".a" * count + " x = 1; }",
        "a chain": lambda: (
            "message Twig { A0 children = 1; }"
            + "".join(f"message A{n} {{ A{n + 1} children = 1; }}" for n in range(count))
            + f"message A{count} {{}}"
        ),
        "digits": lambda: "message Twig { int32 x = " + "9" * count + "; }",
        "imports": lambda: "".join(f'import "a{n}.proto";' for n in numbers) + "message Twig {}",
        "symbols": lambda: "enum E {" + "".join(f"e{n}={n};" for n in range(count)) + "}",
        "required": lambda: "message Twig { required Twig children = 1; }" * min(count, 2),
    }
    text = str(forms[chance.choice([*forms])]())
    return text if chance.random() < 0.7 else text[: chance.randrange(len(text) + 1)]
