"""Whose fault an exception is that came out of user code or a codec: the record's, the environment's, or the job's.

Pure. Readers, operators, writers and exchanges of both engines ask here before they blame a record. What an exception
says of itself and of what caused it is read from the outside in, along ``__cause__``, else along ``__context__`` as
far as a traceback would show it; the first class that is known decides, and of its classes the most specific one.

Rule: only what the record did is the record's fault. What something else did is tried again with the same record.
"""

from __future__ import annotations

import enum
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final
from zoneinfo import ZoneInfoNotFoundError

from kafka_eos.core.errors import EnvironmentFailed, KafkaEosError, RegistryAway, RestartFromCheckpoint, Retryable
from kafka_eos.core.package import PACKAGE

_PACKAGE: Final = f"{PACKAGE}/"
_LIBRARIES: Final = tuple(f"{path}/" for name, path in sysconfig.get_paths().items() if "lib" in name)
_MOST_PLACES: Final = 6
_MOST_SAID: Final = 4000
"""Characters of a message that are kept: libraries put what they were given into theirs, however large it is."""
_ENVIRONMENT: Final = frozenset({Retryable, RestartFromCheckpoint, OSError, MemoryError})
"""OSError: connections, timeouts, name resolution, disks; requests, urllib and many drivers derive theirs from it."""
_RECORD: Final = frozenset({ZoneInfoNotFoundError})
"""It comes of a FileNotFoundError, and nobody but a record has named that time zone."""
_PLAIN: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


class Fault(enum.Enum):
    RECORD = "record"
    """It is refused by the policy of its source: the job stops at it, or it becomes a dead letter."""
    ENVIRONMENT = "environment"
    """Nothing is wrong with the record: it is processed again, from the last checkpoint."""
    JOB = "job"
    """An error of this package that says itself what comes next."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """What a source's user has said about exceptions, on top of what holds everywhere."""

    environment: tuple[type[Exception], ...] = ()
    """Count as the environment's: ``psycopg.OperationalError``, ``redis.ConnectionError`` …"""
    record: tuple[type[Exception], ...] = ()
    """Count as the record's, though they are an OSError, say: ``FileNotFoundError``, ``requests.HTTPError`` …"""

    def of(self, error: BaseException) -> Fault:
        for each in _story(error):
            fault = self._of_class(type(each))
            if fault is not None:
                return fault
            if each is error and isinstance(error, KafkaEosError):
                return Fault.JOB
            if each is error and isinstance(error, ImportError):
                return Fault.ENVIRONMENT  # not installed here, or being replaced; one that was handled says nothing
        return Fault.RECORD

    def expect_record(self, error: Exception, operator: str, where: str) -> None:
        """Return if ``error`` is the fault of the record at ``where``.

        Raises EnvironmentFailed if it is the environment's, and ``error`` itself if it is an error of this package.
        """
        match self.of(error):
            case Fault.JOB:
                raise error
            case Fault.ENVIRONMENT if isinstance(error, EnvironmentFailed):
                raise error
            case Fault.ENVIRONMENT:
                raise EnvironmentFailed(_reason(error, operator, where)) from error

    def _of_class(self, cls: type[BaseException]) -> Fault | None:
        for each in cls.__mro__:
            if each in self.record:
                return Fault.RECORD
            if each in self.environment or each in _ENVIRONMENT:
                return Fault.ENVIRONMENT
            if each in _RECORD:
                return Fault.RECORD
        return None


def surely_the_records(error: Exception) -> bool:
    """Is there no doubt, whatever the user has said? Whoever collects errors of many rows may go on then."""
    plain = isinstance(error, _PLAIN) and not isinstance(error, OSError)
    return plain and error.__cause__ is None and error.__context__ is None


def said(error: BaseException) -> str:
    """Its message, of a long one the beginning. Halves of characters, which are no text to others, are escaped."""
    whole = str(error)
    text = whole[:_MOST_SAID].encode(errors="backslashreplace").decode()
    more = len(whole) - _MOST_SAID
    return text if more <= 0 else f"{text} … ({more:,} more characters)"


def told(error: BaseException) -> str:
    """What was raised, and the lines of the user's code that led there, the outermost first."""
    what, places = f"{type(error).__name__}: {said(error)}", _places(error.__traceback__)
    return f"{what} (raised at {', '.join(places)})" if places else what


def standing(frame: FrameType | None) -> str:
    """The lines of the user's code where a thread is, the outermost first."""
    return ", ".join(_lines(reversed(list(traceback.walk_stack(frame))))) if frame else "an unknown place"


def _places(trace: TracebackType | None) -> list[str]:
    return _lines(traceback.walk_tb(trace))


def _lines(frames: Iterable[tuple[FrameType, int]]) -> list[str]:
    """The innermost lines of the user's code; of libraries where there is none, as if they were the user's."""
    walked = ((frame.f_code, line) for frame, line in frames)
    known = [(code, line) for code, line in walked if not code.co_filename.startswith((_PACKAGE, "<"))]
    own = [(code, line) for code, line in known if not code.co_filename.startswith(_LIBRARIES)]
    return [f"{code.co_filename}:{line} in {code.co_name}" for code, line in (own or known)[-_MOST_PLACES:]]


def _story(error: BaseException) -> Iterator[BaseException]:
    """The exception, and what led to it, as a traceback shows them; members of a group after the group."""
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        before = each.__context__ if each.__cause__ is None and not each.__suppress_context__ else each.__cause__
        if before is not None:
            waiting.append(before)
        if isinstance(each, BaseExceptionGroup):
            waiting.extend(reversed(each.exceptions))


def _reason(error: Exception, operator: str, where: str) -> str:
    again = (
        f"in operator {operator!r}, at the record {where} (topic/partition/offset). That is not the record's fault: it "
        "is neither refused nor skipped, and is processed again from the last checkpoint"
    )
    if isinstance(error, RegistryAway):  # no function of the user has asked for it
        return f"{error}, {again}"
    first, *causes = (f"{type(each).__name__}: {said(each)}" for each in _story(error))
    led = f" (caused by {causes[-1]})" if causes else ""
    return (
        f"{_function(error.__traceback__)} raised {first}{led}, {again}. If the record is to blame, name the "
        "exception in record_errors=… of the source"
    )


def _function(trace: TracebackType | None) -> str:
    """The outermost function that is not of this package, with its line; codecs written in C have no frame."""
    for frame, line in traceback.walk_tb(trace):
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            return f"{code.co_qualname} ({Path(code.co_filename).name}, line {line})"
    return "a function or codec"
