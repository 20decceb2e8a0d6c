"""False alarms of the audit, counted: ``python -m tests.chaos.clean_runs --runs 20``.

Short jobs of many plans, checkpoint modes and numbers of workers; their workers and supervisors are killed at random
moments under load, and between two kills most of them are changed: another number of workers, one partition more, a
second incarnation that begins with a savepoint, under its name or another one, other code, or a second job with their
topics. Both audits judge each, that of the job and that of its topics, all in one Spark session: whatever they find is
a false alarm or a bug of the engine, so every row must be PASS or PARTIAL.
The same seed and number give the same plan; when exactly a kill hits is chance.

Rule: a run whose history does not tell of every kill proves nothing: it is INCONCLUSIVE, and never counted as passed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka.admin import AdminClient, NewPartitions

from kafka_eos.audit import Conclusion, Verdict, audit
from kafka_eos.audit.cluster.spark_session import open_session
from kafka_eos.audit.topics.question import TopicAuditOptions
from kafka_eos.audit.topics.topic_audit import audit_topics
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import AppRef
from kafka_eos.devtools.broker import Broker
from kafka_eos.runtime.program import load_program
from tests.chaos.harness import Job, create_topic, feed
from tests.chaos.running import Running, events, make_job, nothing_left, signal_worker
from tests.chaos.test_savepoints import second_incarnation, trigger
from tests.waiting import PATIENCE

LEDGER = Path(__file__).parents[2] / "docs" / "clean-runs.md"
PLANS = (
    "totals", "sums", "rounds", "once", "stages", "fan-out", "letters", "spread", "everywhere", "straight", "expiring"
)  # fmt: skip
"""Apps of the chaos tests, and routes of ``routes.py``."""
WHOLE = {
    "totals": "coalesce(json.amount > 0, false)",
    "rounds": "coalesce(json.amount > 0, false)",
    "stages": None,
    "straight": None,
}
"""Plans of which each input has one output, and of which inputs that holds."""
SPREAD = ("spread", "everywhere", "rounds", "stages")
"""Plans whose rows of a key take several ways, so that no order holds between them: each row is a key of its own."""
MODES = ("aligned", "unaligned")
HEADERS, LEDGERS = "header", "ledger"
TOTALS = "totals"
OWN = frozenset({"TEST_JOB", "TEST_CHECKPOINTS", "TEST_INPUT", "TEST_OUTPUT", "TEST_FILES"})
ALONE = """import os

for name in [name for name in os.environ if name.startswith("TEST_")]:
    del os.environ[name]
os.environ.update({own!r})
# End of its environment.
"""
END_OF_OWN = ALONE.splitlines(keepends=True)[-1]
"""Goes before the text of an app: one process audits all of them, so each has its environment in its file."""
WORKER, SUPERVISOR = "worker", "supervisor"
RESCALED, WIDENED, SAVED = "rescaled", "one partition more", "from a savepoint"
RENAMED, UPGRADED, BESIDE = "renamed", "upgraded", "two jobs"
CHANGES = (RESCALED, WIDENED, SAVED, RENAMED, UPGRADED, BESIDE, None)
AMOUNT = "    amount: int\n"
OTHER_AMOUNT = f"{AMOUNT}\n    def __post_init__(self) -> None:\n        self.amount = min(self.amount, 5)\n\n"
"""The field of a payment, in every app; and other code, in which it is at most 5."""
INPUTS = 3
"""Partitions of the input, see ``make_job``."""
PAYMENTS = 250
"""That are fed at once."""
LONGEST_WAIT = 0.4
"""Seconds from a commit to the next kill, at most; the checkpoint interval is 0.1."""


@dataclass(frozen=True)
class Plan:
    """What a run is to be; everything follows from seed and number."""

    number: int
    name: str
    mode: str
    workers: int
    kills: tuple[tuple[str, float], ...]
    """Whom, and how many seconds after a commit."""
    change: str | None
    """What else happens, after the first kill."""
    provenance: str = HEADERS
    """Where the sink keeps it."""

    @classmethod
    def of(cls, seed: int, number: int, provenance: str = HEADERS) -> Plan:
        dice = random.Random(f"{seed}/{number}")
        kills = [(dice.choice((WORKER, SUPERVISOR)), dice.uniform(0, LONGEST_WAIT)) for _ in range(dice.randint(1, 2))]
        # Each has its turn; only one of them has a sink that keeps it elsewhere.
        name = PLANS[(seed + number) % len(PLANS)] if provenance == HEADERS else TOTALS
        mode, workers, change = dice.choice(MODES), dice.randint(1, 3), CHANGES[number % len(CHANGES)]
        if change == BESIDE and provenance == LEDGERS:
            change = None  # nothing in the topic tells whose outputs are those of the other job
        return cls(number, name, mode, workers, tuple(kills), change, provenance)


@dataclass(frozen=True)
class Result:
    plan: Plan
    verdict: Verdict
    epochs: int
    seconds: float

    def row(self) -> str:
        facts, kills = self.verdict.facts, "+".join(whom for whom, _ in self.plan.kills)
        return (
            f"{self.plan.number:4}  {self.plan.name:10}  {self.plan.mode:9}  {self.plan.workers} workers  {kills:21}  "
            f"{self.plan.change or '':18}  "
            f"{self.epochs:4} epochs  {facts.inputs:5} in  {facts.outputs:5} out  {self.seconds:5.1f} s  "
            f"{self.verdict.headline}"
        )


def clean_run(bootstrap: str, directory: Path, spark: Any, plan: Plan) -> Result:
    """Run a job as planned, and audit it. Raises AssertionError if the job itself goes wrong."""
    began = time.monotonic()
    first = _job(bootstrap, directory, plan)
    job, *beside = killed(first, plan)
    for each in (job, *beside):
        nothing_left(each)
    earlier = [first.checkpoints / first.name] if job is not first else []
    verdict = _audited(job, spark, expect_faults=True, earlier=earlier)
    if verdict.conclusion.is_clean and verdict.facts.kills < len(plan.kills):
        reason = f"{len(plan.kills)} kills were planned, and the history tells of {verdict.facts.kills}"
        verdict = replace(verdict, conclusion=Conclusion.INCONCLUSIVE, reasons=(reason,))
    if verdict.conclusion.is_clean:
        names = {first.name, job.name} if beside or job.name != first.name else set[str]()
        question = replace(_question(job, plan), jobs=tuple(sorted(names)))
        if plan.provenance == LEDGERS:
            question = replace(
                question,
                ledgers=tuple({str(incarnation.checkpoints / incarnation.name) for incarnation in (first, job)}),
            )
        others = [audit_topics(question, spark=spark, report_dir=job.directory / "audit-topics")]
        for other in (*others, *(_audited(each, spark) for each in beside)):
            if not other.conclusion.is_clean:
                verdict = replace(verdict, conclusion=other.conclusion, reasons=other.reasons)
    return Result(plan, verdict, verdict.facts.committed_epochs or 0, time.monotonic() - began)


def _audited(job: Job, spark: Any, **options: Any) -> Verdict:
    ref = AppRef(job.app)
    pipeline = load_program(ref)
    settings = Settings.resolve(code=pipeline.code_settings, cli={"bootstrap_servers": job.bootstrap})
    return audit(pipeline, settings, app=ref, spark=spark, report_dir=job.directory / "audit", **options)


def _question(job: Job, plan: Plan) -> TopicAuditOptions:
    """Of the job's topics: nothing twice or out of order; nothing lost, where that can be told."""
    key = "offset" if plan.name in SPREAD else None
    if plan.name not in WHOLE:
        return TopicAuditOptions(job.bootstrap, outputs=(job.output,), id="provenance", key=key)
    where, schema = (None, None) if WHOLE[plan.name] is None else (WHOLE[plan.name], "amount INT")
    return TopicAuditOptions(
        job.bootstrap, (job.input,), (job.output,), id="provenance", where=where, schema=schema, key=key
    )


def _job(bootstrap: str, directory: Path, plan: Plan) -> Job:
    file = plan.name if plan.name in ("totals", "sums", "rounds") else "routes"
    told = {"TEST_ROUTE": plan.name, "TEST_PAUSE": "0.001", "TEST_PROVENANCE": plan.provenance}
    if plan.name == "letters":
        told["TEST_LETTERS"] = f"letters-{uuid4().hex[:8]}"
        create_topic(bootstrap, told["TEST_LETTERS"], 2)
    settings = {"KAFKA_EOS_PARALLELISM": plan.workers, "KAFKA_EOS_CHECKPOINT_MODE": plan.mode}
    job = make_job(bootstrap, directory, PAYMENTS, f"{file}.py", **settings, **told)
    job.app = _app(job, job.app.read_text())
    return job


def _app(job: Job, text: str) -> Path:
    """A file of the job's own, with the environment that its pipeline needs."""
    app = job.directory / f"{job.directory.name.replace('-', '_')}.py"
    own = {name: value for name, value in job.environ().items() if name in OWN | job.environment.keys()}
    app.write_text(ALONE.format(own={k: v for k, v in own.items() if k.startswith("TEST_")}) + text)
    return app


def killed(job: Job, plan: Plan) -> list[Job]:
    """Run the job through the planned kills and the change, then until it has read everything and ends by itself.

    Returns the job as it ended: another one if it began again with a savepoint; and the one that ran beside it.
    """
    ids = itertools.count(PAYMENTS, PAYMENTS)
    running, changed = Running(job), False
    beside = [_another(job)] if plan.change == BESIDE else []
    also = [Running(each) for each in beside]
    try:
        for whom, wait in plan.kills:
            _fed(job, next(ids), running)
            _fed(job, next(ids))
            time.sleep(wait)
            running = _kill(job, running, whom, random.Random(f"{plan.number}/{wait}"))
            if not changed:
                _fed(job, next(ids), running)
                job, running, changed = *_changed(job, running, plan), True
        _fed(job, next(ids), running)
        for each in (running, *also):
            each.drain()
    finally:
        for each in (running, *also):
            each.end()
    for every in (job, *beside):
        every.run()
    return [job, *beside]


def _another(job: Job) -> Job:
    """A second job with the same plan and topics."""
    text = _own_text(job)
    job = replace(job, name=f"{job.name}-beside", directory=job.directory / f"{job.name}-beside")
    job.directory.mkdir()
    job.app = _app(job, text)
    return job


def _own_text(job: Job) -> str:
    """The text of its app, without its environment."""
    return job.app.read_text().partition(END_OF_OWN)[2]


def _changed(job: Job, running: Running, plan: Plan) -> tuple[Job, Running]:
    """The job after the planned change, and who runs it then."""
    if plan.change == WIDENED:
        admin = AdminClient({"bootstrap.servers": job.bootstrap})
        admin.create_partitions([NewPartitions(job.input, INPUTS + 1)])[job.input].result(PATIENCE)
    elif plan.change == RESCALED:
        running.drain()
        job.environment["KAFKA_EOS_PARALLELISM"] = str(plan.workers % 3 + 1)
        running = Running(job)
    elif plan.change in (SAVED, RENAMED):
        running.drain()
        text = _own_text(job)
        job = second_incarnation(job, trigger(job, job.directory / "savepoint"))
        job.name = f"{job.name}-renamed" if plan.change == RENAMED else job.name
        job.app = _app(job, text)
        running = Running(job)
    elif plan.change == UPGRADED:
        running.drain()
        job.app.write_text(job.app.read_text().replace(AMOUNT, OTHER_AMOUNT, 1))
        running = Running(job)
    return job, running


def _fed(job: Job, first: int, running: Running | None = None) -> None:
    """Feed some payments; with ``running``, until output is committed afterwards."""
    before = _commits(job)
    feed(job.bootstrap, job.input, range(first, first + PAYMENTS))
    if running is not None:
        running.until(lambda: _commits(job) > before, "commit an epoch with output")


def _commits(job: Job) -> int:
    return sum(event["event"] == "committed" and any(event["records"].values()) for event in events(job))


def _kill(job: Job, running: Running, whom: str, dice: random.Random) -> Running:
    """Who runs the job afterwards."""
    if whom == SUPERVISOR:
        running.send(signal.SIGKILL)
        assert running.ended() == -signal.SIGKILL, running.log[-6000:]
        return Running(job)
    workers = running.until(lambda: running.last("running").get("workers"), "run")
    restarts = running.count("restarting")
    signal_worker(int(dice.choice(workers)), signal.SIGKILL)
    running.until(lambda: running.count("restarting") > restarts, "notice the death of a worker")
    return running


def _ledger_row(results: list[Result], seed: int, load: float) -> str:
    whom = Counter(whom for result in results for whom, _ in result.plan.kills)
    changes = Counter(result.plan.change for result in results)
    verdicts = Counter(result.verdict.conclusion for result in results)
    facts = [result.verdict.facts for result in results]
    cells = [
        f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        str(seed) if results[0].plan.provenance == HEADERS else f"{seed}, {LEDGERS}",
        f"{results[0].plan.number} … {results[-1].plan.number}", str(whom[WORKER]), str(whom[SUPERVISOR]),
        *(str(changes[change]) for change in CHANGES if change is not None),
        f"{sum(result.epochs for result in results):,}", f"{sum(f.inputs or 0 for f in facts):,}",
        f"{sum(f.outputs for f in facts):,}", *(str(verdicts[conclusion]) for conclusion in Conclusion),
        f"{load:.1f} … {os.getloadavg()[0]:.1f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


@contextmanager
def _broker(given: str | None, directory: Path) -> Iterator[str]:
    if given is not None:
        yield given
        return
    with Broker(directory / "kafka") as broker:
        yield broker.bootstrap


def main() -> None:
    """Run, print, and add a row to docs/clean-runs.md. Exit code 1 if any run is neither PASS nor PARTIAL."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=20)
    options.add_argument("--first", type=int, default=0, help="number of the first run")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument(
        "--provenance", choices=(HEADERS, LEDGERS), default=HEADERS, help="where the sinks keep it; ledger: totals only"
    )
    options.add_argument("--bootstrap", help="a running broker; default: one of its own")
    chosen = options.parse_args()
    directory, load = Path(tempfile.mkdtemp(prefix="kafka-eos-clean-runs-")), os.getloadavg()[0]
    print(f"seed {chosen.seed}, in {directory}", flush=True)
    results: list[Result] = []
    with _broker(chosen.bootstrap, directory) as bootstrap:
        spark = open_session(long=True)
        for number in range(chosen.first, chosen.first + chosen.runs):
            results.append(clean_run(bootstrap, directory, spark, Plan.of(chosen.seed, number, chosen.provenance)))
            print(results[-1].row(), flush=True)
        spark.stop()
    with LEDGER.open("a") as page:
        page.write(_ledger_row(results, chosen.seed, load))
    if any(not result.verdict.conclusion.is_clean for result in results):
        sys.exit(f"not every run is PASS or PARTIAL; everything is kept in {directory}")
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
