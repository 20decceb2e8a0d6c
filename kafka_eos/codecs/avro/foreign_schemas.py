"""Avro data of another program, with a schema that is first seen at run time.

Rule: any bytes and any schema lead to a value or a ValueError, and the bytes bound the memory. The
reader in C uses the process's stack for nested values, and creates as many values of no bytes as the schema describes.
Both are excluded (``expansion``) before it is called.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import fastavro
from fastavro._read_py import schemaless_reader as read_in_python
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType

from kafka_eos.codecs.avro.expansion import NAMED, Expansion, Names, parts
from kafka_eos.codecs.avro.foreign_decimals import with_own_decimals
from kafka_eos.codecs.avro.inlined_types import inline_named_types
from kafka_eos.codecs.type_inspection import reason
from kafka_eos.core.json_values import Json

T = TypeVar("T")

BAD_DATA: Final = (ValueError, TypeError, LookupError, EOFError, OverflowError, MemoryError, SchemaResolutionError)
"""Errors of fastavro about data and values."""
_SHALLOW: Final = 1000
"""A number of levels of values that fits on the stack."""


def parse_schema(schema: Any, named: Sequence[Any] = ()) -> tuple[Any, Names]:
    """Parse an Avro schema as far as reading needs it: defaults may be invalid. Raises ValueError if it is unusable."""
    names: Names = {}
    try:
        for each in [*named, schema]:
            parsed = fastavro.parse_schema(with_own_decimals(each), named_schemas=names, _ignore_default_error=True)
        return parsed, names
    except (SchemaParseException, UnknownType, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a usable Avro schema: {' '.join(str(error).split())}") from None


def open_safe_reader(writer: Any, names: Names, reader: Json) -> tuple[Callable[..., Any], Any, Any]:
    """Return a safe reader, the writer's schema, and the one to resolve to."""
    read = create_safe_reader(writer, names)
    own, own_names = parse_schema(reader)
    target = None if own == writer else parse_schema(_with_aliases(own, own_names, writer, names))[0]
    return read, inline_named_types(writer), inline_named_types(target)


def create_safe_reader(schema: Any, names: Names) -> Callable[..., Any]:
    """Return a reader of a schema whose memory is bounded by its input. Raises ValueError if there is none."""
    found = Expansion(schema, names)
    if found.levels is not None and found.levels <= _SHALLOW:
        return fastavro.schemaless_reader
    most = _SHALLOW // found.levels_per_byte

    def read_carefully(source: io.BytesIO, writer: Any, reader: Any) -> Any:
        """Read nested values; raise RecursionError if they are nested too deeply."""
        shallow = source.getbuffer().nbytes <= most
        return (fastavro.schemaless_reader if shallow else read_in_python)(source, writer, reader)

    return read_carefully


def create_decoder(
    read: Callable[..., Any], writer: Any, reader: Any, load: Callable[[Any], T], name: str, hint: str = ""
) -> Callable[[bytes], T]:
    """Return a decoder of values that another program wrote. It raises ValueError if the data are not exactly one.

    ``read``, ``writer``, ``reader``: see ``open_safe_reader``. ``name`` of the value and ``hint`` are for messages.
    """

    def decode(data: bytes) -> T:
        # One byte more: skipping the last field reads to its end, and does not detect that the data end before.
        source = io.BytesIO(data + b"\0")
        try:
            value = load(read(source, writer, reader))
        except (*BAD_DATA, RecursionError) as error:
            raise ValueError(f"not a valid {name}: {reason(error)}{hint}") from error
        if (left := len(data) - source.tell()) != 0:
            raise ValueError(f"not a valid {name}: {f'{left} bytes too many' if left > 0 else 'it is cut off'}")
        return value

    return decode


def _resolved(schema: Any, names: Names) -> Any:
    return names.get(schema, schema) if isinstance(schema, str) else schema


def _with_aliases(reader: Any, reader_names: Names, writer: Any, writer_names: Names) -> Any:
    """Return the reader's schema, whose types have the names of the writer's corresponding types as aliases."""
    aliases: dict[str, set[str]] = {}

    def meet(own: Any, foreign: Any) -> None:
        own, foreign = _resolved(own, reader_names), _resolved(foreign, writer_names)
        if isinstance(foreign, list):
            kinds = Counter(_kind(arm, writer_names) for arm in foreign)
            for arm in foreign:
                meet(counterpart(own, arm, kinds), arm)
        elif isinstance(own, list):
            meet(counterpart(own, foreign, Counter([_kind(foreign, writer_names)])), foreign)
        elif isinstance(own, dict) and isinstance(foreign, dict) and own["type"] == foreign["type"]:
            if own["type"] in NAMED:
                known = aliases.setdefault(own["name"], set())
                if foreign["name"] in known:
                    return
                known.add(foreign["name"])
            if own["type"] == "record":
                fields = {field["name"]: field["type"] for field in foreign["fields"]}
                for field in own["fields"]:
                    if field["name"] in fields:
                        meet(field["type"], fields[field["name"]])
            else:
                for part, other in zip(parts(own), parts(foreign), strict=True):
                    meet(part, other)

    def counterpart(own: Any, arm: Any, kinds: Counter[Any]) -> Any:
        """Return the type of ``own`` that reads one arm of the writer's union, if unambiguous; of several, names
        decide."""
        kind = _kind(arm, writer_names)
        candidates = [each for each in (own if isinstance(own, list) else [own]) if _kind(each, reader_names) == kind]
        return candidates[0] if len(candidates) == kinds[kind] == 1 else None

    meet(reader, writer)
    return _rename(reader, aliases)


def _kind(schema: Any, names: Names) -> Any:
    each = _resolved(schema, names)
    return each["type"] if isinstance(each, dict) else each if isinstance(each, str) else "union"


def _rename(schema: Any, aliases: Mapping[str, set[str]]) -> Any:
    if isinstance(schema, list):
        return [_rename(each, aliases) for each in schema]
    if not isinstance(schema, dict):
        return schema
    # Without the attributes of a parsed schema: this is another one.
    made = {name: value for name, value in schema.items() if not name.startswith("__")}
    if "fields" in made:
        made["fields"] = [{**field, "type": _rename(field["type"], aliases)} for field in made["fields"]]
    for part in {"items", "values"} & made.keys():
        made[part] = _rename(made[part], aliases)
    if made.get("name") in aliases:
        made["aliases"] = sorted(aliases[made["name"]])
    return made
