"""One query by one contender: start it, watch its group read the input, check the output, tell the figures.

Rate and CPU are taken from the first committed offset that was seen to the last change of offsets or output, so
starting Java and Python is not in them. Watching costs two small requests to the broker ten times a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kafka import BrokerClient, GroupProgress
from benchmarks.nexmark.expected import Row
from benchmarks.processes import usage
from benchmarks.streams import STREAMS, kafka_streams
from benchmarks.trial import WrongOutput
from kafka_eos.devtools.broker import Broker

HERE = Path(__file__).parent
OURS, THEIRS = "kafka_eos", f"Kafka Streams {STREAMS}"
_WINDOW_BY_THE_CLOCK = 10.0
"""Seconds: that of q12."""
_COMMIT_EVERY = "0.2"
"""Seconds between checkpoints; Nexmark.java has the same. A quick query would read all of its input within a second."""
_LOOK_EVERY = 0.1
_QUIET = 5.0
"""Seconds without a change after which a contender that does not end by itself is done."""
_STUCK = 120.0
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Contender:
    """``ends``: by itself, when it has read everything."""

    name: str
    command: Sequence[str]
    ends: bool

    @classmethod
    def ours(cls) -> Contender:
        app = str(HERE / "app.py")
        return cls(OURS, (sys.executable, "-m", "kafka_eos", "run", app, "--until-caught-up"), ends=True)

    @classmethod
    def theirs(cls) -> Contender:
        return cls(THEIRS, kafka_streams(HERE / "Nexmark.java"), ends=False)


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one moment: records read and committed, what is visible of the output, CPU, memory."""

    at: float
    read: int
    visible: int
    cpu: float
    broker_cpu: float
    memory: int

    @property
    def progress(self) -> tuple[int, int]:
        return self.read, self.visible


class Trial:
    """The topics of these ``kinds`` are read by the query, and have so many ``records``."""

    def __init__(
        self, contender: Contender, query: str, prefix: str, kinds: Sequence[str], records: int, broker: Broker
    ) -> None:
        self._contender, self._query, self._prefix, self._records = contender, query, prefix, records
        self._topics = [f"{prefix}{kind}" for kind in kinds]
        self._broker, self._cluster = broker, BrokerClient(broker.bootstrap)
        self._job = f"nexmark-{query}-{time.time_ns()}"
        self._output = f"{self._job}-{query}"

    def run(self, home: Path) -> Mapping[str, float]:
        """Returns the figures; ``rows`` has what came out. WrongOutput if it does not come to an end."""
        directory = home / self._job
        directory.mkdir()
        self._cluster.create(self._output)
        load = os.getloadavg()[0]
        process = self._start(directory)
        progress = GroupProgress(self._broker.bootstrap, self._job, self._topics)
        try:
            looks = self._watch(process, progress, directory)
        finally:
            progress.close()
            process.terminate()
            process.wait()
        if self._query == "q12":
            self._close_windows(directory)
        return {"load": load, **figures(looks, self._records)}

    def rows(self) -> list[Row]:
        """Of the output, which is gone then."""
        found = [json.loads(value) for value in self._cluster.committed(self._output)]
        self._cluster.delete(self._output)
        return found if self._contender.ends else newest(self._query, found)

    def _start(self, directory: Path) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(_ROOT),
            "KAFKA_EOS_BOOTSTRAP_SERVERS": self._broker.bootstrap,
            "KAFKA_EOS_PARALLELISM": "1",  # as Kafka Streams has one thread
            "KAFKA_EOS_CHECKPOINT_DIR": str(directory),
            "KAFKA_EOS_CHECKPOINT_INTERVAL": _COMMIT_EVERY,
            "NEXMARK_JOB": self._job,
            "NEXMARK_QUERIES": self._query,
            "NEXMARK_INPUTS": self._prefix,
            "NEXMARK_OUTPUTS": f"{self._job}-",
            "BENCH_BOOTSTRAP": self._broker.bootstrap,
            "BENCH_DIRECTORY": str(directory),
        }
        with (directory / "log").open("ab") as log:
            return subprocess.Popen(self._contender.command, env=environment, stdout=log, stderr=log, cwd=directory)

    def _watch(self, process: subprocess.Popen[bytes], progress: GroupProgress, directory: Path) -> list[Look]:
        """Look until the process has ended, or everything is read and nothing changes any more."""
        looks: list[Look] = []
        changed = time.monotonic()
        while True:
            ended = process.poll()
            look = self._look(process.pid, progress)
            if looks and look.progress != looks[-1].progress:
                changed = look.at
            looks.append(look)
            quiet = look.at - changed
            if ended or quiet > _STUCK:
                tail = (directory / "log").read_text(errors="replace")[-3000:]
                raise WrongOutput(
                    f"{self._query} by {self._contender.name} ended with {ended}, or stood still:\n{tail}"
                )
            if quiet > _QUIET and (ended == 0 if self._contender.ends else look.read >= self._records):
                return looks
            time.sleep(_LOOK_EVERY)

    def _look(self, pid: int, progress: GroupProgress) -> Look:
        mine, theirs = usage(pid), usage(self._broker.pid)
        return Look(
            time.monotonic(), progress.records(), self._cluster.visible(self._output), mine.cpu, theirs.cpu, mine.memory
        )

    def _close_windows(self, directory: Path) -> None:
        """A window of q12 that is open at the end has its result at the next start, when the clock has passed it."""
        time.sleep(_WINDOW_BY_THE_CLOCK)
        if code := self._start(directory).wait(_STUCK):
            raise WrongOutput(f"q12 could not be started again: exit code {code}")


def newest(query: str, found: Sequence[Row]) -> list[Row]:
    """The rows of Kafka Streams, which puts out again what it knows of a window when that has changed."""
    match query:
        case "q5":
            return [hot for most in {row["start"]: row["auctions"] for row in found}.values() for hot in most]
        case "q7":
            return [bid for best in {row["start"]: row["bids"] for row in found}.values() for bid in best]
        case "q8":
            return list({(row["id"], row["start"]): row for row in found}.values())
        case _:
            return list(found)


def figures(looks: Sequence[Look], records: int) -> Mapping[str, float]:
    """Input records a second, CPU seconds for a million of them, of the broker too; peak MB."""
    first = next((look for look in looks if look.read), looks[-1])
    last = next(look for look in looks if look.progress == looks[-1].progress)
    if last.read < records or first.read >= records or last.at <= first.at:
        raise WrongOutput(f"{first.read} records were read at the first look, {last.read} of {records} at the last")
    millions = (records - first.read) / 1e6
    # At the very last look the process may be gone, and its CPU time with it.
    cpu = max(look.cpu for look in looks if look.at <= last.at)
    return {
        "rate": millions * 1e6 / (last.at - first.at),
        "cpu": (cpu - first.cpu) / millions,
        "broker_cpu": (last.broker_cpu - first.broker_cpu) / millions,
        "memory": max(look.memory for look in looks) / 1e6,
    }
