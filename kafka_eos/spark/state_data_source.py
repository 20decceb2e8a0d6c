"""The stored state of a job as a DataFrame, with a partition for each worker that has stored a part of it.

Rule: the driver decides which epoch is read. Each task opens that epoch again, wherever it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from kafka_eos.core.errors import ConfigError
from kafka_eos.savepoints import Snapshot
from kafka_eos.storage.savepoint_files import Savepoint

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class StateDataSource(DataSource):
    """One state of a job: ``spark.read.format("kafka_eos").option("operator", …).load(path)``.

    The path is that of a savepoint, or the directory or address of a job, as for ``Snapshot.open``. Options are
    ``operator``, ``state`` (if the operator has several), and ``epoch`` (default: the newest committed one). The
    columns are those of ``Snapshot.columns``; without ``schema`` their types are those of the first rows.
    """

    @classmethod
    def name(cls) -> str:
        return "kafka_eos"

    def schema(self) -> StructType:
        state = _StoredState(self.options)
        snapshot = state.open()
        parts = range(len(snapshot.handles_of(state.operator)))
        # One part at a time: to read all of them, the driver would fetch the whole state.
        tables = (table for part in parts for table in snapshot.batches(state.operator, state.state, part))
        first = next(tables, None)
        if first is None:
            raise ConfigError(f"the state at {state.path} is empty: declare its columns with .schema(…)")
        return from_arrow_schema(first.schema)

    def reader(self, schema: StructType) -> _StateReader:
        return _StateReader(_StoredState(self.options), schema)


class _StoredState:
    """The state that the options name. Raises ConfigError if one is missing."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.path, self.operator = options.get("path", ""), options.get("operator", "")
        self.state, epoch = options.get("state"), options.get("epoch")
        if not self.path or not self.operator:
            raise ConfigError('give .option("operator", …), and a path to .load(…)')
        if epoch is not None and not epoch.isdecimal():
            raise ConfigError(f"the option epoch must be a number, not {epoch!r}")
        self.epoch = None if epoch is None else int(epoch)

    def open(self, epoch: int | None = None) -> Snapshot:
        return Snapshot.open(self.path, self.epoch if epoch is None else epoch)


class _StatePartition(InputPartition):
    """The part of the state that one worker has stored."""

    def __init__(self, part: int, epoch: int | None) -> None:
        super().__init__(part)
        self.part, self.epoch = part, epoch


class _StateReader(DataSourceReader):
    """The reader of a state, in the driver and in each task."""

    def __init__(self, state: _StoredState, schema: StructType) -> None:
        self._state, self._schema = state, schema

    def partitions(self) -> Sequence[InputPartition]:
        snapshot = self._state.open()
        epoch = None if isinstance(snapshot.content, Savepoint) else snapshot.epoch
        return [_StatePartition(part, epoch) for part in range(len(snapshot.handles_of(self._state.operator)))]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        assert isinstance(partition, _StatePartition)
        snapshot, schema = self._state.open(partition.epoch), to_arrow_schema(self._schema, timezone="UTC")
        for table in snapshot.batches(self._state.operator, self._state.state, partition.part, schema):
            yield from table.to_batches()
