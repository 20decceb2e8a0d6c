"""Checks that a value can be stored, made when its row is processed.

Rule: if a state cannot store a value, the row of the value is rejected. At the checkpoint the row is no longer known,
and whether the value is still in the state depends on the time of the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from kafka_eos.abc.codec import Codec
from kafka_eos.codecs import MsgpackCodec
from kafka_eos.core.error_messages import UnfitValue, show_message
from kafka_eos.plan.window_contents import WindowContents

_STORED_NUMBERS: Final[Mapping[type, tuple[Any, Any]]] = {
    int: (-(2**63), 2**64 - 1),
    float: (-math.inf, math.inf),
    bool: (False, True),
}
"""The least and the greatest number of each class that MessagePack can always store."""


class StorableValues:
    """The values of one state. ``what`` is the subject of the error message; ``todo`` the remedy, a whole sentence."""

    def __init__(self, codec: Codec[Any], what: str, todo: str) -> None:
        self._codec = codec
        self.what = what
        self.todo = todo
        declared = codec.type if isinstance(codec, MsgpackCodec) else None
        self.number = next((number for number in _STORED_NUMBERS if declared is number), None)
        """The class of the values if they are declared as numbers."""
        bounds: tuple[Any, Any] = (None, None) if self.number is None else _STORED_NUMBERS[self.number]
        self.least, self.greatest = bounds
        """Numbers of exactly this class within these bounds can be stored."""

    def check(self, value: Any) -> None:
        """Raise ValueError if the value cannot be stored, or the codec's error if the environment fails.

        Numbers, the usual accumulators, are compared with their bounds; others are encoded.
        """
        if type(value) is self.number and self.least <= value <= self.greatest:
            return
        try:
            self._codec.encode(value)
        except ValueError as error:
            raise UnfitValue(describe_unstorable(self.what, error, self.todo)) from error


def storable_accumulators(codec: Codec[Any]) -> StorableValues:
    """Return the check for a state of accumulators."""
    return StorableValues(codec, ACCUMULATOR, ACCUMULATOR_HINT)


def expect_storable(contents: WindowContents) -> WindowContents:
    """Return window contents that raise ValueError for a row with which they could not be stored.

    ``merge`` checks nothing, because parts are also merged for a result. If the contents collect rows, only the new row
    is encoded: encoding all of them for each row would take quadratic time.
    """
    storable, first, add = storable_accumulators(contents.codec), contents.first, contents.add

    def begin(item: Any) -> Any:
        return _checked(storable, first(item))

    def append(acc: Any, item: Any) -> Any:
        begin(item)
        return add(acc, item)

    def change(acc: Any, item: Any) -> Any:
        return _checked(storable, add(acc, item))

    return replace(contents, first=begin, add=append if contents.collects else change)


def merge_storable(contents: WindowContents) -> Callable[[Any, Any], Any] | None:
    """Return the function that merges two parts to be stored; it raises the same errors as ``expect_storable``."""
    storable, merge = storable_accumulators(contents.codec), contents.merge
    if merge is None or contents.collects:
        return merge
    return lambda one, other: _checked(storable, merge(one, other))


def _checked(storable: StorableValues, acc: Any) -> Any:
    if acc is not None:  # the operator says so
        storable.check(acc)
    return acc


def describe_unstorable(what: str, error: ValueError, todo: str) -> str:
    """Describe a value that its codec rejects, with the remedy."""
    return f"{what} cannot be stored: {show_message(error)}. {todo}"


ACCUMULATOR = "its accumulator"
ACCUMULATOR_HINT = "Declare its type with state=..., or use a type that can be stored."
