"""What a verb asks of a function before it becomes part of a plan.

Rule: a coroutine function is refused where nothing awaits it, at the verb that it is given to: a ``filter`` would keep
every value and a ``map`` would pass coroutines on.
"""

from __future__ import annotations

import functools
import inspect
from pathlib import Path

from kafka_eos.errors import PlanError


def expect_no_coroutines(verb: str, **functions: object) -> None:
    """PlanError if one of the functions, named by the parameter that it is given for, is asynchronous."""
    for parameter, fn in functions.items():
        if fn is not None and (kind := asynchronous(fn)):
            raise PlanError(
                f"{parameter} of {verb} is {kind}, and nothing would await it here. Give an ordinary "
                "function; what has to wait for a service goes into .async_map(...) before it"
            )


def asynchronous(fn: object) -> str | None:
    """What kind of asynchronous function ``fn`` is; None for an ordinary one.

    A ``functools.partial`` is what it calls, an object what its ``__call__`` is. A lambda that returns the coroutine of
    another function cannot be told from an ordinary one.
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    call = fn if inspect.isroutine(fn) or isinstance(fn, type) else getattr(type(fn), "__call__", None)  # noqa: B004
    if inspect.iscoroutinefunction(call):
        return "a coroutine function (async def)"
    if inspect.isasyncgenfunction(call):
        return "an asynchronous generator (async def with yield)"
    return None


def named(fn: object) -> str:
    """A function of the user as people know it: its name and its line; of an object that is called, its class."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(fn, "__code__", None)
    if code is None:
        return getattr(fn, "__qualname__", type(fn).__qualname__)
    return f"{code.co_qualname} ({Path(code.co_filename).name}, line {code.co_firstlineno})"
