"""What a format of tables has to offer for its log to take epochs: the contract of ``delta`` and ``iceberg``.

Rule: every commit names the version that it was made on, and fails if an entry of the same life came in between. So
one that is late, because its process was frozen or its packets were, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from kafka_eos.connectors._lake.commit_status import Seen
from kafka_eos.connectors._lake.file_store import Store
from kafka_eos.connectors._lake.partitions import Partitions
from kafka_eos.core.ids import EpochId, JobIdentity


@dataclass(frozen=True, slots=True)
class LakeLife:
    """One life of a job's name, as a table's log spells it."""

    job: str
    identity: JobIdentity | None

    def __str__(self) -> str:
        return self.job if self.identity is None else f"{self.job}.{self.identity}"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A staged file that a commit names.

    ``name``       below the store's root
    ``partition``  the one that all its rows are of, as the table's ``Partitions`` tell it, as text; None is null
    ``bounded``    columns of which the log may tell the least and the greatest value, besides those that it always does
    """

    name: str
    size: int
    rows: int
    partition: Mapping[str, str | None] = field(default_factory=dict)
    bounded: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file that the table has now, whoever wrote it.

    ``bounds``  by column, the least and the greatest value, where the log tells them and they are to be relied on
    ``known``   what the format needs to read and to remove it
    """

    name: str
    bounds: Mapping[str, tuple[Any, Any]]
    known: Any


@dataclass(frozen=True, slots=True)
class Fit:
    """What a data file has to fit.

    ``columns``     of the table
    ``partitions``  those that it has: a file has rows of one
    ``table``       the table's identity
    ``schema``      all of the other three in short, as ``Seen`` has it
    """

    columns: pa.Schema
    partitions: Partitions
    table: str
    schema: str


class Overtaken(Exception):
    """Somebody else has committed since the look. Nothing of ours was. Never leaves the connectors."""


class LakeTable(Protocol):
    """One table. May be used from threads. Raises Retryable if there is no answer, ConfigError for what is wrong."""

    log: str
    """What the format calls that of a table which is no data file, for people."""

    @property
    def text(self) -> str:
        """For people."""

    def store(self) -> Store:
        """Where its data files are."""

    def look(self, life: LakeLife) -> Seen:
        """What its log says of a life now."""

    def fence(self, seen: Seen, life: LakeLife, term: int) -> None:
        """An empty commit on ``seen.version``: terms before ``term`` can commit nothing any more. Raises Overtaken.

        If ``seen`` has no fence, it also leaves ``term`` as the first one.
        """

    def change(
        self,
        seen: Seen,
        life: LakeLife,
        fence: int,
        epoch: EpochId,
        added: Sequence[DataFile],
        removed: Sequence[LiveFile] = (),
    ) -> None:
        """One commit on ``seen.version`` that adds and removes all these files, and carries ``epoch``; durable.

        Raises Overtaken. If it removes files, also if anybody at all has committed since.
        """

    def live(self, seen: Seen) -> Sequence[LiveFile]:
        """The data files of ``seen.version``. Raises Overtaken, or ConfigError if rows of one cannot be replaced."""

    def rows(self, file: LiveFile, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Of a live file these columns of the table, always in the same order of rows."""

    def fit(self) -> Fit:
        """As the table is now. Raises ConfigError if a data file cannot just be added to it."""

    def expect_replaceable(self) -> None:
        """ConfigError if rows of the table cannot be replaced."""

    def settle(self) -> None:
        """Make durable what is visible: who committed it may have died before it was."""

    def files(self, since: float) -> frozenset[str]:
        """Names below the store's root that some version refers to, as far as versions are kept.

        Of files that came later than ``since``, in seconds since 1970; others may be missing.
        """
