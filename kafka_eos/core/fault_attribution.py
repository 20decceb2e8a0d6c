"""Attribution of an exception from user code or a codec to the record, the environment or the job.

Readers, operators, writers and exchanges of both engines use it before they reject a record. It searches the
exception and its causes from the outside in: along ``__cause__``, else along ``__context__`` as far as a traceback
would show it. The first known class decides; of its base classes, the most specific one.

Rule: a record is rejected only for its own fault. If something else failed, the same record is processed again.
"""

from __future__ import annotations

import enum
import errno
import mmap
import traceback
from gzip import BadGzipFile
from pathlib import Path
from types import TracebackType
from typing import Final
from zoneinfo import ZoneInfoNotFoundError

from msgspec import Struct

from kafka_eos.core.error_messages import IN_PACKAGE, iterate_causes, make_text, name_error
from kafka_eos.core.errors import (
    EnvironmentFailed,
    KafkaEosError,
    RegistryUnavailable,
    RestartFromCheckpoint,
    Retryable,
)

_ENVIRONMENT: Final = frozenset({Retryable, RestartFromCheckpoint, OSError, MemoryError})
"""OSError: connections, timeouts, name resolution, disks; requests, urllib and many drivers derive theirs from it."""
_RECORD: Final = frozenset({ZoneInfoNotFoundError, BadGzipFile})
"""Classes of errors about a value. The first is raised from a FileNotFoundError, the second derives from OSError."""
_NUMBERS_OF_VALUES: Final = frozenset({errno.EOVERFLOW, errno.ENAMETOOLONG, errno.EISDIR, errno.E2BIG})
"""Numbers of an OSError about a value: a time that has no date, the name of no file, or of no time zone, and a text
that is too long for an argument of a program."""
_MESSAGES_OF_VALUES: Final = frozenset(
    {
        "Invalid data stream",
        "illegal IP address string passed to inet_aton",
        "illegal IP address string passed to inet_pton",
    }
)
"""Messages of an OSError without a number that the standard library raises for a value: of bz2 and of addresses."""
_LARGE: Final = 256 << 20
"""Bytes. If so many are free, a MemoryError is about a value, such as ``"x" * 10**18``."""
_PLAIN: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


class Fault(enum.Enum):
    RECORD = "record"
    """The policy of its source rejects the record: the job stops at it, or it becomes a dead letter."""
    ENVIRONMENT = "environment"
    """The record is not at fault: it is processed again, from the last checkpoint."""
    JOB = "job"
    """An error of this package, whose class determines what comes next."""


class ErrorRules(Struct, frozen=True):
    """The user's rules for exceptions, on top of the built-in ones."""

    environment: tuple[type[Exception], ...] = ()
    """Classes attributed to the environment: ``psycopg.OperationalError``, ``redis.ConnectionError`` …"""
    record: tuple[type[Exception], ...] = ()
    """Classes attributed to the record, although they are an OSError: ``FileNotFoundError``, ``requests.HTTPError``
    …"""

    def classify(self, error: BaseException) -> Fault:
        for each in iterate_causes(error):
            fault = self._of(each)
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

    def _of(self, error: BaseException) -> Fault | None:
        for each in type(error).__mro__:
            if each in self.record:
                return Fault.RECORD
            if each in self.environment:
                return Fault.ENVIRONMENT
            if each in _RECORD:
                return Fault.RECORD
            if each in _ENVIRONMENT:
                return Fault.RECORD if _is_about_value(error) else Fault.ENVIRONMENT
        return None


def as_exception(error: BaseException) -> Exception:
    """Return what user code has raised for a record as an Exception: anything else would end the process, again and
    again.

    ``SystemExit`` is no Exception (``argparse`` raises it for a wrong argument), nor is a panic of a library in Rust.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, KeyboardInterrupt | GeneratorExit):  # of a person, or of a generator that is closed
        raise error
    return wrap_in_exception(error)


def wrap_in_exception(error: BaseException) -> Exception:
    """Return an Exception that names what a function has raised."""
    wrapped = RuntimeError(f"the function raised {name_error(error)}")
    wrapped.__cause__ = error
    return wrapped


def is_plain_data_error(error: Exception) -> bool:
    """Return whether the error is certainly the record's fault, whatever the user has declared.

    Code that collects errors of many rows may continue then.
    """
    plain = isinstance(error, _PLAIN) and not isinstance(error, OSError)
    return plain and error.__cause__ is None and error.__context__ is None


def _is_about_value(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return _has_memory()
    if not isinstance(error, OSError):
        return False
    return error.errno in _NUMBERS_OF_VALUES or (error.errno is None and make_text(str, error) in _MESSAGES_OF_VALUES)


def _has_memory() -> bool:
    """Return whether this process may still have a large piece of memory, so that more than that was requested."""
    try:
        mmap.mmap(-1, _LARGE).close()  # nothing of it is used
    except (OSError, MemoryError):
        return False
    return True


def _reason(error: Exception, operator: str, where: str) -> str:
    again = (
        f"in operator {operator!r}, at the record {where} (topic/partition/offset). That is not the "
        "record's fault: it is neither rejected nor skipped, and is processed again from the last checkpoint"
    )
    if isinstance(error, RegistryUnavailable):  # not raised by a call of the user's function
        return f"{error}, {again}"
    first, *causes = iterate_causes(error)
    led = f" (caused by {name_error(causes[-1])})" if causes else ""
    return (
        f"{_function(error.__traceback__)} raised {name_error(first)}{led}, {again}. If the record is to "
        "blame, name the exception in record_errors=… of the source"
    )


def _function(trace: TracebackType | None) -> str:
    """Return the outermost function outside this package, with its line; codecs written in C have no frame."""
    for frame, line in traceback.walk_tb(trace):
        code = frame.f_code
        if not code.co_filename.startswith(IN_PACKAGE):
            return f"{code.co_qualname} ({Path(code.co_filename).name}, line {line})"
    return "a function or codec"
