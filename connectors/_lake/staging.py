"""How a writer stages data files: a note first, then the file, which no commit names. Rows with a key are in the note.

Rule: who prepares looks for the note once the file is durable, and who aborts takes the file before its note. So
either the abort finds the file, or the writer finds that its time is over.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafka_eos.connectors._lake import file_names as names
from kafka_eos.connectors._lake.file_names import Promise
from kafka_eos.connectors._lake.file_store import Store
from kafka_eos.connectors._lake.lake_table import Fit
from kafka_eos.connectors.files.file_names import Part
from kafka_eos.connectors.files.sink.staging import StagedFile
from kafka_eos.core.errors import Fenced
from kafka_eos.core.json_values import Json


class StagedPart:
    """One data file on its way."""

    def __init__(self, part: Part, place: str, file: StagedFile) -> None:
        self.part, self.place, self._file = part, place, file

    @property
    def size(self) -> int:
        return self._file.size

    def write(self, data: bytes, /) -> int:
        return self._file.write(data)

    def finish(self) -> None:
        self._file.finish()

    def let_go(self) -> None:
        self._file.let_go()


class LakeStaging:
    """Files of one table, for a ``FileWriter``. ``key``: of rows that replace others."""

    def __init__(self, store: Store, where: str, fit: Fit, key: tuple[str, ...] = ()) -> None:
        self._store, self.where, self._fit, self._key = store, where, fit, key

    def open(self, part: Part, place: str, extension: str, announced: bool) -> StagedPart:
        if self._key:
            return StagedPart(part, place, self._store.begin(names.note(part)))
        self._store.create(names.note(part))
        return StagedPart(part, place, self._store.begin(names.data(part)))

    def prepare(self, files: Sequence[StagedPart]) -> list[dict[str, Json]]:
        there = self._store.notes()
        for file in files:
            if file.part.staged not in there:
                self._store.delete(names.data(file.part))
                raise Fenced(
                    f"{names.note(file.part)} in {self.where} is gone: a newer term of job {file.part.job!r} removed it"
                )
        table, schema = self._fit.table, self._fit.schema
        return [Promise(file.part, file.size, table, schema, file.place, self._key).payload() for file in files]
