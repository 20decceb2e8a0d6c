"""One run of one contender: start it, watch its output become visible, check the output, tell the figures.

Rate and CPU are taken between the first and the last commit that a read_committed reader saw, so starting Python
is not in them. Windows are the exception: their outputs do not follow the input in step, because a contender that reads
its partitions in long turns closes its first window late. Their interval begins with the process.
Watching costs one small request to the broker each 50 ms.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import Contender, environment_of
from benchmarks.kafka import BrokerClient
from benchmarks.processes import usage
from benchmarks.workloads import Expected, difference
from kafka_eos.devtools.broker import Broker

_LOOK_EVERY = 0.05
_QUIET = 8.0
"""Seconds without new output after which it is final, if it is complete or its process has ended."""
_STUCK = 120.0


class WrongOutput(Exception):
    """The run is worth nothing: its output is not what it must be, or it did not finish."""


@dataclass(frozen=True, slots=True)
class Figures:
    """``rate``: input records a second. CPU: seconds for a million input records. Times in ms, memory in MB.

    ``own_cpu``: of the process that was started alone, without those that it started.
    """

    rate: float
    cpu: float
    own_cpu: float
    broker_cpu: float
    memory: float
    load_before: float
    checkpoint_p50: float | None = None
    checkpoint_max: float | None = None
    blocked_p50: float | None = None
    blocked_max: float | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one moment."""

    at: float
    visible: int
    cpu: float
    own_cpu: float
    broker_cpu: float
    memory: int


def run(contender: Contender, source: str, records: int, wanted: Expected, broker: Broker, home: Path) -> Figures:
    """Run once, with an output topic and a directory of its own. WrongOutput if the output is not right."""
    cluster, output = BrokerClient(broker.bootstrap), f"out-{time.time_ns()}"
    directory = home / output
    directory.mkdir()
    cluster.create(output)
    load = os.getloadavg()[0]
    environment = environment_of(broker.bootstrap, source, output, directory, contender.workload, contender.environment)
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(contender.command, env=environment, stdout=log, stderr=log, cwd=directory)
    try:
        looks = _watch(process, cluster, output, wanted.records, broker.pid)
    finally:
        process.terminate()
        process.wait()
    if wrong := difference(wanted, cluster.committed(output)):
        raise WrongOutput(f"{contender.title}: {wrong}; log:\n{(directory / 'log').read_text()[-3000:]}")
    cluster.delete(output)
    begin = looks[0] if wanted.windows else next(look for look in looks if look.visible > 0)
    millions = records * (wanted.records - begin.visible) / wanted.records / 1e6
    return _figures(looks, begin, millions, load, _checkpoints(directory))


def _watch(
    process: subprocess.Popen[bytes], cluster: BrokerClient, output: str, complete: int, broker: int
) -> list[Look]:
    """Look until nothing more becomes visible: the process has ended, or its output is complete.

    Also of one that has ended: the coordinator says that a transaction is committed before all partitions show it.
    """
    looks: list[Look] = []
    changed = time.monotonic()
    while True:
        ended = process.poll() is not None
        mine, theirs = usage(process.pid), usage(broker)
        now = time.monotonic()
        looks.append(Look(now, cluster.visible(output), mine.cpu, mine.own, theirs.cpu, mine.memory))
        if len(looks) > 1 and looks[-1].visible > looks[-2].visible:
            changed = now
        quiet = now - changed
        if (ended or looks[-1].visible >= complete) and quiet > _QUIET:
            return looks
        if quiet > _STUCK:
            raise WrongOutput(f"no output for {_STUCK:.0f} s")
        time.sleep(_LOOK_EVERY)


def _figures(
    looks: list[Look], begin: Look, millions: float, load: float, checkpoints: list[dict[str, float]]
) -> Figures:
    """Return the figures of the interval from ``begin`` to the last output, in which so many inputs were processed."""
    most = looks[-1].visible
    last = next(look for look in looks if look.visible == most)
    if last.at == begin.at:
        raise WrongOutput("everything became visible at once: too few records to measure a rate")
    # At the very last look the process may be gone, and its CPU time with it.
    cpu = max(look.cpu for look in looks if look.at <= last.at)
    own = max(look.own_cpu for look in looks if look.at <= last.at)
    seconds = [checkpoint["seconds"] * 1000 for checkpoint in checkpoints]
    blocked = [checkpoint["blocked_ms"] for checkpoint in checkpoints]
    return Figures(
        rate=millions * 1e6 / (last.at - begin.at),
        cpu=(cpu - begin.cpu) / millions,
        own_cpu=(own - begin.own_cpu) / millions,
        broker_cpu=(last.broker_cpu - begin.broker_cpu) / millions,
        memory=max(look.memory for look in looks) / 1e6,
        load_before=load,
        checkpoint_p50=statistics.median(seconds) if seconds else None,
        checkpoint_max=max(seconds, default=None),
        blocked_p50=statistics.median(blocked) if blocked else None,
        blocked_max=max(blocked, default=None),
    )


def _checkpoints(directory: Path) -> list[dict[str, float]]:
    """What the job's history tells of its checkpoints; nothing for other contenders."""
    history = directory / "bench" / "history.jsonl"
    if not history.exists():
        return []
    events = [json.loads(line) for line in history.read_text().splitlines()]
    return [event for event in events if event["event"] == "decided"]
