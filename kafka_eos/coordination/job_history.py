"""What happened to a job, one JSON line an event, for reports and for the audit.

Rule: nothing the job does depends on it. Decisions rest on manifests, receipts and terms; this is their diary. A
running job says once that lines cannot be written, until one can be again, and goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from kafka_eos.coordination.terms import now_ms
from kafka_eos.core.json_values import Json
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.rolling_log import LocalLog

_TOLD_FILES = 1
"""Full files that are kept of what is only told here."""


class History:
    """The diary of a running job. ``notice`` hears, in words, that events are missing from here on.

    ``directory``: where the newest events are told as well, for the dashboard of this machine; None if the storage is
    there itself.
    """

    def __init__(self, storage: JobStorage, notice: Callable[[str], None], directory: Path | None = None) -> None:
        self._storage, self._notice = storage, notice
        self._told = None if directory is None else LocalLog(directory, paths.TOLD, keep=_TOLD_FILES)
        self._failing: set[str] = set()

    def write(self, event: str, **facts: Json) -> None:
        """As ``write``; raises nothing if the storage cannot be written."""
        line = _line(event, facts)
        if self._told is not None:
            self._append(paths.TOLD, self._told.append, line, "the dashboard does not show what happens from here on")
        lacks = f"events from {event!r} on are missing there, and the audit cannot know of them"
        self._append(paths.HISTORY, partial(self._storage.append, paths.HISTORY), line, lacks)

    def _append(self, name: str, append: Callable[[str], None], line: str, lacks: str) -> None:
        try:
            append(line)
        except OSError as error:
            if name not in self._failing:
                self._failing.add(name)
                self._notice(f"{name} cannot be written: {error}. The job goes on; {lacks}")
        else:
            self._failing.discard(name)


def write(storage: JobStorage, event: str, **facts: Json) -> None:
    """Append an event with its time, ``at``, in milliseconds since the Unix epoch. Raises OSError."""
    storage.append(paths.HISTORY, _line(event, facts))


def _line(event: str, facts: Mapping[str, Json]) -> str:
    return json.dumps({"event": event, "at": now_ms(), **facts})


def read(storage: JobStorage) -> list[dict[str, Json]]:
    """All events, oldest first. A line that was cut off, by a crash or a full disk, is left out: it is a diary."""
    return _events(storage.lines(paths.HISTORY))


def newest(directory: Path, size: int) -> list[dict[str, Any]] | None:
    """The newest events, some ``size`` bytes, of a job with this directory; None if none are known here.

    If its history is in a store, those that supervisors of this machine have told.
    """
    tails = (LocalLog(directory, name).tail(size) for name in (paths.HISTORY, paths.TOLD))
    lines = next((tail for tail in tails if tail is not None), None)
    return None if lines is None else _events(lines)


def _events(lines: Iterable[str]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for line in lines:
        with suppress(json.JSONDecodeError):
            events.append(json.loads(line))
    return events
