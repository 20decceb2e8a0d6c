"""Recovery: ``python -m benchmarks.recovery``. How long until new output is committed after a worker's kill -9.

A running sum over a million keys is brought up to date; then, while new records keep coming, the worker process is
killed. The clock stops when the broker
has committed an epoch with output of the new worker. The
parts come from the job's own history, in milliseconds of one clock.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from benchmarks.contenders import APPS, environment_of
from benchmarks.kafka import BrokerClient
from benchmarks.run import own_broker
from benchmarks.workloads import payments
from kafka_eos.connectors.kafka.client.log_bridge import SPOKEN

INPUT, OUTPUT = "payments", "totals"
_PATIENCE = 300.0
PARTS = ("detect", "start Python, recover, restore", "first epoch to its decision", "commit")


@dataclass(frozen=True, slots=True)
class Recovery:
    """Milliseconds: of each of ``PARTS`` in order, and in all."""

    parts: tuple[float, ...]
    total: float


class Job:
    """The running sum as a process with its own checkpoints."""

    def __init__(self, bootstrap: str, home: Path, log: Path | None = None, *options: str, **settings: str) -> None:
        """``log``: by default ``log`` in ``home``; ``settings``: by their variables. In a process group of its own."""
        self._history = home / "bench" / "history.jsonl"
        reset = {"KAFKA_EOS_RESTART_BACKOFF_RESET": "0"}  # each kill is answered as a first one
        # one worker: the one that is killed has all of the state
        environment = environment_of(bootstrap, INPUT, OUTPUT, home, "W2", reset | settings)
        command = [sys.executable, "-m", "kafka_eos", "run", str(APPS / "ours.py")]
        with (log or home / "log").open("wb") as out:
            self._process = subprocess.Popen(
                [*command, *options], env=environment, stdout=out, stderr=out, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def events(self, name: str) -> list[dict[str, Any]]:
        if not self._history.exists():
            return []
        events = [json.loads(line) for line in self._history.read_text().splitlines(keepends=True) if line[-1] == "\n"]
        return [event for event in events if event["event"] == name]

    def kill_worker(self) -> float:
        """Returns the moment, in milliseconds since the Unix epoch."""
        worker = int(self.events("running")[-1]["workers"][0])
        now = time.time() * 1000
        os.kill(worker, signal.SIGKILL)
        return now

    def first_output(self, term: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Wait for the first committed epoch of a term that has output: when it was decided, and committed."""

        def committed() -> list[dict[str, Any]]:
            return [e for e in self.events("committed") if e["term"] == term and any(e["records"].values())]

        until(lambda: bool(committed()))
        found = committed()[0]
        return next(event for event in self.events("decided") if event["epoch"] == found["epoch"]), found

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def measure(job: Job) -> Recovery:
    """Kill the worker once, and wait until an epoch with output of its successor is committed."""
    restarts, runs = len(job.events("restarting")), len(job.events("running"))
    killed = job.kill_worker()
    until(lambda: len(job.events("running")) > runs)
    first = job.first_output(job.events("running")[-1]["term"])
    events = (job.events("restarting")[restarts], job.events("running")[-1], *first)
    marks = [killed, *(event["at"] for event in events)]
    return Recovery(tuple(later - earlier for earlier, later in pairwise(marks)), marks[-1] - killed)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing happened for {_PATIENCE:.0f} s")
        time.sleep(0.005)


@contextmanager
def new_records(bootstrap: str, rate: int, keys: int) -> Iterator[None]:
    """Some records a second for as long as the block runs, from a thread of its own."""
    done = threading.Event()
    records = [(account, value) for account, _, value in payments(rate, keys)]

    def feed() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, **SPOKEN, "linger.ms": 5})
        while not done.wait(0.05):
            for account, value in records[: rate // 20]:
                producer.produce(INPUT, value, account)
            producer.poll(0)
        producer.flush(30)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def everything(keys: int) -> Iterator[tuple[str, bytes]]:
    """One record for each of ``keys`` accounts."""
    for number in range(keys):
        yield (
            f"account-{number:07d}",
            (f'{{"id":{number},"account":"account-{number:07d}","amount":1,"note":"opening balance"}}'.encode()),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; progress goes to stderr."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recovery", description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys of state (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=5, help="kills, one after another (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=2000, help="new records a second (default: %(default)s)")
    options = parser.parse_args(arguments)
    print(table(recoveries(options.keys, options.kills, options.rate)))
    return 0


def recoveries(keys: int, kills: int, rate: int) -> list[Recovery]:
    """Kill a job with so many keys of state again and again, on a broker of its own; ``rate``: new records a second."""
    with tempfile.TemporaryDirectory(prefix="kafka-eos-bench-") as home, own_broker(Path(home)) as broker:
        cluster = BrokerClient(broker.bootstrap)
        for topic in (INPUT, OUTPUT):
            cluster.create(topic)
        cluster.load(INPUT, everything(keys))
        job = Job(broker.bootstrap, Path(home))
        try:
            until(lambda: cluster.visible(OUTPUT) >= keys)
            with new_records(broker.bootstrap, rate, keys):
                return [_kill(job) for _ in range(kills)]
        finally:
            job.stop()


def _kill(job: Job) -> Recovery:
    """One more kill, of a job that is at work: an epoch was committed since the last one."""
    before = len(job.events("committed"))
    until(lambda: len(job.events("committed")) > before + 1)
    load = os.getloadavg()[0]
    found = measure(job)
    print(f"{found.total:.0f} ms, load before {load:.1f}", file=sys.stderr)
    return found


def table(found: Sequence[Recovery]) -> str:
    """Markdown: each part and the whole, in milliseconds."""
    columns = [*zip(*(recovery.parts for recovery in found), strict=True), [recovery.total for recovery in found]]
    rows = [
        f"| {name} | {statistics.median(times):.0f} | {max(times):.0f} |"
        for name, times in zip((*PARTS, "kill → new output committed"), columns, strict=True)
    ]
    return "\n".join(["| ms | median | worst |", "|---|---|---|", *rows])


if __name__ == "__main__":
    sys.exit(main())
