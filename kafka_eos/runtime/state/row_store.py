"""The interface of both stores of encoded rows.

A row is ``key group + encoded state key -> encoded value``; see ``row_keys``. Both stores use the same rows, so either
can read what the other wrote, and a range of key groups can be read from any handle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from kafka_eos.abc.storage import FileBatch, FileRef
from kafka_eos.core.ids import Epoch

Row: TypeAlias = tuple[bytes, bytes]


class StateRows(Protocol):
    """The encoded rows of one state."""

    def get(self, keys: list[bytes]) -> Sequence[bytes | None]:
        """Return values in the order of ``keys``; None where there is no row."""

    def write(self, keys: Sequence[bytes], values: Sequence[bytes], deleted: Iterable[bytes]) -> None: ...

    def delete_ranges(self, ranges: Iterable[tuple[bytes, bytes]]) -> None:
        """Delete all rows with keys from the first of a pair to below the second."""

    def scan(self) -> Iterator[Row]:
        """Yield all rows as they are at the time of the call."""

    def page(self, first: bytes, end: bytes, limit: int) -> list[Row]:
        """Return at most ``limit`` rows with keys from ``first`` to below ``end``, in the order of their keys."""


AddFiles: TypeAlias = Callable[[FileBatch], Callable[[], tuple[FileRef, ...]]]
"""Adds all files to a batch, once. The function that it returns is called when the batch is stored."""


class StateStore(Protocol):
    """The encoded rows of all states of one operator in one subtask."""

    @property
    def kind(self) -> str:
        """Return the name that is stored in the handle."""

    def states(self) -> Collection[str]:
        """Return the states that have rows, including those that the job has not opened."""

    def rows(self, state: str) -> StateRows:
        """Return the rows of a state, empty if it is new."""

    def drop(self, state: str) -> None:
        """Remove the rows of a state that was not opened. One that does not exist is ignored."""

    def freeze(self, epoch: Epoch) -> AddFiles:
        """Freeze the rows written so far; the returned part adds their files to a batch, once, from any thread."""

    def close(self) -> None: ...
