"""Windows of event time: what they are called, and what they hold of their rows.

A window is from ``start`` to before ``end``, in milliseconds since the Unix epoch. Rule: what a window holds of its
rows is made of them one by one, and of parts of it, in whatever order rows have come; see ``assigners`` for which rows.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

K = TypeVar("K")
V = TypeVar("V")


class Window(msgspec.Struct, frozen=True, order=True):
    """From ``start`` to before ``end``."""

    start: int
    end: int


class Windowed(msgspec.Struct, Generic[K, V], frozen=True):
    """What a key had in a window. A codec takes it as ``Windowed[str, int]``."""

    key: K
    window: Window
    value: V
