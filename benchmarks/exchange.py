"""What an exchange costs: ``python -m benchmarks.exchange``. Rows that change workers: throughput, CPU, latency.

    hops      two workers, generated input, a map that does nothing: no exchange, rebalance, three of them, key_by
    kafka     W2 of ``benchmarks.run`` (running sums, Kafka to Kafka) with one worker and with two
    timeout   ``buffer_timeout`` from 0 to 100 ms: age of rows behind an exchange, at a low rate and at a high one, and
              the rate that is reached when nothing holds the source back

Ages are those of rows that another worker read: from the moment a row was due at the source, whether or not the job
kept up, to the operator behind the exchange. From there to the committed output it takes a checkpoint interval; that is
another matter.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.command import Benchmark, attempts, middle, shown, table, tell, where
from benchmarks.contenders import Contender, contenders
from benchmarks.jobs import measure
from benchmarks.kafka import BrokerClient
from benchmarks.plots import Row
from benchmarks.run import own_broker
from benchmarks.trial import run
from benchmarks.workloads import expected, payments

HOPS = (
    ("1 worker, no exchange", 1, "none"),
    ("2 workers, no exchange", 2, "none"),
    ("2 workers, rebalance", 2, "rebalance"),
    ("2 workers, rebalance three times", 2, "three"),
    ("2 workers, reduce after key_by(local=True)", 2, "local"),
    ("2 workers, reduce after key_by", 2, "key_by"),
)
TIMEOUTS = (0, 1, 5, 10, 50, 100)
QUICK_TIMEOUTS = (0, 5, 100)
_KEPT_UP = 0.97
"""A job that passes on less than this of what is due has a growing backlog: its ages say nothing."""


def measure_all(options: argparse.Namespace, home: Path) -> list[Row]:
    rates = {"low": options.low_rate, "high": options.high_rate}
    points: list[Callable[[], Row]] = []
    for turn in range(options.turns):
        points += [partial(_hop, options, home, turn, *hop) for hop in HOPS]
    for timeout in QUICK_TIMEOUTS if options.quick else TIMEOUTS:
        points += [partial(_full, options, home, timeout)]
        points += [partial(_timed, options, home, timeout, name, rate) for name, rate in rates.items()]
    return attempts(points) + ([] if options.no_kafka else _kafka(options, home))


def _hop(options: argparse.Namespace, home: Path, turn: int, what: str, workers: int, hops: str) -> Row:
    settings = {"parallelism": workers, "BENCH_HOPS": hops}
    window = measure("hops", home, settings, seconds=options.seconds, warm_up=options.warm_up)
    tell(f"turn {turn + 1}: {what}: {window.rate_out / 1000:.0f} k rows/s")
    figures = {"rate": window.rate_out, "cpu": window.cpu, "memory": window.memory, "load": window.load}
    return {"part": "hops", "what": what, **figures}


def _full(options: argparse.Namespace, home: Path, timeout: int) -> Row:
    settings = {"parallelism": 2, "BENCH_HOPS": "rebalance", "buffer_timeout": f"{timeout}ms"}
    window = measure("hops", home, settings, seconds=options.seconds, warm_up=options.warm_up)
    tell(f"buffer_timeout {timeout} ms, full speed: {window.rate_out / 1000:.0f} k rows/s")
    figures = {"rate": window.rate_out, "cpu": window.cpu, "load": window.load}
    return {"part": "timeout", "timeout_ms": timeout, "load_name": "full", **figures}


def _timed(options: argparse.Namespace, home: Path, timeout: int, name: str, rate: int) -> Row:
    settings = {"parallelism": 2, "BENCH_HOPS": "rebalance", "BENCH_RATE": rate, "buffer_timeout": f"{timeout}ms"}
    window = measure("hops", home, settings, seconds=options.seconds, warm_up=options.warm_up)
    kept_up = window.rate_out >= _KEPT_UP * rate
    ages = {f"p{share}_ms": _ms(window.quantile(share / 100)) if kept_up else None for share in (50, 99)}
    tell(f"buffer_timeout {timeout} ms, {rate:,} rows/s: {ages if kept_up else 'not sustained'}")
    figures = {"rate": window.rate_out, "due": rate, "cpu": window.cpu, "load": window.load}
    return {"part": "timeout", "timeout_ms": timeout, "load_name": name, **ages, **figures}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _kafka(options: argparse.Namespace, home: Path) -> list[Row]:
    """W2, one worker and two in turns; the first turn warms up and is not counted."""
    ours = next(each for each in contenders(False) if each.title == "W2 kafka_eos")
    with own_broker(home) as broker:
        cluster = BrokerClient(broker.bootstrap)
        cluster.create("payments")
        cluster.load("payments", ((account, value) for account, _, value in payments(options.records)))
        wanted = expected("W2", payments(options.records))

        def point(workers: int) -> Row:
            what = f"W2 over Kafka, {workers} worker{'s' if workers > 1 else ''}"
            contender = Contender("W2", what, ours.command, {"KAFKA_EOS_PARALLELISM": str(workers)})
            figures = run(contender, "payments", options.records, wanted, broker, home)
            tell(f"{what}: {figures.rate / 1000:.0f} k records/s")
            seen = {"rate": figures.rate, "cpu": figures.cpu, "memory": figures.memory}
            return {"part": "kafka", "what": what, **seen, "load": figures.load_before}

        in_turns = [partial(point, workers) for _ in range(options.turns + 1) for workers in (1, 2)]
        attempts(in_turns[:2])
        return attempts(in_turns[2:])


def tables(rows: Sequence[Row]) -> str:
    through = [row for row in rows if row["part"] in ("hops", "kafka")]
    first = table(
        ("rows through", "k rows/s", "CPU s/M", "MB", "load before"),
        [
            [
                what,
                shown(middle(found, "rate"), 0, 1e-3),
                shown(middle(found, "cpu"), 2),
                shown(middle(found, "memory")),
                shown(middle(found, "load"), 1),
            ]
            for what in dict.fromkeys(row["what"] for row in through)
            for found in [where(through, what=what)]
        ],
    )
    timed = where(rows, part="timeout")
    return f"{first}\n\n{_curve(timed)}"


def _curve(timed: Sequence[Row]) -> str:
    rates = {row["load_name"]: row["due"] for row in timed if "due" in row}
    headings = (
        "buffer_timeout",
        *(f"{rate:,} rows/s: ms p50 / p99" for rate in rates.values()),
        *(f"{rate:,} rows/s: CPU s/M" for rate in rates.values()),
        "full speed: k rows/s",
        "full speed: CPU s/M",
        "load before",
    )
    lines = []
    for timeout in dict.fromkeys(row["timeout_ms"] for row in timed):
        at = where(timed, timeout_ms=timeout)
        of = {name: where(at, load_name=name) for name in ("low", "high", "full")}
        ages = [f"{shown(middle(of[n], 'p50_ms'), 1)} / {shown(middle(of[n], 'p99_ms'), 1)}" for n in rates]
        lines.append(
            [
                f"{timeout} ms",
                *ages,
                *(shown(middle(of[name], "cpu"), 1) for name in rates),
                shown(middle(of["full"], "rate"), 0, 1e-3),
                shown(middle(of["full"], "cpu"), 2),
                shown(middle(at, "load"), 1),
            ]
        )
    return table(headings, lines) + "\n\nA dash instead of an age: the job did not keep up with that rate."


BENCHMARK = Benchmark(
    "exchange",
    "What an exchange costs, and what buffer_timeout does",
    measure_all,
    tables,
    (
        ("turns", 3, 1),
        ("seconds", 3.0, 1.0),
        ("warm-up", 1.0, 0.5),
        ("records", 600_000, 100_000),
        ("low-rate", 1000, 1000),
        ("high-rate", 50_000, 20_000),
    ),
    (("no-kafka", "leave out what needs a broker"),),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
