"""The state files of decided epochs: are they there, and are they what was written?

Rule: a store that is away for a moment looks empty. A file is taken for missing only after the store has shown that it
is there, by the claim of this term.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kafka_eos.abc.storage import FileRef
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import EpochId
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import verification as verify
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage


class StoredState:
    """``ensure_there`` raises OSError if the store is away, Fenced if it belongs to a newer term."""

    def __init__(self, storage: JobStorage, ensure_there: Callable[[], None]) -> None:
        self._storage, self._ensure_there = storage, ensure_there

    def missing(self, manifest: Manifest) -> list[str]:
        """Files of an epoch that are missing or of another size, in words. None of them is read."""
        files = _files(manifest)
        if not verify.look_at_files(self._storage, files):
            return []
        self._ensure_there()
        return [str(problem) for problem in verify.look_at_files(self._storage, files)]

    def ensure_complete(self, manifest: Manifest) -> None:
        """CorruptCheckpoint, with the name of each file of a committed epoch that is missing or of another size."""
        self._refuse(manifest.id, verify.look_at_files(self._storage, _files(manifest)))

    def ensure_whole(self, epoch: EpochId, files: Mapping[str, FileRef], told: verify.Progress = verify.nobody) -> None:
        """As ``ensure_complete``, of every byte of these files of a committed epoch. Raises what ``told`` raises."""
        self._refuse(epoch, verify.verify_files(self._storage, files, told))

    def _refuse(self, epoch: EpochId, problems: Sequence[verify.Problem]) -> None:
        if problems:
            self._ensure_there()
            raise CorruptCheckpoint(
                f"epoch {epoch} is committed, but its state is damaged: {'; '.join(map(str, problems))}. Restore "
                f"the named objects from a copy of {paths.SHARED}/; going back further would duplicate its output."
            )


def _files(manifest: Manifest) -> dict[str, FileRef]:
    return records.named_files(manifest.states, manifest.in_flight)
