"""Reasons why values of one Avro schema cannot be read as another, as lines for messages.

Pure. Rule: the lines name what the reader would reject by Avro's resolution rules. Names of types are ignored, as in
``foreign_schemas``. Rejections that depend on the value (a symbol, an arm of a union) are included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fastavro.read import LOGICAL_READERS

from kafka_eos.codecs.avro.differences import as_text, kind, resolved
from kafka_eos.codecs.avro.expansion import Names
from kafka_eos.codecs.comparison_lines import collect_lines

_READ_AS: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"int", "long", "float", "double"}),
    "long": frozenset({"long", "float", "double"}),
    "float": frozenset({"float", "double"}),
    "string": frozenset({"string", "bytes"}),
    "bytes": frozenset({"bytes", "string"}),
}
"""The types as which a plain type can be read, besides itself."""
_TIMES: Final = frozenset({"timestamp-millis", "timestamp-micros"})


def obstacles(writer: Any, writer_names: Names, reader: Any, reader_names: Names) -> list[str]:
    """Return the incompatibilities of schemas from ``foreign_schemas.parse_schema``; none if every value can be
    read."""
    return collect_lines(_IncompatibilityFinder(writer_names, reader_names).between(writer, reader, ""))


class _IncompatibilityFinder:
    def __init__(self, writer: Names, reader: Names) -> None:
        self._writer, self._reader = writer, reader
        self._met: set[tuple[str, str]] = set()

    def between(self, writer: Any, reader: Any, at: str) -> Iterator[str]:
        writer, reader = resolved(writer, self._writer), resolved(reader, self._reader)
        if isinstance(writer, list):
            for arm in writer:
                yield from self.between(arm, reader, at)
        elif isinstance(reader, list):
            found = [list(self.between(writer, arm, at)) for arm in reader if self._alike(writer, arm)]
            if all(found):  # also if there is none
                yield from min(found, key=len) if found else [self._unlike(writer, reader, at)]
        elif not self._alike(writer, reader):
            yield self._unlike(writer, reader, at)
        else:
            yield from self._within(writer, reader, at)

    def _within(self, writer: Any, reader: Any, at: str) -> Iterator[str]:
        match kind(writer):
            case "record" | "error":
                yield from self._records(writer, reader, at)
            case "array":
                yield from self.between(writer["items"], reader["items"], f"{at}[]")
            case "map":
                yield from self.between(writer["values"], reader["values"], f"{at}{{}}")
            case "enum":
                more = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
                if more and "default" not in reader:
                    yield f"{at or 'the value'} can be {', '.join(more)} there, which is not known here"
            case "fixed":
                if writer["size"] != reader["size"]:
                    yield f"{at or 'the value'} has {writer['size']} bytes there, {reader['size']} here"

    def _records(self, writer: Any, reader: Any, at: str) -> Iterator[str]:
        both = writer["name"], reader["name"]
        if both in self._met:
            return
        self._met.add(both)
        writer_fields = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            path = f"{at}.{field['name']}" if at else field["name"]
            if field["name"] in writer_fields:
                yield from self.between(writer_fields[field["name"]]["type"], field["type"], path)
            elif "default" not in field:
                yield f"{path} ({as_text(field['type'], self._reader)}) is only here, and has no default"

    def _alike(self, writer: Any, reader: Any) -> bool:
        writer, reader = resolved(writer, self._writer), resolved(reader, self._reader)
        if isinstance(reader, list):
            return any(self._alike(writer, arm) for arm in reader)
        writer_logical, reader_logical = logical(writer), logical(reader)
        if reader_logical is None:
            return reads(writer, reader)  # as the underlying type, if the writer has a logical type
        if writer_logical != reader_logical:
            return {writer_logical, reader_logical} <= _TIMES
        if "precision" in writer:
            return (writer["precision"], writer.get("scale", 0)) == (reader["precision"], reader.get("scale", 0))
        return reads(writer, reader)

    def _unlike(self, writer: Any, reader: Any, at: str) -> str:
        return f"{at or 'the value'} is {as_text(writer, self._writer)} there, {as_text(reader, self._reader)} here"


def reads(writer: Any, reader: Any) -> bool:
    """Return whether one can be read as the other by their kinds, without their logical types."""
    return kind(reader) in _READ_AS.get(kind(writer), frozenset()) | {kind(writer)}


def logical(schema: Any) -> str | None:
    """Return the logical type, if it is one that is supported here."""
    logical_type = schema.get("logicalType") if isinstance(schema, dict) else None
    return str(logical_type) if f"{kind(schema)}-{logical_type}" in LOGICAL_READERS else None
