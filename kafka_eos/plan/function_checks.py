"""What a verb asks of a function before it becomes part of a plan.

Rule: what a verb could not use is refused where it is given. A coroutine function that nothing awaits would let a
``filter`` keep every value; a generator where one value is expected would be passed on by a ``map`` as it is.
"""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any

from kafka_eos.core.errors import PlanError


def expect_functions(verb: str, **functions: object) -> None:
    """PlanError if one of them, named by its parameter, does not give one value when it is called."""
    for parameter, fn in functions.items():
        _expect_ordinary(verb, parameter, fn)
        _expect_one_value(verb, parameter, fn)


def expect_iterables(verb: str, **functions: object) -> None:
    """The same for functions that give any number of values: those may be generators."""
    for parameter, fn in functions.items():
        _expect_ordinary(verb, parameter, fn)


def expect_requests(verb: str, **functions: object) -> None:
    """The same for functions that are awaited: those may be coroutine functions."""
    for parameter, fn in functions.items():
        _expect_callable(verb, parameter, fn)
        _expect_one_value(verb, parameter, fn)


def present(**functions: object) -> dict[str, object]:
    """Those that were given: the others are left out."""
    return {parameter: fn for parameter, fn in functions.items() if fn is not None}


def _expect_ordinary(verb: str, parameter: str, fn: object) -> None:
    _expect_callable(verb, parameter, fn)
    if kind := asynchronous(fn):
        raise PlanError(
            f"{parameter} of {verb} is {kind}, and nothing would await it here. Give an ordinary "
            "function; what has to wait for a service goes into .async_map(...) before it"
        )


def _expect_callable(verb: str, parameter: str, fn: object) -> None:
    if not callable(fn):
        instead = f", such as lambda: {fn!r:.80}" if parameter == "init" else ", such as lambda row: row.field"
        raise PlanError(f"{parameter} of {verb} is a function, not {fn!r:.80}. Give one{instead}")


def _expect_one_value(verb: str, parameter: str, fn: object) -> None:
    if kind := _generator(fn):
        raise PlanError(
            f"{parameter} of {verb} is {kind}, and one value is expected of it. Return the value; any number of values "
            "are made by .flat_map(...)"
        )


def asynchronous(fn: object) -> str | None:
    """What kind of asynchronous function ``fn`` is; None for an ordinary one.

    A ``functools.partial`` is what it calls, an object what its ``__call__`` is. A lambda that returns the coroutine of
    another function cannot be told from an ordinary one.
    """
    call = _called(fn)
    if inspect.iscoroutinefunction(call):
        return "a coroutine function (async def)"
    return _asynchronous_generator(call)


def _generator(fn: object) -> str | None:
    call = _called(fn)
    return "a generator (def with yield)" if inspect.isgeneratorfunction(call) else _asynchronous_generator(call)


def _asynchronous_generator(call: object) -> str | None:
    return "an asynchronous generator (async def with yield)" if inspect.isasyncgenfunction(call) else None


def _called(fn: object) -> Any:
    """The function or class that runs when ``fn`` is called."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.isroutine(fn) or isinstance(fn, type):
        return fn
    return getattr(type(fn), "__call__", None)  # noqa: B004


def named(fn: object) -> str:
    """A function of the user as people know it: its name and its line; of an object that is called, its class."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(fn, "__code__", None)
    if code is None:
        return getattr(fn, "__qualname__", type(fn).__qualname__)
    return f"{code.co_qualname} ({Path(code.co_filename).name}, line {code.co_firstlineno})"
