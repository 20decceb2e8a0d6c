"""Logging of a job's processes, as text or as JSON; each line carries its LogIdentity.

All messages use Python's ``logging``: those of the job, of user code, and of Kafka's client. Handlers and levels that
the user's program has configured stay as they are; without any, lines go to standard error.

Rule: log lines are for information only. Nothing depends on them, and data loss is never reported in a log line alone.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TextIO, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict, replace

from kafka_eos._util.log_context import RowPosition, current_position
from kafka_eos._util.printable_text import as_message, printable_json

LogFormat: TypeAlias = Literal["text", "json"]
Levels: TypeAlias = Mapping[str, str]
"""The lowest level of lines by logger; the logger ``""`` stands for all others."""

OURS: Final = "kafka_eos"
EVENT_FIELD: Final = "kafka_eos_event"
"""A log record's attribute: the name and the fields of a job event."""
_WHO_FIELD: Final = "kafka_eos"
_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
QUIET_SECONDS: Final = 30.0
_MOST_KINDS: Final = 1000
"""Kinds of lines that are remembered."""
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|\d+")
_KNOWN: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", EVENT_FIELD, _WHO_FIELD}


class LogIdentity(Struct, frozen=True):
    """The job, process, term, epoch and record that a log line belongs to."""

    job: str
    process: str
    term: int = -1
    epoch: int = -1
    position: RowPosition | None = None

    def __str__(self) -> str:
        term = f" term {self.term}" if self.term >= 0 else ""
        epoch = f" epoch {self.epoch}" if self.epoch >= 0 else ""
        return f"{self.job} {self.process}{term}{epoch}" + (f" {self.position}" if self.position else "")

    def fields(self) -> dict[str, object]:
        """Return the known fields."""
        known = {"job": self.job, "process": self.process, "term": self.term, "epoch": self.epoch}
        return {name: value for name, value in {**known, **_fields(self.position)}.items() if value not in (-1, "")}


def _fields(position: RowPosition | None) -> dict[str, object]:
    return {} if position is None else asdict(position)


_who: LogIdentity | None = None
_is_json = False


def configure_logging(job: str, process: str, form: LogFormat, levels: Levels) -> None:
    """Configure handlers, format and levels of this process.

    As text: add a handler for standard error if there is none. As JSON: handlers of terminals and pipes write JSON;
    those of files, and all others, stay. Warnings are log lines, because they may quote what a function was given.
    """
    global _who, _is_json
    first, _who, _is_json = _who is None, LogIdentity(job, process), form == "json"
    if first:
        _tag_records(logging.getLogRecordFactory())
        logging.captureWarnings(True)
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_StderrHandler())
        root.handlers[0].setFormatter(_TextFormatter())
    if _is_json:
        for handler in (each for each in root.handlers if type(each) in (logging.StreamHandler, _StderrHandler)):
            handler.setFormatter(_JsonFormatter())
    logging.getLogger(OURS).setLevel(logging.INFO)
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level.upper())


def set_log_process(name: str) -> None:
    """Set the name of this process in subsequent log lines."""
    global _who
    if _who is not None:
        _who = replace(_who, process=name)


def set_log_epoch(*, term: int | None = None, epoch: int | None = None) -> None:
    """Set the term and epoch of subsequent log lines."""
    global _who
    if _who is not None:
        _who = replace(_who, term=_who.term if term is None else term, epoch=_who.epoch if epoch is None else epoch)


def is_json() -> bool:
    """Return whether this process logs JSON."""
    return _is_json


def parse_levels(value: object) -> object:
    """Parse log levels such as warning,orders.prices=debug. Raises ValueError if they are invalid."""
    if isinstance(value, str):
        parts = [part.rpartition("=") for part in value.split(",")]
        value = {name.strip(): level.strip() for name, _, level in parts}
    if not isinstance(value, Mapping):
        return value
    for name, level in value.items():
        if str(level).lower() not in _LEVELS:
            raise ValueError(
                f"{level!r} is not a log level; use one of {', '.join(_LEVELS)}, or {name or 'LOGGER'}=LEVEL"
            )
    return {name: str(level).lower() for name, level in value.items()}


def _tag_records(make: Callable[..., logging.LogRecord]) -> None:
    """Tag each log record with its LogIdentity."""

    def made(*args: Any, **given: Any) -> logging.LogRecord:
        record = make(*args, **given)
        at = current_position()
        setattr(record, _WHO_FIELD, _who if at is None or _who is None else replace(_who, position=at))
        return record

    logging.setLogRecordFactory(made)


def _of_a_record(facts: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of an event that concerns one record."""
    operator, where = facts.get("operator"), facts.get("where")
    if not isinstance(operator, str) or not isinstance(where, str):
        return {}
    return {name: value for name, value in _fields(RowPosition.parse(operator, where)).items() if value not in (-1, "")}


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to the current standard error."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(f"%(asctime)s %(levelname)s %({_WHO_FIELD})s: %(message)s (%(name)s)", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return as_message(super().format(record))


class _JsonFormatter(logging.Formatter):
    """Formats log lines as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        who = getattr(record, _WHO_FIELD, None)
        line: dict[str, object] = {
            "at": f"{at}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **(who.fields() if who is not None else {}),
        }
        event = getattr(record, EVENT_FIELD, None)
        if event is not None:
            line["event"], line["facts"] = event
            line |= _of_a_record(event[1])
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = "".join(traceback.format_exception(record.exc_info[1]))
        if record.stack_info:
            line["stack"] = record.stack_info
        extra = {name: value for name, value in vars(record).items() if name not in _KNOWN}
        return _as_json({**line, **({"extra": extra} if extra else {})})


def _as_json(line: Mapping[str, object]) -> str:
    """Return one line of JSON. Values that JSON cannot express, such as NaN, are written as Python prints them."""
    try:
        text = json.dumps(line, default=str, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps({name: _shown(value) for name, value in line.items()}, ensure_ascii=False)
    return printable_json(text.encode("utf-8", "backslashreplace").decode())  # a lone surrogate cannot be encoded


def _shown(value: object) -> object:
    return {str(name): _plain(each) for name, each in value.items()} if isinstance(value, dict) else _plain(value)


def _plain(value: object) -> object:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return repr(value)
    return value


@dataclass
class _SimilarLines:
    """Lines that differ only in numbers."""

    at: float
    suppressed: int = 0


class RepeatFilter(logging.Filter):
    """A log filter that passes the first of similar lines, then one per ``quiet`` seconds with a count of the others.

    ``read`` splits a message into a prefix, which is ignored for similarity, and the rest.
    """

    def __init__(
        self,
        quiet: float = QUIET_SECONDS,
        read: Callable[[str], tuple[str, str]] = lambda text: ("", text),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._quiet = quiet
        self._read = read
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[str, _SimilarLines] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        about, rest = self._read(record.getMessage())
        now = self._clock()
        with self._lock:
            kind = self._kinds.get(key := _NUMBER.sub("#", rest))
            if kind is not None and now - kind.at < self._quiet:
                kind.suppressed += 1
                return False
            if kind is None and len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            self._kinds[key] = _SimilarLines(now)
        again = f" ({kind.suppressed} more in the last {now - kind.at:.0f} s)" if kind and kind.suppressed else ""
        record.msg, record.args = f"{about}{rest}{again}", ()
        return True
