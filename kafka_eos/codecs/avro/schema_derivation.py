"""Derive an Avro schema from a Python type: pydantic models, msgspec Structs, dataclasses and what they hold.

Pure. Rules: the schema depends on the type alone (not on the module it was imported from, which differs between
processes); a type without one obvious Avro counterpart is refused, with the field named.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import re
import types
import typing
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, Union

import msgspec

from kafka_eos.codecs.type_inspection import is_model, is_record, type_name
from kafka_eos.core.errors import PlanError

Schema: TypeAlias = "str | dict[str, Any] | list[Any]"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_DEFAULT = object()
_PRIMITIVES: Mapping[Any, Schema] = {
    type(None): "null",
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "bytes",
    datetime.date: {"type": "int", "logicalType": "date"},
    uuid.UUID: {"type": "string", "logicalType": "uuid"},
}
TIMESTAMP: Schema = {"type": "long", "logicalType": "timestamp-micros"}
"""The type of datetimes that all programs read; it has no zone."""

Digits: TypeAlias = tuple[int, int]
"""Digits of a decimal: in total, and after the point."""


def avro_schema(tp: Any, datetimes: Schema = TIMESTAMP) -> dict[str, Any]:
    """Return the Avro schema of a record type. PlanError names the field whose type has no counterpart.

    ``datetimes``: the schema of datetimes.
    """
    if not (is_model(tp) or is_record(tp)):
        raise PlanError(f"Avro needs a pydantic model, a msgspec Struct or a dataclass, not {type_name(tp)}")
    schema = _Derivation(datetimes).schema(tp, type_name(tp))
    assert isinstance(schema, dict)
    return schema


def named_types(tp: Any) -> Mapping[str, type]:
    """Return ``tp`` and the types in it that have names in its schema, by these names."""
    derivation = _Derivation()
    derivation.schema(tp, type_name(tp))
    return derivation.named


def tag_fields(tp: Any) -> frozenset[str]:
    """Return the tag fields that msgspec adds to Structs, in ``tp`` or below it."""
    structs = (each for each in named_types(tp).values() if issubclass(each, msgspec.Struct))
    return frozenset(tag for each in structs if (tag := each.__struct_config__.tag_field) is not None)


class _Derivation:
    """One derivation of a schema: named types are written once, then referred to by name."""

    def __init__(self, datetimes: Schema = TIMESTAMP) -> None:
        self.named: dict[str, Any] = {}
        self._datetimes = datetimes

    def schema(self, tp: Any, at: str, digits: Digits | None = None) -> Schema:
        """Return the schema of a type. ``digits``: of decimals directly in it, from the annotation around it."""
        origin = typing.get_origin(tp)
        if origin is typing.Annotated:
            inner, *annotations = typing.get_args(tp)
            return self.schema(inner, at, _digits(annotations) or digits)
        if tp is decimal.Decimal:
            return _decimal(digits, at)
        if tp is datetime.datetime:
            return self._datetimes
        if tp is None or (isinstance(tp, type) and tp in _PRIMITIVES):
            return _PRIMITIVES[type(None) if tp is None else tp]
        if origin in (Union, types.UnionType):
            return self._union([self.schema(arm, at, digits) for arm in typing.get_args(tp)], at)
        if origin is Literal and all(isinstance(arm, str) for arm in typing.get_args(tp)):
            return "string"
        if origin in (list, Sequence):
            return {"type": "array", "items": self.schema(typing.get_args(tp)[0], f"{at}[]")}
        if origin in (dict, Mapping) and typing.get_args(tp)[0] is str:
            return {"type": "map", "values": self.schema(typing.get_args(tp)[1], f"{at}{{}}")}
        if isinstance(tp, type) and issubclass(tp, enum.Enum):
            return self._enum(tp, at)
        if is_model(tp) or is_record(tp):
            return self._record(tp, at)
        raise PlanError(
            f"{at}: {type_name(tp)} has no Avro counterpart here. Supported are None, bool, int, float, str, bytes, "
            "datetime, date, UUID, Decimal, enums of str, list, dict with str keys, unions, and nested records"
        )

    def _union(self, arms: list[Schema], at: str) -> Schema:
        kinds = [_kind(arm, self.named) for arm in arms]
        if len(set(kinds)) < len(kinds):
            raise PlanError(f"{at}: two arms of the union look the same in Avro ({', '.join(kinds)})")
        return arms

    def _enum(self, tp: type[enum.Enum], at: str) -> Schema:
        symbols = [member.value for member in tp]
        if not all(isinstance(symbol, str) and _NAME.fullmatch(symbol) for symbol in symbols):
            raise PlanError(f"{at}: the values of enum {tp.__name__} must be str and made of letters, digits and '_'")
        if self._known(tp, at):
            return tp.__name__
        return {"type": "enum", "name": tp.__name__, "symbols": symbols}

    def _record(self, tp: Any, at: str) -> Schema:
        name = re.sub(r"[^A-Za-z0-9_]", "_", tp.__name__)
        if self._known(tp, at, name):
            return name
        fields = [self._field(*field, at) for field in _fields(tp)]
        if not fields:
            raise PlanError(f"{at}: {name} has no fields")
        return {"type": "record", "name": name, "fields": fields}

    def _field(self, name: str, tp: Any, default: Any, at: str) -> dict[str, Any]:
        schema = self.schema(tp, f"{at}.{name}")
        if isinstance(default, enum.Enum):
            default = default.value
        if isinstance(schema, list) and default is not _NO_DEFAULT:
            # Avro: the default of a union belongs to its first arm.
            schema = sorted(schema, key=lambda arm: not _fits(default, arm))
        first = schema[0] if isinstance(schema, list) else schema
        field: dict[str, Any] = {"name": name, "type": schema}
        return field | {"default": default} if _fits(default, first) else field

    def _known(self, tp: Any, at: str, name: str | None = None) -> bool:
        """Return whether the type was written before. If not, mark it as written."""
        name = name or tp.__name__
        known = name in self.named
        if self.named.setdefault(name, tp) is not tp:
            raise PlanError(f"{at}: two different types are named {name}; rename one")
        return known


def _digits(annotations: Sequence[Any]) -> Digits | None:
    """Return the digits of pydantic's ``Field(max_digits=…, decimal_places=…)``."""
    found: dict[str, int] = {}
    for each in annotations:
        for part in (each, *getattr(each, "metadata", ())):
            for name in ("max_digits", "decimal_places"):
                if getattr(part, name, None) is not None:
                    found[name] = getattr(part, name)
    return (found["max_digits"], found["decimal_places"]) if len(found) == 2 else None


def _decimal(digits: Digits | None, at: str) -> Schema:
    if digits is None:
        raise PlanError(
            f"{at}: declare the digits of the Decimal for Avro: Annotated[Decimal, "
            "Field(max_digits=12, decimal_places=2)], with pydantic's Field"
        )
    precision, scale = digits
    if not 0 <= scale <= precision or precision == 0:
        raise PlanError(f"{at}: max_digits={precision}, decimal_places={scale}: a Decimal in Avro has no such digits")
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def _kind(schema: Schema, named: Mapping[str, Any]) -> str:
    """Return what distinguishes the arms of a union when a value is written."""
    if isinstance(schema, str):
        return schema if schema not in named else ("record" if not issubclass(named[schema], enum.Enum) else "string")
    assert isinstance(schema, dict)
    kind = str(schema["type"])
    return {"enum": "string", "int": "long", "map": "record"}.get(kind, kind)


def _fits(default: Any, schema: Schema) -> bool:
    """Return whether ``default`` can be written as the JSON default of a field with this schema."""
    if isinstance(schema, dict):
        kinds: dict[str, Any] = {"array": ([],), "map": ({},), "enum": schema.get("symbols", ())}
        return any(type(default) is type(one) and default == one for one in kinds.get(schema["type"], ()))
    fitting = {"null": type(None), "boolean": bool, "long": int, "double": float, "string": str}
    return isinstance(schema, str) and type(default) is fitting.get(schema)


def _fields(tp: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, type and default of every field."""
    if is_model(tp):
        for name, field in tp.model_fields.items():
            missing = field.is_required()
            annotated: Any = typing.Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
            yield name, annotated, _NO_DEFAULT if missing else _made(field.default, field.default_factory)
    elif issubclass(tp, msgspec.Struct):
        for info in msgspec.structs.fields(tp):
            factory = None if info.default_factory is msgspec.NODEFAULT else info.default_factory
            missing = info.default is msgspec.NODEFAULT and factory is None
            yield info.encode_name, info.type, _NO_DEFAULT if missing else _made(info.default, factory)
    else:
        hints = typing.get_type_hints(tp, include_extras=True)
        for plain in dataclasses.fields(tp):
            factory = None if plain.default_factory is dataclasses.MISSING else plain.default_factory
            missing = plain.default is dataclasses.MISSING and factory is None
            yield plain.name, hints[plain.name], _NO_DEFAULT if missing else _made(plain.default, factory)


def _made(default: Any, factory: Any) -> Any:
    """Return the default value. Factories other than ``list`` and ``dict`` are not called: they have no constant."""
    if factory is None:
        return default
    return factory() if factory in (list, dict) else _NO_DEFAULT
