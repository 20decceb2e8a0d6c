"""The interface between a lake format and the committer; ``delta`` and ``iceberg`` implement it.

Rule: every commit names the version that it is based on, and fails if an entry of the same incarnation was added since.
So a delayed commit of a frozen process, or one delayed on the network, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
from msgspec import Struct, field

from kafka_eos.connectors._lake.commit_status import LogState
from kafka_eos.connectors._lake.file_store import TableStore
from kafka_eos.connectors._lake.partitions import TablePartitioning
from kafka_eos.connectors.files.file_names import PartId
from kafka_eos.core.ids import EpochId, JobIdentity


class LakeIncarnation(Struct, frozen=True):
    """One incarnation of a job."""

    job: str
    identity: JobIdentity | None

    def __str__(self) -> str:
        return self.job if self.identity is None else f"{self.job}.{self.identity}"


class CommitMetadata(Struct, frozen=True):
    """The metadata of an incarnation that a commit writes into the log.

    ``fence``: the term before which no term can commit anything any more.
    ``epoch``: the epoch that it commits; None if it only fences.
    ``since``: the term of the incarnation's first fence, with that fence; otherwise None.
    """

    fence: int
    epoch: EpochId | None = None
    since: int | None = None


class DataFile(Struct, frozen=True):
    """A staged file that a commit names.

    ``name``: its path below the store's root.
    ``partition``: the partition of all its rows, in the form of the table's ``TablePartitioning``, as text; None is
    null.
    ``bounded``: columns whose least and greatest value the log may contain, in addition to those that it always
    contains.
    """

    name: str
    size: int
    rows: int
    partition: Mapping[str, str | None] = field(default_factory=dict)
    bounded: Sequence[str] = ()


class LiveFile(Struct, frozen=True):
    """A data file of the table's newest version, by any writer.

    ``bounds``: the least and the greatest value by column, where the log contains reliable ones.
    ``handle``: the format's data for reading and removing the file.
    """

    name: str
    bounds: Mapping[str, tuple[Any, Any]]
    handle: Any


class TableSpec(Struct, frozen=True):
    """The properties that a data file must match.

    ``columns``: the table's columns.
    ``partitions``: its partitioning; a file has rows of one partition.
    ``table``: the table's identity.
    ``fingerprint``: a digest of the other three, as in ``LogState``.
    """

    columns: pa.Schema
    partitions: TablePartitioning
    table: str
    fingerprint: str


class CommitConflict(Exception):
    """Another commit came first; this one changed nothing. Never leaves the connectors."""


class LakeTable(Protocol):
    """One lake table. Thread-safe. Raises Retryable if it does not respond, ConfigError for permanent errors."""

    log: str
    """The format's name for the table's log or metadata, for messages."""

    @property
    def display_name(self) -> str:
        """Return the name of the table for messages."""

    def store(self) -> TableStore:
        """Return the storage of its data files."""

    def read_state(self, incarnation: LakeIncarnation) -> LogState:
        """Return the state of an incarnation in the newest version of the log."""

    def commit(
        self,
        seen: LogState,
        incarnation: LakeIncarnation,
        metadata: CommitMetadata,
        added: Sequence[DataFile] = (),
        removed: Sequence[LiveFile] = (),
    ) -> None:
        """Commit metadata and files on ``seen.version``.

        Raises CommitConflict. If files are removed, it is also raised for commits of any other writer since ``seen``.
        """

    def live(self, seen: LogState | None = None) -> Sequence[LiveFile]:
        """Return the data files of ``seen.version``; without it, of the newest version.

        Raises CommitConflict, and ConfigError if rows of the table, or of one of its files, cannot be replaced.
        """

    def rows(self, file: LiveFile, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield these columns of a live file, always in the same order of rows."""

    def read_spec(self) -> TableSpec:
        """Read what a data file must match now. Raises ConfigError if none can be added."""

    def make_durable(self) -> None:
        """Make durable what is visible, in case its committer died before doing so."""

    def files(self, staged: Mapping[PartId, float]) -> frozenset[str]:
        """Return the names below the store's root that any retained version references.

        Only files of commits that can name one of the staged files are guaranteed to be included. ``staged``: the
        staged files, with their times in seconds since 1970 as the store shows them.
        """
