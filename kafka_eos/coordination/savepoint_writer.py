"""Writes the savepoints of a running job: beside its work, and from attempt to attempt.

Rule: a savepoint is of an epoch that is committed, so nothing that befalls the job afterwards concerns it. Until the
files of the epoch have a second name or a copy, retention leaves them alone (``held``).
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kafka_eos.coordination import job_history as history
from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.job_requests import Answer
from kafka_eos.runtime.state import canonical_savepoint as savepoints
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.savepoint_files import Savepoint

SAVEPOINT = "savepoint"
"""The event of the history."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A savepoint of a job, as the job's history knows it: where it was put, not whether it is there still."""

    path: Path
    id: str
    epoch: int
    at: int
    """Milliseconds since the Unix epoch."""


def note(storage: JobStorage, savepoint: Savepoint, target: Path) -> None:
    """Tell the job's history where a savepoint was put, so that it can be listed."""
    with suppress(OSError):  # it is made, all the same: the history is a diary, and a backup of a job may be read-only
        history.write(storage, SAVEPOINT, path=str(target), id=savepoint.id, epoch=savepoint.epoch)


def noted(storage: JobStorage) -> list[Noted]:
    """The savepoints that a job's history knows, oldest first; of those put into one place the last."""
    events = [event for event in history.read(storage) if event.get("event") == SAVEPOINT]
    found = {str(event["path"]): event for event in events}
    last = sorted(found.values(), key=events.index)
    return [Noted(Path(str(e["path"])), str(e["id"]), int(str(e["epoch"])), int(str(e["at"]))) for e in last]


class SavepointWriter:
    """One a run of a job. ``directory`` is the job's on this machine."""

    def __init__(self, directory: Path, storage: JobStorage) -> None:
        self._directory, self._storage = directory, storage
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="savepoint")
        self._lock = threading.Lock()
        self._held: dict[str, frozenset[str]] = {}
        """By request that is not answered yet: the files that retention must leave."""

    def begin(self, token: str, target: Path, manifest: Manifest) -> None:
        """Make a savepoint of ``manifest``, which must be retained now, and answer the request when it is there."""
        with self._lock:
            self._held[token] = manifest.files
        self._thread.submit(self._make, token, target, manifest)

    @property
    def making(self) -> frozenset[str]:
        """Requests that are being served, some perhaps since an earlier attempt."""
        with self._lock:
            return frozenset(self._held)

    @property
    def held(self) -> frozenset[str]:
        """SHA-256 of files that are still to be linked or copied."""
        with self._lock:
            return frozenset[str]().union(*self._held.values())

    def close(self) -> None:
        """Wait until all that were begun are written."""
        self._thread.shutdown(wait=True)

    def _make(self, token: str, target: Path, manifest: Manifest) -> None:
        try:
            pinned = savepoints.pin(self._storage, manifest, target)
            with self._lock:
                self._held[token] = frozenset()
            note(self._storage, pinned.write(), target)
            answer = Answer(epoch=manifest.epoch, path=str(target))
        except Exception as error:  # noqa: BLE001 - the answer says what was wrong; the job goes on
            answer = requests.failed(error)
        try:
            requests.answer(self._directory, token, answer)
        finally:
            with self._lock:
                del self._held[token]
