"""Differences of lists that may contain equal and unhashable values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def subtract(rows: Iterable[T], others: Iterable[T]) -> list[T]:
    """Return the rows without the others, as multisets: each of the others removes one equal row."""
    left, kept = list(others), list[T]()
    for row in rows:
        if row in left:
            left.remove(row)
        else:
            kept.append(row)
    return kept
