"""The encoding between the rows of a state and objects, which the caches of all kinds of state share.

Rule: an access to a row of a key group that the subtask does not own raises Bug here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from kafka_eos._util.bulk_calls import map_rows
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.core.error_messages import show_message, show_value
from kafka_eos.core.errors import Bug, ConfigError
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS, group_prefix
from kafka_eos.runtime.state.row_keys import RowKeyCodec
from kafka_eos.runtime.state.row_store import StateRows

T = TypeVar("T")


class EncodedState(Generic[T]):
    """One state of one subtask: its rows and the codecs of its keys and values."""

    def __init__(self, operator: str, descriptor: StateDescriptor[T], rows: StateRows, groups: range) -> None:
        self.descriptor = descriptor
        self._where = f"state {descriptor.name!r} of operator {operator!r}"
        self._rows, self._groups = rows, groups
        self._layout = RowKeyCodec(descriptor)
        self._first, self._end = group_prefix(groups.start), group_prefix(groups.stop)
        self._whole = groups == range(MAX_KEY_GROUPS)

    def decode_row_key(self, row_key: bytes) -> Any:
        """Decode the key that a row belongs to."""
        return self._layout.decode(row_key)

    def _scanned(self) -> Iterator[tuple[Any, T]]:
        """Yield all rows as they are stored now."""
        place, value = self._layout.decode, self.descriptor.value.decode
        return ((place(row), value(data)) for row, data in self._rows.scan())

    def _decoded(self, data: bytes) -> T:
        try:
            return self.descriptor.value.decode(data)
        except ValueError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: ValueError) -> ConfigError:
        codec = self.descriptor.value.name
        return ConfigError(
            f"{self._where}: a stored value cannot be read by codec {codec!r}: {show_message(error)}. Declare "
            "a type that reads old values too, such as int | str if there are both; or start from a savepoint "
            "in which the values are converted (docs/savepoints.md)"
        )

    def _row_keys(self, keys: Sequence[Any]) -> list[bytes]:
        rows = self._layout.prepend_groups(self._encoded("key", self._layout, keys, keys))
        if rows and not self._whole:
            self._expect_owned(min(rows), max(rows))
        return rows

    def _expect_owned(self, lowest: bytes, highest: bytes) -> None:
        if not (self._first <= lowest and highest < self._end):
            raise Bug(f"{self._where}: a key reached a subtask that does not own its key group")

    def _encoded_values(self, values: Sequence[Any], keys: Sequence[Any]) -> list[bytes]:
        return self._encoded("value", self.descriptor.value, values, keys)

    def _encoded(
        self,
        what: Literal["key", "value"],
        codec: Codec[Any] | RowKeyCodec,
        column: Sequence[Any],
        keys: Sequence[Any],
    ) -> list[bytes]:
        """Encode the keys, or the values of keys. Raises ConfigError for one that cannot be encoded."""
        encoded = codec.encode_batch(column)
        return (
            map_rows(codec.encode, column, refuse=partial(self._refuse, what, keys))[0] if encoded is None else encoded
        )

    def _refuse(self, what: Literal["key", "value"], keys: Sequence[Any], index: int, error: Exception) -> None:
        codec = self.descriptor.key if what == "key" else self.descriptor.value
        raise ConfigError(
            f"{self._where}: the {what} of key {show_value(keys[index])} cannot be encoded by codec "
            f"{codec.name!r}: {show_message(error)}"
        ) from error
