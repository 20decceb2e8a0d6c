"""Staging of a writer's files: first an empty staging entry, then the file. No commit names the file yet.

A file has rows to append, or rows that replace those of the same key.
Rule: ``prepare`` checks the entry after the file is durable, and an abort deletes the file before its entry. So either
the abort finds the file, or the writer finds that it was fenced.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafka_eos.connectors._lake import file_names as names
from kafka_eos.connectors._lake.file_names import LakeCommittable
from kafka_eos.connectors._lake.file_store import TableStore
from kafka_eos.connectors._lake.lake_table import TableSpec
from kafka_eos.connectors.files.file_names import PartId
from kafka_eos.connectors.files.sink.file_staging import StagedFile
from kafka_eos.core.errors import Fenced
from kafka_eos.core.json_values import Json


class StagedPart:
    """One data file that is being written."""

    def __init__(self, part: PartId, place: str, file: StagedFile) -> None:
        self.part = part
        self.place = place
        self._file = file

    @property
    def size(self) -> int:
        return self._file.size

    def write(self, data: bytes, /) -> int:
        return self._file.write(data)

    def finish(self) -> None:
        self._file.finish()

    def discard(self) -> None:
        self._file.discard()


class LakeStaging:
    """The staging of one table's files, for a ``FileWriter``. ``key``: the key columns of rows that replace others."""

    def __init__(self, store: TableStore, where: str, fit: TableSpec, key: tuple[str, ...] = ()) -> None:
        self._store = store
        self.where = where
        self._fit = fit
        self._key = key

    def open(self, part: PartId, place: str, extension: str, announced: bool) -> StagedPart:
        self._store.create(names.build_entry_name(part))
        return StagedPart(part, place, self._store.begin(self._name(part)))

    def prepare(self, files: Sequence[StagedPart]) -> list[dict[str, Json]]:
        there = self._store.notes()
        for file in files:
            if file.part.staged not in there:
                self._store.delete(self._name(file.part))
                raise Fenced(
                    f"{names.build_entry_name(file.part)} in {self.where} does not exist: a newer term of "
                    f"job {file.part.job!r} removed it"
                )
        table, schema = self._fit.table, self._fit.fingerprint
        return [LakeCommittable(file.part, file.size, table, schema, file.place, self._key).payload() for file in files]

    def _name(self, part: PartId) -> str:
        return names.replacing_rows(part) if self._key else names.data(part)
