"""Rows that a library has read, with parts in the types of Python: as values of the user's type, and as bytes.

Rule: a row is never changed to make it fit; one that does not is a ValueError that says where.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pydantic

from kafka_eos.codecs.type_inspection import from_plain, is_codec, is_model, is_record, reason, type_name
from kafka_eos.core.errors import ConfigError


def converter(what: str, tp: Any, *, of_texts: bool = False) -> Callable[[Any], Any]:
    """What makes values of type ``tp`` of dicts; of None, the dicts themselves. ``what`` reads them, for people.

    ``of_texts``: all parts are texts, and mean what the type says.
    """
    if tp is None:
        return lambda row: row
    if is_codec(tp):
        raise ConfigError(f"{what}: value= is a type, whose fields are the columns; no codec")
    validate = tp.__pydantic_validator__.validate_python if is_model(tp) else None

    def decode(row: Any) -> Any:
        try:
            return (
                msgspec.convert(row, tp, strict=not of_texts, dec_hook=from_plain)
                if validate is None
                else validate(row)
            )
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"not a valid {type_name(tp)}: {reason(error)}") from error

    return decode


def columns_taken(tp: Any) -> frozenset[str]:
    """The names of columns that the type can make something of; none if nobody can tell, or it takes all."""
    if is_model(tp):
        return _of_model(tp)
    if not is_record(tp):
        return frozenset()
    is_struct = issubclass(tp, msgspec.Struct)
    return frozenset(tp.__struct_encode_fields__ if is_struct else tp.__dataclass_fields__)


def _of_model(tp: type[pydantic.BaseModel]) -> frozenset[str]:
    aliases = [field.validation_alias for field in tp.model_fields.values()]
    takes_rows_as_they_are = any(
        validator.info.mode != "after" for validator in tp.__pydantic_decorators__.model_validators.values()
    )
    if takes_rows_as_they_are or tp.model_config.get("extra") == "allow":
        return frozenset()
    if not all(alias is None or isinstance(alias, str) for alias in aliases):
        return frozenset()
    return frozenset([*tp.model_fields, *(alias for alias in aliases if isinstance(alias, str))])


def said(row: object) -> bytes:
    """A row as text, the same for the same values."""
    return json.dumps(row, ensure_ascii=False, default=repr).encode()
