"""Where encoded rows are kept: what the two stores have in common.

A row is ``key group + encoded place -> encoded value``; see ``layout``. Both stores use the same rows, so either can
read what the other wrote, and a range of key groups can be cut out of any handle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

from kafka_eos.abc.storage import CheckpointStorage, FileRef
from kafka_eos.core.ids import Epoch

Row: TypeAlias = tuple[bytes, bytes]


class Rows(Protocol):
    """The rows of one state."""

    def get(self, keys: list[bytes]) -> Sequence[bytes | None]:
        """Values in the order of ``keys``; None where there is no row."""

    def write(self, keys: Sequence[bytes], values: Sequence[bytes], deleted: Iterable[bytes]) -> None: ...

    def delete_ranges(self, ranges: Iterable[tuple[bytes, bytes]]) -> None:
        """All rows whose keys are from the first one of a pair to below the second."""

    def scan(self) -> Iterator[Row]:
        """All rows as they were at the call."""

    def page(self, first: bytes, end: bytes, limit: int) -> list[Row]:
        """At most ``limit`` rows whose keys are from ``first`` to below ``end``, in the order of their keys."""


UploadFiles: TypeAlias = Callable[[CheckpointStorage], tuple[FileRef, ...]]


class Store(Protocol):
    """The rows of all states of one operator and subtask."""

    @property
    def kind(self) -> str:
        """Name that is stored in the handle."""

    def states(self) -> Collection[str]:
        """States that have rows, claimed by the job or not."""

    def rows(self, state: str) -> Rows:
        """Rows of a state, empty if it is new."""

    def drop(self, state: str) -> None:
        """Remove the rows of a state that nobody has asked for. Absent is fine."""

    def freeze(self, epoch: Epoch) -> UploadFiles:
        """Fix what is written now; the returned part uploads it, once, from any thread."""

    def close(self) -> None: ...
