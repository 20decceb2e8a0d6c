"""What happened to a job, one JSON line an event, for reports and for the audit.

Rule: nothing the job does depends on it. Decisions rest on manifests, receipts and terms; this is their diary. A
running job says once that lines cannot be written, until one can be again, and goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kafka_eos.checkpoints import paths
from kafka_eos.checkpoints.logs import LocalLog
from kafka_eos.checkpoints.storage import JobStorage
from kafka_eos.coordinator.term import now_ms
from kafka_eos.interfaces import Json


class History:
    """The diary of a running job. ``notice`` hears, in words, that events are missing from here on."""

    def __init__(self, storage: JobStorage, notice: Callable[[str], None]) -> None:
        self._storage, self._notice = storage, notice
        self._failing = False

    def write(self, event: str, **facts: Json) -> None:
        """As ``write``; raises nothing if the storage cannot be written."""
        try:
            write(self._storage, event, **facts)
        except OSError as error:
            if not self._failing:
                self._failing = True
                self._notice(
                    f"{paths.HISTORY} cannot be written: {error}. The job goes on; events from {event!r} on are "
                    "missing there, and the audit cannot know of them"
                )
        else:
            self._failing = False


def write(storage: JobStorage, event: str, **facts: Json) -> None:
    """Append an event with its time, ``at``, in milliseconds since the Unix epoch. Raises OSError."""
    storage.append(paths.HISTORY, json.dumps({"event": event, "at": now_ms(), **facts}))


def read(storage: JobStorage) -> list[dict[str, Json]]:
    """All events, oldest first. A line that was cut off, by a crash or a full disk, is left out: it is a diary."""
    return _events(storage.lines(paths.HISTORY))


def newest(directory: Path, size: int) -> list[dict[str, Any]] | None:
    """The newest events of a job whose history is kept in this directory, some ``size`` bytes; None if it is not."""
    lines = LocalLog(directory, paths.HISTORY).tail(size)
    return None if lines is None else _events(lines)


def _events(lines: Iterable[str]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for line in lines:
        with suppress(json.JSONDecodeError):
            events.append(json.loads(line))
    return events
