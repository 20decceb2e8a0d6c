"""An Iceberg table and its catalog, for commits of epochs. Imports pyiceberg; see the package.

An incarnation has properties in the table's metadata, where the expiration of snapshots does not delete them:

    kafka-eos.<incarnation>.since    the first term that has begun here
    kafka-eos.<incarnation>.term     the fence: the newest term
    kafka-eos.<incarnation>.epoch    the newest committed epoch, as <epoch>/<term>

Each commit changes the last two together with the snapshot, and requires that the branch ``main`` is unchanged since it
was read. A fence is also a snapshot, without files, so a delayed commit is based on an outdated ``main`` and fails.
Rule: the library's own retries are disabled. They would repeat a commit on top of others without reading the state.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    RESTError,
    TableAlreadyExistsError,
    UnauthorizedError,
    ValidationError,
    ValidationException,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import (
    ArrowScan,
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    UnsupportedPyArrowTypeException,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile as Described
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import DateType, IntegerType, LongType, StringType
from pyiceberg.utils.datetime import days_to_date
from sqlalchemy.exc import SQLAlchemyError

from kafka_eos.connectors._lake.commit_status import LogState
from kafka_eos.connectors._lake.file_store import TableStore, read
from kafka_eos.connectors._lake.keyed_rows import aligned
from kafka_eos.connectors._lake.lake_errors import describe_lake_error
from kafka_eos.connectors._lake.lake_table import (
    CommitConflict,
    CommitMetadata,
    DataFile,
    LakeIncarnation,
    LiveFile,
    TableSpec,
)
from kafka_eos.connectors._shared.parquet_files import read_footer
from kafka_eos.connectors.files.file_names import PartId
from kafka_eos.connectors.iceberg import catalogs, partitions
from kafka_eos.connectors.iceberg import table_location as places
from kafka_eos.connectors.iceberg.durable_file_io import DurableFileIO
from kafka_eos.core.errors import ConfigError, KafkaEosError, Retryable
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.limits import LIMITS

_PREFIX: Final = "kafka-eos"
_ONE_TRY: Final = {"commit.retry.num-retries": "0"}
_MERGED: Final = "commit.manifest-merge.enabled"
"""Whether small manifests are merged. The format's default is true, the library's is false."""
_PLACES: Final = ("write.data.path", "write.object-storage.enabled", "write.py-location-provider.impl")
_WRONG: Final = (
    BadRequestError, ForbiddenError, NoSuchPropertyException, NotInstalledError, OAuthError, UnauthorizedError,
    ValidationError,
)  # fmt: skip
_READABLE: Final = (FileFormat.PARQUET, FileFormat.ORC)
_BOUNDED: Final = (IntegerType, LongType, StringType, DateType)
_CUT: Final = MetricModeTypes.TRUNCATE
"""The mode of bounds of texts: truncated."""
_COUNTS: Final = MetricsMode(MetricModeTypes.COUNTS)
_NONE: Final = 0
"""The snapshot id of a table without snapshots."""


class IcebergTable:
    """One Iceberg table. Thread-safe."""

    log, needs = "metadata", catalogs.NEEDS

    def __init__(self, catalog: str, name: str, properties: Mapping[str, str]) -> None:
        self.display_name = f"{catalog}:{name}"
        self._catalog_name = catalog
        self._name = name
        self._properties = dict(properties)
        self._newest: Table | None = None
        """The version that was read last; a commit is based on it."""
        self._lock = Lock()

    # ------------------------------------------------------------ tables.LakeTable

    def store(self) -> TableStore:
        with self.mapped(Retryable, "look into"):
            table = self._newest or self.opened()
            if (store := places.store_of(table.location(), table.io.properties)) is None:
                raise ConfigError(_elsewhere(self.display_name, table.location()))
            return store

    def read_state(self, incarnation: LakeIncarnation) -> LogState:
        with self.mapped(Retryable, "look into"):
            table = self._newest = self.opened()
            names = (f"{_PREFIX}.{incarnation}.{what}" for what in ("term", "epoch", "since"))
            fence, marker, since = map(table.properties.get, names)
            return LogState(
                str(table.metadata.table_uuid),
                _in_short(table),
                _snapshot(table),
                None if fence is None else int(fence),
                None if marker is None else _epoch(marker),
                None if since is None else int(since),
            )

    def commit(
        self,
        seen: LogState,
        incarnation: LakeIncarnation,
        metadata: CommitMetadata,
        added: Sequence[DataFile] = (),
        removed: Sequence[LiveFile] = (),
    ) -> None:
        of = metadata.epoch
        values = {"term": metadata.fence, "since": metadata.since, "epoch": None if of is None else _number(of)}
        commit_info = {"term": metadata.fence} if of is None else {"epoch": of.epoch.n, "term": of.term.n}
        with self.mapped(Retryable, "commit to"):
            table = self._as_seen(seen)
            transaction = _in_one_try(table).transaction()
            transaction.set_properties(
                {f"{_PREFIX}.{incarnation}.{what}": str(value) for what, value in values.items() if value is not None}
            )
            summary = {f"{_PREFIX}.{name}": str(value) for name, value in {"job": incarnation, **commit_info}.items()}
            change = transaction.update_snapshot(snapshot_properties=summary)
            with change.overwrite() if removed else change.merge_append() as snapshot:
                for file in added:
                    snapshot.append_data_file(described(table, file))
                for gone in removed:
                    snapshot.delete_data_file(gone.handle.file)
            if removed and _manifests(table) >= LIMITS.manifests_per_iceberg_table:
                # An overwrite merges no manifests, and keeps those that only name deleted files.
                transaction.update_snapshot(snapshot_properties=summary).merge_append().commit()
            try:
                transaction.commit_transaction()
            except CommitFailedException as error:
                # The rejection may concern a duplicate of a request that a proxy sent twice.
                if self.opened().snapshot_by_id(snapshot.snapshot_id) is None and isinstance(table.io, DurableFileIO):
                    table.io.delete_refused()
                raise CommitConflict from error

    def _as_seen(self, seen: LogState) -> Table:
        table = self._newest
        if table is None or (str(table.metadata.table_uuid), _snapshot(table)) != (seen.table, seen.version):
            raise CommitConflict  # another thread has read the table since
        return table

    def live(self, seen: LogState | None = None) -> Sequence[LiveFile]:
        with self.mapped(Retryable, "look into"):
            table = self.opened() if seen is None else self._as_seen(seen)
            refused = f"IcebergSink cannot replace rows of {self.display_name}"
            try:
                tasks = [*table.scan().plan_files()]
            except ValueError as error:  # raised for deletes that the library cannot read
                raise ConfigError(f"{refused}: {_in_a_line(error)}") from error
            for file in (task.file for task in tasks):
                if file.file_format not in _READABLE:
                    raise ConfigError(
                        f"{refused}: {file.file_path} is in {file.file_format.value}, which pyiceberg does not read. "
                        "Rewrite it as Parquet, or leave key= out"
                    )
            return [LiveFile(task.file.file_path, bounds_of(table, task.file), task) for task in tasks]

    def rows(self, file: LiveFile, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        with self.mapped(Retryable, "read"):
            table = self._newest or self.opened()
            scan = ArrowScan(table.metadata, table.io, table.schema().select(*columns.names), AlwaysTrue())
            found = 0
            for batch in scan.to_record_batches([file.handle]):
                found += len(batch)
                yield aligned(batch, columns)
        stated = file.handle.file.record_count
        if not file.handle.delete_files and found != stated:
            raise ConfigError(
                f"{file.name} is damaged: {self.display_name} states that it has {stated:,} rows, but "
                f"it has {found:,}. Restore the file"
            )

    def make_durable(self) -> None:
        """Do nothing: files are synced before the catalog names them."""

    def files(self, staged: Mapping[PartId, float]) -> frozenset[str]:
        with self.mapped(Retryable, "look into"):
            table = self.opened()
            place = f"{_data(table)}/"
            manifests = _manifests_after(table, staged)
            entries = (entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io))
            paths = [str(entry.data_file.file_path) for entry in entries]
            return frozenset(path.removeprefix(place) for path in paths if path.startswith(place))

    # ------------------------------------------------------------ for the sink

    def expect_reachable(self) -> None:
        catalogs.expect_file(self._catalog_name, self._properties)

    def exists(self) -> bool:
        with self.mapped(Retryable, "look for"):
            return self._catalog.table_exists(self._name)

    def create(self, schema: pa.Schema, by: Sequence[str]) -> None:
        """Create the table and its namespace. Raise ConfigError if Iceberg has no counterpart for a column."""
        with self.mapped(Retryable, "create"):
            try:
                self._catalog.create_namespace_if_not_exists(Catalog.namespace_from(self._name))
                if not by:
                    self._catalog.create_table_if_not_exists(self._name, schema)
                    return
                with self._catalog.create_table_transaction(self._name, schema) as made, made.update_spec() as spec:
                    partitions.add_to(spec, by)
            except (NamespaceAlreadyExistsError, TableAlreadyExistsError, CommitFailedException):
                return  # another process has just created it
            except (UnsupportedPyArrowTypeException, TypeError, ValueError) as error:
                raise ConfigError(f"{self.display_name} cannot be created: {_in_a_line(error)}") from error

    def read_spec(self) -> TableSpec:
        with self.mapped(Retryable, "look into"):
            table = self.opened()
            if wrong := [*problems(table)]:
                raise ConfigError(f"IcebergSink cannot write to {self.display_name}: {'; '.join(wrong)}")
            columns, uuid = schema_to_pyarrow(table.schema()), str(table.metadata.table_uuid)
            return TableSpec(columns, partitions.TransformPartitioning(table), uuid, _in_short(table))

    def identity(self) -> str:
        with self.mapped(Retryable, "look into"):
            table = self.opened()
            return f"{table.metadata.table_uuid} at {table.location()}"

    def find_data_location(self) -> str | None:
        """Return the directory or the address of the data files; None if there is no table yet."""
        with self.mapped(Retryable, "look into"):
            try:
                location = self.opened().location()
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
            path = places.local_path(location)
            return f"{location.rstrip('/')}/{places.DATA}" if path is None else str(path / places.DATA)

    def notices(self) -> Sequence[str]:
        with self.mapped(Retryable, "look into"):
            return places.notices(self.opened().location())

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows of the newest version. Raise ConfigError if a file contradicts itself.

        pyiceberg verifies no checksums, and returns what there is of a page that has fewer rows than the file states.
        """
        with self.mapped(Retryable, "read"):
            table = self.opened()
            for task in table.scan().plan_files():
                if task.file.file_format is FileFormat.PARQUET:
                    with table.io.new_input(task.file.file_path).open() as stream:
                        deque(read(stream, task.file.file_path, None), maxlen=0)
            for batch in table.scan(selected_fields=(*columns,)).to_arrow_batch_reader():
                yield batch.select([*columns])

    def opened(self) -> Table:
        return self._catalog.load_table(self._name)

    @property
    def _catalog(self) -> Catalog:
        with self._lock:
            return self._loaded

    @cached_property
    def _loaded(self) -> Catalog:
        return catalogs.opened(self._catalog_name, self._properties)

    @contextmanager
    def mapped(self, kind: type[KafkaEosError], what: str) -> Iterator[None]:
        try:
            yield
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            raise ConfigError(
                f"no Iceberg table {self.display_name}: restore it with its metadata; or, if it never "
                "existed, pass create=True to create it. Decided output stays staged"
            ) from error
        except _WRONG as error:
            raise ConfigError(f"could not {what} {self.display_name}: {_in_a_line(error)}") from error
        except (RESTError, SQLAlchemyError, ValidationException, OSError) as error:
            raise kind(f"could not {what} {self.display_name}: {_in_a_line(error)}") from error


def described(table: Table, file: DataFile) -> Described:
    """Return a file's manifest entry with counts and bounds by column id; the file has the column names at
    its writing."""
    path = f"{_data(table)}/{file.name}"
    with table.io.new_input(path).open() as stream:
        footer = read_footer(stream)
    columns = pyarrow_to_schema(footer.schema.to_arrow_schema())
    plan = compute_statistics_plan(columns, table.properties)
    try:
        statistics = _statistics(footer, columns, plan)
    except UnicodeEncodeError:  # the library truncates a text in the middle of a character
        counted = {of: replace(each, mode=_COUNTS) if each.mode.type is _CUT else each for of, each in plan.items()}
        statistics = _statistics(footer, columns, counted)
    return Described.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partitions.record(table, file.partition),
        file_size_in_bytes=file.size,
        spec_id=table.metadata.default_spec_id,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **statistics,
    )


def _statistics(footer: pq.FileMetaData, columns: Schema, plan: dict[int, StatisticsCollector]) -> dict[str, Any]:
    found = data_file_statistics_from_parquet_metadata(footer, plan, parquet_path_to_id_mapping(columns))
    return found.to_serialized_dict()


def bounds_of(table: Table, file: Described) -> dict[str, tuple[Any, Any]]:
    """Return the least and greatest value by column, for integers, texts and dates."""
    found = {}
    for column in table.schema().fields:
        least, most = ((of or {}).get(column.field_id) for of in (file.lower_bounds, file.upper_bounds))
        if isinstance(column.field_type, _BOUNDED) and least is not None and most is not None:
            found[column.name] = tuple(_value(column.field_type, each) for each in (least, most))
    return found


def _value(tp: Any, bound: bytes) -> Any:
    value = from_bytes(tp, bound)
    return days_to_date(int(value)) if isinstance(tp, DateType) else value


def _manifests(table: Table) -> int:
    snapshot = table.current_snapshot()
    return 0 if snapshot is None else len(snapshot.manifests(table.io))


def _manifests_after(table: Table, staged: Iterable[PartId]) -> Sequence[ManifestFile]:
    """Return the manifests, of all retained snapshots, that can name one of the staged files.

    A commit that names a file comes after all commits of older epochs and after the fence of the file's term. So the
    snapshots up to the last of these are not opened. No clock counts: each snapshot has its writer's time.
    Of consecutive appends only the last snapshot is opened, because an append removes no file. A manifest with a
    sequence number of an earlier snapshot names only earlier files. Format version 1 has no such numbers: they are 0.
    """
    oldest: dict[str, EpochId] = {}
    for part in staged:
        incarnation = str(LakeIncarnation(part.job, part.identity))
        oldest[incarnation] = min(part.epoch, oldest.get(incarnation, part.epoch), key=_in_order)
    snapshots = sorted(table.snapshots(), key=_sequence)
    first = min(
        max((at for at, each in enumerate(snapshots, 1) if _is_before(each, incarnation, epoch)), default=0)
        for incarnation, epoch in oldest.items()
    )
    earlier = max(map(_sequence, snapshots[:first]), default=0)
    recent = snapshots[first:]
    appended_to = {each.parent_snapshot_id for each in recent if _is_append(each)}
    opened = [each for each in recent if each.snapshot_id not in appended_to]
    found = {manifest.manifest_path: manifest for snapshot in opened for manifest in snapshot.manifests(table.io)}
    return [each for each in found.values() if not 0 < each.sequence_number <= earlier]


def _is_before(snapshot: Snapshot, incarnation: str, epoch: EpochId) -> bool:
    """Return whether a snapshot of the incarnation is earlier than each that can name a file of the epoch."""
    summary: Mapping[str, str] = snapshot.summary or {}
    if summary.get(f"{_PREFIX}.job") != incarnation:
        return False
    term, committed = Term(int(summary[f"{_PREFIX}.term"])), summary.get(f"{_PREFIX}.epoch")
    if committed is None:
        return term <= epoch.term  # a fence
    return _in_order(EpochId(Epoch(int(committed)), term)) < _in_order(epoch)


def _in_order(epoch: EpochId) -> tuple[Term, Epoch]:
    """Return the key that orders epochs as they are committed: a later term may use a number again."""
    return epoch.term, epoch.epoch


def _sequence(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _is_append(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation is Operation.APPEND


def problems(table: Table) -> Iterator[str]:
    """Yield reasons why a data file cannot be added, with the remedy."""
    if places.store_of(table.location(), table.io.properties) is None:
        yield _elsewhere("it", table.location())
    if table.format_version not in (1, 2):
        yield f"its format version is {table.format_version}, which pyiceberg cannot write: use one of version 2"
    yield from partitions.problems(table)
    if elsewhere := [name for name in _PLACES if table.properties.get(name, "false") != "false"]:
        yield f"its data files are in another location ({', '.join(elsewhere)}): unset it"


def _elsewhere(what: str, location: str) -> str:
    return f"{what} is at {location}, but IcebergSink writes only to tables in a directory of this machine or on S3"


def _in_one_try(table: Table) -> Table:
    """Return the table with commit settings of this sink, which exist only in memory and are never committed."""
    properties = {_MERGED: "true", **table.properties, **_ONE_TRY}
    metadata = table.metadata.model_copy(update={"properties": properties})
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog, table.config)


def _snapshot(table: Table) -> int:
    snapshot = table.current_snapshot()
    return _NONE if snapshot is None else snapshot.snapshot_id


def _data(table: Table) -> str:
    return f"{table.location().rstrip('/')}/{places.DATA}"


def _in_short(table: Table) -> str:
    """Return a digest of everything that ``read_spec`` checks."""
    places = [table.properties.get(name) for name in _PLACES]
    spec = table.spec()
    parts = [table.schema().model_dump_json(), spec.spec_id, str(spec), table.location(), table.format_version, places]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _number(epoch: EpochId) -> str:
    return f"{epoch.epoch.n}/{epoch.term.n}"


def _epoch(number: str) -> EpochId:
    epoch, _, term = number.partition("/")
    return EpochId(Epoch(int(epoch)), Term(int(term)))


def _in_a_line(error: BaseException) -> str:
    """Return the message of the library or of the catalog's database, without the statement that SQLAlchemy adds."""
    cause = getattr(error, "orig", None) or error
    return describe_lake_error(error, str(cause))
