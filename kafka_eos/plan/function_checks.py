"""Checks of user functions before they become part of a plan.

Rule: a function that an operation cannot use is refused where it is given. Otherwise a ``filter`` would keep every
value, because the coroutine that its function returns is true. And a ``map`` would emit the generator that its function
returns.
"""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any

from kafka_eos.core.errors import PlanError


def expect_functions(operation: str, **functions: object) -> None:
    """Raise PlanError if a function, named by its parameter, does not return one value when it is called."""
    for parameter, fn in functions.items():
        _expect_ordinary(operation, parameter, fn)
        _expect_one_value(operation, parameter, fn)


def expect_iterables(operation: str, **functions: object) -> None:
    """Raise PlanError if a function does not return any number of values; generators are allowed."""
    for parameter, fn in functions.items():
        _expect_ordinary(operation, parameter, fn)


def expect_requests(operation: str, **functions: object) -> None:
    """Raise PlanError if a function cannot be awaited or called in a thread; coroutine functions are allowed."""
    for parameter, fn in functions.items():
        _expect_callable(operation, parameter, fn)
        _expect_one_value(operation, parameter, fn)


def drop_none(**functions: object) -> dict[str, object]:
    """Drop the parameters that were not given."""
    return {parameter: fn for parameter, fn in functions.items() if fn is not None}


def _expect_ordinary(operation: str, parameter: str, fn: object) -> None:
    _expect_callable(operation, parameter, fn)
    if kind := asynchronous(fn):
        raise PlanError(
            f"{parameter} of {operation} is {kind}, which is not awaited here. Give an ordinary function, and put "
            "requests to a service into .async_map(...) before it"
        )


def _expect_callable(operation: str, parameter: str, fn: object) -> None:
    if not callable(fn):
        instead = f", such as lambda: {fn!r:.80}" if parameter == "init" else ", such as lambda row: row.field"
        raise PlanError(f"{parameter} of {operation} is a function, not {fn!r:.80}. Give one{instead}")


def _expect_one_value(operation: str, parameter: str, fn: object) -> None:
    if kind := _generator(fn):
        raise PlanError(
            f"{parameter} of {operation} is {kind}, but one value is expected. Return the value; to emit any number of "
            "values use .flat_map(...)"
        )


def asynchronous(fn: object) -> str | None:
    """Describe the kind of asynchronous function that ``fn`` is; None for an ordinary one.

    A ``functools.partial`` counts as the function that it calls, an object as its ``__call__``. A lambda that returns
    the coroutine of another function cannot be detected.
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
    """Return the function or class that runs when ``fn`` is called."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.isroutine(fn) or isinstance(fn, type):
        return fn
    return getattr(type(fn), "__call__", None)  # noqa: B004


def describe_function(fn: object) -> str:
    """Describe a user's function: its name and line."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    code = getattr(inspect.unwrap(fn) if callable(fn) else fn, "__code__", None)
    if code is None:
        return getattr(fn, "__qualname__", type(fn).__qualname__)
    return f"{code.co_qualname} ({Path(code.co_filename).name}, line {code.co_firstlineno})"
