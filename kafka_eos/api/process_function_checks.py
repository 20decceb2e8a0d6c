"""Checks of a process function, which is a class or an object, before it becomes part of a plan.

Rule: a function that would fail at the first record of each session, or would never be called, is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Final

from kafka_eos import plan
from kafka_eos.core.errors import PlanError
from kafka_eos.plan.broadcast_functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from kafka_eos.plan.process_functions import CoProcessFunction, OutputTag, ProcessFunction

_RUN: Final[dict[type[plan.Node], tuple[type, str, tuple[str, ...]]]] = {
    plan.ProcessNode: (ProcessFunction, "a stream with keys", plan.ProcessNode.methods),
    plan.CoProcessNode: (CoProcessFunction, "two streams with keys", plan.CoProcessNode.methods),
    plan.BroadcastProcessNode: (
        BroadcastProcessFunction,
        "a stream without keys and a broadcast one",
        ("process", "process_broadcast"),
    ),
    plan.KeyedBroadcastNode: (
        KeyedBroadcastProcessFunction,
        "a stream with keys and a broadcast one",
        ("process", "process_broadcast"),
    ),
}
"""For each node: the class that it runs, its input streams, and the methods that the user must define."""


def expect_process_function(kind: type[plan.Node], function: object) -> None:
    """Raise PlanError if a node of that kind cannot run the function."""
    base, streams, methods = _RUN[kind]
    cls = function if isinstance(function, type) else type(function)
    if not issubclass(cls, base):
        if inspect.isroutine(function):
            raise PlanError(
                f"process of {streams} runs a {base.__name__}, not the function {function.__name__}: "
                f"derive a class from {base.__name__}, or use .map(...) or .flat_map(...), which take "
                "functions"
            )
        raise PlanError(
            f"process of {streams} runs a {base.__name__}, not {cls.__name__}: derive your class "
            "from it, or change the stream (key_by adds keys, connect joins two streams, "
            ".broadcast() sends one to all workers)"
        )
    for method in methods:
        if getattr(cls, method) is getattr(base, method):
            raise PlanError(f"{cls.__name__} does not define {method}{_signature(getattr(base, method))}")
    _expect_tags(cls, function)
    if isinstance(function, type):
        _expect_no_arguments(cls)


def _expect_tags(cls: type, function: object) -> None:
    tags = getattr(function, "side_outputs", None)
    if isinstance(tags, OutputTag) or not isinstance(tags, Sequence):
        raise PlanError(f"side_outputs of {cls.__name__} is a tuple of tags, side_outputs = (TAG,), not {tags!r:.80}")


def _expect_no_arguments(cls: type) -> None:
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise PlanError(
            f"{cls.__name__} cannot be created without arguments ({error}), but every attempt creates one. Pass an "
            f"object instead, which every attempt copies: process({cls.__name__}(...))"
        ) from None


def _signature(method: object) -> str:
    """Return the parameters of a method, without ``self``."""
    assert callable(method)
    return f"({', '.join(list(inspect.signature(method).parameters)[1:])})"
