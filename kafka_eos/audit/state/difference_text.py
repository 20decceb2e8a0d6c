"""Differences between stored and recomputed state, as text, inside Spark's Python workers.

Rule: rows are the same if their bytes are, or if they decode to equal values. The sums of the parts of a
``fold(merge=)`` may differ in the last digits of a float, as they are added in another order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from kafka_eos.abc.state import StateDescriptor
from kafka_eos.audit.state.uncertain_state import Name, declared
from kafka_eos.audit.tables.float_tolerance import NEAR
from kafka_eos.audit.tables.python_tasks import columns_of, cut_of
from kafka_eos.codecs import CountedCodec
from kafka_eos.codecs.operator_state.stored_codecs import get_plain_codec
from kafka_eos.core.json_values import Json
from kafka_eos.runtime.state.key_groups import group_prefix
from kafka_eos.runtime.state.row_keys import RowKeyCodec
from kafka_eos.runtime.state.schema_evolution import describe, resolve_codec

DIFFERENT = "operator string, state string, place binary, value binary, made binary, astray boolean, loose boolean"
"""A row that is stored, or made, or both, and not the same. The columns are in this order."""
TOLD = "operator string, state string, place binary, kind string, loose boolean, detail string"
WRONG, MISSING, UNEXPECTED = "wrong", "missing", "unexpected"

_TOLD = pa.schema([
    ("operator", pa.string()), ("state", pa.string()), ("place", pa.binary()), ("kind", pa.string()),
    ("loose", pa.bool_()), ("detail", pa.string()),
])  # fmt: skip
_LONGEST = 100
_PARTS = {"list": "element", "map": "entry", "timer": "timer at", "pane": "pane from"}
"""The word for an entry of a key, by kind of state."""


def describe_differences(
    app: str, workers: int, merging: frozenset[str], stored: Mapping[Name, Mapping[str, Json]],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Yield a TOLD row for each DIFFERENT row that really differs."""
    known = declared(cut_of(app, workers).plan)
    states = {
        name: _State(descriptor, stored.get(name), merged=name[0] in merging) for name, descriptor in known.items()
    }
    for batch in batches:
        lines = []
        for operator, name, place, value, made, astray, loose in zip(*columns_of(batch), strict=True):
            if (found := states[operator, name].difference(place, value, made, astray)) is not None:
                lines.append((operator, name, place, found[0], bool(loose), found[1]))
        columns = zip(*lines, strict=True) if lines else [()] * len(_TOLD)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _TOLD, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_TOLD)


class _State:
    """One state: how its places and values are read and shown."""

    def __init__(self, descriptor: StateDescriptor[Any], stored: Mapping[str, Json] | None, *, merged: bool) -> None:
        self._layout, self._merged = RowKeyCodec(descriptor), merged
        self._is_counted = isinstance(descriptor.value, CountedCodec)
        self._kind, self._namespaced = descriptor.kind, descriptor.namespace is not None
        today = describe(descriptor)["value"]
        written = today if stored is None else stored["value"]
        self._decode_stored, self._decode_made = (
            resolve_codec(descriptor.value, written).decode,
            descriptor.value.decode,
        )
        plain: Any = today if written == today else None
        self._plain = None if plain is None else get_plain_codec(plain["name"], plain["schema"])

    def difference(self, place: bytes, value: bytes | None, made: bytes | None, astray: bool) -> tuple[str, str] | None:
        """Return the kind of the difference and its description, or None if both are equal."""
        key = self._key(place)
        if astray:
            return UNEXPECTED, f"{key} is stored with a subtask that does not own it"
        if value is None:
            return MISSING, f"{key} is missing: expected {self._made(made)}"
        if made is None:
            return UNEXPECTED, f"{key} is unexpected: {self._stored(value)}"
        try:
            if self._same(value, made):
                return None
        except ValueError as error:
            return WRONG, f"{key} cannot be read ({error}): expected {self._made(made)}"
        return WRONG, f"{key} is {self._stored(value)}: expected {self._made(made)}"

    def _same(self, value: bytes, made: bytes) -> bool:
        if self._decode_stored(value) == self._decode_made(made):
            return True
        if self._plain is None:
            return False
        one, other = self._plain.decode(value), self._plain.decode(made)
        return _alike(one, other) if self._merged else bool(one == other)

    def _key(self, place: bytes) -> str:
        try:
            found = self._layout.decode(group_prefix(0) + place)
        except ValueError as error:
            return f"the row {_short(place)}, whose key cannot be read ({error}),"
        key, *rest = (found,) if self._layout.is_single_part else found
        names = [*(["namespace"] if self._namespaced else []), _PARTS.get(self._kind, "")]
        return ", ".join([f"key {_short(key)}", *(f"{n} {_short(part)}" for n, part in zip(names, rest, strict=False))])

    def _stored(self, value: bytes) -> str:
        try:
            return self._shown(self._decode_stored(value))
        except ValueError as error:
            return f"an unreadable value ({error})"

    def _made(self, made: bytes | None) -> str:
        return "another value" if made is None else self._shown(self._decode_made(made))

    def _shown(self, value: Any) -> str:
        if not self._is_counted:
            return _short(value)
        updates, accumulator = value
        return _short(accumulator) if self._merged else f"{_short(accumulator)} after {updates} updates"


def _alike(one: Any, other: Any) -> bool:
    """Return whether two values are equal, except for the last digits of floats."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or math.isclose(one, other, rel_tol=NEAR, abs_tol=NEAR)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
