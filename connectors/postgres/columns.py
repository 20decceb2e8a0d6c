"""Conversion of a model to columns: names, types for a new table, and the values of a row. Pure.

Rule: a value is never changed to make it fit. The server decides whether it fits, when the row is staged.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
import pydantic

from kafka_eos.codecs.type_inspection import attributes, is_model, is_record, to_plain, type_name
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
    datetime.date: "date",
    datetime.time: "time",
    datetime.timedelta: "interval",
    uuid.UUID: "uuid",
}
_PLAIN: Final = frozenset({type(None), *_TYPES})
"""Types of values that need no conversion, unless the column has JSON, or times without a zone."""
_DOCUMENTS: Final = (dict, list, tuple, set, frozenset)

ORDER: Final = "kafka_eos_n"
DELETED: Final = "kafka_eos_deleted"
"""Columns of a staging table; a user's table must not have columns with these names."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelColumn:
    """A column as the user's model declares it. ``type`` is empty if only the table defines it.

    ``holds``: the class of its values, if all have the same.
    """

    name: str
    type: str = ""
    nullable: bool = True
    holds: typing.Any = dataclasses.field(default=None, compare=False)


def columns_of(model: Any, given: Sequence[str] | None) -> tuple[ModelColumn, ...]:
    """Return the columns of a sink: the fields of its model, or the given names. Raise ConfigError if there
    are none."""
    if model is None:
        if not given:
            raise ConfigError(
                "PostgresSink needs to know its columns: value=Model (a pydantic model, msgspec Struct or dataclass), "
                'or columns=("a", "b") for streams of dicts'
            )
        columns = tuple(ModelColumn(name) for name in given)
    else:
        declared = {column.name: column for column in _declared(model)}
        if unknown := [name for name in given or () if name not in declared]:
            raise ConfigError(f"columns: {', '.join(unknown)} is no field of {type_name(model)}")
        columns = tuple(declared[name] for name in given or declared)
    names = [column.name for column in columns]
    if wrong := [name for name in names if name in (ORDER, DELETED) or not name or len(name.encode()) > 63]:
        raise ConfigError(f"{wrong[0]!r} cannot be a column: 1 to 63 bytes, and neither {ORDER} nor {DELETED}")
    if len(set(names)) < len(names):
        raise ConfigError(f"columns: a name comes twice in {', '.join(names)}")
    return columns


def _declared(model: Any) -> list[ModelColumn]:
    if not is_model(model) and not is_record(model):
        raise ConfigError(
            f"value={type_name(model)}: rows of a table are pydantic models, msgspec Structs or dataclasses; for "
            'streams of dicts leave value out and say columns=("a", "b")'
        )
    hints = typing.get_type_hints(model)
    if is_model(model):
        names = list(model.model_fields)
    elif issubclass(model, msgspec.Struct):
        names = list(model.__struct_fields__)
    else:
        names = [field.name for field in dataclasses.fields(model)]
    return [ModelColumn(name, *_column_type(hints[name])) for name in names]


def _column_type(tp: Any) -> tuple[str, bool, type | None]:
    """Return the column type for ``tp``, whether it may be null, and the class of its values.

    The type is "" if none certainly fits; the class is None if there are several.
    """
    if tp is Any:
        return "", True, None
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin is typing.Annotated:
        return _column_type(args[0])
    if origin in (typing.Union, types.UnionType):
        others = [_column_type(arg) for arg in args if arg is not type(None)]
        return _only(each[0] for each in others) or "", type(None) in args, _only(each[2] for each in others)
    if origin is typing.Literal:
        return _of_class(_only(map(type, args)))
    if isinstance(origin or tp, type):
        return _of_class(origin or tp)
    return "", False, None


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


class RowEncoder:
    """The encoding of values as rows of the table.

    ``documents``: the columns whose values are written as JSON.
    ``zoneless``: the columns that drop the zone of a time.
    """

    def __init__(
        self,
        columns: Sequence[ModelColumn],
        model: Any,
        key: Sequence[str],
        delete: Callable[[Any], bool] | None,
        documents: frozenset[str],
        zoneless: frozenset[str],
    ) -> None:
        self._names, self._model = [column.name for column in columns], model
        self._taken = attributes(self._names)
        self._key, self._delete = frozenset(key), delete
        self._documents, self._zoneless = documents.intersection(self._names), zoneless.intersection(self._names)

    def encode(self, value: Any) -> tuple[Any, ...]:
        """Return a value as a row: its delete flag and one cell per column. Raise ValueError for a value of another
        type."""
        if not isinstance(value, Mapping if self._model is None else self._model):
            wanted = "a dict with the columns" if self._model is None else type_name(self._model)
            raise ValueError(f"expected {wanted}, got {type(value).__name__}")
        names = self._names
        cells = [value.get(name) for name in names] if self._model is None else self._taken(value)
        if self._delete is not None and self._delete(value):
            return (
                True,
                *(self._cell(*each) if each[0] in self._key else None for each in zip(names, cells, strict=True)),
            )
        if not self._documents and not self._zoneless and _PLAIN.issuperset(map(type, cells)):
            return (False, *cells)
        return (False, *map(self._cell, names, cells))

    def _cell(self, name: str, cell: Any) -> Any:
        if name in self._documents and cell is not None:
            return _json(name, cell)
        # A time in UTC loses nothing, because a time without a zone counts as UTC.
        if name in self._zoneless and isinstance(cell, datetime.datetime | datetime.time) and cell.utcoffset():
            raise ValueError(f"column {name!r} has no time zone, and would lose that of {cell}: write it in UTC")
        return _scalar(name, cell)


def _scalar(name: str, cell: Any) -> Any:
    if isinstance(cell, enum.Enum):
        cell = cell.value
    if isinstance(cell, dict | set | frozenset | pydantic.BaseModel):
        raise ValueError(f"column {name!r} is not of type json or jsonb, and cannot hold a {type(cell).__name__}")
    return cell


def _json(name: str, cell: Any) -> str:
    try:
        text = msgspec.json.encode(cell, enc_hook=to_plain).decode()
        if "null" in text:  # it may replace a number that JSON does not have
            json.dumps(msgspec.to_builtins(cell, enc_hook=to_plain, str_keys=True), allow_nan=False)
        return text
    except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        raise ValueError(f"column {name!r} cannot hold this as JSON: {error}") from error
