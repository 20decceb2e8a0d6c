"""A Delta table's log, for commits of epochs. The only module that imports deltalake.

An incarnation has application transactions (``txn`` actions) in the log, Delta's own feature for this purpose:

    kafka_eos/<incarnation>/since    the first term that has begun here
    kafka_eos/<incarnation>/term     the fence: the newest term
    kafka_eos/<incarnation>/epoch    the newest committed epoch, as term * 2^40 + epoch

By Delta's own rule, two commits based on one version that write the same transaction conflict. Each commit also writes
the fence, so a delayed commit conflicts with the fence of a newer term.
Rule: no transaction has a ``lastUpdated``, because ``delta.setTransactionRetentionDuration`` deletes only those that
do.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kinds
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from kafka_eos.connectors._lake.commit_status import LogState
from kafka_eos.connectors._lake.file_store import TableStore
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
from kafka_eos.connectors._lake.partitions import ColumnPartitioning
from kafka_eos.connectors.delta.log_location import DeltaLocation
from kafka_eos.connectors.files.file_names import PARTITION_NAME, PartId
from kafka_eos.core.errors import ConfigError, KafkaEosError, Retryable
from kafka_eos.core.ids import Epoch, EpochId, Term

_BITS: Final = 40
_KNOWN: Final = frozenset({
    "appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "timestampNtz",
    "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck",
})  # fmt: skip
"""Table features with which a plain data file may be added. ``problems`` checks the requirements of some."""
_PARTITIONED: Final[Sequence[Callable[[pa.DataType], bool]]] = (
    kinds.is_string, kinds.is_large_string, kinds.is_string_view, kinds.is_integer, kinds.is_boolean, kinds.is_date,
)  # fmt: skip
_PARTITIONS: Final = "DeltaSink writes partitions of texts, integers, bools and dates"
_UNQUOTED: Final = "!$&'()+,-./:;=@_~"
"""Characters besides letters and digits that deltalake does not quote in the path of a removed file."""
_CLOCKS_DIFFER: Final = 3600.0
"""Seconds by which the times of staged files and of log entries may be wrong. The storage sets both."""
_LONGEST_BOUND: Final = 256
_LONGEST_ERROR: Final = 600
_DRAWN: Final = re.compile(r"\x1b\[[0-9;]*m|↳|\.?\s*$|\s+0: <unknown>.*", re.DOTALL)
_MALFORMED: Final = re.compile(
    r"Kernel error: (Json error|Unsupported|Invalid protocol|No protocol|No table metadata|.* at line \d+ column \d+)"
)
"""Errors in the log's contents. deltalake raises them as it raises those of a storage that does not respond."""
_COMPUTED: Final = ("delta.generationExpression", "delta.identity.start", "delta.invariants")


class DeltaLakeTable:
    """A Delta table as the lake committer and the sink use it. Thread-safe."""

    log = "log"

    def __init__(self, place: DeltaLocation) -> None:
        self.display_name, self._place = place.text, place
        self._newest: DeltaTable | None = None
        """The version that was read last; a commit is based on it."""

    # ------------------------------------------------------------ tables.LakeTable

    def store(self) -> TableStore:
        return self._place.store()

    def read_state(self, incarnation: LakeIncarnation) -> LogState:
        with self.mapped(Retryable, "look into"):
            table = self._newest = self.opened()
            names = (f"kafka_eos/{incarnation}/{what}" for what in ("term", "epoch", "since"))
            fence, marker, since = map(table.transaction_version, names)
            name, of = str(table.metadata().id), None if marker is None else _epoch(marker)
            return LogState(name, _in_short(table), table.version(), fence, of, since)

    def commit(
        self,
        seen: LogState,
        incarnation: LakeIncarnation,
        metadata: CommitMetadata,
        added: Sequence[DataFile] = (),
        removed: Sequence[LiveFile] = (),
    ) -> None:
        now, of = int(time.time() * 1000), metadata.epoch
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.name, file.size, file.partition, now, True, self._statistics(file)) for file in added
        ]
        actions += [RemoveAction(file.name, True, now) for file in removed]
        versions = {"term": metadata.fence, "since": metadata.since, "epoch": None if of is None else _number(of)}
        commit_info = {"term": metadata.fence} if of is None else {"epoch": of.epoch.n, "term": of.term.n}
        with self.mapped(Retryable, "commit to"):
            table = self._as_seen(seen)
            properties = CommitProperties(
                custom_metadata={"kafka_eos": commit_info},
                max_commit_retries=0 if removed else None,  # any other commit since then is a conflict
                app_transactions=[
                    Transaction(f"kafka_eos/{incarnation}/{what}", version)
                    for what, version in versions.items()
                    if version is not None
                ],
            )
            try:
                table.create_write_transaction(
                    actions,
                    "append",
                    table.schema(),
                    table.metadata().partition_columns,
                    commit_properties=properties,
                    post_commithook_properties=self._hooks,
                )
            except CommitFailedError as error:
                raise CommitConflict from error
        self.make_durable()

    def _as_seen(self, seen: LogState) -> DeltaTable:
        table = self._newest
        if table is None or (str(table.metadata().id), table.version()) != (seen.table, seen.version):
            raise CommitConflict  # another thread has read the log since
        return table

    def _statistics(self, file: DataFile) -> str:
        found: dict[str, Any] = {"numRecords": file.rows}
        if file.bounded:
            with self.mapped(Retryable, f"read {file.name} of"):
                bounds = bounds_of(self.store().footer(file.name), file.bounded)
            found["minValues"] = {name: least for name, (least, _) in bounds.items()}
            found["maxValues"] = {name: most for name, (_, most) in bounds.items()}
        # deltalake misreads some characters above U+FFFF if JSON escapes them.
        return json.dumps(found, ensure_ascii=False)

    def live(self, seen: LogState | None = None) -> Sequence[LiveFile]:
        with self.mapped(Retryable, "look into"):
            table = self.opened() if seen is None else self._as_seen(seen)
            if wrong := [*obstacles(table)]:
                raise ConfigError(f"DeltaSink cannot replace rows of {self.display_name}: {'; '.join(wrong)}")
            return live_files(table)

    def rows(self, file: LiveFile, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        partition: Mapping[str, Any] = file.handle
        with self.mapped(Retryable, "read"):
            for batch in self.store().rows(file.name, columns.names):
                arrays = {field.name: batch.column(field.name) for field in batch.schema}
                arrays |= {
                    name: pa.array([partition[name]] * len(batch), columns.field(name).type)
                    for name in columns.names
                    if name in partition
                }
                yield aligned(pa.record_batch(arrays), columns)

    @property
    def _hooks(self) -> PostCommitHookProperties:
        return PostCommitHookProperties(cleanup_expired_logs=False if self._place.syncs else None)

    def make_durable(self) -> None:
        """Sync the log. Entries that a checkpoint replaces are removed after the checkpoint is durable, not in the
        commit."""
        with self.mapped(Retryable, "sync"):
            if self._place.sync():
                table = self.opened()
                if table.metadata().configuration.get("delta.enableExpiredLogCleanup", "true") == "true":
                    table.cleanup_metadata()

    def files(self, staged: Mapping[PartId, float]) -> frozenset[str]:
        # A clock that was ahead may have been set back since.
        since = min((time.time(), *staged.values())) - _CLOCKS_DIFFER
        with self.mapped(Retryable, "look into"):
            newest = pa.table(self.opened().get_add_actions()).column("path").to_pylist()
            return frozenset(map(unquote, newest)) | self._added(since)

    def _added(self, since: float) -> frozenset[str]:
        """Return the files that log entries have added, even if a later entry removed them: older versions reference
        them."""
        # Strings in an entry may contain characters that ``splitlines`` takes for line ends.
        lines = (line for entry in self._place.entries(since) for line in entry.split("\n"))
        actions = (json.loads(line) for line in lines if line.strip())
        return frozenset(unquote(action["add"]["path"]) for action in actions if "add" in action)

    # ------------------------------------------------------------ for the sink

    @property
    def needs(self) -> str:
        return self._place.needs

    def expect_reachable(self) -> None:
        with self.mapped(Retryable, "look for"):
            self._place.check_access()

    def exists(self) -> bool:
        with self.mapped(Retryable, "look for"):
            return DeltaTable.is_deltatable(self._place.uri, self._options)

    def create(self, schema: pa.Schema, by: Sequence[str]) -> None:
        """Create the table. Raise ConfigError if Delta has no counterpart for a column."""
        with self.mapped(Retryable, "create"):
            self._place.make()
            try:
                DeltaTable.create(
                    self._place.uri, schema, mode="ignore", partition_by=[*by], storage_options=self._options
                )
            except Exception as error:
                if type(error) is Exception:  # deltalake raises this for unknown types
                    raise ConfigError(f"{self.display_name} cannot be created: {_in_a_line(error)}") from error
                raise
        self.make_durable()

    def read_spec(self) -> TableSpec:
        with self.mapped(Retryable, "look into"):
            table = self.opened()
            if wrong := [*problems(table)]:
                raise ConfigError(f"DeltaSink cannot write to {self.display_name}: {'; '.join(wrong)}")
            metadata, columns = table.metadata(), pa.schema(table.schema().to_arrow())
            return TableSpec(
                columns, ColumnPartitioning(metadata.partition_columns), str(metadata.id), _in_short(table)
            )

    def identity(self) -> str:
        with self.mapped(Retryable, "look into"):
            return f"{self.opened().metadata().id} at {self._place.identity()}"

    def notices(self) -> Sequence[str]:
        return self._place.notices()

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows of the newest version. Raise ConfigError if a file contradicts itself.

        deltalake verifies no checksums, and returns what there is of a page that has fewer rows than the file states.
        """
        with self.mapped(Retryable, "read"):
            table, store = self.opened(), self.store()
            for each in pa.table(table.get_add_actions())["path"].to_pylist():
                if "://" not in each:  # files of another table, which a shallow clone names
                    deque(store.rows(unquote(each), columns), maxlen=0)
            for batch in table.scan(columns=[*columns]):
                yield pa.record_batch(batch)

    def opened(self) -> DeltaTable:
        return DeltaTable(self._place.uri, storage_options=self._options)

    @property
    def _options(self) -> dict[str, str] | None:
        return None if self._place.options is None else dict(self._place.options)

    @contextmanager
    def mapped(self, kind: type[KafkaEosError], what: str) -> Iterator[None]:
        try:
            yield
        except TableNotFoundError as error:
            raise ConfigError(
                f"no Delta table at {self.display_name}: restore it with its log; or, if it never "
                "existed, pass create=True to create it. Decided output stays staged"
            ) from error
        except (DeltaError, OSError) as error:
            if isinstance(error, DeltaProtocolError) or _MALFORMED.match(str(error)):
                raise ConfigError(
                    f"could not {what} {self.display_name}: {_in_a_line(error)}. Restore its log, or write "
                    "to a table that deltalake can read"
                ) from error
            raise kind(f"could not {what} {self.display_name}: {_in_a_line(error)}") from error


def problems(table: DeltaTable) -> Iterator[str]:
    """Yield reasons why a data file cannot be added, with the remedy."""
    features = {*(table.protocol().writer_features or ())}
    if unknown := sorted(features - _KNOWN):
        yield f"it uses {', '.join(unknown)}, which DeltaSink does not support: use a table without it"
    configuration = table.metadata().configuration
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        yield "its columns are mapped (delta.columnMapping.mode): use a table without column mapping"
    if rules := sorted(name for name in configuration if name.startswith("delta.constraints.")):
        yield f"it has constraints, which DeltaSink does not check: drop {', '.join(rules)}"
    by, columns = table.metadata().partition_columns, pa.schema(table.schema().to_arrow())
    for name in by:
        if not any(of(columns.field(name).type) for of in _PARTITIONED):
            yield f"it is partitioned by {name}, {columns.field(name).type}: {_PARTITIONS}"
        if not PARTITION_NAME.fullmatch(name):
            yield f"it is partitioned by {name!r}: DeltaSink writes partitions by columns of letters, digits and _"
    if len(by) == len(columns):
        yield "it is partitioned by all its columns, so data files would have no columns"
    for field in table.schema().fields:
        if asked := [name for name in _COMPUTED if name in field.metadata]:
            yield f"column {field.name} has {asked[0]}, which DeltaSink does not compute"


def obstacles(table: DeltaTable) -> Iterator[str]:
    """Yield reasons why rows cannot be replaced by rewriting files, with the remedy."""
    configuration = table.metadata().configuration
    if configuration.get("delta.appendOnly", "false") == "true":
        yield "it accepts appends only (delta.appendOnly): unset that, or omit key"
    if configuration.get("delta.enableChangeDataFeed", "false") == "true":
        yield "it has a change data feed (delta.enableChangeDataFeed), which DeltaSink does not write: unset that"
    if "deletionVectors" in (table.protocol().writer_features or ()):
        yield "it may have deletion vectors, which DeltaSink does not read: use a table without that feature"


def live_files(table: DeltaTable) -> list[LiveFile]:
    """Return the data files of a version. Raise ConfigError if one could not be removed."""
    found = []
    by, columns = table.metadata().partition_columns, pa.schema(table.schema().to_arrow())
    for each in pa.table(table.get_add_actions()).to_pylist():
        path, partition = unquote(each["path"]), each.get("partition") or {}
        if "://" in path or quote(path, safe=_UNQUOTED) != each["path"]:
            raise ConfigError(
                f"deltalake could not remove the file {each['path']} because of its name: rewrite "
                "the file with deltalake's OPTIMIZE"
            )
        least, most = each.get("min") or {}, each.get("max") or {}
        bounds = {
            name: (least[name], most[name])
            for name in least
            if name not in by and _bounded(columns.field(name).type) and _read_right(least[name], most.get(name))
        }
        bounds |= {name: (value, value) for name, value in partition.items() if value is not None}
        found.append(LiveFile(path, bounds, partition))
    return found


def bounds_of(footer: pq.FileMetaData, columns: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """Return the least and greatest value of columns with JSON values; columns with long values are left out."""
    at = {footer.schema.column(n).path: n for n in range(footer.num_columns)}
    found = {}
    for name in columns:
        groups = [footer.row_group(n).column(at[name]).statistics for n in range(footer.num_row_groups)]
        if not groups or not all(each is not None and each.has_min_max for each in groups):
            continue
        least, most = min(each.min for each in groups), max(each.max for each in groups)
        if isinstance(most, int) or (isinstance(most, str) and len(most) <= _LONGEST_BOUND):
            found[name] = (least, most)
    return found


def _bounded(tp: pa.DataType) -> bool:
    """Return whether the log's bounds of such a column are reliable: bounds of times are truncated."""
    return bool(kinds.is_integer(tp) or kinds.is_string(tp) or kinds.is_large_string(tp))


def _read_right(*bounds: object) -> bool:
    """Return whether deltalake has read these bounds correctly: it misreads some characters above U+FFFF."""
    texts = [each for each in bounds if isinstance(each, str)]
    return None not in bounds and all(max(each, default="") <= "\uffff" for each in texts)


def _in_short(table: DeltaTable) -> str:
    """Return a digest of everything that ``read_spec`` checks."""
    metadata, features = table.metadata(), sorted(table.protocol().writer_features or ())
    parts = [table.schema().to_json(), metadata.partition_columns, metadata.configuration, features]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _number(epoch: EpochId) -> int:
    return (epoch.term.n << _BITS) + epoch.epoch.n


def _epoch(number: int) -> EpochId:
    return EpochId(Epoch(number & ((1 << _BITS) - 1)), Term(number >> _BITS))


def _in_a_line(error: Exception) -> str:
    """Return the whole error as one line: deltalake puts the cause last, below arrows in colors.

    A stack of the library is left out.
    """
    text = describe_lake_error(error, _DRAWN.sub(" ", str(error)))
    return text if len(text) <= _LONGEST_ERROR else f"{text[:_LONGEST_ERROR]} …"
