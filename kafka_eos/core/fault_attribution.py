"""Attribution of an exception from user code or a codec to the record, the environment or the job.

Pure. Readers, operators, writers and exchanges of both engines use it before they reject a record. It searches the
exception and its causes from the outside in: along ``__cause__``, else along ``__context__`` as far as a traceback
would show it. The first known class decides; of its base classes, the most specific one.

Rule: a record is rejected only for its own fault. If something else failed, the same record is processed again.
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

from kafka_eos.core.errors import (
    EnvironmentFailed,
    KafkaEosError,
    RegistryUnavailable,
    RestartFromCheckpoint,
    Retryable,
)
from kafka_eos.core.package import PACKAGE

_PACKAGE: Final = f"{PACKAGE}/"
_LIBRARIES: Final = tuple(f"{path}/" for name, path in sysconfig.get_paths().items() if "lib" in name)
_MOST_PLACES: Final = 6
_MAX_MESSAGE: Final = 4000
"""Characters of a message that are kept: libraries include their input in a message, however large it is."""
_ENVIRONMENT: Final = frozenset({Retryable, RestartFromCheckpoint, OSError, MemoryError})
"""OSError: connections, timeouts, name resolution, disks; requests, urllib and many drivers derive theirs from it."""
_RECORD: Final = frozenset({ZoneInfoNotFoundError})
"""It derives from FileNotFoundError, but only a record can have named that time zone."""
_PLAIN: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


class Fault(enum.Enum):
    RECORD = "record"
    """The policy of its source rejects the record: the job stops at it, or it becomes a dead letter."""
    ENVIRONMENT = "environment"
    """The record is not at fault: it is processed again, from the last checkpoint."""
    JOB = "job"
    """An error of this package, whose class determines what comes next."""


@dataclass(frozen=True, slots=True)
class ErrorRules:
    """The user's rules for exceptions, on top of the built-in ones."""

    environment: tuple[type[Exception], ...] = ()
    """Classes attributed to the environment: ``psycopg.OperationalError``, ``redis.ConnectionError`` …"""
    record: tuple[type[Exception], ...] = ()
    """Classes attributed to the record, although they are an OSError: ``FileNotFoundError``, ``requests.HTTPError``
    …"""

    def classify(self, error: BaseException) -> Fault:
        for each in _iterate_causes(error):
            fault = self._of_class(type(each))
            if fault is not None:
                return fault
            if each is error and isinstance(error, KafkaEosError):
                return Fault.JOB
            if each is error and isinstance(error, ImportError):
                # not installed, or being replaced; an ImportError that was handled does not count
                return Fault.ENVIRONMENT
        return Fault.RECORD

    def expect_record(self, error: Exception, operator: str, where: str) -> None:
        """Return if ``error`` is the fault of the record at ``where``.

        Raises EnvironmentFailed if it is the environment's, and ``error`` itself if it is an error of this package.
        """
        match self.classify(error):
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


def is_plain_data_error(error: Exception) -> bool:
    """Return whether the error is certainly the record's fault, whatever the user has declared.

    Code that collects errors of many rows may continue then.
    """
    plain = isinstance(error, _PLAIN) and not isinstance(error, OSError)
    return plain and error.__cause__ is None and error.__context__ is None


def format_message(error: BaseException) -> str:
    """Return an exception's message, shortened and printable.

    Lone surrogates, which cannot be encoded, are escaped.
    """
    whole = str(error)
    text = whole[:_MAX_MESSAGE].encode(errors="backslashreplace").decode()
    more = len(whole) - _MAX_MESSAGE
    return text if more <= 0 else f"{text} … ({more:,} more characters)"


def describe_error(error: BaseException) -> str:
    """Describe an exception: type, message, and the user's lines that raised it."""
    what, places = f"{type(error).__name__}: {format_message(error)}", _places(error.__traceback__)
    return f"{what} (raised at {', '.join(places)})" if places else what


def describe_frame(frame: FrameType | None) -> str:
    """Describe where a thread is in the user's code."""
    return ", ".join(_lines(reversed(list(traceback.walk_stack(frame))))) if frame else "an unknown place"


def _places(trace: TracebackType | None) -> list[str]:
    return _lines(traceback.walk_tb(trace))


def _lines(frames: Iterable[tuple[FrameType, int]]) -> list[str]:
    """Return the innermost lines of the user's code; if there are none, those of libraries."""
    walked = ((frame.f_code, line) for frame, line in frames)
    known = [(code, line) for code, line in walked if not code.co_filename.startswith((_PACKAGE, "<"))]
    own = [(code, line) for code, line in known if not code.co_filename.startswith(_LIBRARIES)]
    return [f"{code.co_filename}:{line} in {code.co_name}" for code, line in (own or known)[-_MOST_PLACES:]]


def _iterate_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, as a traceback shows them."""
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
    if isinstance(error, RegistryUnavailable):  # not raised by a call of the user's function
        return f"{error}, {again}"
    first, *causes = (f"{type(each).__name__}: {format_message(each)}" for each in _iterate_causes(error))
    led = f" (caused by {causes[-1]})" if causes else ""
    return (
        f"{_function(error.__traceback__)} raised {first}{led}, {again}. If the record is to blame, name the "
        "exception in record_errors=… of the source"
    )


def _function(trace: TracebackType | None) -> str:
    """Return the outermost function outside this package, with its line; codecs written in C have no frame."""
    for frame, line in traceback.walk_tb(trace):
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE):
            return f"{code.co_qualname} ({Path(code.co_filename).name}, line {line})"
    return "a function or codec"
