"""What happened to a job, one JSON line an event, for reports and for the audit.

Rule: nothing the job does depends on it. Decisions rest on manifests, receipts and terms; this is their diary.
"""

from __future__ import annotations

import json
from contextlib import suppress

from kafka_eos.checkpoints import paths
from kafka_eos.checkpoints.storage import JobStorage
from kafka_eos.coordinator.term import now_ms
from kafka_eos.interfaces import Json


class History:
    """Appends events of one job. Each has ``event`` and ``at`` (milliseconds since the Unix epoch)."""

    def __init__(self, storage: JobStorage) -> None:
        self._storage = storage

    def write(self, event: str, **facts: Json) -> None:
        self._storage.append(paths.HISTORY, json.dumps({"event": event, "at": now_ms(), **facts}))


def read(storage: JobStorage) -> list[dict[str, Json]]:
    """All events, oldest first. A line that was cut off, by a crash or a full disk, is left out: it is a diary."""
    events: list[dict[str, Json]] = []
    for line in storage.lines(paths.HISTORY):
        with suppress(json.JSONDecodeError):
            events.append(json.loads(line))
    return events
