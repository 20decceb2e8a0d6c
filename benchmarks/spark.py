"""Spark: ``python -m benchmarks.spark``. Both workloads on Spark, ours and its own, and on the embedded engine.

Starts a broker of its own, loads it, and runs each contender until the input is read, with the same cores and batches
of the same size. A batch (epoch) is done when its output is committed and that is written down; figures are taken from
the end of the first batch to the end of the last, so starting Java and Python is not in them.

Rule: the output is read and checked before a figure counts; the table says where an engine guarantees less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from benchmarks.command import Benchmark, attempts, middle, shown, table, tell, where
from benchmarks.contenders import APPS, environment_of
from benchmarks.kafka import BrokerClient
from benchmarks.plots import Row
from benchmarks.processes import usage
from benchmarks.run import own_broker
from benchmarks.trial import WrongOutput
from benchmarks.workloads import Expected, difference, expected, payments
from kafka_eos.coordination.status_file import read_status

CORES = os.cpu_count() or 1
_LOOK_EVERY = 0.1
_LONGEST = 600.0
_ONCE, _AT_LEAST_ONCE = "exactly-once", "at-least-once"
_EACH, _BATCH = "input", "key and batch"


@dataclass(frozen=True)
class Contender:
    """One way to run one workload. ``few``: it is so slow that it gets a shorter input, and smaller batches."""

    workload: str
    name: str
    app: str
    guarantee: str
    output: str = _EACH
    """One output row per this."""
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    few: bool = False

    @property
    def title(self) -> str:
        return f"{self.workload} {self.name}"


OURS = "kafka_eos on Spark"
MERGED = "kafka_eos on Spark, fold(merge=…)"
BUILT_IN = "Structured Streaming, built-in"
OUR_SINK = "Structured Streaming, exactly_once_kafka"
PYTHON = "Structured Streaming, Python state (transformWithState)"
EMBEDDED = "kafka_eos embedded"


def contenders() -> list[Contender]:
    """Of both workloads."""
    spark = ("--engine", "spark", "--master", f"local[{CORES}]")
    found = []
    for workload in ("W1", "W2"):
        output = _EACH if workload == "W1" else _BATCH
        found += [
            Contender(workload, OURS, "ours", _ONCE, options=spark),
            Contender(workload, BUILT_IN, "structured", _AT_LEAST_ONCE, output, {"BENCH_VARIANT": "built-in"}),
            Contender(workload, OUR_SINK, "structured", _ONCE, output, {"BENCH_VARIANT": "exactly-once"}),
            Contender(workload, EMBEDDED, "ours", _ONCE),
        ]
    python = {"BENCH_VARIANT": "row state"}
    return [
        *found,
        Contender("W2", MERGED, "ours", _ONCE, _BATCH, {"BENCH_MERGE": "on"}, spark),
        Contender("W2", PYTHON, "structured", _AT_LEAST_ONCE, environment=python, few=True),
    ]


# ---------------------------------------------------------------- one run


@dataclass(frozen=True, slots=True)
class Done:
    """A batch whose output is out: when (seconds since 1970), and the rows it read and put out."""

    at: float
    read: float
    out: int


@dataclass(frozen=True, slots=True)
class Look:
    """CPU seconds and resident bytes of the process tree at one moment (seconds since 1970).

    ``read``: the epoch that was decided last, and how many rows it read, where the job's status tells.
    """

    at: float
    cpu: float
    memory: int
    read: tuple[int, int] | None = None


@dataclass(frozen=True)
class Input:
    """A loaded topic, and what each workload must make of it."""

    topic: str
    records: int
    batch: int
    wanted: Mapping[str, Expected]


def measure(options: argparse.Namespace, home: Path) -> list[Row]:
    chosen = [c for c in contenders() if _is_chosen(c, options.only)]
    with own_broker(home) as broker:
        cluster = BrokerClient(broker.bootstrap)
        long = _load(cluster, "payments", options.records, options.batch)
        few = _load(cluster, "payments-few", options.few, options.few // 3)
        points = (
            partial(_point, turn, contender, few if contender.few else long, options.interval, cluster, home)
            for turn in range(options.turns)
            for contender in chosen
        )
        return attempts(points)


def _load(cluster: BrokerClient, topic: str, records: int, batch: int) -> Input:
    cluster.create(topic)
    cluster.load(topic, ((account, value) for account, _, value in payments(records)))
    return Input(topic, records, batch, {name: expected(name, payments(records)) for name in ("W1", "W2")})


def _point(turn: int, contender: Contender, given: Input, interval: float, cluster: BrokerClient, home: Path) -> Row:
    output, load = f"out-{time.time_ns()}", os.getloadavg()[0]
    directory = home / output
    directory.mkdir()
    cluster.create(output)
    looks = _run(contender, given, interval, cluster.bootstrap, output, directory)
    wanted = given.wanted[contender.workload]
    if contender.app == "structured":
        done = _told_by_spark(directory)
    else:
        inputs_per_output = given.records / wanted.records if contender.output == _EACH else None
        done = _told_by_history(directory, given.records, inputs_per_output, looks)
    check(contender, wanted, done, cluster.committed(output))
    cluster.delete(output)
    found = figures(done, looks)
    tell(f"turn {turn + 1}: {contender.title}: {found['rate'] / 1000:.1f} k records/s, {found['cpu']:.1f} CPU s/M")
    return {
        "turn": turn,
        "workload": contender.workload,
        "who": contender.name,
        "guarantee": contender.guarantee,
        "output": contender.output,
        "records": given.records,
        "batches": len(done),
        "load": load,
        **found,
    }


def _run(
    contender: Contender, given: Input, interval: float, bootstrap: str, output: str, directory: Path
) -> list[Look]:
    """Run to the end of the input. WrongOutput if it fails or takes too long."""
    size = {
        "KAFKA_EOS_PARALLELISM": str(CORES),
        "BENCH_BATCH": str(given.batch),
        "BENCH_INTERVAL": str(interval),
        "BENCH_CORES": str(CORES),
    }
    environment = environment_of(
        bootstrap, given.topic, output, directory, contender.workload, {**size, **contender.environment}
    )
    app = str(APPS / f"{contender.app}.py")
    ours = (sys.executable, "-m", "kafka_eos", "run", app, "--until-caught-up", *contender.options)
    command = (sys.executable, app) if contender.app == "structured" else ours
    log = directory / "log"
    with log.open("wb") as to:
        process = subprocess.Popen(command, env=environment, stdout=to, stderr=to, cwd=directory)
    try:
        looks = list(_looks(process, directory / "bench"))
    finally:
        process.terminate()
        process.wait()
    if process.returncode:
        tail = log.read_text(errors="replace")[-3000:]
        raise WrongOutput(f"{contender.title} ended with exit code {process.returncode}:\n{tail}")
    return looks


def _looks(process: subprocess.Popen[bytes], job: Path) -> Iterator[Look]:
    until = time.monotonic() + _LONGEST
    while process.poll() is None:
        now, used = time.time(), usage(process.pid)
        yield Look(now, used.cpu, used.memory, _read(job))
        if time.monotonic() > until:
            raise WrongOutput(f"not done after {_LONGEST:.0f} s")
        time.sleep(_LOOK_EVERY)


def _read(job: Path) -> tuple[int, int] | None:
    last = (read_status(job) or {}).get("last")
    decided = last.get("decided") if isinstance(last, dict) else None
    return (decided["epoch"], sum(decided["read"].values())) if decided else None


def _told_by_spark(directory: Path) -> list[Done]:
    lines = (directory / "batches.jsonl").read_text().splitlines()
    return [Done(batch["at"], batch["read"], batch["updated"]) for batch in map(json.loads, lines)]


def _told_by_history(
    directory: Path, inputs: int, inputs_per_output: float | None, looks: Sequence[Look]
) -> list[Done]:
    """Epochs that were committed; one without output counts for nothing.

    Without ``inputs_per_output`` what an epoch read is what the looks saw. One epoch may be too short for a look: it
    read the rest of ``inputs``.
    """
    seen = dict(read for read in (*(look.read for look in looks), _read(directory / "bench")) if read is not None)
    found = []
    unseen = []
    for event in map(json.loads, (directory / "bench" / "history.jsonl").read_text().splitlines()):
        if event["event"] == "restarting":
            raise WrongOutput(f"the job restarted: {event['reason']}")
        if event["event"] != "committed" or not (records := sum(event["records"].values())):
            continue
        at = event["at"] / 1000
        if inputs_per_output is not None:
            found.append(Done(at, records * inputs_per_output, records))
        elif event["epoch"] in seen:
            found.append(Done(at, seen[event["epoch"]], records))
        else:
            unseen.append(event["epoch"])
            found.append(Done(at, inputs - sum(seen.values()), records))
    if len(unseen) > 1:
        raise WrongOutput(f"nobody saw what epochs {unseen} read: they took less than {_LOOK_EVERY} s each")
    return found


def check(contender: Contender, wanted: Expected, done: Sequence[Done], values: Iterable[bytes]) -> None:
    """WrongOutput unless the topic has every row that it must have, and each account's last total.

    Where a batch puts out one row a key, their number depends on the batches: then it must be what those told.
    """
    if contender.output == _BATCH:
        wanted = replace(wanted, records=sum(batch.out for batch in done))
    if wrong := difference(wanted, values):
        raise WrongOutput(f"{contender.title}: {wrong}")


def figures(done: Sequence[Done], looks: Sequence[Look]) -> dict[str, float]:
    """From the end of the first batch to that of the last: input rows a second, CPU seconds a million, peak MB."""
    if len(done) < 2:
        raise WrongOutput("a single batch: too few records to measure a rate")
    first, last = done[0].at, done[-1].at
    rows = sum(batch.read for batch in done[1:])
    return {
        "rate": rows / (last - first),
        "cpu": (_cpu(looks, last) - _cpu(looks, first)) / rows * 1e6,
        "memory": max(look.memory for look in looks) / 1e6,
    }


def _cpu(looks: Sequence[Look], at: float) -> float:
    """CPU seconds at a moment, between the looks around it."""
    after = next((look for look in looks if look.at >= at), looks[-1])
    before = next((look for look in reversed(looks) if look.at <= at), looks[0])
    if after.at <= before.at:
        return after.cpu
    return before.cpu + (after.cpu - before.cpu) * (at - before.at) / (after.at - before.at)


def _is_chosen(contender: Contender, only: str) -> bool:
    parts = [part for part in only.split(",") if part]
    return not parts or any(part in contender.title for part in parts)


# ---------------------------------------------------------------- tables


def tables(rows: Sequence[Row]) -> str:
    headings = (
        "workload, contender", "guarantee", "one output row per", "k records/s", "CPU s/M", "peak MB",
        "records, batches", "load before",
    )  # fmt: skip
    lines = []
    for workload, who in dict.fromkeys((row["workload"], row["who"]) for row in sorted(rows, key=_workload)):
        found = where(rows, workload=workload, who=who)
        lines.append(
            [
                f"{workload} {who}",
                found[0]["guarantee"],
                found[0]["output"],
                shown(middle(found, "rate"), 1, 1e-3),
                shown(middle(found, "cpu"), 1),
                shown(middle(found, "memory")),
                f"{found[0]['records']:,}, {found[0]['batches']}",
                shown(middle(found, "load"), 1),
            ]
        )
    return f"{table(headings, lines)}\n\n{_targets(rows)}"


def _workload(row: Row) -> str:
    return str(row["workload"])


def _targets(rows: Sequence[Row]) -> str:
    """Ours over theirs, in W2."""
    comparisons = (
        ("Python state in Structured Streaming", OURS, PYTHON, "≥ 20"),
        ("built-in aggregation, which emits fewer rows", OURS, BUILT_IN, "≥ 1.3"),
        ("built-in aggregation, both with one row per key and batch", MERGED, BUILT_IN, "≥ 1.3"),
        ("the embedded engine", OURS, EMBEDDED, "≥ 0.85"),
    )
    lines = [
        [f"{ours} ÷ {what}", target, _ratio(rows, ours, theirs, "rate"), _ratio(rows, theirs, ours, "cpu")]
        for what, ours, theirs, target in comparisons
    ]
    return table(("W2", "target", "in rate", "in records per CPU second"), lines)


def _ratio(rows: Sequence[Row], over: str, under: str, of: str) -> str:
    one, other = (middle(where(rows, workload="W2", who=who), of) for who in (over, under))
    return "–" if one is None or other is None else f"{one / other:.1f}"


BENCHMARK = Benchmark(
    "spark",
    "W1 and W2 on Spark and on the embedded engine",
    measure,
    tables,
    (
        ("turns", 1, 1),
        ("records", 1_000_000, 100_000),
        ("few", 240_000, 15_000),
        ("batch", 160_000, 25_000),
        ("interval", 1.0, 0.1),
        ("only", "", ""),
    ),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
