"""Base classes of sources and sinks whose input and output the audit compares.

Rule: the audit does not rely on what a sink reports about its own success; it reads what readers read. A sink that
inherits none of them also works, and the audit reports it as not checked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.services import RejectRow
from kafka_eos.core.ids import SplitId
from kafka_eos.core.records import Batch, Headers, RawRecord

OutputRecord: TypeAlias = tuple[bytes | None, bytes | None, Headers, int]
"""Key, value, user headers and timestamp of an output; timestamp -1 means the time of sending."""
TopicLog: TypeAlias = tuple[str, str, Mapping[str, Any]]
"""Topic, bootstrap servers, and the librdkafka configuration as the user gave it."""
SampleStart: TypeAlias = "Literal['newest', 'earliest'] | datetime"
"""The position where a sample begins."""


class AuditableSource(ABC):
    """An ability that a source inherits if it reads topics, which the audit reads again."""

    @abstractmethod
    def audit_logs(self, ctx: JobContext, read: Collection[SplitId]) -> Sequence[TopicLog]:
        """Return each topic. ``read``: the splits that the job has read."""

    @property
    @abstractmethod
    def several(self) -> bool:
        """Return whether the source may read several topics. Its positions then contain the topic."""

    @abstractmethod
    def raw(self, value: Any, offset: int, timestamp: int) -> RawRecord:
        """Return the record that is decoded to ``value``. Errors of its codec propagate. For ``run_local``."""

    @abstractmethod
    def decode(
        self, source_name: str, raws: Sequence[RawRecord], reject: Callable[[RawRecord, Exception], None]
    ) -> Batch[Any]:
        """Decode records of one topic as the reader does; rows that ``reject`` received are omitted."""


class SupportsSampling(ABC):
    """An ability that a source inherits if ``preview`` can read some of its records without a job."""

    @abstractmethod
    def sample(self, ctx: JobContext, count: int, start: SampleStart) -> Sequence[RawRecord]:
        """Return up to ``count`` records, and commit nothing.

        ``start``: the newest ones, the oldest ones, or those from a time on. Raise ConfigError if there are no topics.
        """


class AuditableSink(ABC):
    """The methods that every audited sink has. A sink inherits one of the subclasses."""

    @property
    @abstractmethod
    def audit_has_provenance(self) -> bool:
        """Return whether each output carries its provenance."""

    @property
    @abstractmethod
    def audit_codec(self) -> Codec[Any]:
        """Return the codec of the values."""

    @abstractmethod
    def audit_rows(
        self, batch: Batch[Any], operator: str, reject: RejectRow
    ) -> tuple[Batch[Any], Sequence[OutputRecord]]:
        """Return the rows that the writer writes, and their exact output; ``reject`` receives the other rows."""


class AuditableTopic(AuditableSink):
    """An ability that a sink of a topic inherits."""

    @abstractmethod
    def audit_log(self, ctx: JobContext) -> TopicLog:
        """Return the topic and how to read it."""

    def audit_partitioner(self, ctx: JobContext) -> str | None:
        """Return the partitioner of the sink's client, as librdkafka names it; None, the default, if unknown."""
        return None


class AuditableFiles(AuditableSink):
    """An ability that a sink of files inherits."""

    @abstractmethod
    def audit_files(self, jobs: Collection[str], operator: str) -> tuple[str, str]:
        """Return the location of the files and a pattern of the names that this sink gives them in one of ``jobs``; its
        groups are epoch and subtask."""

    @abstractmethod
    def audit_names(self) -> Sequence[str]:
        """Return the names of all files below the location, those of other sinks included."""

    @property
    @abstractmethod
    def audit_lines(self) -> bool:
        """Return whether the files are plain lines in a local directory."""

    @abstractmethod
    def audit_read(self, name: str) -> Iterator[tuple[bytes, str | None]]:
        """Yield the value, as ``audit_rows`` returns it, and the provenance of each row of a file.

        Raise OSError with an errno, or an error of this project, if the file cannot be read. Any other exception means
        that its content is damaged.
        """


class AuditableTable(AuditableSink):
    """An ability that a sink of a table's rows inherits; a value of None deletes the row of its key."""

    @abstractmethod
    def audit_table(self, ctx: JobContext) -> tuple[str, bool]:
        """Return the table's display name, and whether a value replaces the row of its key."""

    def audit_obstacle(self) -> str | None:
        """Return why the table cannot be compared; None, the default, if it can."""
        return None

    @abstractmethod
    def audit_table_rows(self) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield key and value of each row of the table, as ``audit_rows`` returns them."""


class SupportsLocalRun(ABC):
    """An ability that a sink inherits if ``run_local`` can show the records that it would write."""

    @abstractmethod
    def written(self, batch: Batch[Any], operator: str, reject: RejectRow) -> tuple[Batch[Any], list[RawRecord]]:
        """Return the rows that the writer writes, and their records; ``reject`` receives the other rows."""
