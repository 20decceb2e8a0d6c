"""Writing of a running job's savepoints, in the background and across attempts.

Rule: a savepoint is created from a committed epoch, so later failures of the job do not affect it. Until the files of
the epoch have a second name or a copy, retention keeps them (``pinned_files``).
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from kafka_eos.coordination import job_history as history
from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.job_requests import RequestAnswer
from kafka_eos.runtime.state import canonical_savepoint as savepoints
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.savepoint_files import Savepoint

SAVEPOINT = "savepoint"
"""The name of the history event."""


class RecordedSavepoint(Struct, frozen=True):
    """A savepoint that the job's history mentions."""

    path: Path
    id: str
    epoch: int
    at: int
    """Milliseconds since the Unix epoch."""


def record_savepoint(storage: JobStorage, savepoint: Savepoint, target: Path) -> None:
    """Record a new savepoint and its location in the job's history."""
    with suppress(OSError):  # nothing depends on the history, and a backup may be read-only
        history.append_event(storage, SAVEPOINT, path=str(target), id=savepoint.id, epoch=savepoint.epoch)


def list_recorded(storage: JobStorage) -> list[RecordedSavepoint]:
    """List the savepoints that the job's history mentions, oldest first."""
    events = [event for event in history.read_events(storage) if event.get("event") == SAVEPOINT]
    found = {str(event["path"]): event for event in events}
    last = sorted(found.values(), key=events.index)
    return [
        RecordedSavepoint(Path(str(e["path"])), str(e["id"]), int(str(e["epoch"])), int(str(e["at"]))) for e in last
    ]


class SavepointWriter:
    """The writer of savepoints, one per run of a job. ``directory`` is the job's directory on this machine."""

    def __init__(self, directory: Path, storage: JobStorage) -> None:
        self._directory, self._storage = directory, storage
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="savepoint")
        self._lock = threading.Lock()
        self._held: dict[str, frozenset[str]] = {}
        """The files that retention must keep, by unanswered request."""

    def begin(self, token: str, target: Path, manifest: Manifest) -> None:
        """Create a savepoint of ``manifest``, which must be retained now, and answer the request when it exists."""
        with self._lock:
            self._held[token] = manifest.files
        self._thread.submit(self._make, token, target, manifest)

    @property
    def in_progress(self) -> frozenset[str]:
        """Return the requests whose savepoint is being written."""
        with self._lock:
            return frozenset(self._held)

    @property
    def pinned_files(self) -> frozenset[str]:
        """Return the SHA-256 of files that retention must keep for now."""
        with self._lock:
            return frozenset[str]().union(*self._held.values())

    def close(self) -> None:
        """Wait until all started savepoints are written."""
        self._thread.shutdown(wait=True)

    def _make(self, token: str, target: Path, manifest: Manifest) -> None:
        try:
            pinned = savepoints.begin_savepoint(self._storage, manifest, target)
            with self._lock:
                self._held[token] = frozenset()
            record_savepoint(self._storage, pinned.write_savepoint(), target)
            answer = RequestAnswer(epoch=manifest.epoch, path=str(target))
        except Exception as error:  # noqa: BLE001 - the answer contains the error; the job continues
            answer = requests.failure_answer(error)
        try:
            requests.write_answer(self._directory, token, answer)
        finally:
            with self._lock:
                del self._held[token]
