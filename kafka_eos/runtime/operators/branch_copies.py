"""Copies of values for the branches of a stream: a function that changes a value in place changes it in one branch.

Rule: values of immutable types are shared; this is decided once per type. Values that cannot be copied are shared too,
and so are those whose copy is not equal: a class may compute its fields again when an instance is made.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import pickle  # noqa: TID251 (read where it was written: neither stored nor received)
import types
import typing
import uuid
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, TypeVar

from kafka_eos.plan import Plan, SideOutputNode, SinkNode

T = TypeVar("T")

_ATOMS: Final = (
    *(str, bytes, int, float, complex, types.NoneType, types.EllipsisType, enum.Enum, decimal.Decimal, uuid.UUID),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo),
)


def list_copying_readers(plan: Plan, name: str) -> list[tuple[str, int]]:
    """Return the readers of a node that need copies of its values: all whose functions could change what another one
    reads.

    Sinks change nothing, so they share the values. If there is no sink, the last reader takes the values themselves.
    A side output belongs to one reader.
    """
    readers = plan.downstream(name)
    sinks = [node for node, _ in readers if isinstance(node, SinkNode) and not node.is_dead_letter_sink]
    calling = [(node.name, index) for node, index in readers if not isinstance(node, SinkNode | SideOutputNode)]
    return calling if sinks else calling[:-1]


def copy_values(values: list[Any]) -> list[Any]:
    """Return values that share no mutable object with the given ones; see the rule of the module."""
    if are_immutable(values):
        return values
    # of all values at once: several times as fast as copy.deepcopy
    copied = _copy_if_possible(values, _copy_by_pickle)
    return copied if copied is not values else [_copy_if_possible(value, copy.deepcopy) for value in values]


def _copy_by_pickle(values: list[Any]) -> list[Any]:
    copied: list[Any] = pickle.loads(pickle.dumps(values, pickle.HIGHEST_PROTOCOL))  # noqa: S301 (see the import)
    return copied


def _copy_if_possible(value: T, copier: Callable[[T], T]) -> T:
    """Return a copy that is equal to the value; the value itself if there is none."""
    try:
        copied = copier(value)
        return copied if copied == value else value
    except Exception:  # noqa: BLE001 (what the user's class raises; a lock, a generator, a class within a function)
        return value


def are_immutable(values: Sequence[Any]) -> bool:
    """Return whether no value can be changed in place, judged by its type, or for a tuple by those of its elements."""
    found = set(map(type, values))
    if tuple in found:
        found.discard(tuple)
        elements = [*chain.from_iterable(value for value in values if type(value) is tuple)]
        return all(map(_is_immutable, found)) and are_immutable(elements)
    return all(map(_is_immutable, found))


@lru_cache(maxsize=1000)
def _is_immutable(cls: type) -> bool:
    return _cannot_change(cls, frozenset())


def _cannot_change(tp: Any, outer: frozenset[Any]) -> bool:
    """Return whether values of a type cannot change; ``outer`` are the types that it is a part of."""
    origin, parts = typing.get_origin(tp), typing.get_args(tp)
    if origin is typing.Literal or tp is ... or tp in outer:
        return True
    if origin is typing.Annotated:
        return _cannot_change(parts[0], outer)
    if origin in (typing.Union, types.UnionType) or (origin in (tuple, frozenset) and parts):
        return all(_cannot_change(part, outer) for part in parts)
    if isinstance(tp, typing.NewType):
        return _cannot_change(tp.__supertype__, outer)
    if not isinstance(tp, type):
        return tp is None
    if issubclass(tp, _ATOMS):
        return True
    names = _frozen_fields(tp)
    if names is None:
        return False
    try:
        hints = typing.get_type_hints(tp)
    except Exception:  # noqa: BLE001 (evaluates the user's annotations, which may name what only a type checker knows)
        return False
    return all(_cannot_change(hints.get(name, Any), outer | {tp}) for name in names)


def _frozen_fields(cls: Any) -> Sequence[str] | None:
    """Return the names of the fields that a frozen class declares; None for any other class."""
    if "__struct_config__" in dir(cls):
        return cls.__struct_fields__ if cls.__struct_config__.frozen else None
    if "__dataclass_params__" in vars(cls):
        return [*cls.__dataclass_fields__] if cls.__dataclass_params__.frozen else None
    if "model_config" in dir(cls):
        frozen = cls.model_config.get("frozen") and not cls.__private_attributes__
        return [*cls.model_fields] if frozen else None
    return getattr(cls, "_fields", None) if issubclass(cls, tuple) else None
