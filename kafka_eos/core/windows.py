"""Windows of event time: what they are called, and what they hold of their rows.

A window is from ``start`` to before ``end``, in milliseconds since the Unix epoch. Rule: what a window holds of its
rows is made of them one by one, and of parts of it, in whatever order rows have come; see ``assigners`` for which rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from kafka_eos.abc.codec import Codec

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


@dataclass(frozen=True, slots=True)
class Contents:
    """What a window holds, and what becomes of it.

    ``first``   what it holds of its first row
    ``add``     with one row more; may change what it is given, if it then raises nothing
    ``merge``   of two parts, the earlier one first: a new object; None if parts cannot be put together
    ``emit``    the outputs of a key and window
    ``codec``   of what it holds
    ``by_time`` rows are pairs of their value and their place in event time
    ``numbered`` rows are such pairs with their number as place; where windows know no time
    """

    first: Callable[[Any], Any]
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any] | None
    emit: Callable[[Any, Window, Any], Sequence[Any]]
    codec: Codec[Any]
    by_time: bool = False
    numbered: bool = False
