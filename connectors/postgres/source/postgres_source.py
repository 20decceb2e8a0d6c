"""``PostgresSource``: the rows of a table as they were at the job's first start, each once, in the order of a key.

Rule: nothing in the database is held open, and no row is skipped silently: a row of the snapshot that was changed or
deleted before it was read is InputLost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar, overload

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.dataset import Dataset
from kafka_eos.abc.source import Source
from kafka_eos.connectors._shared.plain_rows import build_converter
from kafka_eos.connectors.postgres.columns import columns_of
from kafka_eos.connectors.postgres.connection import Connection, PostgresDatabase, map_errors
from kafka_eos.connectors.postgres.sink import target_table as tables
from kafka_eos.connectors.postgres.source.exact_values import register_exact_loaders
from kafka_eos.connectors.postgres.source.reader import SnapshotReader
from kafka_eos.connectors.postgres.source.snapshot import RangeProgress
from kafka_eos.connectors.postgres.source.snapshot_queries import SnapshotQuery, oid_of, plan_snapshot
from kafka_eos.connectors.postgres.table_names import qualified
from kafka_eos.core.errors import ConfigError, InputLost, LossCause, Retryable
from kafka_eos.core.ids import EpochId, SplitId
from kafka_eos.core.json_values import Json, Positions
from kafka_eos.core.records import Record

T = TypeVar("T")
K = TypeVar("K")


class PostgresSource(Source[T]):
    """A bounded source that reads ``table`` as it was at the job's first start. Rows are not changed or locked.

    ``conninfo``, ``table``: as in ``PostgresSink``.

    - ``value``: the type of a row, a pydantic model, msgspec Struct or dataclass: its fields are the columns. Without
      it a row is a dict.
    - ``columns``: the columns to read; default the fields of ``value``, else all.
    - ``key``: columns that identify rows, in the order in which they are read; default the primary key.
    - ``where``: an SQL condition: only rows for which it is true are read, for instance rows that do not change any
      more.
    - ``splits``: the number of key ranges, which several workers can read.

    A row that is changed or deleted after the first start and before it is read is InputLost. Rows that are inserted
    later are not read. Raises ConfigError if the server, the table or the type do not match.
    """

    @overload
    def __init__(
        self: PostgresSource[dict[str, Any]],
        conninfo: str,
        table: str | tuple[str, str],
        *,
        value: None = None,
        columns: Sequence[str] = (),
        key: str | Sequence[str] = (),
        where: str | None = None,
        splits: int = 1,
    ) -> None: ...

    @overload
    def __init__(
        self,
        conninfo: str,
        table: str | tuple[str, str],
        *,
        value: type[T],
        columns: Sequence[str] = (),
        key: str | Sequence[str] = (),
        where: str | None = None,
        splits: int = 1,
    ) -> None: ...

    def __init__(
        self,
        conninfo: str,
        table: str | tuple[str, str],
        *,
        value: Any = None,
        columns: Sequence[str] = (),
        key: str | Sequence[str] = (),
        where: str | None = None,
        splits: int = 1,
    ) -> None:
        self._database = PostgresDatabase(conninfo, "PostgresSource")
        self._schema, self._table = qualified(table)
        if not self._name.isprintable():
            raise ConfigError(f"{self._name!r} cannot be the name of a split: it cannot be printed in messages")
        if type(splits) is not int or splits < 1:
            raise ConfigError(f"splits must be at least 1 (got {splits!r})")
        typed = value is not None
        self._columns = tuple(column.name for column in columns_of(value, columns or None)) if typed else tuple(columns)
        self._key = (key,) if isinstance(key, str) else tuple(key)
        self._where, self._splits = where, splits
        self._decode: Callable[[Any], Any] = build_converter("PostgresSource", value)
        self.value_type = value

    @classmethod
    def records(
        cls,
        conninfo: str,
        table: str | tuple[str, str],
        *,
        value: type[T],
        key_of: Callable[[T], K],
        key_type: type[K],
        **options: Any,
    ) -> PostgresSource[Record[K, T]]:
        """Return a source of records with a key, for ``pipeline.table(…)``: a table that never changes."""
        source: PostgresSource[Any] = PostgresSource(conninfo, table, value=value, **options)
        decode, whole = source._decode, Record[key_type, value]  # type: ignore[valid-type]

        def keyed(row: Any) -> Record[K, T]:
            found = decode(row)
            return Record(key_of(found), found)

        source._decode, source.value_type = keyed, whole
        return source

    @property
    def default_name(self) -> str:
        """Return the table."""
        return self._table

    def describe(self) -> Mapping[str, Json]:
        description: dict[str, Json] = {"connector": "postgres", "table": self._name, **self._database.shown()}
        parts: dict[str, Json] = {"key": [*self._key], "where": self._where, "splits": self._splits}
        return description | {name: part for name, part in parts.items() if part}

    def __repr__(self) -> str:
        return f"PostgresSource({self._database.shown()}, {self._name!r})"

    @property
    def _name(self) -> str:
        return self._table if self._schema is None else f"{self._schema}.{self._table}"

    def list_datasets(self, ctx: JobContext) -> Sequence[Dataset]:
        """Return the table."""
        return [self._database.name_dataset(self._name)]

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        """Return the key ranges with their positions; see ``Source.discover``. The table may be dropped once all is
        read.

        Raises Retryable if the server cannot be reached, LoginRefused if it rejects the login.
        """
        if known is not None and len(self.list_excluded_splits(known)) == len(known):
            return known
        what = f"look at {self._name}"
        with map_errors(Retryable, what), self._database.connect_or_explain("kafka_eos snapshot", what) as connection:
            found = self._reading(connection)
            oid = oid_of(connection, found.table)
            if known is not None:
                self._verify(known, found, oid)
                return known
            ranges = found.start_ranges(connection, oid, self._splits)
            return {self._split(number): at.position() for number, at in enumerate(ranges)}

    def _verify(self, known: Positions, found: SnapshotQuery, oid: int) -> None:
        for split, position in known.items():
            of = RangeProgress.parse(position).of
            if split.rpartition("/")[0] != self._name or of.key != found.key or of.where != found.where:
                raise ConfigError(
                    f"the checkpoint has a snapshot of {split.rpartition('/')[0]} by {', '.join(of.key)}, "
                    f"where {of.where}: give a source with another table, key or condition a new name"
                )
            if of.oid != oid:
                raise InputLost(
                    f"the table {self._name} was dropped and created again since the job's first start, "
                    "so its rows are different. To start over with the table as it is now, give the "
                    "source a new name",
                    LossCause.REPLACED,
                )

    def _split(self, number: int) -> SplitId:
        return SplitId(f"{self._name}/{number}")

    def bounds(self, positions: Positions) -> Positions:
        """Return the end positions: the source is always bounded."""
        return {split: RangeProgress.parse(at).at_end().position() for split, at in positions.items()}

    def get_end_positions(self, ctx: JobContext) -> Positions:
        """Return the end of each range."""
        return {self._split(number): {"done": True} for number in range(self._splits)}

    def list_excluded_splits(self, positions: Positions) -> Collection[SplitId]:
        """Return the ranges that were read."""
        return [split for split, at in positions.items() if RangeProgress.parse(at).done]

    def reader(self, ctx: TaskContext, positions: Positions) -> SnapshotReader:
        return SnapshotReader(self._name, self._opened, self._decode, ctx, positions)

    def _opened(self) -> tuple[Connection, SnapshotQuery]:
        connection = self._database.connect("kafka_eos reader")
        try:
            register_exact_loaders(connection)
            return connection, self._reading(connection)
        except BaseException:
            connection.close()
            raise

    def notify_committed(self, ctx: JobContext, epoch: EpochId, positions: Positions) -> None:
        """Do nothing: a snapshot has no consumer lag to report."""

    def _reading(self, connection: Connection) -> SnapshotQuery:
        table = tables.find(connection, self._schema, self._table)
        if table is None:
            raise ConfigError(
                f"table {self._name} does not exist in {self._database.name}, or this user may not see it"
            )
        return plan_snapshot(connection, table, self._key, self._columns, self._where)
