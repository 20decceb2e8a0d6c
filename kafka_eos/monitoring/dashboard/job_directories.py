"""The dashboard's reader of job directories.

Rule: a fact that is missing, as in files of an earlier version, leaves a gap on the page; the rest is shown.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from kafka_eos.coordination import job_history as history
from kafka_eos.coordination.job_lock import is_held
from kafka_eos.coordination.status_file import STATUS, read_status
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.savepoint_files import ListedSavepoint

_SAVEPOINTS = 20
_DIARY_BYTES = 512 << 10
"""The number of bytes that are read from the end of a job's history, which grows while the job runs."""


class JobFiles(Struct, frozen=True):
    """The contents of the files in one job directory.

    ``history`` is the end of its history, oldest first; None if that is not kept in this directory.
    """

    job: str
    status: Mapping[str, Any]
    is_running: bool
    """Whether a supervisor holds the lock of the job directory."""
    history: list[dict[str, Any]] | None
    now: int
    """Milliseconds since the Unix epoch."""
    savepoints: tuple[ListedSavepoint, ...] = ()
    """The newest of those in the job's own directory of them, oldest first."""


def list_jobs(home: Path) -> list[str]:
    """List the jobs that have a status file in this directory."""
    return sorted(path.parent.name for path in home.glob(f"*/{STATUS}"))


def read_job(home: Path, job: str) -> JobFiles | None:
    """Read one job's files; None if no such job has run here. The lock is looked at first, as it ends last."""
    if job not in list_jobs(home):
        return None
    directory = home / job
    held = is_held(directory / paths.LOCK)
    return JobFiles(
        job, _status(directory), held, history.read_recent_events(directory, _DIARY_BYTES), time.time_ns() // 1_000_000,
        tuple(list_savepoints(directory)[-_SAVEPOINTS:]),
    )  # fmt: skip


def list_savepoints(directory: Path) -> Sequence[ListedSavepoint]:
    """List the savepoints in a job's own savepoint directory."""
    return savepoints.list_savepoints(paths.savepoints_of(directory))


def _status(directory: Path) -> Mapping[str, Any]:
    """Return the job's status file. If it cannot be read, return a status with a notice that says why."""
    try:
        fields = read_status(directory)
    except (ValueError, OSError) as error:
        text = f"{directory / STATUS} cannot be read: {error}"
        fields = {"pid": None, "counts": {}, "last": {"notice": {"text": text}}}
    assert fields is not None  # a job has a name here because it has this file, which is only ever replaced
    return fields
