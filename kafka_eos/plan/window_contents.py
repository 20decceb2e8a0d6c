"""The contents of a window, and the outputs that it emits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from kafka_eos.abc.codec import Codec
from kafka_eos.core.windows import Window


class WindowContents(Struct, frozen=True):
    """Functions that build a window's contents and its outputs, and the codec of the contents.

    ``first``     returns the contents of a first row
    ``add``       adds one row; may modify its argument, if it then raises nothing
    ``merge``     merges two parts, the earlier one first, into a new object; None if parts cannot be merged
    ``emit``      returns the outputs of a key and window
    ``codec``     codec of the contents
    ``by_time``   rows are pairs of their value and their event-time sort key
    ``numbered``  rows are pairs of their value and their number, for windows without event time
    ``collects``  the contents are a list of all rows, which ``add`` appends to
    """

    first: Callable[[Any], Any]
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any] | None
    emit: Callable[[Any, Window, Any], Sequence[Any]]
    codec: Codec[Any]
    by_time: bool = False
    numbered: bool = False
    collects: bool = False
