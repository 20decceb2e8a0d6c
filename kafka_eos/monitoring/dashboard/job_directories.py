"""What lies in the directories of jobs: the I/O of the dashboard.

Rule: a fact that is missing, as in files of an earlier version, leaves a gap on the page; the rest is shown.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_eos.coordination import job_history as history
from kafka_eos.coordination.job_lock import is_held
from kafka_eos.coordination.status_file import STATUS, read_status
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.savepoint_files import Listed

_SAVEPOINTS = 20
_DIARY_BYTES = 512 << 10
"""So much of the end of a diary is read: it grows for as long as its job lives."""


@dataclass(frozen=True, slots=True)
class Found:
    """One job. ``diary`` is the end of its history, oldest first; None if that is not kept in this directory."""

    job: str
    status: Mapping[str, Any]
    held: bool
    """Does a supervisor hold the lock?"""
    diary: list[dict[str, Any]] | None
    now: int
    """Milliseconds since the Unix epoch."""
    savepoints: tuple[Listed, ...] = ()
    """The newest of those in the job's own directory of them, oldest first."""


def names(home: Path) -> list[str]:
    """The jobs that have run with their directories in ``home``."""
    return sorted(path.parent.name for path in home.glob(f"*/{STATUS}"))


def find(home: Path, job: str) -> Found | None:
    """A job by its name; None if no job of that name has run here. The lock is looked at first, as it ends last."""
    if job not in names(home):
        return None
    directory = home / job
    held = is_held(directory / paths.LOCK)
    return Found(
        job, _status(directory), held, history.newest(directory, _DIARY_BYTES), time.time_ns() // 1_000_000,
        tuple(savepoints_of(directory)[-_SAVEPOINTS:]),
    )  # fmt: skip


def savepoints_of(directory: Path) -> Sequence[Listed]:
    """Those that lie where a job's are made unless somebody says another place."""
    return savepoints.listed(paths.savepoints_of(directory))


def _status(directory: Path) -> Mapping[str, Any]:
    """What the job shows of itself; if that cannot be read, the page says why where it says what went wrong."""
    try:
        told = read_status(directory)
    except (ValueError, OSError) as error:
        text = f"{directory / STATUS} cannot be read: {error}"
        told = {"pid": None, "counts": {}, "last": {"notice": {"text": text}}}
    assert told is not None  # a job has a name here because it has this file, which is only ever replaced
    return told
