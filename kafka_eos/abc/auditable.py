"""What the audit asks a sink for, so that it can compare what is there with what the input makes.

Rule: the audit believes nothing that a sink says of its own success; it reads what readers read. A sink without these
methods works all the same, and the audit says that it was not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.services import RejectRow
from kafka_eos.core.records import Batch, Headers

Written: TypeAlias = tuple[bytes | None, bytes | None, Headers, int]
"""Key, value, the user's headers and the timestamp of an output; -1 is the time at which it is sent."""


class AuditableSink(Protocol):
    """What the audit needs of every sink that it looks at.

    Also what ``AuditableFiles`` or ``AuditableTable`` has; a sink of a Kafka topic has ``audit_log`` instead.
    """

    @property
    def audit_marked(self) -> bool:
        """Does each output carry its provenance?"""

    @property
    def audit_codec(self) -> Codec[Any]:
        """What encodes the values."""

    def audit_rows(self, batch: Batch[Any], operator: str, reject: RejectRow) -> tuple[Batch[Any], Sequence[Written]]:
        """The rows that the writer writes, and exactly what it writes; ``reject`` got the others."""


class AuditableFiles(AuditableSink, Protocol):
    """What the audit needs of a sink that writes files."""

    def audit_files(self, ctx: JobContext, operator: str) -> tuple[str, str]:
        """Where they are, and what the names of this sink's files match; the groups are epoch and subtask."""

    def audit_names(self) -> Sequence[str]:
        """The files that are there, of other sinks too: names below that place."""

    @property
    def audit_lines(self) -> bool:
        """Are files lines as they are, in a directory?"""

    def audit_read(self, name: str) -> Iterator[tuple[bytes, str | None]]:
        """Of each row of a file its value, as ``audit_rows`` tells it, and its provenance.

        Raises OSError with a number, or an error of this project, where the file cannot be had; whatever else is
        raised says that its content is damaged.
        """


class AuditableTable(AuditableSink, Protocol):
    """What the audit needs of a sink that writes rows of a table; a value of None deletes the row of its key."""

    def audit_table(self, ctx: JobContext) -> tuple[str, bool]:
        """Its name for people, and whether a value replaces the row of its key."""

    def audit_unfit(self) -> str | None:
        """Why rows that are there cannot be compared with those that should be; None if they can."""

    def audit_table_rows(self) -> Iterator[tuple[bytes | None, bytes]]:
        """Key and value of each row that is there, as ``audit_rows`` tells them."""
