"""Throughput: ``python -m benchmarks.run``. Starts a broker of its own, loads it, measures, prints a table.

Contenders take turns (A B C A B C …), so that a change of the machine's load hits all of them. The first turn warms
the broker and the page cache; it is not counted. Do not use the machine for anything else meanwhile.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contenders import Contender, contenders, native_pairs, versions
from benchmarks.kafka import BrokerClient
from benchmarks.report import document, table
from benchmarks.trial import Figures, WrongOutput, run
from benchmarks.workloads import Expected, expected, late_payments, payments, window_totals
from kafka_eos.devtools.broker import Broker

_LATE = "late-payments"
_INPUT = {"W1": "payments", "W2": "payments", "W4": _LATE}
"""The topic that each workload reads."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if any run had a wrong output; such a contender has no line in the table."""
    options = _options(arguments)
    if options.native:
        known = native_pairs()
    else:
        known = versions(options.against.resolve()) if options.against else contenders(options.peers)
    chosen = [c for c in known if _is_chosen(c, options.only)]
    trials: dict[str, list[Figures]] = {contender.title: [] for contender in chosen}
    with tempfile.TemporaryDirectory(prefix="kafka-eos-bench-") as home, own_broker(Path(home)) as broker:
        cluster = BrokerClient(broker.bootstrap)
        workloads = {contender.workload for contender in chosen}
        for topic in sorted({_INPUT[name] for name in workloads}):
            _load(cluster, topic, options.records, options.scattered)
        wanted = {name: (_INPUT[name], options.records, _wanted(name, options.records)) for name in workloads}
        wrong: set[str] = set()
        for turn in range(options.trials + 1):
            for contender in (c for c in chosen if c.title not in wrong):
                try:
                    figures = run(contender, *wanted[contender.workload], broker, Path(home))
                except WrongOutput as error:
                    print(f"no figure: {error}", file=sys.stderr)
                    wrong.add(contender.title)
                    continue
                _tell(turn, contender, figures)
                if turn > 0:
                    trials[contender.title].append(figures)
    counted = {title: found for title, found in trials.items() if title not in wrong}
    print(table(counted))
    if options.out:
        command = "python -m benchmarks.run " + " ".join(sys.argv[1:] if arguments is None else arguments)
        options.out.write_text(json.dumps(document(counted, command.strip(), options.records), indent=1) + "\n")
    return 1 if wrong else 0


def _load(cluster: BrokerClient, topic: str, records: int, scattered: bool = False) -> None:
    """Write the input, keyed by account; or, ``scattered``, by number, so each partition has all accounts."""
    cluster.create(topic)
    print(f"loading {records:,} records of {topic}", file=sys.stderr)
    keyed = (
        ((account, value) for account, _, _, value in late_payments(records))
        if topic == _LATE
        else ((account, value) for account, _, value in payments(records))
    )
    cluster.load(topic, ((str(number), value) for number, (_, value) in enumerate(keyed)) if scattered else keyed)


def _wanted(workload: str, records: int) -> Expected:
    if _INPUT[workload] == _LATE:
        return window_totals(late_payments(records))
    return expected(workload, payments(records))


def own_broker(home: Path) -> Broker:
    """A broker for one benchmark. A busy machine must not make its controller believe that it is gone."""
    return Broker(home / "broker", overrides={"broker.session.timeout.ms": "18000"})


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000, help="input records (default: %(default)s)")
    parser.add_argument("--trials", type=int, default=3, help="counted runs of each contender (default: %(default)s)")
    parser.add_argument("--only", default="", help="names or parts of names, comma-separated: W1, pydantic …")
    parser.add_argument("--peers", action="store_true", help="also Quix Streams and Kafka Streams, which are fetched")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="only this version and that of a checkout")
    parser.add_argument("--native", action="store_true", help="each workload without kafka-eos-native and with it")
    parser.add_argument(
        "--scattered", action="store_true", help="the records of an account are in all partitions; not with --peers"
    )
    parser.add_argument("--out", type=Path, help="write everything measured to this JSON file")
    options = parser.parse_args(arguments)
    if options.scattered and options.peers:
        parser.error("--scattered: the peers' programs expect all records of an account in one partition")
    return options


def _is_chosen(contender: Contender, only: str) -> bool:
    parts = [part for part in only.split(",") if part]
    return not parts or any(part in contender.title for part in parts)


def _tell(turn: int, contender: Contender, figures: Figures) -> None:
    what = f"trial {turn}" if turn else "warm-up"
    print(
        f"{what}: {contender.title}: {figures.rate / 1000:.0f} k records/s, {figures.cpu:.2f} CPU s/M, "
        f"load before {figures.load_before:.1f}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
