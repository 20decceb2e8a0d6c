"""Nexmark's queries on the embedded engine, four of them beside Kafka Streams: ``python -m benchmarks.nexmark``.

Starts a broker of its own, loads the input, and runs one query after the other, in turns; a query that Kafka Streams
runs too is run by both, one right after the other. Rule: what two contenders are compared by is the middle of the
ratios of such pairs, and an output is compared with Spark SQL, row by row, before a figure counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.command import Benchmark, attempts, middle, shown, table, tell, where
from benchmarks.kafka import PARTITIONS, BrokerClient
from benchmarks.nexmark.expected import Expected
from benchmarks.nexmark.generator import KINDS, Generator
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.trial import OURS, THEIRS, Contender, Trial
from benchmarks.plots import Row
from benchmarks.run import own_broker
from benchmarks.trial import WrongOutput
from kafka_eos.devtools.broker import Broker, fetch_jars

BESIDE = ("q1", "q5", "q7", "q8")
"""Run by Kafka Streams, too."""
_READ: Mapping[str, tuple[str, ...]] = {
    "q3": ("persons", "auctions"),
    "q8": ("persons", "auctions"),
    **dict.fromkeys(("q4", "q6", "q9", "q20"), ("auctions", "bids")),
}
"""The topics of each query; of all others: bids."""
_RARE = ("q3", "q8")
"""They read no bids, so they have an input of their own, without bids and ten times as long."""


@dataclass(frozen=True)
class Input:
    """Loaded topics whose names begin with ``prefix``; how many records each has, and what must be made of them."""

    prefix: str
    made: Generator
    records: Mapping[str, int]
    expected: Expected

    @classmethod
    def loaded(cls, prefix: str, made: Generator, cluster: BrokerClient, spark: Any) -> Input:
        found: dict[str, list[tuple[str, bytes]]] = {each: [] for each in KINDS}
        for kind, key, value in made.records():
            found[kind].append((key, value))
        for topic, records in found.items():
            cluster.create(f"{prefix}{topic}")
            cluster.load(f"{prefix}{topic}", records)
        count = {topic: len(records) for topic, records in found.items()}
        return cls(prefix, made, count, Expected(spark.newSession(), cluster.bootstrap, prefix))


def measure(options: argparse.Namespace, home: Path) -> list[Row]:
    chosen = [query for query in QUERIES if not options.only or query in options.only.split(",")]
    with own_broker(home) as broker, _spark(home) as spark:
        cluster = BrokerClient(broker.bootstrap)
        usual = Input.loaded("nexmark-", Generator(options.events), cluster, spark)
        rare = Input.loaded("nexmark-rare-", Generator(10 * options.events, bids=False), cluster, spark)
        points = [
            partial(_point, turn, contender, query, rare if query in _RARE else usual, broker, home)
            for turn in range(options.turns)
            for query in chosen
            for contender in _contenders(query, turn)
        ]
        return attempts(points)


def _contenders(query: str, turn: int) -> list[Contender]:
    """Who is first changes from turn to turn."""
    found = [Contender.ours(), Contender.theirs()] if query in BESIDE else [Contender.ours()]
    return found[::-1] if turn % 2 else found


def _point(turn: int, contender: Contender, query: str, given: Input, broker: Broker, home: Path) -> Row:
    kinds = _READ.get(query, ("bids",))
    records = sum(given.records[kind] for kind in kinds)
    trial = Trial(contender, query, given.prefix, kinds, records, broker)
    found = trial.run(home)
    if wrong := given.expected.difference(query, given.made.closed, trial.rows()):
        raise WrongOutput(f"{contender.name}: {wrong}")
    tell(
        f"turn {turn + 1}: {query} {contender.name}: {found['rate'] / 1000:.1f} k records/s, {found['cpu']:.2f} CPU s/M"
    )
    return {"turn": turn, "query": query, "who": contender.name, "records": records, **found}


@contextmanager
def _spark(home: Path) -> Iterator[Any]:
    """The session that computes what must come out. It has nothing to do while a contender runs."""
    from pyspark.sql import SparkSession

    settings: dict[str, bool | float | int | str | None] = {
        "spark.jars": ",".join(map(str, fetch_jars("spark"))),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.driver.maxResultSize": "2g",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.local.dir": str(home / "spark"),
    }
    session = SparkSession.builder.master("local[2]").appName("nexmark").config(map=settings).getOrCreate()
    yield session
    session.stop()


# ---------------------------------------------------------------- tables


def tables(rows: Sequence[Row]) -> str:
    headings = (
        "query", "contender", "k records read", "k records/s", "CPU s/M", "broker CPU s/M", "peak MB", "load before",
    )  # fmt: skip
    lines = []
    for query in QUERIES:
        for who in (OURS, THEIRS):
            if found := where(rows, query=query, who=who):
                lines.append(
                    [
                        query,
                        who,
                        shown(found[0]["records"], factor=1e-3),
                        shown(middle(found, "rate"), 1, 1e-3),
                        shown(middle(found, "cpu"), 2),
                        shown(middle(found, "broker_cpu"), 2),
                        shown(middle(found, "memory")),
                        shown(middle(found, "load"), 1),
                    ]
                )
    return f"{table(headings, lines)}\n\n{_beside(rows)}"


def _beside(rows: Sequence[Row]) -> str:
    """Pairs of one turn: more than 1 is ahead of Kafka Streams."""
    headings = (f"{OURS} ÷ {THEIRS}, pairs", "records per CPU second", "each pair", "records/s", "each pair")
    lines = []
    for query in BESIDE:
        cpu, rate = ratios(rows, query, "cpu", inverse=True), ratios(rows, query, "rate")
        if rate:
            lines.append([query, _middle(cpu), _each(cpu), _middle(rate), _each(rate)])
    return table(headings, lines)


def ratios(rows: Sequence[Row], query: str, of: str, *, inverse: bool = False) -> list[float]:
    """Ours over theirs in each turn that has both; ``inverse``: theirs over ours."""
    found = []
    for turn in dict.fromkeys(row["turn"] for row in rows):
        ours, theirs = (where(rows, query=query, turn=turn, who=who) for who in (OURS, THEIRS))
        if ours and theirs:
            ratio = ours[0][of] / theirs[0][of]
            found.append(1 / ratio if inverse else ratio)
    return found


def _middle(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.2f}"


def _each(found: Sequence[float]) -> str:
    return ", ".join(f"{ratio:.2f}" for ratio in found)


BENCHMARK = Benchmark(
    "nexmark",
    "Nexmark's queries, four of them beside Kafka Streams",
    measure,
    tables,
    (("turns", 2, 1), ("events", 1_000_000, 100_000), ("only", "", "")),
    page="nexmark.md",
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
