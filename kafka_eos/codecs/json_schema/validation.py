"""Validation of written values against their registered schema.

Rule: the written bytes are validated, by jsonschema-rs. Of formats only those of times and UUIDs are checked, as
pydantic and msgspec write them: in draft-07 each time has a zone, which many values lack.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

import msgspec

from kafka_eos._util.extras import ensure_extra
from kafka_eos.codecs.json_codec import JsonCodec
from kafka_eos.codecs.json_schema.draft_07 import Schema, map_schemas
from kafka_eos.codecs.type_inspection import reason
from kafka_eos.core.errors import PlanError

_DAY: Final = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_TIME: Final = r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?"
_PATTERNS: Final = {
    "date-time": f"^{_DAY}[T ]{_TIME}$",
    "date": f"^{_DAY}$",
    "time": f"^{_TIME}$",
    "duration": r"^[+-]?P(\d+Y)?(\d+M)?(\d+W)?(\d+D)?(T(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?$",
    "uuid": r"^[\da-fA-F]{8}-([\da-fA-F]{4}-){3}[\da-fA-F]{12}$",
}
"""Regular expressions of formats."""
_parsed: Final = msgspec.json.Decoder().decode


def create_validating_encoder(schema: Schema, name: str, codec: JsonCodec[Any]) -> Callable[[bytes, Any], bytes]:
    """Return an encoder that validates what it writes; it raises ValueError if that does not match ``schema``, or
    would be decoded as another value.

    Raises PlanError if the schema cannot be used for validation.
    """
    ensure_extra("registry", "json_schema(…)")
    import jsonschema_rs

    try:
        rules = jsonschema_rs.Draft7Validator(
            map_schemas(schema, _patterns_for_formats), validate_formats=False, retriever=_not_fetched
        )
    except (ValueError, LookupError) as error:
        raise PlanError(f"the JSON schema of {name} cannot be checked: {reason(error)}") from error
    fits = rules.is_valid

    def encode(before: bytes, value: Any) -> bytes:
        data = codec.write(value)
        try:
            plain = _parsed(data)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not a valid {name}: it cannot be written as JSON: {reason(error)}") from error
        if not fits(plain):
            raise ValueError(f"not a valid {name}: {_wrong(rules, plain)}")
        codec.expect_return(value, data)
        return before + data

    return encode


def _wrong(rules: Any, value: Any) -> str:
    found = [
        f"{'.'.join(map(str, each.instance_path)) or 'value'}: {each.message}" for each in rules.iter_errors(value)
    ]
    return "; ".join(each[:300] for each in found[:5])


def _patterns_for_formats(schema: dict[str, Any]) -> dict[str, Any]:
    pattern = _PATTERNS.get(schema.get("format", ""))
    return schema if pattern is None else {**schema, "allOf": [*schema.get("allOf", ()), {"pattern": pattern}]}


def _not_fetched(address: str) -> NoReturn:
    raise LookupError(f"it refers to {address}, which is not part of it")
