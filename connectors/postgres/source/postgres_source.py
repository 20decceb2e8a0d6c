"""``PostgresSource``: the rows of a table as they were at the job's first start, each once, in the order of a key.

Rule: nothing in the database is held open, and no row is passed over in silence: what belongs to the snapshot and was
changed or deleted before it was read is InputLost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.connectors._shared.plain_rows import converter
from kafka_eos.connectors.postgres.columns import columns_of
from kafka_eos.connectors.postgres.connection import Connection, Database, mapped
from kafka_eos.connectors.postgres.sink import target_table as tables
from kafka_eos.connectors.postgres.source.reader import SnapshotReader
from kafka_eos.connectors.postgres.source.snapshot import Progress
from kafka_eos.connectors.postgres.source.snapshot_queries import Reading, oid_of, reading
from kafka_eos.connectors.postgres.table_names import qualified
from kafka_eos.core.errors import ConfigError, InputLost, Retryable
from kafka_eos.core.ids import EpochId, SplitId
from kafka_eos.core.json_values import Json, Positions
from kafka_eos.core.records import Record

T = TypeVar("T")
K = TypeVar("K")


class PostgresSource(Generic[T]):
    """Reads ``table`` as it was at the job's first start, and ends. Its rows are not changed, nor locked.

    ``conninfo``, ``table``  as in ``PostgresSink``
    ``value``   the type of a row, a pydantic model, msgspec Struct or dataclass: its fields are the columns. Without it
                a row is a dict
    ``columns`` those that are read; default the fields of ``value``, else all
    ``key``     columns that tell rows apart, in the order in which they are read; default the primary key
    ``where``   an SQL condition: only rows for which it is true, for instance of what does not change any more
    ``splits``  into how many ranges of keys it is cut, for as many workers

    A row that is changed or deleted after the first start and before it is read is InputLost; rows that come later do
    not count. Raises ConfigError if the server, the table or the type do not fit.
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
        self._database = Database(conninfo, "PostgresSource")
        self._schema, self._table = qualified(table)
        if "/" in self._name or not self._name.isprintable():
            raise ConfigError(f"{self._name!r} cannot be the name of a split: no slash, and what can be printed")
        if type(splits) is not int or splits < 1:
            raise ConfigError(f"splits={splits!r}: a table is cut into one range or more")
        typed = value is not None
        self._columns = tuple(column.name for column in columns_of(value, columns or None)) if typed else tuple(columns)
        self._key = (key,) if isinstance(key, str) else tuple(key)
        self._where, self._splits = where, splits
        self._decode: Callable[[Any], Any] = converter("PostgresSource", value)
        self.value_type: Any = value
        """What a stream of this source holds, for codecs between workers."""

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
        """Rows as records with a key, for ``pipeline.table(…)``: a table that stays as it was at the first start."""
        source: PostgresSource[Any] = PostgresSource(conninfo, table, value=value, **options)
        decode, whole = source._decode, Record[key_type, value]  # type: ignore[valid-type]

        def keyed(row: Any) -> Record[K, T]:
            found = decode(row)
            return Record(key_of(found), found)

        source._decode, source.value_type = keyed, whole
        return source

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def describe(self) -> Mapping[str, Json]:
        said: dict[str, Json] = {"connector": "postgres", "table": self._name, **self._database.shown()}
        parts: dict[str, Json] = {"key": [*self._key], "where": self._where, "splits": self._splits}
        return said | {name: part for name, part in parts.items() if part}

    def __repr__(self) -> str:
        return f"PostgresSource({self._database.shown()}, {self._name!r})"

    @property
    def _name(self) -> str:
        return self._table if self._schema is None else f"{self._schema}.{self._table}"

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        """See ``abc.Source``. Retryable if the server cannot be reached, LoginRefused if it lets nobody in.

        When all of it was read the table may go.
        """
        if known is not None and len(self.not_waited_for(known)) == len(known):
            return known
        what = f"look at {self._name}"
        with mapped(Retryable, what), self._database.let_in("kafka_eos snapshot", what) as connection:
            found = self._reading(connection)
            oid = oid_of(connection, found.table)
            if known is not None:
                self._verify(known, found, oid)
                return known
            ranges = found.begun(connection, oid, self._splits)
            return {self._split(number): at.position() for number, at in enumerate(ranges)}

    def _verify(self, known: Positions, found: Reading, oid: int) -> None:
        for split, position in known.items():
            of = Progress.parse(position).of
            if split.rpartition("/")[0] != self._name or of.key != found.key or of.where != found.where:
                raise ConfigError(
                    f"the checkpoint has a snapshot of {split.rpartition('/')[0]} by {', '.join(of.key)}, "
                    f"where {of.where}: give a source of another table, key or condition another name"
                )
            if of.oid != oid:
                raise InputLost(
                    f"the table {self._name} was dropped and made again since the job's first start: its rows are "
                    "others. Give the source another name, to begin with it as it is now"
                )

    def _split(self, number: int) -> SplitId:
        return SplitId(f"{self._name}/{number}")

    def bounds(self, positions: Positions) -> Positions:
        """See ``abc.Bounded``: it always has an end."""
        return {split: Progress.parse(at).at_end().position() for split, at in positions.items()}

    def ends(self, ctx: JobContext) -> Positions:
        """Where each range is read to its end, whatever that is."""
        return {self._split(number): {"done": True} for number in range(self._splits)}

    def not_waited_for(self, positions: Positions) -> Collection[SplitId]:
        """See ``abc.Sequenced``: ranges that were read."""
        return [split for split, at in positions.items() if Progress.parse(at).done]

    def reader(self, ctx: TaskContext, positions: Positions) -> SnapshotReader:
        return SnapshotReader(self._name, self._opened, self._decode, ctx, positions)

    def _opened(self) -> tuple[Connection, Reading]:
        connection = self._database.connect("kafka_eos reader")
        try:
            return connection, self._reading(connection)
        except BaseException:
            connection.close()
            raise

    def completed(self, ctx: JobContext, epoch: EpochId, positions: Positions) -> None:
        """Nobody watches the lag of a snapshot."""

    def _reading(self, connection: Connection) -> Reading:
        table = tables.find(connection, self._schema, self._table)
        if table is None:
            raise ConfigError(f"there is no table {self._name} in {self._database.name}, or this user may not see it")
        return reading(connection, table, self._key, self._columns, self._where)
