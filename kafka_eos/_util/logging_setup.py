"""Log lines of a job's processes: as text for people or as JSON for collectors, each with whose it is.

Everything goes through Python's ``logging``: what a job has to say, what user code says, what Kafka's client says. The
handlers and levels that a user's file has set up stay as they are; where it has none, lines go to standard error.

Rule: a line only tells. Nothing depends on it, and nothing that is lost is told here alone.
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
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, TextIO, TypeAlias

from kafka_eos._util.log_context import Position, position

LogFormat: TypeAlias = Literal["text", "json"]
Levels: TypeAlias = Mapping[str, str]
"""The least level of lines by logger; that of ``""`` is of all others."""

OURS: Final = "kafka_eos"
EVENT_FIELD: Final = "kafka_eos_event"
"""An attribute of a record: the name and the facts of what happened to the job."""
_WHO_FIELD: Final = "kafka_eos"
_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
QUIET_SECONDS: Final = 30.0
_MOST_KINDS: Final = 1000
"""Of lines that are remembered."""
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|\d+")
_KNOWN: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", EVENT_FIELD, _WHO_FIELD}


@dataclass(frozen=True)
class Who:
    """Which process of which job says something, when in the job's life, and at which record. -1: not known there."""

    job: str
    process: str
    term: int = -1
    epoch: int = -1
    position: Position | None = None

    def __str__(self) -> str:
        term = f" term {self.term}" if self.term >= 0 else ""
        epoch = f" epoch {self.epoch}" if self.epoch >= 0 else ""
        return f"{self.job} {self.process}{term}{epoch}" + (f" {self.position}" if self.position else "")

    def fields(self) -> dict[str, object]:
        """What is known of it."""
        known = {"job": self.job, "process": self.process, "term": self.term, "epoch": self.epoch}
        return {name: value for name, value in {**known, **_fields(self.position)}.items() if value not in (-1, "")}


def _fields(position: Position | None) -> dict[str, object]:
    return {} if position is None else asdict(position)


_who: Who | None = None
_is_json = False


def begin(job: str, process: str, form: LogFormat, levels: Levels) -> None:
    """To be called once the user's file is loaded, which may have set up logging by itself.

    As text: a handler for standard error if there is none. As JSON: handlers of terminals and pipes write JSON then;
    those of files, and all others, stay.
    """
    global _who, _is_json
    first, _who, _is_json = _who is None, Who(job, process), form == "json"
    if first:
        _tell_who(logging.getLogRecordFactory())
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_ToStandardError())
        root.handlers[0].setFormatter(_Text())
    if _is_json:
        for handler in (each for each in root.handlers if type(each) in (logging.StreamHandler, _ToStandardError)):
            handler.setFormatter(_Json())
    logging.getLogger(OURS).setLevel(logging.INFO)
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level.upper())


def now(*, term: int | None = None, epoch: int | None = None) -> None:
    """From here on lines are of this term or epoch."""
    global _who
    if _who is not None:
        _who = replace(_who, term=_who.term if term is None else term, epoch=_who.epoch if epoch is None else epoch)


def as_json() -> bool:
    """Does this process speak JSON?"""
    return _is_json


def levels(value: object) -> object:
    """Read ``info``, or ``warning,orders.prices=debug``: a level for all, and for single loggers. ValueError if not."""
    if isinstance(value, str):
        parts = [part.rpartition("=") for part in value.split(",")]
        value = {name.strip(): level.strip() for name, _, level in parts}
    if not isinstance(value, Mapping):
        return value
    for name, level in value.items():
        if str(level).lower() not in _LEVELS:
            raise ValueError(f"{level!r} is no level; write one of {', '.join(_LEVELS)}, or {name or 'LOGGER'}=LEVEL")
    return {name: str(level).lower() for name, level in value.items()}


def _tell_who(make: Callable[..., logging.LogRecord]) -> None:
    """Each record knows it, so that formats of users can show it: ``%(kafka_eos)s``."""

    def made(*args: Any, **given: Any) -> logging.LogRecord:
        record = make(*args, **given)
        at = position()
        setattr(record, _WHO_FIELD, _who if at is None or _who is None else replace(_who, position=at))
        return record

    logging.setLogRecordFactory(made)


def _of_a_record(facts: Mapping[str, object]) -> dict[str, object]:
    """The fields of an event that tells of one record."""
    operator, where = facts.get("operator"), facts.get("where")
    if not isinstance(operator, str) or not isinstance(where, str):
        return {}
    return {name: value for name, value in _fields(Position.parse(operator, where)).items() if value not in (-1, "")}


class _ToStandardError(logging.StreamHandler[TextIO]):
    """Standard error as it is at each line: a live view puts itself in its place."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(f"%(asctime)s %(levelname)s %({_WHO_FIELD})s: %(message)s (%(name)s)", "%H:%M:%S")


class _Json(logging.Formatter):
    """One object a line: ``at`` (UTC), ``level``, ``logger``, ``message``, ``job``, ``process``, and what is known."""

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
    """One line whatever is in it: what JSON has no form for, such as NaN, is told as Python shows it."""
    try:
        told = json.dumps(line, default=str, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        told = json.dumps({name: _shown(value) for name, value in line.items()}, ensure_ascii=False)
    return told.encode("utf-8", "backslashreplace").decode()  # half a character alone is no text


def _shown(value: object) -> object:
    return {str(name): _plain(each) for name, each in value.items()} if isinstance(value, dict) else _plain(value)


def _plain(value: object) -> object:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return repr(value)
    return value


@dataclass
class _Kind:
    """Lines that differ in numbers alone: when one was let through, and how many were not since."""

    at: float
    kept_back: int = 0


class Seldom(logging.Filter):
    """Lets the first line of a kind through, and one after ``quiet`` seconds that counts those in between.

    ``read`` tells of a text what it is about, which is no part of its kind, and what it says.
    """

    def __init__(
        self,
        quiet: float = QUIET_SECONDS,
        read: Callable[[str], tuple[str, str]] = lambda text: ("", text),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._quiet, self._read, self._clock, self._lock = quiet, read, clock, threading.Lock()
        self._kinds: dict[str, _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        about, said = self._read(record.getMessage())
        now = self._clock()
        with self._lock:
            kind = self._kinds.get(key := _NUMBER.sub("#", said))
            if kind is not None and now - kind.at < self._quiet:
                kind.kept_back += 1
                return False
            if kind is None and len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            self._kinds[key] = _Kind(now)
        again = f" ({kind.kept_back} more in the last {now - kind.at:.0f} s)" if kind and kind.kept_back else ""
        record.msg, record.args = f"{about}{said}{again}", ()
        return True
