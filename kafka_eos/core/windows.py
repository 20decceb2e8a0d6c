"""Windows of event time, and windowed values.

A window covers the times from ``start`` to before ``end``, in milliseconds since the Unix epoch. Rule: a window's
contents are computed from its rows one by one and from partial results, in any order of arrival; see
``window_assigners`` for how rows are assigned to windows.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

K = TypeVar("K")
V = TypeVar("V")


class Window(msgspec.Struct, frozen=True, order=True):
    """The times from ``start`` to before ``end``."""

    start: int
    end: int


class Windowed(msgspec.Struct, Generic[K, V], frozen=True):
    """A key's value in a window. A codec takes it as ``Windowed[str, int]``."""

    key: K
    window: Window
    value: V
