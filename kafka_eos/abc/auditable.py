"""The interface that lets the audit compare a sink's contents with the outputs that its input produces.

Rule: the audit does not rely on what a sink reports about its own success; it reads what readers read. A sink without
these methods works too, and the audit reports it as not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.services import RejectRow
from kafka_eos.core.records import Batch, Headers

OutputRecord: TypeAlias = tuple[bytes | None, bytes | None, Headers, int]
"""Key, value, user headers and timestamp of an output; timestamp -1 means the time of sending."""


class AuditableSink(Protocol):
    """The methods that the audit needs of every sink it checks.

    The sink also implements ``AuditableFiles`` or ``AuditableTable``. A sink of a Kafka topic has ``audit_log``
    instead.
    """

    @property
    def audit_has_provenance(self) -> bool:
        """Return whether each output carries its provenance."""

    @property
    def audit_codec(self) -> Codec[Any]:
        """Return the codec of the values."""

    def audit_rows(
        self, batch: Batch[Any], operator: str, reject: RejectRow
    ) -> tuple[Batch[Any], Sequence[OutputRecord]]:
        """Return the rows that the writer writes, and their exact output; ``reject`` receives the other rows."""


class AuditableFiles(AuditableSink, Protocol):
    """The methods that the audit needs of a sink that writes files."""

    def audit_files(self, ctx: JobContext, operator: str) -> tuple[str, str]:
        """Return the location of the files and a pattern of this sink's file names; its groups are epoch and
        subtask."""

    def audit_names(self) -> Sequence[str]:
        """Return the names of all files below the location, those of other sinks included."""

    @property
    def audit_lines(self) -> bool:
        """Return whether the files are plain lines in a local directory."""

    def audit_read(self, name: str) -> Iterator[tuple[bytes, str | None]]:
        """Yield the value, as ``audit_rows`` returns it, and the provenance of each row of a file.

        Raise OSError with an errno, or an error of this project, if the file cannot be read. Any other exception means
        that its content is damaged.
        """


class AuditableTable(AuditableSink, Protocol):
    """The methods that the audit needs of a sink that writes rows of a table; a value of None deletes the row of its
    key."""

    def audit_table(self, ctx: JobContext) -> tuple[str, bool]:
        """Return the table's display name, and whether a value replaces the row of its key."""

    def audit_obstacle(self) -> str | None:
        """Return why the table cannot be compared; None if it can."""

    def audit_table_rows(self) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield key and value of each row of the table, as ``audit_rows`` returns them."""
