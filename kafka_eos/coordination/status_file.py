"""What a running job shows of itself: events to observers, and a small file that others may read.

Rule: showing never changes the job. The file is replaced atomically and is not durable; it is no source of truth.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

STATUS = "status.json"
_EVERY = 0.2
_OFTEN = ("progress", "triggered", "phases", "decided", "restoring")


class Observer(Protocol):
    """Hears every event of a job: its name and facts (JSON values)."""

    def __call__(self, event: str, facts: Mapping[str, object]) -> None: ...


class StatusFile:
    """Keeps ``status.json`` in the job directory: the latest facts of each kind of event.

    Shape: ``{"pid": …, "at": ms, "counts": {event: how often}, "last": {event: facts}, "when": {event: ms}}``,
    ``when`` with the newest event last. Rewritten at most five times a second, and at once for what happens seldom.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / STATUS
        self._counts: dict[str, int] = {}
        self._last: dict[str, Mapping[str, object]] = {}
        self._when: dict[str, int] = {}
        self._written = 0.0

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        self._counts[event] = self._counts.get(event, 0) + 1
        self._last[event] = dict(facts)
        self._when.pop(event, None)
        self._when[event] = at = time.time_ns() // 1_000_000
        now = time.monotonic()
        if event in _OFTEN and now - self._written < _EVERY:
            return
        self._written = now
        staged = self._path.with_suffix(".tmp")
        shown = {"pid": os.getpid(), "at": at, "counts": self._counts, "last": self._last, "when": self._when}
        staged.write_text(json.dumps(shown))
        staged.replace(self._path)


def read_status(directory: Path) -> dict[str, object] | None:
    """The latest status of the job in ``directory``, or None if it never ran. ValueError if the file is no status."""
    try:
        status = json.loads((directory / STATUS).read_text())
    except FileNotFoundError:
        return None
    # Other programs have files of that name, too.
    if not isinstance(status, dict) or not all(isinstance(status.get(part), dict) for part in ("counts", "last")):
        raise ValueError("it is no status of a job")
    return status
