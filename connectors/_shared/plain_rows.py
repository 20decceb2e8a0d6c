"""Conversion of rows that a library has read, as Python objects, to values of the user's type and to bytes.

Rule: a row is never changed to make it fit; a row that does not fit raises a ValueError that names the field.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pydantic

from kafka_eos.codecs.json_codec import json_codec_of
from kafka_eos.codecs.type_inspection import (
    field_aliases,
    from_plain,
    holds_values,
    is_codec,
    is_model,
    is_record,
    reason,
    type_name,
)
from kafka_eos.core.errors import ConfigError


def build_converter(what: str, tp: Any, *, of_texts: bool = False) -> Callable[[Any], Any]:
    """Return a function that converts dicts to values of the type; for None it returns the dicts.

    A field is read from the column of its name or of its alias. Keys of dicts within them may be the texts of their
    declared type, as in JSON.
    ``what``: the name of the reader, for messages.
    ``of_texts``: all cells are text, and are parsed as the type requires; lists, dicts and records are JSON.
    """
    if tp is None:
        return lambda row: row
    if is_codec(tp):
        raise ConfigError(f"{what}: value= must be a type, whose fields are the columns, not a codec")
    aliases = field_aliases(tp)
    validate = partial(tp.__pydantic_validator__.validate_python, by_alias=True, by_name=True) if is_model(tp) else None
    of_json = _json_columns(tp) if of_texts else {}

    def decode(row: Any) -> Any:
        try:
            if of_json:
                row = {**row, **{name: of_json[name](row[name]) for name in of_json if row.get(name)}}
            if aliases and validate is None:
                row = {aliases.get(name, name): cell for name, cell in row.items()}
            return (
                msgspec.convert(row, tp, strict=not of_texts, str_keys=True, dec_hook=from_plain)
                if validate is None
                else validate(row)
            )
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"not a valid {type_name(tp)}: {reason(error)}") from error

    return decode


def _json_columns(tp: Any) -> dict[str, Callable[[str], Any]]:
    """Return the decoders of the columns with JSON in their cells, by name."""
    if not is_model(tp) and not is_record(tp):
        return {}
    hints = typing.get_type_hints(tp, include_extras=True)
    decoders = {field: _cell_decoder(field, of) for field, of in hints.items() if holds_values(of)}
    aliases = field_aliases(tp)
    return decoders | {alias: decoders[field] for field, alias in aliases.items() if field in decoders}


def _cell_decoder(field: str, tp: Any) -> Callable[[str], Any]:
    read = json_codec_of(tp).decode

    def decode(cell: str) -> Any:
        try:
            return read(cell.encode())
        except ValueError as error:
            raise ValueError(f"field {field}: {error}") from error

    return decode


def build_cell_reader(tp: Any, *, of_model: bool) -> Callable[[str], Any]:
    """Return the function that reads the text of a cell as a field's type; see ``build_converter``.

    ``of_model``: whether the field is one of a pydantic model.
    """
    if of_model:
        return pydantic.TypeAdapter(tp).validate_python
    return lambda text: msgspec.convert(text, tp, strict=False, dec_hook=from_plain)


def columns_taken(tp: Any) -> frozenset[str]:
    """Return the names of columns that the type uses; an empty set if unknown, or if it accepts any column."""
    if is_model(tp):
        return _of_model(tp)
    if not is_record(tp):
        return frozenset()
    if not issubclass(tp, msgspec.Struct):
        return frozenset(tp.__dataclass_fields__)
    tag = tp.__struct_config__.tag_field
    return frozenset([*tp.__struct_fields__, *tp.__struct_encode_fields__, *([] if tag is None else [tag])])


def _of_model(tp: type[pydantic.BaseModel]) -> frozenset[str]:
    aliases = [field.validation_alias for field in tp.model_fields.values()]
    takes_rows_as_they_are = any(
        validator.info.mode != "after" for validator in tp.__pydantic_decorators__.model_validators.values()
    )
    if takes_rows_as_they_are or tp.__pydantic_custom_init__ or tp.model_config.get("extra") == "allow":
        return frozenset()
    if not all(alias is None or isinstance(alias, str) for alias in aliases):
        return frozenset()
    return frozenset([*tp.model_fields, *(alias for alias in aliases if isinstance(alias, str))])


def encode_row(row: object) -> bytes:
    """Return a row as JSON text; equal values give equal bytes. A row that is nested too deeply is only described."""
    try:
        text = json.dumps(row, ensure_ascii=False, default=repr)
    except RecursionError:
        text = '"nested too deeply to be written as JSON"'
    return text.encode(errors="backslashreplace")  # half of a surrogate pair, as JSON escapes it
