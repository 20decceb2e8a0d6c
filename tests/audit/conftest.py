"""A job made by hand, and the scenario that most tests plant their fault in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from kafka_eos.core.ids import SplitId
from tests.audit.job import Job, Out, epoch, out, placed
from tests.audit.topic_pair import ORDERS, Pair
from tests.contract import s3_server

TOTALS = """
from pydantic import BaseModel
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

class Order(BaseModel):
    user: str
    amount: int

class Total(BaseModel):
    user: str
    total: int

pipeline = Pipeline("{name}")
(
    pipeline.source(KafkaSource("{input}", value=Order), name="orders")
    .filter(lambda order: order.amount > 0)
    .key_by(lambda order: order.user)
    .fold(name="total", init=lambda: 0, step=lambda total, order: total + order.amount,
          emit=lambda user, total: Total(user=user, total=total))
    .sink(KafkaSink("{output}", value=Total, key=lambda total: total.user,
                    config={{"partitioner": "consistent_random"}}), name="totals")
)
"""


@pytest.fixture
def new_job(bootstrap: str, tmp_path: Path) -> Callable[..., Job]:
    """``new_job(source, input=..., output=...)``: a job whose app file is ``source`` with the names filled in."""

    def make(source: str, **topics: str) -> Job:
        name = f"audited-{uuid4().hex[:8]}"
        app = tmp_path / f"{name.replace('-', '_')}.py"
        app.write_text(source.format(name=name, **topics))
        return Job(bootstrap, tmp_path, app, name, topics)

    return make


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[str]:
    """The address of an object store, which processes of the test can reach."""
    with s3_server.reachable(tmp_path / "s3") as port:
        yield s3_server.address(port, "audited")


@dataclass
class Totals:
    """Running totals of four users in two input partitions: the input is written, ``outs`` are the right outputs.

    Epochs 1 (term 1) and 2 (term 2, after a kill) are committed. A test changes ``outs``, then calls ``finish``.
    """

    job: Job
    input: str
    output: str
    outs: list[Out]
    ends: dict[SplitId, int]

    def out(self, key: str, number: int) -> int:
        """Index in ``outs`` of the ``number``-th output of ``key``."""
        return [i for i, o in enumerate(self.outs) if o.key == key][number - 1]

    def finish(self, *, history: bool = True, counts: tuple[int, int] = (8, 8)) -> None:
        """Write the outputs that are there now, and the job directory; ``counts`` by epoch."""
        self.job.write(self.output, self.outs)
        self.trace(history=history, counts=counts)

    def trace(self, *, history: bool = True, counts: tuple[int, int] = (8, 8)) -> None:
        epochs = (epoch(1, 0), epoch(1, 1), epoch(2, 2))
        told = {each: {"totals": n} for each, n in zip(epochs[1:], counts, strict=True)}
        half = {epoch(1, 1): {"orders": dict.fromkeys(self.ends, 4)}}
        self.job.commits(
            *epochs,
            positions={"orders": self.ends},
            counts=told,
            history=history,
            earlier=half,
        )


@pytest.fixture
def totals(new_job: Callable[..., Job], topic: Callable[..., str]) -> Totals:
    source, target = topic(partitions=2), topic(partitions=2)
    job = new_job(TOTALS, input=source, output=target)
    users = ("ann", "bob", "cid", "dee")
    inputs, outs, sums, updates = [], [], dict.fromkeys(users, 0), dict.fromkeys(users, 0)
    offsets = [0, 0]
    for i in range(20):
        user = users[i % 4]
        partition = i % 2
        amount = 0 if i >= 16 else i + 1
        inputs.append((partition, user, json.dumps({"user": user, "amount": amount}).encode()))
        if amount:
            sums[user] += amount
            updates[user] += 1
            value = json.dumps({"user": user, "total": sums[user]}, separators=(",", ":")).encode()
            written_by = (1, 1) if i < 8 else (2, 2)
            outs.append(out((partition, offsets[partition]), user, value, update=updates[user], topic=source,
                            epoch=written_by, target=placed(user)))  # fmt: skip
        offsets[partition] += 1
    job.feed(source, inputs)
    ends = {SplitId(f"{source}/{p}"): end for p, end in enumerate(offsets)}
    return Totals(job, source, target, outs, ends)


@pytest.fixture
def pair(bootstrap: str, topic: Callable[..., str], tmp_path: Path) -> Pair:
    source, target = topic(partitions=2), topic(partitions=2)
    made = Pair(Job(bootstrap, tmp_path, tmp_path / "none.py", f"pair-{uuid4().hex[:8]}"), source, target, [])
    made.feed(range(ORDERS))
    made.outs = made.made(range(ORDERS // 2)) + made.made(range(ORDERS // 2, ORDERS), (1, 2))
    return made
