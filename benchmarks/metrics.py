"""What it costs to be watched: ``python -m benchmarks.metrics``. W1 and W2 over Kafka, with and without an address.

Pairs in turns: a run without ``http``, and one whose ``/metrics`` is read once a second and whose dashboard is open.
Rule: a cost is the middle of what pairs differ by, not the difference of two middles: what else runs on the machine
changes from pair to pair. Whoever watches asks the supervisor alone, and workers tell it their figures in any case. So
the difference of its own CPU time, as a part of all CPU time, is the cost without what the machine does to the workers.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from benchmarks.command import Benchmark, attempts, middle, shown, table, tell, where
from benchmarks.contenders import Contender, contenders
from benchmarks.kafka import BrokerClient
from benchmarks.plots import Row
from benchmarks.run import own_broker
from benchmarks.trial import run
from benchmarks.workloads import expected, payments
from kafka_eos.devtools.broker import Broker

WORKLOADS = ("W1", "W2")
_SCRAPE_EVERY = 1.0


def measure_all(options: argparse.Namespace, home: Path) -> list[Row]:
    """The first pair of each workload warms up and is not counted."""
    with own_broker(home) as broker:
        cluster = BrokerClient(broker.bootstrap)
        cluster.create("payments")
        cluster.load("payments", ((account, value) for account, _, value in payments(options.records)))
        points = [
            partial(_point, options, home, broker, workload, pair, watched)
            for pair in range(options.pairs + 1)
            for workload in WORKLOADS
            for watched in ((False, True) if pair % 2 else (True, False))
        ]
        return [row for row in attempts(points) if row["pair"]]


def _point(options: argparse.Namespace, home: Path, broker: Broker, workload: str, pair: int, watched: bool) -> Row:
    ours = next(each for each in contenders(False) if each.title == f"{workload} kafka_eos")
    wanted = expected(workload, payments(options.records))
    with _scraped(watched) as environment:
        contender = Contender(workload, ours.name, ours.command, {**ours.environment, **environment})
        figures = run(contender, "payments", options.records, wanted, broker, home)
    tell(f"pair {pair}: {workload}{' watched' if watched else ''}: {figures.rate / 1000:.0f} k records/s")
    seen = {"rate": figures.rate, "cpu": figures.cpu, "own": figures.own_cpu, "load": figures.load_before}
    return {"workload": workload, "pair": pair, "watched": watched, **seen}


@contextmanager
def _scraped(watched: bool) -> Iterator[dict[str, str]]:
    """Environment of a job that is read within the block, if it is to be watched."""
    if not watched:
        yield {}
        return
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(_SCRAPE_EVERY):
            with suppress(OSError), urlopen(f"http://{address}/metrics", timeout=5) as answer:  # not yet, or no more
                answer.read()

    def look() -> None:
        while not over.wait(_SCRAPE_EVERY):
            with (
                suppress(OSError, HTTPException),
                urlopen(f"http://{address}/api/jobs/bench/events", timeout=5) as told,
            ):
                while not over.is_set() and told.readline():
                    pass

    threads = [threading.Thread(target=watch, daemon=True) for watch in (scrape, look)]
    for thread in threads:
        thread.start()
    try:
        yield {"KAFKA_EOS_HTTP": address}
    finally:
        over.set()
        for thread in threads:
            thread.join()


def tables(rows: Sequence[Row]) -> str:
    lines = []
    for workload in WORKLOADS:
        of = where(rows, workload=workload)
        without, watched = where(of, watched=False), where(of, watched=True)
        lines.append(
            [
                workload,
                *(shown(middle(each, "rate"), 0, 1e-3) for each in (without, watched)),
                *(shown(middle(each, "cpu"), 2) for each in (without, watched)),
                *(shown(middle(each, "own"), 3) for each in (without, watched)),
                told([-(on["rate"] / off["rate"] - 1) for off, on in pairs(of)]),
                told([on["cpu"] / off["cpu"] - 1 for off, on in pairs(of)]),
                told([(on["own"] - off["own"]) / off["cpu"] for off, on in pairs(of)]),
                shown(middle(of, "load"), 1),
            ]
        )
    headings = (
        *("", "k records/s", "watched", "CPU s/M", "watched", "supervisor's CPU s/M", "watched"),
        *("slower", "more CPU", "more CPU of the supervisor, of all CPU", "load before"),
    )
    return table(headings, lines)


def pairs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """A run that nobody watched, and the watched one beside it."""
    by_pair = {(row["pair"], row["watched"]): row for row in rows}
    return [
        (row, by_pair[pair, True])
        for (pair, watched), row in by_pair.items()
        if not watched and (pair, True) in by_pair
    ]


def told(parts: Sequence[float]) -> str:
    """The middle of what pairs differ by, and the range."""
    if not parts:
        return "–"
    return f"{statistics.median(parts):+.1%} ({min(parts):+.1%} … {max(parts):+.1%})"


BENCHMARK = Benchmark(
    "metrics",
    "What it costs to be watched",
    measure_all,
    tables,
    (("pairs", 5, 1), ("records", 2_000_000, 100_000)),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
