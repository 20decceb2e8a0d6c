"""Replacement of the user's functions in a plan, for tools that observe their calls.

Rule: the plan keeps its shape, its names and its fingerprint; only functions are replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from kafka_eos.plan.nodes import Node

Wrap: TypeAlias = Callable[[Callable[..., Any], str], Callable[..., Any]]
"""Receives a function and its role: the field, parameter or method in which it is."""

_FIELDS: Final = ("fn", "step", "merge", "emit", "join", "on_timeout")
_METHODS: Final = ("process", "process_left", "process_right", "process_broadcast")


def wrap_functions(node: Node, wrap: Wrap) -> Node:
    """Return the node with functions that are replaced by what ``wrap`` returns."""
    changes: dict[str, Any] = {name: wrap(fn, name) for name in _FIELDS if callable(fn := getattr(node, name, None))}
    factory, contents = getattr(node, "factory", None), getattr(node, "contents", None)
    if factory is not None:
        changes["factory"] = partial(_wrap_methods, factory, wrap)
    if contents is not None:
        changes["contents"] = replace(contents, add=wrap(contents.add, "add"), emit=wrap(contents.emit, "emit"))
    return replace(node, **changes) if changes else node


def _wrap_methods(factory: Callable[[], Any], wrap: Wrap) -> Any:
    """Return a process function whose methods are replaced."""
    function = factory()
    for name in _METHODS:
        if hasattr(function, name):
            object.__setattr__(function, name, wrap(getattr(function, name), name))
    return function
