"""Completing a decided epoch: ``python -m benchmarks.completing``. How long its output is visible in part.

An epoch of many workers is as many prepared transactions. They are decided, and then the job has died: the measured
step is the first phase of the next recovery, which probes all and commits all, once with the engine's number of
requests at a time and once with one after the other, in turn. A reader of committed records notes when it sees the
first record of the epoch and the last; each transaction holds one.

A broker on the same machine answers in less time than Python needs to ask, so all is measured again with a broker that
is far: each request to a coordinator waits some milliseconds before it is sent.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from msgspec import structs

from benchmarks.kafka import PARTITIONS, BrokerClient
from benchmarks.run import own_broker
from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.connectors.kafka import KafkaSink
from kafka_eos.connectors.kafka.client.log_bridge import SPOKEN
from kafka_eos.connectors.kafka.rpc.connection import BrokerConnection
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.epochs import MAX_CONCURRENT
from kafka_eos.coordination.job_history import History
from kafka_eos.core.ids import EpochId
from kafka_eos.core.records import Batch
from kafka_eos.plan import Plan
from kafka_eos.runtime.epoch_reports import EpochContents
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.testing import ListSource
from kafka_eos.testing.list_source import ListOrigin

_TOPIC = "completed"
_PATIENCE = 60.0
_GLANCE = 0.002


@dataclasses.dataclass(frozen=True, slots=True)
class Completion:
    """Milliseconds: until the epoch to go on from is known, and between its first and its last visible record."""

    phase: float
    half_visible: float


class Reader:
    """Reads committed records on a thread of its own, and notes when each batch of them came."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                **SPOKEN,
                "group.id": "completing",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 5,
            }
        )
        self._consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(PARTITIONS)])
        self.seen: list[float] = []
        """The moment of each record, by the monotonic clock."""
        self._ends = 0
        """How often a partition was read to its end."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._done.is_set():
            found = self._consumer.consume(1000, _GLANCE)
            records = sum(message.error() is None for message in found)
            self.seen += [time.monotonic()] * records
            self._ends += len(found) - records

    def until_it_reads(self) -> None:
        """Wait until it has asked for every partition, in vain."""
        _until(lambda: self._ends >= PARTITIONS, "the reader does not read")

    def until(self, records: int) -> None:
        _until(lambda: len(self.seen) >= records, "not all records are visible")

    def close(self) -> None:
        self._done.set()
        self._thread.join()
        self._consumer.close()


def _until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{otherwise} after {_PATIENCE:.0f} s")
        time.sleep(_GLANCE)


class Job:
    """One job in a directory of its own, as many times as it is started."""

    def __init__(self, name: str, bootstrap: str, home: Path) -> None:
        pipeline = Pipeline(name, bootstrap_servers=bootstrap)
        pipeline.source(ListSource([]), name="in").sink(KafkaSink(f"{_TOPIC}-{name}", value=bytes), name="out")
        self.plan: Plan = pipeline.plan()
        self.topic = f"{_TOPIC}-{name}"
        self._settings = {"bootstrap_servers": bootstrap, "checkpoint_interval": 1.0, "parallelism": 1}
        self._storage = LocalStorage(home / name)

    def coordinator(self, at_once: int = MAX_CONCURRENT) -> Coordinator:
        """What a start of the job begins with."""
        patience, history = Retrier(threading.Event(), print), History(self._storage, print)
        coordinator = Coordinator(self.plan, self._storage, history, patience, self._settings, 2)
        coordinator.epochs._committer = structs.replace(coordinator.epochs._committer, at_once=at_once)
        return coordinator

    def decide(self, committables: int) -> None:
        """Prepare so many transactions, and decide their epoch."""
        coordinator = self.coordinator()
        resumed = coordinator.recovery.restore()
        epoch = coordinator.ownership.next_epoch()
        context = JobContext(self.plan.name, resumed.term, self._settings, resumed.identity)
        with ThreadPoolExecutor(MAX_CONCURRENT) as pool:
            made = list(pool.map(lambda n: self._prepared(context, n, committables, epoch), range(committables)))
        coordinator.epochs.decide(epoch, EpochContents(resumed.positions, (), tuple(made), parallelism=committables))

    def _prepared(self, context: JobContext, subtask: int, of: int, epoch: EpochId) -> Committable:
        writer = self.plan.sinks[0].sink.writer(TaskContext(context, subtask, of, "out", first_epoch=epoch.epoch))
        value = f"record of subtask {subtask}".encode()
        writer.write(Batch([value], range(1), ListOrigin("in", "list", 0, subtask, [value])))
        (committable,) = writer.seal(epoch)()
        return committable


def _decide_and_die(name: str, bootstrap: str, home: Path, committables: int) -> None:
    Job(name, bootstrap, home).decide(committables)
    os.kill(os.getpid(), signal.SIGKILL)


def measure(name: str, cluster: BrokerClient, home: Path, committables: int, at_once: int, far: float) -> Completion:
    """Let a job die that has decided an epoch of so many transactions; complete it, so many requests at a time.

    ``far``: milliseconds to the broker.
    """
    job = Job(name, cluster.bootstrap, home)
    cluster.create(job.topic)
    given = (name, cluster.bootstrap, home, committables)
    dying = multiprocessing.get_context("spawn").Process(target=_decide_and_die, args=given)
    dying.start()
    dying.join()
    if dying.exitcode != -signal.SIGKILL:
        raise RuntimeError(f"the job could not decide its epoch: it ended with {dying.exitcode}")
    with ExitStack() as closing:
        reader = Reader(cluster.bootstrap, job.topic)
        closing.callback(reader.close)
        coordinator = job.coordinator(at_once)
        closing.callback(coordinator.close)
        reader.until_it_reads()
        began = time.monotonic()
        with _far(far):
            coordinator.recovery.complete()
        phase = time.monotonic() - began
        reader.until(committables)
        return Completion(phase * 1000, (reader.seen[-1] - reader.seen[0]) * 1000)


@contextmanager
def _far(milliseconds: float) -> Iterator[None]:
    """Inside, each request of ours to the broker waits so long before it is sent."""
    near = BrokerConnection.send

    def far(self: BrokerConnection, *request: Any) -> Any:
        time.sleep(milliseconds / 1000)
        return near(self, *request)

    BrokerConnection.send = far  # type: ignore[method-assign]
    try:
        yield
    finally:
        BrokerConnection.send = near  # type: ignore[method-assign]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; progress goes to stderr."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.completing", description=__doc__)
    parser.add_argument("--committables", type=int, default=128, help="of the epoch (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, help="counted turns of each (default: %(default)s)")
    parser.add_argument("--far", type=float, default=5.0, help="ms to the broker that is far (default: %(default)s)")
    options = parser.parse_args(arguments)
    print(table(completions(options.committables, options.pairs, (0.0, options.far))))
    return 0


Found = dict[tuple[float, int], list[Completion]]
"""By milliseconds to the broker, and requests at a time. What has one place in two lists was measured in turn."""


def completions(committables: int, pairs: int, distances: Sequence[float]) -> Found:
    """On a broker of its own. The first turn is not counted."""
    found: Found = {(distance, at_once): [] for distance in distances for at_once in (1, MAX_CONCURRENT)}
    with tempfile.TemporaryDirectory(prefix="kafka-eos-bench-") as home, own_broker(Path(home)) as broker:
        cluster = BrokerClient(broker.bootstrap)
        for turn in range(pairs + 1):
            for number, ((distance, at_once), kept) in enumerate(found.items()):
                load, name = os.getloadavg()[0], f"job-{turn}-{number}"
                completion = measure(name, cluster, Path(home), committables, at_once, distance)
                _tell(turn, distance, at_once, completion, load)
                if turn:
                    kept.append(completion)
    return found


def _tell(turn: int, distance: float, at_once: int, completion: Completion, load: float) -> None:
    print(
        f"turn {turn}: {distance:g} ms away, {at_once} at a time: {completion.phase:.0f} ms, visible in part for "
        f"{completion.half_visible:.0f}, load before {load:.1f}",
        file=sys.stderr,
    )


def table(found: Found) -> str:
    """Markdown: medians and worst, and under both of a pair the median of their ratios."""
    lines = [
        "| broker | requests at a time | first phase ms, median | worst | visible in part ms, median | worst |",
        "|---|---|---|---|---|---|",
    ]
    for distance in dict.fromkeys(distance for distance, _ in found):
        where = f"{distance:g} ms away" if distance else "on this machine"
        one, many = found[distance, 1], found[distance, MAX_CONCURRENT]
        for at_once, kept in ((1, one), (MAX_CONCURRENT, many)):
            phases, parts = [each.phase for each in kept], [each.half_visible for each in kept]
            cells = (statistics.median(phases), max(phases), statistics.median(parts), max(parts))
            lines.append(f"| {where} | {at_once} | " + " | ".join(f"{cell:.0f}" for cell in cells) + " |")
        pairs = list(zip(one, many, strict=True))
        phase = statistics.median(a.phase / b.phase for a, b in pairs)
        part = statistics.median(a.half_visible / max(b.half_visible, 1.0) for a, b in pairs)
        lines.append(f"| {where} | 1 / {MAX_CONCURRENT}, pair by pair | {phase:.1f} | – | {part:.1f} | – |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
