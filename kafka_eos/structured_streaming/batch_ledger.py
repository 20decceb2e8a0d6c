"""The sink's records of each batch: which transactions it prepared, and that they are committed.

The list of prepared transactions is published before Spark can decide the batch. The decision itself is Spark's
``commits/<batch>``. Each attempt of a batch has another term, so attempts never share a name.

Rule: a prepared batch is not a decision. A receipt is written only after all its transactions are committed.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import ClassVar

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.committer import CommitOutcome, Committable
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.connectors.kafka.rpc.transaction_status import KafkaCommittable
from kafka_eos.coordination import terms
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, Term, ensure_name
from kafka_eos.core.limits import LIMITS
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths


class PreparedBatch(records.StoredRecord, frozen=True, kw_only=True):
    """One attempt at a batch whose transactions are all prepared. Spark decides whether they are committed."""

    FORMAT: ClassVar[str] = "batch"

    batch: int
    term: int
    created_at: int
    """Milliseconds since the Unix epoch."""
    scope: str
    """The cluster that holds the transactions."""
    records: int
    digest: int
    """Sum of the hashes of all records, in 64 bits: shows whether a replay writes the same records."""
    transactions: tuple[KafkaCommittable, ...]

    @property
    def id(self) -> EpochId:
        return EpochId(Epoch(self.batch), Term(self.term))

    @property
    def name(self) -> str:
        return paths.manifest_name(self.id)

    @property
    def committables(self) -> tuple[Committable, ...]:
        return tuple(Committable(self.scope, t.payload(), 0) for t in self.transactions)

    @property
    def ids(self) -> frozenset[str]:
        """Return the transactional ids of the batch."""
        return frozenset(t.transactional_id for t in self.transactions)


class QueryIdentity(records.StoredRecord, frozen=True, kw_only=True):
    """The name under which Kafka knows the query of this checkpoint."""

    FORMAT: ClassVar[str] = "query"

    @property
    def name(self) -> str:
        return paths.IDENTITY


class BatchLedger:
    """The prepared batches and receipts of one query. Terms ensure that one driver at a time uses it.

    It is empty until ``refresh`` is called.
    """

    def __init__(self, storage: CheckpointStorage, name: str) -> None:
        """Raises ConfigError if the checkpoint belongs to a query of another ``name``."""
        self.storage = storage
        self.job = _identity(storage, name)
        self._attempts: list[EpochId] = []
        self._receipts: set[EpochId] = set()

    def refresh(self) -> None:
        """Read prepared batches and receipts from the storage.

        Call it after the claim: a driver that prepares a batch later sees that claim, and stops.
        """
        self._attempts = _ids(self.storage, paths.MANIFESTS)
        self._receipts = set(_ids(self.storage, paths.RECEIPTS))

    def attempts(self, batch: int) -> list[EpochId]:
        """Return the terms that prepared ``batch``, in order."""
        return sorted(i for i in self._attempts if i.epoch.n == batch)

    def batches(self) -> list[int]:
        """Return the batches that were prepared."""
        return sorted({i.epoch.n for i in self._attempts})

    def list_committed(self) -> frozenset[int]:
        """Return the batches that have a receipt."""
        return frozenset(i.epoch.n for i in self._receipts)

    def load_committed(self, batch: int) -> PreparedBatch:
        """Return the attempt at a committed batch whose output is visible."""
        return self.load(max(i for i in self._receipts if i.epoch.n == batch))

    def load(self, attempt: EpochId) -> PreparedBatch:
        """Raises CorruptCheckpoint if it is gone or is not what was written."""
        prepared = self.find(attempt)
        if prepared is None:
            raise CorruptCheckpoint(f"{paths.manifest_name(attempt)} is missing, although its receipt exists")
        return prepared

    def find(self, attempt: EpochId) -> PreparedBatch | None:
        """Return a prepared batch; None if it was withdrawn."""
        try:
            return records.load(self.storage, PreparedBatch, paths.manifest_name(attempt), self.job)
        except FileNotFoundError:
            return None

    def publish(self, prepared: PreparedBatch) -> None:
        """Publish a prepared batch; durable on return."""
        records.publish(self.storage, prepared)
        self._attempts.append(prepared.id)

    def withdraw(self, prepared: PreparedBatch) -> None:
        """Withdraw a prepared batch that Spark has not decided and never will."""
        self.storage.delete(prepared.name)
        self._attempts = [attempt for attempt in self._attempts if attempt != prepared.id]

    def write_receipt(self, prepared: PreparedBatch, outcomes: Sequence[CommitOutcome]) -> None:
        """Write the receipt of a committed batch. A receipt that another driver wrote says the same."""
        hit("receipt.before")
        made = records.Receipt(
            job=self.job, epoch=prepared.batch, term=prepared.term, created_at=terms.now_ms(), outcomes=tuple(outcomes)
        )
        try:
            records.publish(self.storage, made)
        except FileExistsError:
            records.load(self.storage, records.Receipt, made.name, self.job)
        self._receipts.add(prepared.id)
        hit("receipt.after")

    def prune(self, newest: int) -> None:
        """Forget batches that are long settled."""
        old = [i for i in self._attempts if i.epoch.n <= newest - LIMITS.settled_batches_kept]
        for attempt in old:
            # The receipt last: an attempt without one would look undecided.
            self.storage.delete(paths.manifest_name(attempt))
            self.storage.delete(paths.receipt_name(attempt))
            self._attempts.remove(attempt)
            self._receipts.discard(attempt)


def _ids(storage: CheckpointStorage, directory: str) -> list[EpochId]:
    parse = paths.parse_manifest_name if directory == paths.MANIFESTS else paths.parse_receipt_name
    return sorted(map(parse, storage.list(directory)))


def _identity(storage: CheckpointStorage, name: str) -> str:
    """Return the name under which Kafka knows the query: unique to this checkpoint, the same at every start."""
    job = f"{ensure_name(name, 'the name of the query')}-{secrets.token_hex(4)}"
    ensure_name(job, "the name of the query, with its suffix of nine characters,")
    try:
        records.publish(storage, QueryIdentity(job=job))
    except FileExistsError:
        job = records.decode(QueryIdentity, paths.IDENTITY, storage.read(paths.IDENTITY)).job
    if job.rpartition("-")[0] != name:
        raise ConfigError(
            f"this checkpoint belongs to the query {job.rpartition('-')[0]!r}, not to {name!r}: its transactions "
            "contain that name. Restore the query's name, or use another checkpoint."
        )
    return job
