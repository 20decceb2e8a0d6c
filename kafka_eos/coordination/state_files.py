"""The verification of the state files of decided epochs: their existence, size and content.

Rule: an unmounted store looks empty. A file counts as missing only after the store has shown that it is available,
because it contains the claim of this term.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from kafka_eos.abc.storage import FileRef
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import EpochId
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import verification as verify
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage

_EVERY = 5.0
"""Seconds between two progress reports, and before the first one. A short operation reports nothing."""


class Reporter:
    """A progress callback with bytes done and total bytes. ``check`` is called each time and may raise to stop the
    work."""

    def __init__(self, done: str, notice: Callable[[str], None], check: Callable[[], None]) -> None:
        self._done = done
        self._notice = notice
        self._check = check
        self._reported_at = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        self._check()
        now = time.monotonic()
        if now - self._reported_at >= _EVERY:
            self._reported_at = now
            self._notice(f"{self._done} {done / 1e6:,.0f} of {total / 1e6:,.0f} MB of state")


class StateFiles:
    """The verification of the state files of decided epochs."""

    def __init__(self, storage: JobStorage, ensure_there: Callable[[], None]) -> None:
        self._storage, self._ensure_there = storage, ensure_there

    def find_missing(self, manifest: Manifest) -> list[str]:
        """Return problems of files that are missing or have the wrong size. No file is read."""
        files = _files(manifest)
        if not verify.check_sizes(self._storage, files):
            return []
        self._ensure_there()
        return [str(problem) for problem in verify.check_sizes(self._storage, files)]

    def ensure_complete(self, manifest: Manifest) -> None:
        """Raise CorruptCheckpoint with the name of each file of a committed epoch that is missing or has the wrong
        size."""
        self._refuse(manifest.id, verify.check_sizes(self._storage, _files(manifest)))

    def ensure_intact(
        self,
        epoch: EpochId,
        files: Mapping[str, FileRef],
        report_progress: verify.ProgressCallback = verify.ignore_progress,
    ) -> None:
        """Read every byte; raise CorruptCheckpoint if a file is damaged. Errors of ``report_progress`` propagate."""
        self._refuse(epoch, verify.check_contents(self._storage, files, report_progress))

    def _refuse(self, epoch: EpochId, problems: Sequence[verify.Problem]) -> None:
        if problems:
            self._ensure_there()
            raise CorruptCheckpoint(
                f"epoch {epoch} is committed, but its state is damaged: {'; '.join(map(str, problems))}. Restore the "
                f"named objects from a backup of {paths.SHARED}/; rolling back further would duplicate its output."
            )


def _files(manifest: Manifest) -> dict[str, FileRef]:
    return records.index_files(manifest.states, manifest.in_flight)
