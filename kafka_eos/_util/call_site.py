"""The user's line that caused an error: error messages quote it.

Rule: the user's line is the nearest caller outside the packages in ``_INSIDE``. A function decorated with
``quotes_user_line`` quotes it for all functions that it calls.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import ParamSpec, TypeVar

from msgspec import Struct

from kafka_eos.core.errors import PlanError

P = ParamSpec("P")
R = TypeVar("R")

_INSIDE = tuple(f"kafka_eos.{room}." for room in ("api", "abc", "core", "plan", "_util.call_site"))


class CodeLocation(Struct, frozen=True):
    """A line of the user's program."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f": {self.text}" if self.text else "")


def user_frame() -> FrameType:
    """Return the frame of the nearest caller outside this package's API."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith(_INSIDE):
        frame = frame.f_back
    assert frame is not None
    return frame


def user_line() -> CodeLocation:
    """Return the line of the user's program that is executing."""
    return location_of(user_frame())


def location_of(frame: FrameType) -> CodeLocation:
    """Return the line that a frame is executing."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    return CodeLocation(file, line, linecache.getline(file, line, frame.f_globals).strip())


def plan_error(text: str) -> PlanError:
    """Return a PlanError that quotes the user's line."""
    return PlanError(f"{text}\n  {user_line()}")


def call_quoting_user(call: Callable[[], R]) -> R:
    """Call a function; its PlanErrors quote the user's line."""
    try:
        return call()
    except PlanError as error:
        raise plan_error(str(error)) from None


def quotes_user_line(fn: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that its PlanErrors quote the user's line."""

    @wraps(fn)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        return call_quoting_user(lambda: fn(*args, **kwargs))

    return called
