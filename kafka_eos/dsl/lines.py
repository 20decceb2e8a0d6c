"""The line of the user's file that a verb was called from: mistakes are reported with it.

Rule: the user's line is the nearest one outside this room, whatever of it calls what.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import ParamSpec, TypeVar

from kafka_eos.errors import PlanError
from kafka_eos.plan import Where

P = ParamSpec("P")
R = TypeVar("R")

_ROOM = __name__.rpartition(".")[0]


def user_frame() -> FrameType:
    """The nearest caller outside this room."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(f"{_ROOM}."):
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
