"""How fast ``kafka-eos audit`` is: the example's job over N orders, its audit by phase, and ``audit topics`` beside it.

    python -m benchmarks.audit_job --records 200000

A broker of its own, unless ``--bootstrap`` names one; there the topics ``orders`` and ``totals`` must not exist. Each
audit has a process of its own. Rule: a figure counts only if the verdict is PASS. Seconds are those of the clock and,
behind them, of the processors: what else runs on the machine makes the first longer, and hardly the second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.kafka import BrokerClient
from benchmarks.processes import usage
from kafka_eos.audit import Verdict, audit
from kafka_eos.audit.topics import TopicAuditOptions, audit_topics
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import AppRef
from kafka_eos.devtools.broker import Broker
from kafka_eos.devtools.demo.demo import USERS, orders
from kafka_eos.runtime.program import load_program

APP = Path(__file__).parents[1] / "docs/examples/orders.py"
TOPICS = ("orders", "totals")
PAID = "value LIKE '%\"paid\"%'"
"""Orders that make an output."""
Progress = Callable[[str], None]
Audit = Callable[[Progress], Verdict]


def main() -> None:
    """Make the job, audit it both ways, and remove its topics."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--records", type=int, default=200_000, help="orders; nine of ten make an output")
    arguments.add_argument("--users", type=int, default=USERS, help="keys of the state")
    arguments.add_argument("--bootstrap", help="default: a broker of its own")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="kafka-eos-bench-") as scratch, _broker(Path(scratch), given) as bootstrap:
        client, checkpoints = BrokerClient(bootstrap), Path(scratch) / "checkpoints"
        for topic in TOPICS:
            client.create(topic)
        try:
            made = (record for _, record in orders(1, given.records, given.users))
            client.load(TOPICS[0], ((record.key.decode(), record.value) for record in made))
            _run(bootstrap, checkpoints)
            _in_a_process(_measure_job, bootstrap, checkpoints)
            _in_a_process(_measure_topics, bootstrap)
        finally:
            for topic in TOPICS:
                client.delete(topic)


@contextmanager
def _broker(scratch: Path, given: argparse.Namespace) -> Iterator[str]:
    if given.bootstrap:
        yield given.bootstrap
        return
    broker = Broker(scratch / "broker")
    broker.start()
    try:
        yield broker.bootstrap
    finally:
        broker.kill()


def _run(bootstrap: str, checkpoints: Path) -> None:
    command = [sys.executable, "-m", "kafka_eos", "run", str(APP), "--until-caught-up"]
    command += ["--bootstrap-servers", bootstrap, "--checkpoint-dir", str(checkpoints)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _in_a_process(measure: Callable[..., None], *told: object) -> None:
    process = multiprocessing.get_context("spawn").Process(target=measure, args=told)
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(process.exitcode)


def _measure_job(bootstrap: str, checkpoints: Path) -> None:
    pipeline = load_program(AppRef(APP))
    settings = Settings.resolve(
        code=pipeline.code_settings, cli={"bootstrap_servers": bootstrap, "checkpoint_dir": checkpoints}
    )
    _timed("audit of the job", lambda progress: audit(pipeline, settings, app=AppRef(APP), progress=progress))


def _measure_topics(bootstrap: str) -> None:
    question = TopicAuditOptions(bootstrap, inputs=TOPICS[:1], outputs=TOPICS[1:], id="provenance", where=PAID)
    _timed("audit of the topics", lambda progress: audit_topics(question, progress=progress))


def _timed(what: str, run: Audit) -> None:
    """Print each phase when it is over: its seconds, those of the processors, and what it was."""
    marks = [(time.monotonic(), usage(os.getpid()).cpu, "")]
    print(f"{what}, load {os.getloadavg()[0]:.1f}", flush=True)

    def progress(text: str) -> None:
        marks.append((time.monotonic(), usage(os.getpid()).cpu, text))
        (before, cpu_before, phase), (now, cpu, _) = marks[-2:]
        if phase:
            print(f"  {now - before:6.1f} s  {cpu - cpu_before:6.1f} s of CPU  {phase}", flush=True)

    verdict = run(progress)
    progress("")
    print(f"  {marks[-1][0] - marks[0][0]:6.1f} s  {marks[-1][1] - marks[0][1]:6.1f} s of CPU  {verdict.headline}")
    if not verdict.conclusion.is_clean:
        sys.exit(f"{what} should have found nothing\n{verdict.traceback or verdict.findings}")


if __name__ == "__main__":
    main()
