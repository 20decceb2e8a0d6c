"""What a window holds of its rows, and what becomes of it when the window is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kafka_eos.abc.codec import Codec
from kafka_eos.core.windows import Window


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
