"""The history of a job: one JSON line per event, for reports and for the audit.

Rule: nothing the job does depends on it. Decisions depend on manifests, receipts and terms; the history only records
them. A running job that cannot write lines reports it once until a line succeeds again, and continues.
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
"""Full files to keep of the local copy of the history."""


class History:
    """The history of a running job. It calls ``notice`` with a message if events will be missing from now on.

    ``directory``: where a local copy of the newest events is kept for the dashboard of this machine; None if the
    storage is local itself.
    """

    def __init__(self, storage: JobStorage, notice: Callable[[str], None], directory: Path | None = None) -> None:
        self._storage, self._notice = storage, notice
        self._local_copy = (
            None if directory is None else LocalLog(directory, paths.LOCAL_HISTORY, retained_segments=_TOLD_FILES)
        )
        self._failing: set[str] = set()

    def append_event(self, event: str, **facts: Json) -> None:
        """Append an event with its time."""
        line = _line(event, facts)
        if self._local_copy is not None:
            self._append(
                paths.LOCAL_HISTORY,
                self._local_copy.append,
                line,
                "the dashboard does not show later events",
            )
        lacks = f"it lacks events from {event!r} on, and so does the audit"
        self._append(paths.HISTORY, partial(self._storage.append, paths.HISTORY), line, lacks)

    def _append(self, name: str, append: Callable[[str], None], line: str, lacks: str) -> None:
        try:
            append(line)
        except OSError as error:
            if name not in self._failing:
                self._failing.add(name)
                self._notice(f"{name} cannot be written: {error}. The job continues; {lacks}")
        else:
            self._failing.discard(name)


def append_event(storage: JobStorage, event: str, **facts: Json) -> None:
    """Append an event with its time. Raises OSError."""
    storage.append(paths.HISTORY, _line(event, facts))


def _line(event: str, facts: Mapping[str, Json]) -> str:
    return json.dumps({"event": event, "at": now_ms(), **facts})


def read_events(storage: JobStorage) -> list[dict[str, Json]]:
    """Return all events, oldest first. A line that was cut off by a crash or a full disk is skipped."""
    return _events(storage.lines(paths.HISTORY))


def read_recent_events(directory: Path, size: int) -> list[dict[str, Any]] | None:
    """Return the newest events of a job from its local directory, or None.

    If the history is in a remote store, these are the events of supervisors of this machine.
    """
    tails = (LocalLog(directory, name).tail(size) for name in (paths.HISTORY, paths.LOCAL_HISTORY))
    lines = next((tail for tail in tails if tail is not None), None)
    return None if lines is None else _events(lines)


def _events(lines: Iterable[str]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for line in lines:
        with suppress(json.JSONDecodeError):
            events.append(json.loads(line))
    return events
