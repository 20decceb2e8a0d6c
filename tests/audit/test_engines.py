"""What engines really wrote, judged as it is and with one thing spoilt in each sink: the engines leave what it takes.

Every corruption that there is, of outputs that a test made, is in ``test_corruptions``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec import structs

from kafka_eos.audit import Check, Verdict
from kafka_eos.core.provenance import HEADER
from tests.audit.job import Job
from tests.audit.job_runs import fed_at, told_by
from tests.chaos.harness import read
from tests.marks import campaign
from tests.producers import in_order
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(600)

PIPELINE = """
import msgspec
from kafka_eos import Pipeline, Ttl
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

class Order(msgspec.Struct):
    user: str
    n: int

class Total(msgspec.Struct):
    user: str
    total: int

def sink(topic):
    return KafkaSink(topic, value=Total, key=lambda total: total.user)

def add(total, order):
    return total + order.n

pipeline = Pipeline("{name}")
users = pipeline.source(KafkaSource("{input}", value=Order), name="orders").key_by(lambda order: order.user)
totals = users.fold(name="total", init=lambda: 0, step=add, emit=Total)
for name, topic in {topics}.items():
    totals.sink(sink(topic), name=name)
totals.sink(FileSink("{files}", value=Total, envelope=True), name="lines")
totals.filter(lambda total: total.total > 0).sink(sink("{filtered}"), name="filtered")
users.fold(name="brief", init=lambda: 0, step=add, emit=Total, ttl=Ttl(0.001)).sink(sink("{hasty}"), name="hasty")
"""
ONE_EPOCH = ["--checkpoint-interval", "10s"]
"""All that is there is one epoch."""
OF = {"ann": [0, 0], "bob": [1, 1], "both": [0, 1]}
"""The partitions of each user's orders, in each of two rounds."""


class Seen(NamedTuple):
    """An output."""

    partition: int
    key: str
    value: bytes
    headers: list[tuple[str, bytes]]
    time: int


Outs = list[Seen]


def nth(outs: Outs, key: str, number: int) -> int:
    """Where the ``number``-th output of a key is."""
    return [i for i, each in enumerate(outs) if each.key == key][number - 1]


def changed(outs: Outs, **of: Seen) -> Outs:
    """With others in place of those at ``_<index>``."""
    return [of.get(f"_{i}", each) for i, each in enumerate(outs)]


def as_if_of(epoch_of: Seen, each: Seen) -> Seen:
    """With the term and epoch of another output."""
    said, other = told_by(each.headers), told_by(epoch_of.headers)
    text = str(structs.replace(said, term=other.term, epoch=other.epoch))
    return each._replace(headers=[(HEADER, text.encode())])


def timestamp(outs: Outs) -> Outs:
    i = nth(outs, "bob", 2)
    return changed(outs, **{f"_{i}": outs[i]._replace(time=outs[i].time + 1)})


def epochs(outs: Outs) -> Outs:
    """Those of two outputs, exchanged."""
    a, b = nth(outs, "ann", 2), nth(outs, "bob", 3)
    return changed(outs, **{f"_{a}": as_if_of(outs[b], outs[a]), f"_{b}": as_if_of(outs[a], outs[b])})


def all_but_the_epochs(outs: Outs) -> Outs:
    """Of two outputs of a key, of both rounds, exchanged."""
    a, b = nth(outs, "ann", 2), nth(outs, "ann", 3)
    return changed(outs, **{f"_{a}": as_if_of(outs[a], outs[b]), f"_{b}": as_if_of(outs[b], outs[a])})


def place(outs: Outs) -> Outs:
    """Of all records of a key."""
    return [each._replace(partition=1 - each.partition) if each.key == "ann" else each for each in outs]


def twice(outs: Outs) -> Outs:
    """The provenance of an output."""
    i = nth(outs, "bob", 2)
    return changed(outs, **{f"_{i}": outs[i]._replace(headers=outs[i].headers * 2)})


def letter(outs: Outs) -> Outs:
    """The header of one, on an output that is none."""
    i = nth(outs, "bob", 2)
    more = [("dead_letter.error", b"ValueError"), *outs[i].headers]
    return changed(outs, **{f"_{i}": outs[i]._replace(headers=more)})


SPOILT: Mapping[Callable[[Outs], Outs], dict[Check, int]] = {
    timestamp: {Check.WRONG_VALUE: 1},
    epochs: {Check.WRONG_EPOCH: 2},
    all_but_the_epochs: {Check.WRONG_EPOCH: 2, Check.REORDERED: 1},
    place: {Check.MISPLACED: 4},
    twice: {Check.WRONG_VALUE: 1},
    letter: {Check.WRONG_VALUE: 1},
}
LINES = {Check.MISPLACED: 2, Check.REORDERED: 1}


def exchange_lines(directory: Path) -> None:
    """Of a key, between the files of both rounds."""
    files = {path: path.read_bytes().splitlines(keepends=True) for path in sorted(directory.glob("part-*"))}
    last, first = [
        [(path, i) for path, lines in files.items() for i, line in enumerate(lines) if b'"ann"' in line][n]
        for n in (1, 2)
    ]
    assert last[0] != first[0]
    line, other = files[last[0]][last[1]], files[first[0]][first[1]]
    files[last[0]][last[1]], files[first[0]][first[1]] = other, line
    for path, lines in files.items():
        path.chmod(0o600)
        path.write_bytes(b"".join(lines))


def feed(job: Job, source: str, start: int) -> None:
    """A round: orders at ``start`` and behind in each partition."""
    producer, offsets = in_order(job.bootstrap), [start, start]
    for user, partitions in OF.items():
        for p in partitions:
            order = b'{"user":"%b","n":%d}' % (user.encode(), 1 + offsets[p])
            producer.produce(source, order, partition=p, timestamp=fed_at(p, offsets[p]))
            offsets[p] += 1
    assert producer.flush(PATIENCE) == 0


def found(verdict: Verdict) -> dict[str, dict[Check, int]]:
    """By sink."""
    sinks: dict[str, dict[Check, int]] = {}
    for finding in verdict.findings:
        for sink, count in finding.by_sink.items():
            sinks.setdefault(sink, {})[finding.check] = count
    return sinks


@pytest.mark.campaign
@pytest.mark.parametrize("engine", ["embedded", campaign("spark")])
def test_what_an_engine_wrote_passes_and_each_corruption_of_it_is_named(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, tmp_path: Path, engine: str
) -> None:
    topics = {spoil.__name__: topic(partitions=2) for spoil in SPOILT}
    names = {"input": topic(partitions=2), "filtered": topic(partitions=2), "hasty": topic(partitions=2)}
    job = new_job(PIPELINE, **names, topics=topics, files=str(tmp_path / "lines"))  # type: ignore[arg-type]
    for start in (0, 3):
        feed(job, names["input"], start)
        job.run("--engine", engine, *ONE_EPOCH, workers=2)

    verdict = job.audit(spark)

    assert (True, {}) == (verdict.conclusion.is_clean, found(verdict)), verdict.headline
    loose = "values of 4 outputs of sink filtered not compared: no record shows in which order the input of their keys"
    assert loose in verdict.headline
    assert "values of 12 outputs of sink hasty not compared: they depend on when state" in verdict.headline

    copies = {spoil.__name__: topic(partitions=2) for spoil in SPOILT}
    producer = in_order(job.bootstrap)
    for spoil in SPOILT:
        name = spoil.__name__
        outs = [
            Seen(m.partition(), m.key().decode(), m.value(), m.headers(), m.timestamp()[1])
            for m in read(job.bootstrap, topics[name])
        ]
        for each in spoil(outs):
            producer.produce(
                copies[name], each.value, each.key, each.partition, headers=each.headers, timestamp=each.time
            )
    assert producer.flush(PATIENCE) == 0
    spoilt = tmp_path / "spoilt"
    shutil.copytree(tmp_path / "lines", spoilt)
    exchange_lines(spoilt)
    app = job.app.with_name("spoilt.py")
    app.write_text(PIPELINE.format(name=job.name, **names, topics=copies, files=spoilt))

    verdict = replace(job, app=app, pipeline=None).audit(spark)

    assert {spoil.__name__: finds for spoil, finds in SPOILT.items()} | {"lines": LINES} == found(verdict)
