"""The rows of one state, and the codecs between them and objects: what the caches of all kinds of state have in common.

Rule: whoever reads or writes a row of a key that the subtask does not own has a bug, and hears of it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from kafka_eos._util.bulk_calls import each
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.core.errors import Bug, ConfigError
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS, group_prefix
from kafka_eos.runtime.state.row_keys import Layout
from kafka_eos.runtime.state.row_store import Rows

T = TypeVar("T")


class CodedRows(Generic[T]):
    """Of one state in one subtask."""

    def __init__(self, operator: str, descriptor: StateDescriptor[T], rows: Rows, groups: range) -> None:
        self.descriptor = descriptor
        self._where = f"state {descriptor.name!r} of operator {operator!r}"
        self._rows, self._groups = rows, groups
        self._layout = Layout(descriptor)
        self._first, self._end = group_prefix(groups.start), group_prefix(groups.stop)
        self._whole = groups == range(MAX_KEY_GROUPS)

    def place(self, row_key: bytes) -> Any:
        """The place that a row belongs to."""
        return self._layout.place(row_key)

    def _scanned(self) -> Iterator[tuple[Any, T]]:
        """All rows as they are stored now."""
        place, value = self._layout.place, self.descriptor.value.decode
        return ((place(row), value(data)) for row, data in self._rows.scan())

    def _decoded(self, data: bytes) -> T:
        try:
            return self.descriptor.value.decode(data)
        except ValueError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: ValueError) -> ConfigError:
        codec = self.descriptor.value.name
        return ConfigError(
            f"{self._where}: a stored value cannot be read by codec {codec!r}: {error}. Declare a type that reads it, "
            "too, as int | str where both are there; or begin with a savepoint in which it is changed "
            "(docs/savepoints.md)"
        )

    def _row_keys(self, keys: Sequence[Any]) -> list[bytes]:
        rows = self._layout.finish(self._encoded(self._layout.encode, keys))
        if rows and not self._whole:
            self._own(min(rows), max(rows))
        return rows

    def _own(self, lowest: bytes, highest: bytes) -> None:
        if not (self._first <= lowest and highest < self._end):
            raise Bug(f"{self._where}: a key reached a subtask that does not own its key group")

    def _encoded(self, encode: Callable[[Any], bytes], keys: Sequence[Any]) -> list[bytes]:
        return each(encode, keys, refuse=partial(self._refuse, "key", self.descriptor.key, keys))[0]

    def _encoded_values(self, values: Sequence[Any], keys: Sequence[Any]) -> list[bytes]:
        codec = self.descriptor.value
        return each(codec.encode, values, refuse=partial(self._refuse, "value", codec, keys))[0]

    def _refuse(self, what: str, codec: Codec[Any], keys: Sequence[Any], index: int, error: Exception) -> None:
        raise ConfigError(
            f"{self._where}: the {what} of key {keys[index]!r} cannot be encoded by codec {codec.name!r}: {error}"
        ) from error
