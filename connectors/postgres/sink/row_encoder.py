"""Encoding of values as rows of a table. Pure.

Rule: a value is never changed to make it fit. A value that the column would round, cut or write differently is
rejected here. The server decides whether the others fit, when the row is staged.
"""

from __future__ import annotations

import decimal
import enum
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pydantic

from kafka_eos.codecs.json_codec import json_codec_of
from kafka_eos.codecs.type_inspection import attributes, type_name, without_none
from kafka_eos.connectors.postgres.columns import ModelColumn
from kafka_eos.connectors.postgres.sink.column_losses import ColumnLosses

_EXPONENT: Final = re.compile(rb"\d[eE]\+?\d")
"""Marks texts with a number that ``jsonb`` may return as an integer."""


class RowEncoder:
    """The encoding of values as rows of the table.

    ``types``: the SQL types of its columns. A column without one, such as one of an extension, is left to the server.
    """

    def __init__(
        self,
        columns: Sequence[ModelColumn],
        model: Any,
        key: Sequence[str],
        delete: Callable[[Any], bool] | None,
        types: Mapping[str, str],
    ) -> None:
        self._names, self._model = [column.name for column in columns], model
        self._known = frozenset(self._names)
        self._taken = attributes(self._names)
        self._key, self._delete = frozenset(key), delete
        self._documents = {
            column.name: column.declared for column in columns if types.get(column.name) in ("json", "jsonb")
        }
        """The columns of JSON, with the declared types of their values."""
        self._normalized = frozenset(name for name in self._documents if types[name] == "jsonb")
        self._losses = {name: ColumnLosses(types.get(name, "")) for name in self._names}
        self._enums = {column.name: _enum_classes(column.declared) for column in columns}
        """The classes of the fields that hold only enums."""
        self._unconverted = [
            frozenset({type(None)}) if name in self._documents or self._enums[name] else self._losses[name].unchanged
            for name in self._names
        ]

    def encode(self, value: Any) -> tuple[Any, ...]:
        """Return a value as a row: its delete flag and one cell per column. Raise ValueError for a value of another
        type, and for one that a column would change."""
        names, cells = self._names, self._cells(value)
        if self._delete is not None and self._delete(value):
            return (
                True,
                *(self._cell(*each) if each[0] in self._key else None for each in zip(names, cells, strict=True)),
            )
        if all(map(frozenset.__contains__, self._unconverted, map(type, cells))):
            return (False, *cells)
        return (False, *map(self._cell, names, cells))

    def _cells(self, value: Any) -> Sequence[Any]:
        if self._model is not None:
            if not isinstance(value, self._model):
                raise ValueError(f"expected {type_name(self._model)}, got {type(value).__name__}")
            return self._taken(value)
        if not isinstance(value, Mapping):
            raise ValueError(f"expected a dict with the columns, got {type(value).__name__}")
        if self._delete is None and not self._known.issuperset(value):  # delete= may look at other keys
            raise ValueError(f"no column for {', '.join(sorted(map(str, value.keys() - self._known)))}")
        return [value.get(name) for name in self._names]

    def _cell(self, name: str, cell: Any) -> Any:
        if name in self._documents and cell is not None:
            return _json(name, cell, self._documents[name], normalized=name in self._normalized)
        if cell is not None and (enums := self._enums[name]) and not isinstance(cell, enums):
            raise ValueError(f"column {name!r} takes a {type_name(enums[0])}, not a {type(cell).__name__}")
        if isinstance(cell, enum.Enum) and (self._enums[name] or isinstance(cell, str | int)):
            cell = cell.value  # of a text or a number, which equals its value, in any field
        if isinstance(cell, dict | set | frozenset | pydantic.BaseModel):
            raise ValueError(f"column {name!r} is not of type json or jsonb, and cannot hold a {type(cell).__name__}")
        if loss := self._losses[name].describe(cell):
            raise ValueError(f"column {name!r} {loss}")
        return cell


def _enum_classes(declared: Any) -> tuple[type[enum.Enum], ...]:
    """Return the classes of a type that holds only enums and None; none for other types."""
    tp = without_none(declared)
    parts = typing.get_args(tp) if typing.get_origin(tp) in (typing.Union, types.UnionType) else (tp,)
    return parts if all(isinstance(part, type) and issubclass(part, enum.Enum) for part in parts) else ()


def _json(name: str, cell: Any, declared: Any, *, normalized: bool) -> str:
    """Return a cell as JSON text. ``normalized``: the server stores its numbers, not their texts."""
    codec = json_codec_of(declared)
    try:
        data = codec.encode(cell)
        if normalized and _EXPONENT.search(data):
            codec.expect_return(cell, msgspec.json.encode(json.loads(data, parse_float=_parse_as_jsonb)))
        return data.decode()
    except ValueError as error:
        raise ValueError(f"column {name!r} cannot hold this as JSON: {error}") from error


def _parse_as_jsonb(text: str) -> int | float:
    """Return a number as ``jsonb`` does, which writes 1e16 as an integer."""
    number = decimal.Decimal(text)
    exponent = number.as_tuple().exponent
    return int(number) if isinstance(exponent, int) and exponent >= 0 else float(text)
