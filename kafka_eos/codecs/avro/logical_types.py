"""Logical types that only the writer knows: where the type that is read is the plain one below, they are left out.

So a reader of before, that takes an ``int``, goes on when its writer says that it is a time (Avro: who does not know a
logical type reads the type below it). Rule: what is a time to the reader in one place is none in another: a definition
that both places share is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kafka_eos.codecs.avro.differences import as_text, kind, resolved
from kafka_eos.codecs.avro.foreign_schemas import Names
from kafka_eos.codecs.avro.reader_compatibility import logical, reads


def as_plain(writer: Any, names: Names, reader: Any, reader_names: Names) -> None:
    """Change the writer's parsed schema in place. ValueError if one place of it would have to be both."""
    walk = _Walk(names, reader_names)
    walk.meet(writer, reader)
    for address, node in walk.plain.items():
        if address in walk.kept:
            raise ValueError(
                f"a definition with {as_text(node, names)} is read as that in one place, and as {kind(node)} in "
                "another: declare the same type in both"
            )
        del node["logicalType"]


class _Walk:
    def __init__(self, writer: Names, reader: Names) -> None:
        self._writer, self._reader = writer, reader
        self._met: set[tuple[int, int]] = set()
        self.plain: dict[int, Any] = {}
        """Of the writer's schemas with logical types, by address, those that are read as the type below."""
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
            for theirs, ours in _parts(writer, reader):
                self.meet(theirs, ours)


def _parts(writer: Any, reader: Any) -> Iterator[tuple[Any, Any]]:
    match kind(writer):
        case "record" | "error":
            ours = {field["name"]: field["type"] for field in reader["fields"]}
            yield from ((field["type"], ours[field["name"]]) for field in writer["fields"] if field["name"] in ours)
        case "array":
            yield writer["items"], reader["items"]
        case "map":
            yield writer["values"], reader["values"]
