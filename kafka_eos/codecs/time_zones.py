"""Times with a zone, for codecs of state and exchanges: a decoded time shows the same hour as the encoded one.

MessagePack's timestamps and Avro's are in UTC, and ``==`` of two datetimes ignores their zones. So times with another
offset are encoded as text, and times are compared by what they show and by their offset.

Rule: offsets are kept. The rules of a zone (``Europe/Berlin``) are not, so a time with such a zone is rejected.
"""

from __future__ import annotations

import datetime
import types
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pydantic
from msgspec import inspect

from kafka_eos.codecs.type_inspection import any_part, field_names, to_plain

_UTC: Final = (None, datetime.timedelta(0))
_NO_TIMES: Final = frozenset((str, int, float, bool, bytes, types.NoneType))
_AS_THEY_ARE: Final = (bytes, bytearray, memoryview, uuid.UUID)
_MAY_BE_TIMES: Final = (inspect.DateTimeType, inspect.TimeType, inspect.AnyType, inspect.RawType, inspect.CustomType)


def may_hold_times(tp: Any) -> bool:
    """Return whether values of a declared type may hold datetimes or times."""
    return any_part(tp, lambda part: isinstance(part, _MAY_BE_TIMES))


def encode_offsets(value: Any) -> Any:
    """Return what to encode in place of a value: itself, or its plain form if it holds a time that is not in UTC."""
    if all(_zone(time) in _UTC for time in _iterate_times(value)):
        return value
    return msgspec.to_builtins(value, builtin_types=_AS_THEY_ARE, enc_hook=to_plain, order="deterministic")


def expect_same_times(decoded: Any, value: Any, *, in_utc: bool) -> None:
    """Raise ValueError if the times in a decoded value are not those in the encoded one.

    ``in_utc``: ``encode_offsets`` has found no time with another offset, so that equal values have the same times.
    """
    if in_utc and _is_equal(decoded, value):
        return
    times = Counter(map(_shown, _iterate_times(value)))
    if lost := times - Counter(map(_shown, _iterate_times(decoded))):
        time = next(time for time in _iterate_times(value) if _shown(time) in lost)
        raise ValueError(f"{time} {describe_ruled_zone(time) or 'would come back as something else: declare its type'}")


def _is_equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except ArithmeticError:  # a signaling NaN
        return False


def describe_ruled_zone(time: datetime.datetime | datetime.time) -> str:
    """Return why the zone of a time cannot be kept, as the end of a sentence; empty if it can."""
    if isinstance(_zone(time), datetime.timedelta | types.NoneType):
        return ""
    return (
        f"has the zone {time.tzinfo}, of which only the offset would be kept: convert it with "
        ".astimezone(datetime.UTC), and to the zone where you use it"
    )


def describe_range(time: datetime.datetime) -> str:
    """Return why a format that holds instants cannot return a time with a zone; empty if it can."""
    try:
        time.astimezone(datetime.UTC)
    except OverflowError:
        return "is not in the years 1 to 9999 in UTC"
    return ""


def same_time(a: datetime.datetime | datetime.time, b: datetime.datetime | datetime.time) -> bool:
    """Return whether both show the same time with the same offset."""
    return _shown(a) == _shown(b)


def _shown(time: Any) -> tuple[object, object]:
    return time.replace(tzinfo=None, fold=0), _zone(time)


def _zone(time: Any) -> object:
    """Return the offset of a time; the zone itself if its offset depends on the date, None if there is no zone."""
    if time.tzinfo is None:
        return None
    offset = time.tzinfo.utcoffset(None)
    return time.tzinfo if offset is None else offset


def _iterate_times(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if type(each) in _NO_TIMES:
            continue
        if isinstance(each, datetime.datetime | datetime.time):
            yield each
        elif isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            waiting += each
        elif isinstance(each, pydantic.BaseModel):
            waiting += [vars(each), each.__pydantic_extra__]
        else:
            cls: Any = type(each)
            waiting += [getattr(each, name, None) for name in field_names(cls)]
