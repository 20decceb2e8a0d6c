"""Reads the rows that an epoch has committed to topics, by the provenance in their headers.

A topic is read from its end: first its newest records, then more of them, until all rows of the epoch are found.

Rule: the rows are those that readers with ``read_committed`` see, so a row that is there twice is read twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from kafka_eos.abc.auditable import AuditableTopic
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.source.record_sample import read_newest
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.provenance import HEADER, Provenance, parse_provenance
from kafka_eos.core.records import RawRecord
from kafka_eos.plan import Plan
from kafka_eos.storage.epoch_ledger import LedgerEntry
from kafka_eos.testing.traced_chain import as_json

_FIRST_PART: Final = 10_000
"""Records of each partition that are read first."""
_GROWTH: Final = 10


@dataclass(frozen=True, slots=True)
class CommittedRow:
    """A row of an output topic, as a plain value."""

    record: str
    """Topic, partition and offset of the input record that it was made from, as in ``TracedRow``."""
    value: Any


@dataclass(frozen=True)
class CommittedRows:
    """The committed rows of each sink whose topic could be read, and why others could not be."""

    rows: Mapping[str, Sequence[CommittedRow]]
    unread: Mapping[str, str]


def read_committed_rows(
    plan: Plan, ctx: JobContext, entry: LedgerEntry, records: Mapping[str, Collection[str]]
) -> CommittedRows:
    """Read the rows of a committed epoch from the topics of all sinks.

    ``records``: by sink, the input records whose rows are read. Another incarnation of the job may have written to the
    same topics in an epoch of the same number, from other records.
    """
    rows, unread = dict[str, Sequence[CommittedRow]](), dict[str, str]()
    for node in plan.sinks:
        if node.is_dead_letter_sink:
            continue
        if not isinstance(node.sink, AuditableTopic):
            unread[node.name] = "the sink does not write a topic"
            continue
        try:
            rows[node.name] = _TopicOfSink(node.name, node.sink, ctx, entry, records[node.name]).read()
        except ConfigError as error:
            unread[node.name] = str(error)
    return CommittedRows(rows, unread)


@dataclass(frozen=True)
class _TopicOfSink:
    """The topic of one sink, and the rows that are wanted from it."""

    name: str
    sink: AuditableTopic
    ctx: JobContext
    entry: LedgerEntry
    records: Collection[str]

    def read(self) -> list[CommittedRow]:
        """Read the rows. Raise ConfigError if they cannot be read or decoded."""
        topic, bootstrap, config = self.sink.audit_log(self.ctx)
        wanted, size, before = self.entry.outputs.get(self.name, 0), _FIRST_PART, -1
        while True:
            count, found, is_marked = 0, list[CommittedRow](), False
            with closing(read_newest(Cluster(bootstrap, config), topic, size)) as raws:
                for raw in raws:
                    count += 1
                    if (text := _find_provenance(raw)) is not None:
                        is_marked = True
                        found += self._decode(raw, text)
            if len(found) >= wanted or count == before:
                break
            size, before = size * _GROWTH, count
        if wanted and not is_marked:
            raise ConfigError(f"the records of {topic} have no header {HEADER} with their provenance")
        return found

    def _decode(self, raw: RawRecord, origin: Provenance) -> list[CommittedRow]:
        record = f"{origin.topic}/{origin.partition}/{origin.offset}"
        if (origin.job, origin.epoch) != (self.ctx.job, self.entry.id.epoch) or record not in self.records:
            return []
        try:
            return [
                CommittedRow(record, as_json(None if raw.value is None else self.sink.audit_codec.decode(raw.value)))
            ]
        except Exception as error:
            raise ConfigError(f"{raw.location} cannot be decoded as sink {self.name!r} writes it: {error}") from error


def _find_provenance(raw: RawRecord) -> Provenance | None:
    """Return the provenance in the headers of an output; None if there is none."""
    for name, text in reversed(raw.headers):
        if name == HEADER and text is not None:
            try:
                return parse_provenance(text.decode())
            except ValueError:
                return None
    return None
