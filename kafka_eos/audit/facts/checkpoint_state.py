"""The states of a checkpoint and their rows, as Spark's Python workers read them.

Rule: nothing of a job is opened for it, only files of the checkpoint.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kafka_eos.checkpoints import manifest as records
from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.checkpoints.opening import open_storage
from kafka_eos.interfaces import CheckpointStorage, Json, StateHandle
from kafka_eos.state.handles import opened
from kafka_eos.state.rows import Row


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
    """Each state of a handle with its rows, in the order of their keys."""
    with (
        tempfile.TemporaryDirectory(prefix="kafka-eos-audit-") as scratch,
        opened([handle], storage, Path(scratch)) as (source,),
    ):
        for described in handle.states:
            rows = source.scan(str(described["name"]))
            yield described, rows
            rows.close()
