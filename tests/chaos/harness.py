"""Runs a real job as real processes under faults, and looks at what it left behind.

Rule: a fault that did not fire proves nothing. ``Job.run`` returns only after every armed failpoint has acted: a job
that ends before that gets more input and starts again, and if that does not help ``Invalid`` is raised.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_eos.storage import object_names as paths
from kafka_eos.storage.rolling_log import LocalLog
from tests.chaos.positions import ends
from tests.producers import in_order
from tests.waiting import PATIENCE
from tests.wire import ongoing

APPS = Path(__file__).parent / "apps"
ACCOUNTS = 20
KEPT = (".committed.", ".aborted.", ".incarnation.", ".retired.")
"""What a FileSink leaves on purpose: how its latest staged files ended, and registrations of incarnations."""
FIRST_TOP_UP = 500
"""Payments that are added to an input that was drained too soon, at first: the next time they are twice as many."""
TOP_UP_ID = 1_000_000
"""Where the ids of such payments begin: above those that tests write themselves."""
MOST_STARTS = 30


class Invalid(AssertionError):
    """The run proves nothing: a planned fault did not happen."""


@dataclass
class Job:
    """One job with its own topics, checkpoint directory and output directory."""

    name: str
    bootstrap: str
    input: str
    output: str
    directory: Path
    app: Path = APPS / "totals.py"
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> Path:
        return self.directory / "files"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def log(self) -> Path:
        return self.directory / "job.log"

    @property
    def fired(self) -> list[str]:
        """Failpoints that acted so far, in order."""
        path = self.directory / "failpoints.log"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    def skip(self, point: str, entries: int) -> None:
        """Let so many entries of the script count as done: whoever has that script passes from now on."""
        with (self.directory / "failpoints.log").open("a") as log:
            log.write(f"{point} skipped\n" * entries)

    def environ(self, failpoints: str = "") -> dict[str, str]:
        return {
            **os.environ,
            "KAFKA_EOS_BOOTSTRAP_SERVERS": self.bootstrap,
            "KAFKA_EOS_PARALLELISM": "1",  # whatever the machine has; a test that is about more says so
            "KAFKA_EOS_RESTART_BACKOFF_RESET": "0",  # kills come faster than in production
            "KAFKA_EOS_FAILPOINTS": failpoints,
            "KAFKA_EOS_FAILPOINT_LOG": str(self.directory / "failpoints.log"),
            "TEST_JOB": self.name,
            "TEST_CHECKPOINTS": str(self.checkpoints),
            "TEST_INPUT": self.input,
            "TEST_OUTPUT": self.output,
            "TEST_FILES": str(self.files),
            **self.environment,
        }

    def start(self, failpoints: str = "", *options: str) -> subprocess.Popen[bytes]:
        """Start the supervisor; its output goes to ``log``."""
        command = [sys.executable, "-m", "kafka_eos", "run", str(self.app), *options]
        with self.log.open("ab") as log:
            return subprocess.Popen(command, env=self.environ(failpoints), stdout=log, stderr=log)

    def run(self, failpoints: str = "") -> None:
        """Run until the input is drained and every failpoint has acted.

        Starts again whenever the supervisor is killed, and with more input whenever the input was drained too soon.
        """
        before, more = len(self.fired), FIRST_TOP_UP
        for _ in range(MOST_STARTS):
            process = self.start(failpoints, "--until-caught-up")
            try:
                code = process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise AssertionError(f"the job hung; log:\n{self.tail()}") from None
            if code not in (0, -9):
                raise AssertionError(f"the job ended with {code}; log:\n{self.tail()}")
            if code == 0:
                if self._all_fired(failpoints, self.fired[before:]):
                    return
                top_up(self, more)
                more *= 2
        raise Invalid(f"planned {failpoints}, fired {self.fired[before:]}; log:\n{self.tail()}")

    def _all_fired(self, failpoints: str, fired: list[str]) -> bool:
        planned = [entry.split("=")[0].strip() for entry in failpoints.split(";") if entry.strip()]
        if fired != planned[: len(fired)]:
            raise Invalid(f"planned {planned}, fired {fired}; log:\n{self.tail()}")
        return fired == planned

    def tail(self, size: int = 6000) -> str:
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""

    def history(self) -> list[dict[str, Any]]:
        lines = LocalLog(self.checkpoints / self.name, paths.HISTORY).lines()
        return [json.loads(line) for line in lines]


def feed(bootstrap: str, topic: str, ids: range) -> None:
    """Write payments with these ids, spread over partitions by account, every tenth one to be filtered out."""
    producer = in_order(bootstrap)
    for n in ids:
        payment = {"id": n, "account": f"a{n % ACCOUNTS}", "amount": 0 if n % 10 == 7 else n % 13 + 1}
        producer.produce(topic, json.dumps(payment).encode(), key=payment["account"])
    assert producer.flush(PATIENCE) == 0


def top_up(job: Job, payments: int) -> None:
    """Write so many payments more, with ids that nobody else uses."""
    first = TOP_UP_ID + sum(ends(job.bootstrap, job.input).values())
    feed(job.bootstrap, job.input, range(first, first + payments))


def read(bootstrap: str, topic: str, isolation: str = "read_committed", timeout: float = PATIENCE) -> list[Any]:
    """Every message of a topic up to its present end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"check-{os.getpid()}",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the broker says at once that there is no more
            "enable.auto.commit": False,
        }
    )
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    messages, open_ends = [], set(partitions)
    deadline = time.monotonic() + timeout
    while open_ends:
        assert time.monotonic() < deadline, f"{topic} could not be read to its end: {open_ends}"
        for message in consumer.consume(1000, 0.05):
            if message.error() is None:
                messages.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                open_ends.discard(message.partition())
            else:
                raise AssertionError(message.error())
    consumer.close()
    return messages


def expected(messages: list[Any]) -> list[tuple[str, int, int]]:
    """(account, running total, id) for each payment that counts, folded per account in partition order."""
    totals: Counter[str] = Counter()
    out = []
    for message in sorted(messages, key=lambda m: (m.partition(), m.offset())):
        payment = json.loads(message.value())
        if payment["amount"] > 0:
            totals[payment["account"]] += payment["amount"]
            out.append((payment["account"], totals[payment["account"]], payment["id"]))
    return out


def row_of(data: bytes) -> tuple[str, int, int]:
    record = json.loads(data)
    return record["account"], record["total"], record["id"]


def check(job: Job, messages: list[Any] | None = None) -> None:
    """The whole guarantee: both outputs equal the fold of the input, in order per account, and nothing is left over.

    ``messages`` is the input, if the topic does not hold all of it any more.
    """
    found = problems(job, read(job.bootstrap, job.input) if messages is None else messages)
    assert found == [], "; ".join(found)


def problems(job: Job, messages: list[Any]) -> list[str]:
    """All that is wrong with what a job made of ``messages``, one entry a kind."""
    wanted = expected(messages)
    visible = read(job.bootstrap, job.output)
    in_kafka = [row_of(m.value()) for m in sorted(visible, key=lambda m: (m.partition(), m.offset()))]
    in_files = [row_of(line) for part in sorted(job.files.glob("part-*")) for line in part.read_bytes().splitlines()]
    left = {
        "staged files": [p.name for p in job.files.iterdir() if not p.name.startswith(("part-", *KEPT))],
        "open transactions": open_transactions(job),
    }
    return [
        *differences("Kafka", in_kafka, wanted),
        *differences("files", in_files, wanted),
        *(f"{what} left over: {names[:3]}" for what, names in left.items() if names),
    ]


def by_account(rows: list[tuple[str, int, int]]) -> dict[str, list[tuple[int, int]]]:
    grouped: dict[str, list[tuple[int, int]]] = {}
    for account, total, number in rows:
        grouped.setdefault(account, []).append((total, number))
    return grouped


def open_transactions(job: Job) -> list[str]:
    """Transactions of the job that are not ended, as the brokers list them."""
    return sorted(name for name in ongoing(job.bootstrap) if name.startswith(f"{job.name}."))


def aborted(job: Job) -> int:
    """Records that only read_uncommitted sees."""
    return len(read(job.bootstrap, job.output, "read_uncommitted")) - len(read(job.bootstrap, job.output))


def differences(where: str, got: list[tuple[str, int, int]], wanted: list[tuple[str, int, int]]) -> list[str]:
    """Rows doubled, lost or wrong, told apart by the payment's id; their order, if that is all that is amiss."""
    seen, due, right = Counter(n for *_, n in got), Counter(n for *_, n in wanted), set(wanted)
    kinds = {
        "doubled": sorted((seen - due).elements()),
        "lost": sorted((due - seen).elements()),
        "wrong": sorted({row for row in got if row not in right}),
    }
    found = [f"{where}: {len(rows)} {kind}, such as {rows[:5]}" for kind, rows in kinds.items() if rows]
    if not found and by_account(got) != by_account(wanted):
        return [f"{where}: rows of an account are out of order"]
    return found


def create_topic(bootstrap: str, name: str, partitions: int) -> None:
    from confluent_kafka.admin import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, partitions)]).values():
        future.result(PATIENCE)
