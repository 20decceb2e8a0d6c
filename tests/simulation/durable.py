"""What survives every process: the job's records, and a sink with transactions that are visible when committed.

Rule: each method is one atomic step, as a server would do it; whoever holds the object may call it, zombies too.
What was dropped is remembered for the invariants alone.
"""

from __future__ import annotations

import enum
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256

from kafka_eos.abc.committer import CommitPermit, CommitStatus, Probe
from kafka_eos.connectors.kafka.rpc.transaction_status import (
    KafkaCommittable,
    TransactionDescription,
    TransactionStatus,
    derive_status,
    needs_marker,
)
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol import retention
from kafka_eos.protocol.recovery import RecordListing

OUTDATED = 0.1
"""The share of first responses that come from a replaced broker, which knows nothing of the transaction."""
FORGOTTEN = 0.5
"""The share of committed transactions whose id was used again."""
MISLED = 0.3
"""The share of connections that lead to a broker of another cluster."""
LOOKS = 20
"""Connections that a committer makes before it believes that output is on another cluster."""

State = dict[tuple[int, int], list[tuple[tuple[int, int], int]]]
"""(segment, key) -> visits in order, each (row id, how many visits of that row came before)."""


InFlight = tuple[tuple[tuple[int, int], int], ...]
"""Rows with the number of visits behind them, in the order of replay."""


def stored_as(state: State, in_flight: InFlight) -> frozenset[str]:
    """The files of a snapshot, by their content: one for each key of a segment, and one for the rows under way."""
    contents: list[object] = [*state.items(), *([in_flight] if in_flight else [])]
    return frozenset(sha256(repr(content).encode()).hexdigest() for content in contents)


class Refused(Exception):
    """The durable side did not do it: the name is taken, or the transaction is gone."""


class Violation(AssertionError):
    """An invariant of the protocol does not hold."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A decided epoch."""

    id: EpochId
    offsets: dict[int, int]
    state: State
    in_flight: InFlight
    committables: tuple[int, ...]
    files: frozenset[str] = frozenset()
    aligned: bool = False
    """It was to leave nothing under way."""


@dataclass(slots=True)
class Past:
    """All that was ever published, whether it is still stored or not. Of what came twice, the first is what counted."""

    bases: dict[Term, EpochId | None] = field(default_factory=dict)
    manifests: dict[EpochId, Manifest] = field(default_factory=dict)
    receipts: set[EpochId] = field(default_factory=set)
    successions: dict[Term, Term] = field(default_factory=dict)
    """Of each term that a process took to clean up, the term in which it had failed."""
    highest: dict[Term, Epoch] = field(default_factory=dict)
    """The highest number of an epoch that was decided before the term was claimed."""


@dataclass(slots=True)
class Job:
    """Claims, bases, manifests, receipts and files. Nothing is ever overwritten."""

    claims: set[Term] = field(default_factory=set)
    bases: dict[Term, EpochId | None] = field(default_factory=dict)
    manifests: dict[EpochId, Manifest] = field(default_factory=dict)
    receipts: set[EpochId] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    version: int = 0
    """Grows with every change, so that invariants are checked when something has changed."""
    past: Past = field(default_factory=Past)
    """For the invariants: no part of the world."""
    seen: Counter[str] = field(default_factory=Counter)
    """What has happened in this run, for the report: no part of the world."""

    def claim(self) -> Term:
        """Claim a term above all others."""
        term = max(self.claims, default=Term(0)).next()
        self._claim(term)
        return term

    def claim_next(self, mine: Term) -> Term:
        """Claim the term after ``mine``. Raises Refused if another process has claimed it."""
        if mine.next() in self.claims:
            raise Refused(f"term {mine.next()} is claimed")
        self._claim(mine.next())
        return mine.next()

    def _claim(self, term: Term) -> None:
        self.claims.add(term)
        self.past.highest[term] = max((epoch.epoch for epoch in self.past.manifests), default=Epoch(-1))
        self.version += 1

    def base(self, term: Term, epoch: EpochId | None) -> None:
        if term in self.bases:
            raise Refused(f"term {term} has a base record")
        self.bases[term] = epoch
        self.past.bases.setdefault(term, epoch)
        self.version += 1

    def publish(self, manifest: Manifest) -> None:
        if manifest.id in self.manifests:
            raise Refused(f"manifest {manifest.id} exists")
        if manifest.id.epoch <= self.past.highest[manifest.id.term]:
            raise Violation(f"the number of {manifest.id} was given before its term began")
        self.manifests[manifest.id] = self.past.manifests[manifest.id] = manifest
        self.version += 1

    def receipt(self, epoch: EpochId) -> None:
        self.receipts.add(epoch)
        self.past.receipts.add(epoch)
        self.version += 1

    def upload(self, files: frozenset[str]) -> None:
        """What is stored already is not written again."""
        self.files |= files

    def delete(self, objects: Iterable[retention.Deletion]) -> None:
        for each in objects:
            match each:
                case retention.DeleteManifest(epoch):
                    self.manifests.pop(epoch, None)
                case retention.DeleteReceipt(epoch):
                    self.receipts.discard(epoch)
                case retention.DeleteBase(term):
                    self.bases.pop(term, None)
                case retention.DeleteClaim(term):
                    self.claims.discard(term)
                case retention.DeleteFile(name):
                    self.files.discard(name)
        self.version += 1

    def inventory(self, held: frozenset[str]) -> retention.Inventory:
        """All but which files are stored."""
        named = {epoch: manifest.files for epoch, manifest in self.manifests.items()}
        return retention.Inventory(
            named, frozenset(self.receipts), dict(self.bases), frozenset(self.claims), frozenset(), held
        )

    def facts(self) -> RecordListing:
        return RecordListing(
            frozenset(self.claims), dict(self.bases), frozenset(self.manifests), frozenset(self.receipts)
        )

    def history(self) -> list[EpochId]:
        """The lineage back to the first epoch: the newest base's owner, what it continues, and so on."""
        chain: list[EpochId] = []
        past = self.past
        term = max(past.bases, default=None)
        limit: EpochId | None = None
        while term is not None:
            own = sorted(m for m in past.manifests if m.term == term and (limit is None or m <= limit))
            chain = own + chain
            limit = past.bases[term]
            term = limit.term if limit is not None else None
        return chain


class Transaction(enum.Enum):
    OPEN = "open"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"


_TOLD = {Transaction.PREPARED: "Ongoing"}


@dataclass(slots=True)
class Sink:
    """A log of outputs in the order of their writing; an output is visible once its transaction is committed.

    The brokers describe a transaction as Kafka's do, and the status is derived as in the Kafka committer. ``fate``
    decides which broker responds: sometimes one that was replaced. ``paths`` decides whether a connection leads to this
    cluster.
    """

    fate: random.Random
    paths: random.Random
    seen: Counter[str]
    """The counter of the job, shared with this log."""
    log: list[tuple[int, tuple[int, int], tuple[int, int]]] = field(default_factory=list)
    """(transaction, (key, number of the output of this key), row id)."""
    state: list[Transaction] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)
    version: int = 0

    def has_prepared(self, transaction: int) -> bool:
        """Return whether a transaction is on this cluster, as the Kafka committer does for one of another name."""
        self.seen["output that an attempt knew by another name"] += 1
        for _ in range(LOOKS):
            if self.paths.random() >= MISLED:
                return True
            self.seen["a connection to another cluster"] += 1
        return False

    def begin(self, term: Term) -> int:
        self.state.append(Transaction.OPEN)
        self.terms.append(term)
        return len(self.state) - 1

    def write(self, transaction: int, key: int, number: int, row: tuple[int, int]) -> None:
        """Writes to a transaction that was aborted go nowhere."""
        self.log.append((transaction, (key, number), row))

    def prepare(self, transaction: int) -> None:
        if self.state[transaction] is not Transaction.OPEN:
            raise Refused(f"transaction {transaction} is {self.state[transaction].value}")
        self.state[transaction] = Transaction.PREPARED

    def probe(self, transaction: int) -> Probe:
        """Probe as the Kafka committer does: a transaction counts as unknown only if the brokers are current."""
        status = self._look(transaction, current=False)
        if status is TransactionStatus.UNPROVEN:
            status = self._look(transaction, current=True)
        return Probe(CommitStatus[status.name], f"transaction {transaction}")

    def _look(self, transaction: int, *, current: bool) -> TransactionStatus:
        name, state = str(transaction), self.state[transaction]
        ours = KafkaCommittable(name, transaction, 0, 5, name, "group", "topic", "id", 0, 0, 60_000, 1, "cluster")
        seen: TransactionDescription | None = None
        marker = name if state is Transaction.COMMITTED else None
        if not current and self.fate.random() < OUTDATED:
            self.seen["a probe that a replaced broker answered"] += 1
            marker = None
        elif state is not Transaction.COMMITTED:
            seen = TransactionDescription(_TOLD.get(state, "CompleteAbort"), transaction, 0, 60_000, 0)
        elif self.fate.random() < FORGOTTEN:
            self.seen["a commit that only its marker shows"] += 1
        else:
            seen = TransactionDescription("CompleteCommit", transaction, 1, 60_000, -1)
        return derive_status(ours, seen, marker if needs_marker(ours, seen) else None, 0.0, current)

    def commit(self, permit: CommitPermit, transaction: int) -> None:
        if self.state[transaction] not in (Transaction.PREPARED, Transaction.COMMITTED):
            raise Refused(f"transaction {transaction} of {permit.epoch} is {self.state[transaction].value}")
        self.state[transaction] = Transaction.COMMITTED
        self.version += 1

    def abort_orphans(self, below: Term) -> None:
        """End whatever terms before ``below`` have left open."""
        for number, state in enumerate(self.state):
            if self.terms[number] < below and state in (Transaction.OPEN, Transaction.PREPARED):
                self.state[number] = Transaction.ABORTED

    def expire(self, transaction: int) -> None:
        """The server's timeout ends a prepared transaction by itself."""
        if self.state[transaction] is Transaction.PREPARED:
            self.state[transaction] = Transaction.ABORTED
