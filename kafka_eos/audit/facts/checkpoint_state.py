"""The states of a checkpoint and their rows, as Spark's Python workers read them.

Rule: nothing of a job is opened for it, only files of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kafka_eos._util.temporary_directories import temporary_directory
from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.core.json_values import Json
from kafka_eos.runtime.state.row_store import Row
from kafka_eos.runtime.state.stored_rows import open_handles
from kafka_eos.storage import job_records as records
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.storage_factory import open_storage


@dataclass(frozen=True)
class Checkpoint:
    """One manifest in the checkpoints of a job, and where those are."""

    address: str
    job: str
    manifest: str

    def open(self) -> tuple[CheckpointStorage, Manifest]:
        storage = open_storage(self.address)
        return storage, records.load(storage, Manifest, self.manifest, self.job)


def states(handle: StateHandle, storage: CheckpointStorage) -> Iterator[tuple[Mapping[str, Json], Iterable[Row]]]:
    """Yield each state of a handle with its rows, in the order of their keys."""
    with (
        temporary_directory() as scratch,
        open_handles([handle], storage, scratch) as (source,),
    ):
        for described in handle.states:
            rows = source.scan(str(described["name"]))
            yield described, rows
            rows.close()
