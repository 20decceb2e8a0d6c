"""Hours of load and random deaths, then an exact account: ``python -m tests.chaos.soak --minutes 15``.

A broker of its own, records at a steady pace, SIGKILL of worker or supervisor at random moments, a restart of the
broker now and then. At the end the job drains; every output is compared with what the input makes, and the audit
on Spark judges the topics as well. The same seed gives the same plan of faults; when exactly they hit is up to chance.

Rule: only faults that were seen to happen are counted, and a run without one of both kinds of kills is no pass.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import KafkaError, Producer

from kafka_eos.devtools.broker import Broker
from tests.chaos.harness import Job, open_transactions
from tests.chaos.running import Running, nothing_left, signal_worker
from tests.chaos.soak_loads import Customers, Load, Payments

LEDGER = Path(__file__).parents[2] / "docs" / "soak.md"
COLUMNS = (
    "date (UTC)", "commit, job", "workers", "minutes", "seed", "records", "worker kills", "supervisor kills",
    "broker restarts", "epochs", "verdict", "load",
)  # fmt: skip
HEADER = """# Soak runs

`make soak` runs the job of the chaos tests under load while worker, supervisor and broker die at random moments, then
compares every output with the input and runs the audit. Each run adds a row; what it counts really happened.

| {} |
|{}
""".format(" | ".join(COLUMNS), "---|" * len(COLUMNS))
RECORDS_A_SECOND = 2000
SECONDS_BETWEEN_KILLS = 8.0
"""On average, and the wait until the victim runs again: together below 10 s."""
SECONDS_BETWEEN_RESTARTS = 120.0
LOADS: Mapping[str, Callable[[int], Load]] = {"payments": lambda seed: Payments(), "state-machine": Customers}
"""By the name of the job; given the seed."""
VICTIMS = ("worker kills", "supervisor kills")


class Feeder:
    """Writes records from a thread of its own until told to stop; waits through outages, never writes one twice.

    A broker that was just started, or hung, may say that there are no brokers. A client without
    ``metadata.recovery.strategy=rebootstrap``, its default, asks nobody any more after that answer.
    """

    def __init__(self, job: Job, record: Callable[[int], tuple[str, bytes]], rate: int = RECORDS_A_SECOND) -> None:
        """``rate``: records a second."""
        self.written, self.flood, self._rate = 0, 0, rate
        """``flood``: so many more are written as fast as it goes."""
        self._record, self._topic, self._stop = record, job.input, threading.Event()
        self._refused: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": job.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 20,
                "reconnect.backoff.max.ms": 500,
                "log_level": 2,
                "on_delivery": self._delivered,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True, name="feeder")
        self._thread.start()

    def finish(self) -> None:
        """No more records; returns when all are in the topic."""
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(120)
        assert not left, f"the client that writes the input delivered nothing of {left} records for 120 s"
        assert not self._refused, f"the input topic refused {len(self._refused)} records: {self._refused[-1]}"

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.is_set():
            due = int((time.monotonic() - began) * self._rate) + self.flood - self.written
            for _ in range(due):
                self._write(self.written)
                self.written += 1
            self._producer.poll(0.01)

    def _write(self, n: int) -> None:
        key, value = self._record(n)
        while True:
            try:
                return self._producer.produce(self._topic, value, key=key)
            except BufferError:
                self._producer.poll(0.1)

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self._refused.append(error.str())


@dataclass
class Soak:
    """One run. ``happened`` counts the faults that were seen to happen."""

    job: Job
    broker: Broker
    dice: random.Random
    running: Running
    restart_every: float
    victim: str = VICTIMS[0]
    happened: Counter[str] = field(default_factory=Counter)

    def rage(self, until: float) -> None:
        """Kill and restart at random moments until a time of the monotonic clock."""
        next_kill, next_restart = self._next_kill(), time.monotonic() + self.restart_every
        while (now := time.monotonic()) < until:
            self.keep_running()
            if now >= next_kill and self._killed():
                next_kill = self._next_kill()
            if now >= next_restart:
                self._restart_broker()
                next_restart = time.monotonic() + self.restart_every
            time.sleep(0.02)

    def keep_running(self) -> None:
        """Start the supervisor again after a kill of ours; any other end is the end of the run."""
        if not self.running.alive:
            assert self.running.ended() == -signal.SIGKILL, f"the job ended by itself:\n{self.running.log[-6000:]}"
            self.running = Running(self.job)

    def _next_kill(self) -> float:
        return time.monotonic() + self.dice.expovariate(1 / SECONDS_BETWEEN_KILLS)

    def _killed(self) -> bool:
        """Kill the next victim, if it is there."""
        if self.victim == "supervisor kills":
            self.running.send(signal.SIGKILL)
            happened = self.running.ended() == -signal.SIGKILL
        else:
            happened = self._worker_killed()
        if happened:
            self.happened[self.victim] += 1
            self.victim = self.dice.choice(VICTIMS)
        return happened

    def _worker_killed(self) -> bool:
        try:
            signal_worker(int(self.dice.choice(self.running.last("running")["workers"])), signal.SIGKILL)
        except (KeyError, AssertionError, FileNotFoundError, ProcessLookupError):
            return False  # it does not run yet, or died already
        return True

    def _restart_broker(self) -> None:
        if self.happened["broker restarts"] % 2:
            self.broker.kill()
        else:
            self.broker.stop()
        if self.dice.random() < 0.5:
            self._killed()
        self.broker.start()
        self.happened["broker restarts"] += 1


def soak(directory: Path, name: str, minutes: float, seed: int, workers: int) -> list[str]:
    """One run; the cells of its row. Raises AssertionError for anything that is not exact."""
    busy, code, load = os.getloadavg()[0], commit(), LOADS[name](seed)
    with Broker(directory / "kafka") as broker:
        job = load.job(broker.bootstrap, directory)
        job.environment["KAFKA_EOS_PARALLELISM"] = str(workers)
        feeder = Feeder(job, load.record)
        pause = min(SECONDS_BETWEEN_RESTARTS, minutes * 60 / 4)  # a short run has restarts too
        run = Soak(job, broker, random.Random(seed), Running(job), pause)
        try:
            run.rage(time.monotonic() + minutes * 60)
            run.keep_running()
            feeder.finish()
            run.running.until(lambda: run.running.count("running"), "run")
            run.running.drain()
        finally:
            run.running.end()
        job.run()
        print(f"drained; {feeder.written:,} records, {dict(run.happened)}", flush=True)
        assert load.exact(job) == feeder.written
        assert open_transactions(job) == []
        nothing_left(job)
        print("every output is exact", flush=True)
        headline = audit(job)
    missing = [victim for victim in VICTIMS if not run.happened[victim]]
    assert not missing, f"all is exact, but there were no {' and no '.join(missing)} to prove it: give it more minutes"
    epochs = sum(event["event"] == "committed" for event in job.history())
    counts = [str(run.happened[name]) for name in ("worker kills", "supervisor kills", "broker restarts")]
    now, loads = datetime.now(UTC), f"{busy:.1f} … {os.getloadavg()[0]:.1f}"
    size = [f"{minutes:g}", str(seed), f"{feeder.written:,}"]
    verdict = [f"{epochs:,}", f"exact; audit: {headline}", loads]
    return [f"{now:%Y-%m-%d %H:%M}", f"{code}, {name}", str(workers), *size, *counts, *verdict]


def commit() -> str:
    """Of the code that runs; with a plus if it was changed since."""
    asked = ("git", "-C", str(LEDGER.parent), "describe", "--always", "--dirty=+")
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def audit(job: Job) -> str:
    """The audit on Spark, by its command; its headline."""
    report = job.directory / "audit"
    command = [sys.executable, "-m", "kafka_eos", "audit", str(job.app), "--report-dir", str(report)]
    answer = subprocess.run(command, env=job.environ(), capture_output=True, text=True, check=False)
    assert answer.returncode == 0, f"audit: {answer.returncode}\n{answer.stdout[-4000:]}\n{answer.stderr[-4000:]}"
    return answer.stdout.splitlines()[0]


def main() -> None:
    """Run, print, and add a row to docs/soak.md. Exit code 1 if anything is not exact."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--job", choices=[*LOADS], default="payments")
    options.add_argument("--minutes", type=float, default=15.0)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = options.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="kafka-eos-soak-"))
    print(f"seed {chosen.seed}, {chosen.minutes:g} minutes, in {directory}", flush=True)
    try:
        cells = soak(directory, chosen.job, chosen.minutes, chosen.seed, chosen.workers)
    except AssertionError as error:
        sys.exit(f"FAIL (everything is kept in {directory}): {error}")
    text = LEDGER.read_text() if LEDGER.exists() else HEADER
    LEDGER.write_text(f"{text}| {' | '.join(cells)} |\n")
    print(" | ".join(cells))
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
