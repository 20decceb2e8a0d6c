"""The stored description of a state, and the migration of its rows to what the job declares.

    unchanged                    nothing to do; seconds and refresh of a time to live may differ
    another value codec          rewritten, if today's codec can read the old schema
    time to live on, off, other clock    rewritten with, or without, the time of the last write
    another definition           refused; state that was written offline has none: it gets today's, unchecked
    anything else                refused: ConfigError shows what is stored and what is declared

Rule: rows are rewritten before the state is used, or the job does not start. In-flight rows are read by the same rules
(``resolve_codec``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kafka_eos.abc.codec import Codec, ListCodec
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.core.error_messages import show_message
from kafka_eos.core.errors import ConfigError, UserError
from kafka_eos.core.json_values import Json
from kafka_eos.core.limits import LIMITS
from kafka_eos.runtime.state.expiring_state import TIME, add_timestamp, is_expired, unstamped
from kafka_eos.runtime.state.row_store import Row, StateRows
from kafka_eos.runtime.state.ttl_clock import UNKNOWN, ClockKind, create_ttl_clock

ATTRIBUTES = "marks"
CURSOR = "cursor"
"""Attribute of a state with a time to live: the row key at which the cleanup continues, in hexadecimal digits."""
DEFINITION = "definition"
"""Attribute of windows and joins: the definition of their rows, or the table to which they belong."""
WATERMARKS = "watermarks"
"""Attribute of timers: first and last key group of a range, and the watermark that it has reached."""
UNFIRED = "unfired"
"""Attribute of timers: true if some due timers may not have fired, because a snapshot interrupted them."""
PENDING = "pending"
"""Attribute of timers: their number, valid only for a backend that restores the same rows unchanged."""


_DECLARE_OLD: Final = (
    "Declare the old one (a type, or the trigger of a window), or give the operator or its state a new name to start "
    "it empty."
)
_SCHEMA_WORDS: Final = frozenset({"schema", "$defs", "properties", "fields"})
"""Keywords of schemas in the path of a field; messages omit them."""


def describe(descriptor: StateDescriptor[Any]) -> dict[str, Json]:
    """Return the stored description of a state. Absent properties are omitted."""
    stored: dict[str, Json] = {
        "name": descriptor.name,
        "key": describe_codec(descriptor.key),
        "value": describe_codec(descriptor.value),
    }
    if descriptor.kind != "value":
        stored["kind"] = descriptor.kind
    for part, codec in (("namespace", descriptor.namespace), ("entry", descriptor.entry)):
        if codec is not None:
            stored[part] = describe_codec(codec)
    if (ttl := descriptor.ttl) is not None:
        stored["ttl"] = {"seconds": ttl.seconds, "clock": ttl.clock, "refresh": ttl.refresh}
    if descriptor.definition is not None:
        stored[DEFINITION] = descriptor.definition
    return stored


def ensure_same_definition(where: str, stored: Mapping[str, Json], declared: Mapping[str, Json]) -> None:
    """Raise ConfigError if the rows are for another definition. ``where`` names the state."""
    if redefined(stored, declared):
        raise ConfigError(
            f"{where} was stored with another definition than the job declares: "
            f"{_changes(stored[DEFINITION], declared.get(DEFINITION))}. Its results would be wrong. Declare the old "
            "definition; or give the operator a new name to start empty, and drop the state under the old name "
            "(--allow-dropped-state)."
        )


def redefined(stored: Mapping[str, Json], declared: Mapping[str, Json]) -> bool:
    """Return whether the rows are for another definition than declared. Rows stored without one are accepted."""
    return DEFINITION in stored and stored[DEFINITION] != declared.get(DEFINITION)


def form_changed(stored: Mapping[str, Json], declared: Mapping[str, Json]) -> list[str]:
    """Return the differences in the properties that determine row keys."""
    return [part for part in ("key", "kind", "namespace", "entry") if stored.get(part) != declared.get(part)]


def split_description(stored: Mapping[str, Json]) -> tuple[dict[str, Json], dict[str, int]]:
    """Split a stored description into its constant part and its attributes."""
    plain = dict(stored)
    plain.pop(CURSOR, None)
    plain.pop(WATERMARKS, None)
    plain.pop(UNFIRED, None)
    plain.pop(PENDING, None)
    attributes: Any = plain.pop(ATTRIBUTES, {})
    return plain, dict(attributes)


def keep_valid_attributes(
    attributes: Mapping[str, int], stored: Mapping[str, Json], declared: Mapping[str, Json]
) -> dict[str, int]:
    """Return the attributes that are still valid; a time of another clock is not."""
    same = _clock(stored) == _clock(declared)
    return {name: value for name, value in attributes.items() if same or name != TIME}


class StateMigration:
    """Migrates stored rows of a state to the declared description.

    ``where`` names the state. ``stored_at`` is its time by the clock of the stored time to live, in ms; ``clock`` the
    machine's clock.
    """

    def __init__(
        self,
        where: str,
        descriptor: StateDescriptor[Any],
        stored: Mapping[str, Json],
        stored_at: int,
        clock: Callable[[], int],
    ) -> None:
        self._where = where
        self._descriptor = descriptor
        self._stored = stored
        self._declared = describe(descriptor)
        self._before, self._today = _clock(stored), _clock(self._declared)
        self._then = UNKNOWN if self._before is None else create_ttl_clock(self._before, clock, stored_at).now()
        self._stamp = clock() if self._today == "processing" else UNKNOWN

    def apply(self, rows: StateRows, converted: Callable[[int], None]) -> None:
        """Rewrite the rows if necessary; ``converted`` is called for each block.

        Raises ConfigError if they cannot be converted.
        """
        ensure_same_definition(self._where, self._stored, self._declared)
        if form_changed(self._stored, self._declared):
            raise self._refusal()
        same_value = self._stored["value"] == self._declared["value"]
        if same_value and self._before == self._today:
            return
        value = _same if same_value else self._value()
        try:
            for block in _blocks(rows.scan()):
                found = [(key, self._rewritten(data, value)) for key, data in block]
                kept = [(key, data) for key, data in found if data is not None]
                gone = {key for key, data in found if data is None}
                rows.write([key for key, _ in kept], [data for _, data in kept], gone)
                converted(len(block))
        except ValueError as error:
            raise ConfigError(
                f"{self._where}: a stored value cannot be read as what the job declares: "
                f"{_changes(self._stored, self._declared)} ({show_message(error)}). {_DECLARE_OLD}"
            ) from error

    def _rewritten(self, data: bytes, value: Callable[[bytes], bytes]) -> bytes | None:
        """Return the row's new data; None if it has expired."""
        stamp = self._stamp
        if self._before is not None:
            written, data = unstamped(data)
            if is_expired(written, self._then, _seconds(self._stored)):
                return None
            stamp = written if self._before == self._today else stamp
        return value(data) if self._today is None else add_timestamp(stamp, value(data))

    def _value(self) -> Callable[[bytes], bytes]:
        codec = self._descriptor.value
        try:
            decode = resolve_codec(codec, self._stored["value"]).decode
        except UserError as error:
            raise self._refusal(f" ({error})") from error
        return lambda data: codec.encode(decode(data))

    def _refusal(self, reason: str = "") -> ConfigError:
        return ConfigError(
            f"{self._where} was written as something else than the job declares: "
            f"{_changes(self._stored, self._declared)}{reason}. {_DECLARE_OLD}"
        )


def _changes(stored: Json | Mapping[str, Json], declared: Json | Mapping[str, Json]) -> str:
    """Describe, for messages, the fields that are declared differently from what is stored."""
    return "; ".join(_differences(stored, declared, ""))


def _differences(stored: Any, declared: Any, path: str) -> Iterator[str]:
    """Yield each field that differs, with its path."""
    before, after = _by_name(stored), _by_name(declared)
    if before is not None and after is not None and before != after:
        for name in {**before, **after}:
            if before.get(name, _NOTHING) != after.get(name, _NOTHING):
                where = path if name in _SCHEMA_WORDS else f"{path}.{name}".lstrip(".")
                yield from _differences(before.get(name, _NOTHING), after.get(name, _NOTHING), where)
    else:
        yield f"{path}: stored {_shown(stored)}, declared {_shown(declared)}".removeprefix(": ")


def _shown(value: Any) -> str:
    return '""' if value == "" else str(value)


def _by_name(value: Any) -> Mapping[str, Any] | None:
    """Return the parts of a mapping, or of a list of parts with names such as the fields of a schema; else None."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("name"), str) for part in value
    ):
        return {part["name"]: part for part in value}
    return None


_NOTHING: Final = "nothing"
"""The text that a message shows for a field that one side does not have."""


def describe_codec(codec: Codec[Any] | ListCodec[Any]) -> dict[str, Json]:
    """Describe a codec as it is stored: name and schema."""
    return {"name": codec.name, "schema": codec.schema}


def resolve_codec(codec: Any, stored: Json) -> Any:
    """Return the codec that reads what a stored codec wrote.

    Raises UserError with the reason if there is none. A value that still does not fit is rejected by its ``decode``,
    with a ValueError.
    """
    if stored == describe_codec(codec):
        return codec
    if not isinstance(stored, dict) or stored.get("name") != codec.name:
        raise ConfigError(f"{codec.name!r} reads no other codec's values")
    return codec.reader_of(stored["schema"])


def _clock(stored: Mapping[str, Any]) -> ClockKind | None:
    ttl = stored.get("ttl")
    return ttl["clock"] if isinstance(ttl, dict) else None


def _seconds(stored: Mapping[str, Any]) -> float:
    return float(stored["ttl"]["seconds"])


def _same(data: bytes) -> bytes:
    return data


def _blocks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while block := list(itertools.islice(rows, LIMITS.state_rows_per_block)):
        yield block
