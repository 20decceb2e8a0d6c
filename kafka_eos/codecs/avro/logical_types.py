"""Removal of logical types of the writer where the reader declares the underlying type.

So an older reader that takes an ``int`` can continue when its writer adds a time as logical type (Avro: a reader that
does not know a logical type reads the underlying type). Rule: a definition that the reader uses with the logical type
in one place and without it in another is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kafka_eos.codecs.avro.differences import as_text, kind, resolved
from kafka_eos.codecs.avro.expansion import Names
from kafka_eos.codecs.avro.reader_compatibility import logical, reads


def drop_unread_logical_types(writer: Any, names: Names, reader: Any, reader_names: Names) -> None:
    """Drop logical types of the writer where the reader takes the underlying type.

    Raises ValueError if a definition would need both.
    """
    walk = _LogicalTypeFinder(names, reader_names)
    walk.meet(writer, reader)
    for address, node in walk.plain.items():
        if address in walk.kept:
            raise ValueError(
                f"a definition with {as_text(node, names)} is read as that in one place, and as {kind(node)} in "
                "another: declare the same type in both"
            )
        del node["logicalType"]


class _LogicalTypeFinder:
    def __init__(self, writer: Names, reader: Names) -> None:
        self._writer, self._reader = writer, reader
        self._met: set[tuple[int, int]] = set()
        self.plain: dict[int, Any] = {}
        """Schemas of the writer, by address, whose logical type is ignored: values are read as the type below it."""
        self.kept: set[int] = set()

    def meet(self, writer: Any, reader: Any) -> None:
        writer, reader = resolved(writer, self._writer), resolved(reader, self._reader)
        pair = (id(writer), id(reader))
        if pair in self._met:
            return
        self._met.add(pair)
        if isinstance(writer, list):
            for arm in writer:
                self.meet(arm, reader)
        elif isinstance(reader, list):
            for arm in reader:
                if reads(writer, resolved(arm, self._reader)):
                    self.meet(writer, arm)
        elif logical(writer) is not None:
            if logical(reader) is None and reads(writer, reader):
                self.plain[id(writer)] = writer
            else:
                self.kept.add(id(writer))
        elif kind(writer) == kind(reader):
            for writer_part, reader_part in _parts(writer, reader):
                self.meet(writer_part, reader_part)


def _parts(writer: Any, reader: Any) -> Iterator[tuple[Any, Any]]:
    match kind(writer):
        case "record" | "error":
            reader_fields = {field["name"]: field["type"] for field in reader["fields"]}
            yield from (
                (field["type"], reader_fields[field["name"]])
                for field in writer["fields"]
                if field["name"] in reader_fields
            )
        case "array":
            yield writer["items"], reader["items"]
        case "map":
            yield writer["values"], reader["values"]
