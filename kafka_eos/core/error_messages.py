"""Descriptions of exceptions for errors, logs, history and pages.

Rule: the message of an exception of user code, a codec or a client may quote a record, and records stay out of
whatever can be read without a login. So a description has the class and the lines of the user's code. Messages are
shown where they cannot contain a record, and all of them with the setting ``show_error_messages``.
"""

from __future__ import annotations

import errno
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Final

import msgspec

from kafka_eos.core.errors import KafkaEosError
from kafka_eos.core.package import PACKAGE

IN_PACKAGE: Final = f"{PACKAGE}/"
_LIBRARIES: Final = tuple(f"{path}/" for name, path in sysconfig.get_paths().items() if "lib" in name)
_MOST_PLACES: Final = 6
_MAX_MESSAGE: Final = 4000
"""Characters of a message that are kept: libraries include their input in a message, however large it is."""
_OF_MSGSPEC: Final = r"(?:Expected `[^`]*`, got `[^`]*`|Object missing required field `[^`]*`)(?: - at `[^`]*`)?"
_OF_TYPES: Final = re.compile(
    rf"{_OF_MSGSPEC}|not a valid [\w.\[\], |]+: {_OF_MSGSPEC}|expected [\w.\[\], |]+, got [A-Za-z_][\w, ]*"
    r"|cannot (?:be stored|change subtasks): Encoding objects of type [\w.]+ is unsupported"
)
"""Messages of msgspec and of this package's codecs that name types and declared fields only."""
_HINT: Final = "its message is hidden because it may quote a record, show_error_messages=true shows it"

_shows_all = False


class UnfitValue(ValueError):
    """A value does not fit. Rule: the message has no part of the value, because it is shown to everybody."""


def show_error_messages(shown: bool) -> None:
    """Set whether this process shows the messages of all exceptions."""
    global _shows_all
    _shows_all = shown


def shows_all_messages() -> bool:
    """Return whether this process shows the messages of all exceptions."""
    return _shows_all


def make_text(convert: Callable[[object], str], value: object) -> str:
    """Return the ``str`` or ``repr`` of an object of user code, or its class if that raises an exception.

    Python refuses to convert an integer of more than 4,300 digits, which may be the argument of a ``KeyError``.
    """
    try:
        return convert(value)
    except Exception as error:  # noqa: BLE001 - the object may be of a user's class
        return f"<{type(value).__name__} that cannot be converted to text: {type(error).__name__}>"


def format_message(error: BaseException) -> str:
    """Return an exception's message, shortened and printable, even if it quotes the record: for dead letters only.

    Lone surrogates, which cannot be encoded, are escaped.
    """
    whole = make_text(str, error)
    text = whole[:_MAX_MESSAGE].encode(errors="backslashreplace").decode()
    more = len(whole) - _MAX_MESSAGE
    return text if more <= 0 else f"{text} … ({more:,} more characters)"


def name_error(error: BaseException) -> str:
    """Return an exception's class, and its message if that may be shown."""
    message = _find_message(error)
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def describe_error(error: BaseException) -> str:
    """Describe an exception: class, message if it may be shown, and the user's lines that raised it."""
    hint = "" if _find_message(error) is not None else f"; {_HINT}"
    return f"{summarize_error(error)}{hint}"


def summarize_error(error: BaseException) -> str:
    """Describe an exception as ``describe_error`` does, without a hint at a hidden message."""
    return f"{name_error(error)}{_places(error)}"


def show_message(error: BaseException) -> str:
    """Return an exception's message if it may be shown, else its class."""
    return _find_message(error) or type(error).__name__


def show_value(value: object, most: int = 200) -> str:
    """Return a value of a record for a message: its ``repr`` if messages are shown, else its class."""
    return make_text(repr, value)[:most] if _shows_all else f"<hidden {type(value).__name__}>"


def explain_failure(error: BaseException) -> str:
    """Return the reason for which a session ended, to be shown behind the class of the error.

    Operating system errors that reach this function are about files and connections of the job itself: those of user
    code were attributed, and described, before.
    """
    if isinstance(error, KafkaEosError | OSError):
        return make_text(str, error) or type(error).__name__
    return f"{_find_message(error) or _HINT}{_places(error)}"


def format_traceback(error: BaseException) -> str:
    """Return an exception and its causes with their lines, the first cause first. Messages are hidden as elsewhere."""
    if _shows_all:
        return "".join(traceback.format_exception(error))
    chain = reversed(list(iterate_causes(error)))
    return "\n".join("".join(traceback.format_tb(each.__traceback__)) + f"{name_error(each)}\n" for each in chain)


def describe_frame(frame: FrameType | None) -> str:
    """Describe where a thread is in the user's code."""
    return ", ".join(_lines(reversed(list(traceback.walk_stack(frame))))) if frame else "an unknown place"


def iterate_causes(error: BaseException) -> Iterator[BaseException]:
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


def _find_message(error: BaseException) -> str | None:
    """Return an exception's message if it may be shown, else None."""
    if _shows_all or isinstance(error, KafkaEosError | UnfitValue):
        return format_message(error)
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return f"[Errno {error.errno}] {os.strerror(error.errno)}"
    if _is_of_codec(error) and _OF_TYPES.fullmatch(text := make_text(str, error)):
        return text
    return None


def _is_of_codec(error: BaseException) -> bool:
    """Return whether msgspec or this package raised the error, and not the user's code."""
    if isinstance(error, msgspec.ValidationError):
        return True
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(files) and files[-1].startswith(IN_PACKAGE)


def _places(error: BaseException) -> str:
    places = _lines(traceback.walk_tb(error.__traceback__))
    return f" (raised at {', '.join(places)})" if places else ""


def _lines(frames: Iterable[tuple[FrameType, int]]) -> list[str]:
    """Return the innermost lines of the user's code; if there are none, those of libraries."""
    walked = ((frame.f_code, line) for frame, line in frames)
    known = [(code, line) for code, line in walked if not code.co_filename.startswith((IN_PACKAGE, "<"))]
    own = [(code, line) for code, line in known if not code.co_filename.startswith(_LIBRARIES)]
    return [f"{code.co_filename}:{line} in {code.co_name}" for code, line in (own or known)[-_MOST_PLACES:]]
