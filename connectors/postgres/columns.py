"""The columns of a model: their names, and their types for a new table. Pure."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
import pydantic

from kafka_eos.codecs.type_inspection import is_model, is_record, type_name
from kafka_eos.core.errors import ConfigError

V = TypeVar("V")

_TYPES: Final[Mapping[type, str]] = {
    bool: "boolean",
    int: "bigint",
    float: "double precision",
    str: "text",
    bytes: "bytea",
    decimal.Decimal: "numeric",
    datetime.datetime: "timestamp with time zone",
    pydantic.AwareDatetime: "timestamp with time zone",
    pydantic.NaiveDatetime: "timestamp without time zone",
    datetime.date: "date",
    datetime.time: "time",
    datetime.timedelta: "interval",
    uuid.UUID: "uuid",
}
PLAIN: Final = frozenset({type(None), *_TYPES})
"""Types of values that need no conversion, unless the column has JSON."""
_DOCUMENTS: Final = (dict, list, tuple, set, frozenset)

ORDER: Final = "kafka_eos_n"
DELETED: Final = "kafka_eos_deleted"
"""Columns of a staging table; a user's table must not have columns with these names."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelColumn:
    """A column as the user's model declares it. ``type`` is empty if only the table defines it.

    ``holds``: the class of its values, if all have the same. ``declared``: their type.
    """

    name: str
    type: str = ""
    nullable: bool = True
    holds: typing.Any = dataclasses.field(default=None, compare=False)
    declared: typing.Any = dataclasses.field(default=Any, compare=False)


def columns_of(model: Any, given: Sequence[str] | None) -> tuple[ModelColumn, ...]:
    """Return the columns of a sink: the fields of its model, or the given names. Raise ConfigError if there
    are none."""
    if model is None:
        if not given:
            raise ConfigError(
                "PostgresSink: the columns are unknown. Pass value=Model (a pydantic model, msgspec "
                'Struct or dataclass), or columns=("a", "b") for streams of dicts'
            )
        columns = tuple(ModelColumn(name) for name in given)
    else:
        declared = {column.name: column for column in _declared(model)}
        if unknown := [name for name in given or () if name not in declared]:
            raise ConfigError(f"columns: {', '.join(unknown)} is not a field of {type_name(model)}")
        columns = tuple(declared[name] for name in given or declared)
    names = [column.name for column in columns]
    if wrong := [name for name in names if name in (ORDER, DELETED) or not name or len(name.encode()) > 63]:
        raise ConfigError(f"{wrong[0]!r} cannot be a column: 1 to 63 bytes, and neither {ORDER} nor {DELETED}")
    if len(set(names)) < len(names):
        raise ConfigError(f"columns: a name occurs twice in {', '.join(names)}")
    return columns


def _declared(model: Any) -> list[ModelColumn]:
    if not is_model(model) and not is_record(model):
        raise ConfigError(
            f"value={type_name(model)}: the rows of a table must be pydantic models, msgspec "
            'Structs or dataclasses; for streams of dicts omit value and pass columns=("a", "b")'
        )
    hints, annotated = typing.get_type_hints(model), typing.get_type_hints(model, include_extras=True)
    if is_model(model):
        names = list(model.model_fields)
    elif issubclass(model, msgspec.Struct):
        names = list(model.__struct_fields__)
    else:
        names = [field.name for field in dataclasses.fields(model)]
    return [ModelColumn(name, *_column_type(annotated[name]), declared=hints[name]) for name in names]


def _column_type(tp: Any) -> tuple[str, bool, type | None]:
    """Return the column type for ``tp``, whether it may be null, and the class of its values.

    The type is "" if none certainly fits; the class is None if there are several.
    """
    if tp is Any:
        return "", True, None
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin is typing.Annotated:
        return _of_class(_zoned(args)) if args[0] is datetime.datetime else _column_type(args[0])
    if origin in (typing.Union, types.UnionType):
        others = [_column_type(arg) for arg in args if arg is not type(None)]
        return _only(each[0] for each in others) or "", type(None) in args, _only(each[2] for each in others)
    if origin is typing.Literal:
        return _of_class(_only(map(type, args)))
    if isinstance(origin or tp, type):
        return _of_class(origin or tp)
    return "", False, None


def _zoned(annotated: Sequence[Any]) -> type:
    """Return the class that says whether annotated datetimes have a zone, if msgspec's ``Meta(tz=…)`` does."""
    zones = {meta.tz for meta in annotated[1:] if isinstance(meta, msgspec.Meta)}
    if True in zones:
        return pydantic.AwareDatetime
    return pydantic.NaiveDatetime if False in zones else datetime.datetime


def _of_class(cls: type | None) -> tuple[str, bool, type | None]:
    if cls is None:
        return "", False, None
    if issubclass(cls, enum.Enum):
        return _of_class(_only(type(member.value) for member in cls))
    if issubclass(cls, _DOCUMENTS) or is_model(cls) or is_record(cls):
        return "jsonb", False, cls
    base = next((base for base in cls.__mro__ if base in _TYPES), None)
    return ("", False, None) if base is None else (_TYPES[base], False, base)


def _only(found: Iterable[V]) -> V | None:
    """Return the common value; None if they differ."""
    distinct = set(found)
    return distinct.pop() if len(distinct) == 1 else None
