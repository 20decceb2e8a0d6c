"""Avro codec: compact, and the one format here whose stored schema can differ from the code's.

Rule: ``encode`` converts the plain form of a value back, and rejects a value that would come back as another one.
The schema is derived from the type (``schema_derivation.py``). ``reader_of`` returns the codec that reads what an older
program wrote, by Avro's rules: new fields need a default, dropped fields are skipped, int may become float.
"""

from __future__ import annotations

import datetime
import decimal
import io
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import fastavro
import msgspec

from kafka_eos.abc.codec import Codec
from kafka_eos.codecs.avro.foreign_schemas import (
    BAD_DATA,
    create_decoder,
    create_safe_reader,
    open_safe_reader,
    parse_schema,
)
from kafka_eos.codecs.avro.inlined_types import inline_named_types
from kafka_eos.codecs.avro.logical_types import drop_unread_logical_types
from kafka_eos.codecs.avro.reader_compatibility import obstacles
from kafka_eos.codecs.avro.schema_derivation import TIMESTAMP, Schema, avro_schema, tag_fields
from kafka_eos.codecs.avro.value_conversion import build_preparer
from kafka_eos.codecs.returned_values import is_equal
from kafka_eos.codecs.type_inspection import field_aliases, in_short, is_model, reason, type_name
from kafka_eos.core.errors import PlanError
from kafka_eos.core.json_values import Json

T = TypeVar("T")

_KEPT = (
    bytes, bytearray, datetime.datetime, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID
)  # fmt: skip
_TOLD = ("null", "boolean", "int", "long", "float", "double", "string", "bytes", "fixed")
"""Types of Avro whose values have one class each."""


class AvroCodec(Codec[T]):
    """Values of one record type as Avro without a header; the schema is stored beside the data.

    ``writer`` is the schema with which the data was written, if it is not the type's own. ``datetimes`` is the schema
    of datetimes: by default the one that all programs read, which is in UTC.
    """

    name = "avro"

    def __init__(self, tp: Any, *, writer: Json = None, datetimes: Schema = TIMESTAMP) -> None:
        self.type = tp
        self._datetimes = datetimes
        field_aliases(tp)  # refuses a model that could be read in two ways: it is read by names and by aliases
        self._schema = avro_schema(tp, datetimes)
        self._ready = build_preparer(self._schema, tag_fields(tp))
        self._own = fastavro.parse_schema(self._schema)
        try:
            self._reader, names = parse_schema(self._schema)
            self._writer = self._reader
            if writer is not None and writer != self._schema:
                self._writer, names = parse_schema(writer)
            self._read = create_safe_reader(self._writer, names)
        except ValueError as error:
            raise PlanError(f"the Avro schema of {type_name(tp)} is not usable: {error}") from error
        inline_named_types(self._reader)
        inline_named_types(self._writer)
        self._dump, self._load = _model_functions(tp) if is_model(tp) else _record_functions(tp)
        self._encode = self.writing(b"")

    @property
    def schema(self) -> Json:
        return self._schema

    def writing(self, before: bytes) -> Callable[[T], bytes]:
        """Return a function that encodes values, each behind ``before``."""
        tp, own, make, dump, load = self.type, self._own, self._ready, self._dump, self._load
        ambiguous = not is_model(tp) or any(map(_is_ambiguous, self._schema["fields"]))

        def encode(value: T) -> bytes:
            if not isinstance(value, tp):
                raise ValueError(f"expected {type_name(tp)}, got {type(value).__name__}")
            out = io.BytesIO()
            out.write(before)
            try:
                plain = dump(value)
                fastavro.schemaless_writer(out, own, make(plain))
                back = load(plain) if ambiguous else value
            except BAD_DATA as error:
                raise ValueError(f"not a valid {type_name(tp)}: {reason(error)}") from error
            if ambiguous and not is_equal(back, value):
                raise ValueError(
                    f"{value!r:.200} would come back from Avro as {back!r:.200}: it is not of its declared type"
                )
            return out.getvalue()

        return encode

    def encode(self, value: T) -> bytes:
        return self._encode(value)

    def decode(self, data: bytes) -> T:
        source = io.BytesIO(data)
        try:
            value: T = self._load(self._read(source, self._writer, self._reader))
        except (*BAD_DATA, RecursionError) as error:
            raise ValueError(f"not a valid {type_name(self.type)}: {reason(error)}") from error
        if source.tell() != len(data):
            raise ValueError(f"not a valid {type_name(self.type)}: {len(data) - source.tell()} bytes too many")
        return value

    def reader_of(self, schema: Json) -> AvroCodec[T]:
        """Return the codec that reads data written with ``schema``. It still writes with the type's own schema."""
        return AvroCodec(self.type, writer=schema, datetimes=self._datetimes)

    def foreign(self, writer: Json, named: Sequence[Json]) -> Callable[[bytes], T]:
        """Return a decoder of data that another program wrote with ``writer``, which may refer to types of ``named``.

        Names of types are ignored. Raises ValueError, now or when called, if the data cannot be read as the type.
        """
        writer_schema, names = parse_schema(writer, named)
        drop_unread_logical_types(writer_schema, names, *parse_schema(self._schema))
        found = obstacles(writer_schema, names, *parse_schema(self._schema))
        unlike = f": {in_short('; '.join(found))}" if found else ""
        read, writer_schema, reader_schema = open_safe_reader(writer_schema, names, self._schema)
        return create_decoder(read, writer_schema, reader_schema, self._load, type_name(self.type), unlike)


def _is_ambiguous(field: Any) -> bool:
    """Return whether the plain form of a field's value may be that of several classes: of a model and a dict, of an
    enum and a text. Of a record's field it always is: msgspec writes a set as a list."""
    parts = [field["type"]]
    for part in parts:
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict):
            parts.append(part["items"] if part["type"] == "array" else part["type"])
        elif part not in _TOLD:
            return True
    return False


def _model_functions(model: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    validate = model.__pydantic_validator__.validate_python
    to_python = model.__pydantic_serializer__.to_python

    def dump(value: Any) -> Any:
        if type(value) is not model and (more := type(value).model_fields.keys() - model.model_fields.keys()):
            raise ValueError(f"no field for {', '.join(sorted(more))}")
        return to_python(value, exclude_computed_fields=True, warnings=False)

    return dump, lambda plain: validate(plain, by_name=True)


def _record_functions(tp: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    try:
        msgspec.msgpack.Decoder(tp)  # compiles the type, as the conversion of the first value would
    except TypeError as error:
        raise PlanError(f"type {type_name(tp)} cannot be mapped to Avro: {reason(error)}") from error

    def dump(value: Any) -> Any:
        return msgspec.to_builtins(value, builtin_types=_KEPT)

    return dump, lambda plain: msgspec.convert(plain, tp)
