"""What a soak run loads its job with, and the exact account of what came of it.

    Payments    the job of the chaos tests: running totals by account, to Kafka and to files
    Customers   the example of the state machine: an alert for each step that is not allowed, and for no other

Rule: a record follows from its number and the seed, so what is due is known without a second engine.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from kafka_eos.savepoints import Snapshot
from tests.chaos import machines
from tests.chaos.harness import Job, create_topic
from tests.chaos.running import make_job

ACCOUNTS = 1000
STATE_MACHINE = Path(__file__).parents[2] / "docs" / "examples" / "state_machine.py"


class Load(Protocol):
    """One kind of job under load."""

    def job(self, bootstrap: str, directory: Path) -> Job:
        """A job with its topics, which are empty."""

    def record(self, number: int) -> tuple[str, bytes]:
        """Key and value of an input; numbers come in order, each once."""

    def exact(self, job: Job) -> int:
        """How many inputs there are. AssertionError if an output is not what they make."""


class Payments:
    def job(self, bootstrap: str, directory: Path) -> Job:
        return make_job(bootstrap, directory, 0, "totals.py", TEST_PAUSE=0)

    def record(self, number: int) -> tuple[str, bytes]:
        account = f"a{number * 7919 % ACCOUNTS}"
        amount = 0 if number % 10 == 7 else number % 13 + 1
        return account, json.dumps({"id": number, "account": account, "amount": amount}).encode()

    def exact(self, job: Job) -> int:
        return exact(job)


class Customers:
    def __init__(self, seed: int = 0) -> None:
        self._made = machines.Customers(seed)
        self.record = self._made.event

    def job(self, bootstrap: str, directory: Path) -> Job:
        return machine_job(bootstrap, directory)

    def exact(self, job: Job) -> int:
        events = list(committed(job, job.input))
        found = machines.wrong(events, committed(job, job.output))
        assert not found, f"{len(found)} are wrong, e.g. {found[:5]}"
        assert any(machines.planted(event["id"]) for event in events), "nothing was planted: no proof"
        known = sum(1 for _ in Snapshot.open(job.checkpoints / job.name).read("rules", "state"))
        assert known == self._made.there, f"{known} customers have a state, and {self._made.there} are there"
        return len(events)


def machine_job(bootstrap: str, directory: Path) -> Job:
    """The file of the docs as it is, with its topics and its name: so it needs a broker of its own."""
    for topic in ("events", "alerts"):
        create_topic(bootstrap, topic, 3)
    job = Job("state-machine", bootstrap, "events", "alerts", directory, STATE_MACHINE)
    job.environment = {
        "COLUMNS": "5000",
        "KAFKA_EOS_CHECKPOINT_DIR": str(job.checkpoints),
        "KAFKA_EOS_CHECKPOINT_INTERVAL": "100ms",
        "KAFKA_EOS_BATCH_SIZE": "100",
        "KAFKA_EOS_RESTART_BACKOFF_INITIAL": "50ms",
    }
    return job


# ---------------------------------------------------------------- the account of payments

Accounts = dict[str, "Account"]


class Account:
    """All rows of one account in order, as a count and a digest: hours of them would not fit into memory."""

    def __init__(self) -> None:
        self.rows = self.total = 0
        self._digest = hashlib.sha256()

    def add(self, total: int, number: int) -> None:
        self.rows, self.total = self.rows + 1, total
        self._digest.update(f"{total} {number}\n".encode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Account) and (self.rows, self._digest.digest()) == (other.rows, other._digest.digest())

    __hash__ = None  # type: ignore[assignment]


def exact(job: Job) -> int:
    """Compare both outputs with the fold of the input, per account and in order. Returns the number of payments."""
    wanted: Accounts = {}
    payments = 0
    for payment in committed(job, job.input):
        payments += 1
        if payment["amount"] > 0:
            account = wanted.setdefault(payment["account"], Account())
            account.add(account.total + payment["amount"], payment["id"])
    lines = (line for part in sorted(job.files.glob("part-*")) for line in part.read_bytes().splitlines())
    for where, rows in (("Kafka", committed(job, job.output)), ("files", map(json.loads, lines))):
        found = _accounts(rows)
        wrong = [a for a in wanted.keys() | found.keys() if wanted.get(a) != found.get(a)]
        assert not wrong, f"{where}: {len(wrong)} of {len(wanted)} accounts are wrong, e.g. {sorted(wrong)[:5]}"
    return payments


def _accounts(rows: Iterable[dict[str, Any]]) -> Accounts:
    found: Accounts = {}
    for row in rows:
        found.setdefault(row["account"], Account()).add(row["total"], row["id"])
    return found


def committed(job: Job, topic: str) -> Iterator[dict[str, Any]]:
    """Every committed record of a topic; each partition in its order."""
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": "soak-check",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    open_ends = set(consumer.list_topics(topic, 10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in open_ends])
    heard = time.monotonic()
    while open_ends:
        assert time.monotonic() - heard < 60, f"{topic} could not be read to its end"
        for message in consumer.consume(5000, 0.2):
            heard = time.monotonic()
            if message.error() is None:
                yield json.loads(message.value())
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                open_ends.discard(message.partition())
    consumer.close()
