"""The line of the user's file that asked for something impossible: mistakes are reported with it.

Rule: the user's line is the nearest one outside the rooms of what users write a pipeline with, whatever of these calls
what. Who calls something that is ``quoting`` does not quote again.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from types import FrameType
from typing import ParamSpec, TypeVar

from kafka_eos.core.errors import PlanError

P = ParamSpec("P")
R = TypeVar("R")

_INSIDE = tuple(f"kafka_eos.{room}." for room in ("api", "abc", "core", "plan", "_util.call_site"))


@dataclass(frozen=True, slots=True)
class Where:
    """A line of the user's program."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f": {self.text}" if self.text else "")


def user_frame() -> FrameType:
    """The nearest caller outside these rooms."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith(_INSIDE):
        frame = frame.f_back
    assert frame is not None
    return frame


def user_line() -> Where:
    """Where the user's file is just now."""
    return line_of(user_frame())


def line_of(frame: FrameType) -> Where:
    """Where ``frame`` is just now."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    return Where(file, line, linecache.getline(file, line, frame.f_globals).strip())


def mistake(text: str) -> PlanError:
    """An error with the user's line below it."""
    return PlanError(f"{text}\n  {user_line()}")


def quoted(call: Callable[[], R]) -> R:
    """What ``call`` gives. A PlanError of it gets the user's line."""
    try:
        return call()
    except PlanError as error:
        raise mistake(str(error)) from None


def quoting(fn: Callable[P, R]) -> Callable[P, R]:
    """``fn``, whose PlanErrors get the user's line."""

    @wraps(fn)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        return quoted(lambda: fn(*args, **kwargs))

    return called
