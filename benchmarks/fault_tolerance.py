"""Four designs of fault tolerance: ``python -m benchmarks.fault_tolerance``. One job, one broker, one kill -9 after
another.

    acknowledgements   each record is written, acknowledged, and its offset committed (as Storm's at-least-once)
    transactions       a Kafka transaction for each record, or for each 10, 100, 1,000
    micro-batches      Structured Streaming with ``exactly_once_kafka``
    barriers           this engine, with checkpoints each 50 ms to 10 s

The job is W1 (JSON → keep 90 % → add a field → JSON), without state, so that no design has to be given some. Each
design runs twice. First it has a backlog: that gives the rate and the CPU time. Then it has a slow stream, which gives
the time from ``produce`` to a read_committed reader; then a faster one, in which all of its processes get SIGKILL four
times and are started again at once. The reader's ids tell what was doubled and lost, and its gaps how long there was no
output.

Rule: every design gets the same records at the same times, except that no stream is faster than half of what the design
can do. A design that commits less than three times in the time of the backlog has no rate.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

import msgspec
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from benchmarks.command import Benchmark, attempts, middle, shown, table, tell, where
from benchmarks.contenders import APPS, environment_of
from benchmarks.kafka import PARTITIONS, BrokerClient, GroupProgress
from benchmarks.plots import Row
from benchmarks.processes import usage
from benchmarks.run import own_broker
from benchmarks.trial import WrongOutput
from benchmarks.workloads import DROPPED, Output, expected, payments
from kafka_eos.connectors.kafka.client.log_bridge import SPOKEN

_BACKLOG = "backlog"
_KEPT = 0.9
_WINDOW = 10.0
"""Seconds of the backlog that are measured at most."""
_SLOW, _FAST = 50.0, 2000.0
"""Records a second."""
_KILLS = 4
_PATIENCE = 120.0


@dataclass(frozen=True)
class Design:
    """One contender. ``interval``: seconds between its commits, if they have a schedule."""

    family: str
    name: str
    app: str
    environment: Mapping[str, str]
    interval: float = 0.0


def designs() -> list[Design]:
    found = [Design("acknowledgements", "each record", "loops", {"BENCH_DESIGN": "acknowledged", "BENCH_SIZE": "1"})]
    for size in (1, 10, 100, 1000):
        environment = {"BENCH_DESIGN": "transactions", "BENCH_SIZE": str(size)}
        found.append(
            Design("transactions", f"each {size:,} records" if size > 1 else "each record", "loops", environment)
        )
    for seconds in (0.0, 1.0):
        name = f"each {seconds:g} s" if seconds else "one after the other"
        environment = {"BENCH_VARIANT": "exactly-once", "BENCH_TRIGGER": f"{seconds:g} seconds"}
        found.append(Design("micro-batches", name, "structured", environment, seconds))
    for seconds in (0.05, 0.2, 1.0, 10.0):
        name = f"each {seconds * 1000:g} ms" if seconds < 1 else f"each {seconds:g} s"
        found.append(Design("barriers", name, "ours", {"BENCH_INTERVAL": str(seconds)}, seconds))
    return found


# ---------------------------------------------------------------- the job


class Job:
    """The processes of a design, which are started and killed as a group."""

    def __init__(self, design: Design, bootstrap: str, source: str, output: str, home: Path) -> None:
        self._home = home / output
        self._home.mkdir()
        app = str(APPS / f"{design.app}.py")
        runs = ["-m", "kafka_eos", "run", app] if design.app == "ours" else [app]
        self._command = [sys.executable, *runs]
        spark = {"BENCH_CORES": "2", "BENCH_BATCH": "100000"}
        self._environment = environment_of(bootstrap, source, output, self._home, "W1", spark | {**design.environment})
        self.start()

    def start(self) -> None:
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, cwd=self._home, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        with suppress(ProcessLookupError):  # it has ended by itself, which expect_alive tells
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def expect_alive(self) -> None:
        if self._process.poll() is not None:
            raise WrongOutput(f"the job ended: {(self._home / 'log').read_text()[-2000:]}")

    @property
    def cpu(self) -> float:
        return usage(self._process.pid).cpu


# ---------------------------------------------------------------- what a reader sees


@dataclass
class Sightings:
    """What a read_committed reader has seen. Times are of one monotonic clock, in seconds."""

    first: dict[int, float] = field(default_factory=dict)
    """By id, when the record was seen for the first time."""
    number: int = 0
    moments: list[float] = field(default_factory=list)
    """When new records came."""

    @property
    def doubled(self) -> int:
        return self.number - len(self.first)


@contextmanager
def reading(bootstrap: str, topic: str) -> Iterator[Sightings]:
    """Read a topic as long as the block runs."""
    seen, done, decode = Sightings(), threading.Event(), msgspec.json.Decoder(Output).decode

    def read() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                **SPOKEN,
                "group.id": "benchmark-reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
                "fetch.queue.backoff.ms": 5,
            }
        )
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
        while not done.is_set():
            values = [m.value() or b"" for m in consumer.consume(10_000, 0.01) if m.error() is None]
            now = time.monotonic()
            for value in values:
                seen.first.setdefault(decode(value).id, now)
            if values:
                seen.number += len(values)
                seen.moments.append(now)
        consumer.close()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


class Feed:
    """Writes numbered payments, and remembers when it wrote those that the job keeps."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, **SPOKEN, "linger.ms": 0})
        self._topic = topic
        self._payments = enumerate(payments(10_000_000))
        self.written: dict[int, float] = {}

    def run(self, rate: float, seconds: float, until: Callable[[], bool] = lambda: True) -> None:
        """Write so many records a second, for so long and until something has come true."""
        began, sent = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds or not until():
            if passed > _PATIENCE + seconds:
                raise WrongOutput("the job has not come back")
            due = int(passed * rate) - sent
            for number, (account, amount, value) in islice(self._payments, due):
                if amount % 10 != DROPPED:
                    self.written[number] = time.monotonic()
                self._producer.produce(self._topic, value, account)
            sent += due
            self._producer.poll(0.002)
        if self._producer.flush(30):
            raise WrongOutput("the broker has not acknowledged the input")


def _until(condition: Callable[[], object], job: Job, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        job.expect_alive()
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


# ---------------------------------------------------------------- measurements


def measure(options: argparse.Namespace, home: Path) -> list[Row]:
    with own_broker(home) as broker:
        cluster = BrokerClient(broker.bootstrap)
        cluster.create(_BACKLOG)
        GroupProgress(broker.bootstrap, "benchmark", [_BACKLOG]).records()  # waits until groups can be served
        cluster.load(_BACKLOG, ((account, value) for account, _, value in payments(options.records)))
        wanted = expected("W1", payments(options.records)).records
        chosen = [d for d in designs() if options.only in f"{d.family} {d.name}"]
        return attempts(
            partial(_measure, wanted, cluster, home, turn, design) for turn in range(options.turns) for design in chosen
        )


def _measure(wanted: int, cluster: BrokerClient, home: Path, turn: int, design: Design) -> Row:
    row: Row = {"turn": turn, "family": design.family, "design": design.name}
    if 3 * design.interval <= _WINDOW:
        row |= _backlog(wanted, cluster, home, design)
    row |= _streams(cluster, home, design, row.get("rate", math.inf))
    tell(f"{design.family}, {design.name}: {row}")
    return row


def _backlog(wanted: int, cluster: BrokerClient, home: Path, design: Design) -> Row:
    """Return the rate in input records per second and the CPU time, after the first of the ``wanted`` outputs."""
    output = f"out-{time.time_ns()}"
    cluster.create(output)
    job = Job(design, cluster.bootstrap, _BACKLOG, output, home)
    try:
        with reading(cluster.bootstrap, output) as seen:
            if not _until(lambda: seen.number, job, _PATIENCE):
                raise WrongOutput("no output")
            began, cpu = (time.monotonic(), seen.number), job.cpu
            _until(lambda: len(seen.first) >= wanted, job, _WINDOW)
            cpu, last = job.cpu - cpu, seen.moments[-1]
            inputs = (seen.number - began[1]) / _KEPT
    finally:
        job.kill()
        cluster.delete(output)
    return {"rate": inputs / (last - began[0]), "cpu": 1e6 * cpu / inputs}


def _streams(cluster: BrokerClient, home: Path, design: Design, rate: float) -> Row:
    """Return latencies under a slow stream, and what kills do under a faster one."""
    source, output = f"in-{time.time_ns()}", f"out-{time.time_ns()}"
    for topic in (source, output):
        cluster.create(topic)
    feed = Feed(cluster.bootstrap, source)
    job = Job(design, cluster.bootstrap, source, output, home)

    try:
        with reading(cluster.bootstrap, output) as seen:
            slow_rate = min(_SLOW, rate / 2)
            feed.run(slow_rate, 1.0)
            if not _until(lambda: seen.number, job, _PATIENCE):
                raise WrongOutput("no output")
            warm = max(feed.written)
            feed.run(slow_rate, max(10.0, 2.5 * design.interval))
            _until(lambda: feed.written.keys() <= seen.first.keys(), job, _PATIENCE)
            slow = [1000 * (seen.first[i] - at) for i, at in feed.written.items() if i > warm and i in seen.first]
            gaps = [_kill(job, feed, seen, min(_FAST, rate / 2), 2.0 + design.interval) for _ in range(_KILLS)]
            _until(lambda: feed.written.keys() <= seen.first.keys(), job, _PATIENCE)
            time.sleep(1.0)
    finally:
        job.kill()
        for topic in (source, output):
            cluster.delete(topic)
    cuts = statistics.quantiles(slow, n=100)
    return {
        "p50_ms": cuts[49],
        "p99_ms": cuts[98],
        "doubled": seen.doubled,
        "lost": len(feed.written.keys() - seen.first.keys()),
        "written": len(feed.written),
        "outage": statistics.median(gaps),
    }


def _kill(job: Job, feed: Feed, seen: Sightings, rate: float, seconds: float) -> float:
    """Kill a job that has had so many seconds of input; return how long there was no output, in seconds."""
    feed.run(rate, seconds)
    at, newest = time.monotonic(), max(feed.written)
    job.kill()
    job.start()

    def is_back() -> bool:
        job.expect_alive()
        return seen.moments[-1] > at and next(reversed(seen.first)) > newest

    feed.run(rate, 0.0, is_back)
    moments = list(seen.moments)
    return max(later - earlier for earlier, later in pairwise(moments) if later > at)


# ---------------------------------------------------------------- the table


def tables(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys((row["family"], row["design"]) for row in rows))
    lines = []
    for family, design in names:
        own = where(rows, family=family, design=design)
        lines.append(
            [
                family,
                design,
                shown(middle(own, "rate")),
                shown(middle(own, "cpu"), 1),
                f"{shown(middle(own, 'p50_ms'))} / {shown(middle(own, 'p99_ms'))}",
                shown(middle(own, "outage"), 1),
                f"{sum(row['doubled'] for row in own):,} / {sum(row['lost'] for row in own):,}",
                f"{sum(row['written'] for row in own):,}",
            ]
        )
    headings = (
        "design", "commits", "records/s", "CPU s/M", "latency ms p50 / p99", "outage, s",
        "doubled / lost", "of records",
    )  # fmt: skip
    return table(headings, lines)


BENCHMARK = Benchmark(
    "fault_tolerance",
    "Throughput and latency of four designs of fault tolerance",
    measure,
    tables,
    (("turns", 1, 1), ("records", 4_000_000, 50_000), ("only", "", "")),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
