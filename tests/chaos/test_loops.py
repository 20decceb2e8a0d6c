"""Loops under kills and upgrades: every round of every row counts once in state and leaves once, at any parallelism."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.core.ids import AppRef
from kafka_eos.devtools.broker import Broker
from kafka_eos.runtime.exchange import in_flight_rows as in_flight
from kafka_eos.runtime.program import load_program
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.testing import run_local
from tests.chaos.feeding import feeding
from tests.chaos.harness import MOST_STARTS, Invalid, Job, create_topic, feed, open_transactions, read
from tests.chaos.offline import plan_of
from tests.chaos.running import audit_passes, events, manifests, nothing_left, refused, running, signal_worker
from tests.chaos.storm import Storm
from tests.marks import campaign
from tests.waiting import PATIENCE

NewJob = Callable[..., Job]
ROUNDS = 3
EXAMPLE = Path(__file__).parents[2] / "docs/examples/retries.py"


@pytest.mark.campaign
@pytest.mark.parametrize("mode", [campaign("aligned"), "unaligned"])
@pytest.mark.parametrize("parallelism", [campaign(1), 3])
def test_rows_on_their_way_round_come_back_once(new_job: NewJob, parallelism: int, mode: str) -> None:
    settings = {"KAFKA_EOS_PARALLELISM": parallelism, "KAFKA_EOS_CHECKPOINT_MODE": mode}
    job = new_job(4000, "rounds.py", **settings)

    job.run("align.complete=kill@2;recovery.opened=kill;snapshot.linked=kill")

    check(job)


@pytest.mark.campaign
def test_the_log_of_a_loop_is_part_of_checkpoints(new_job: NewJob) -> None:
    """Otherwise the tests above may never have had anything to replay."""
    job = new_job(3000, "rounds.py")

    with Storm(job, 3000).through("in-flight.logged=kill", "in-flight.stored=kill", "worker.ack.after=kill@3"):
        pass
    job.run()

    assert any(event.get("in_flight_bytes") for event in events(job) if event["event"] == "decided")
    check(job)


def test_the_example_gives_up_after_five_attempts() -> None:
    pipeline = load_program(AppRef(EXAMPLE))
    payment = load_type(pipeline)

    out = run_local(pipeline, {"payments": [payment(id=n, account=f"a{n % 3}", amount=1) for n in range(40)]})

    assert sorted(p.id for p in [*out["settled"], *out["given-up"]]) == list(range(40))
    assert {p.attempts for p in out["settled"]} == {1, 2, 3, 4, 5}
    assert {p.attempts for p in out["given-up"]} == {5}


# ---------------------------------------------------------------- the example, killed and audited

MOST = 5
"""Attempts that a payment of the example has."""
BACKLOG = 12_000
"""Payments that are there at the start: while they last, there is always something on its way round."""


@pytest.mark.campaign
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_the_example_is_killed_and_audited(broker_factory: Callable[..., Broker], tmp_path: Path, mode: str) -> None:
    """The file of the docs as it is, with its topics and its name: so it has a broker of its own."""
    bootstrap = broker_factory().bootstrap
    for topic in ("payments", "settled", "given-up"):
        create_topic(bootstrap, topic, 3)
    feed(bootstrap, "payments", range(BACKLOG))
    job = Job("retries", bootstrap, "payments", "settled", tmp_path, EXAMPLE)
    job.environment = {
        "COLUMNS": "5000",
        "KAFKA_EOS_CHECKPOINT_DIR": str(job.checkpoints),
        "KAFKA_EOS_CHECKPOINT_INTERVAL": "100ms",
        "KAFKA_EOS_CHECKPOINT_MODE": mode,
        "KAFKA_EOS_PARALLELISM": "3",
        "KAFKA_EOS_BATCH_SIZE": "50",
        "KAFKA_EOS_RESTART_BACKOFF_INITIAL": "50ms",
    }
    storm = Storm(job, BACKLOG)

    with storm.through(
        "in-flight.logged=kill",
        "in-flight.stored=kill@2",
        "commit.before=kill",
        "in-flight.replayed=kill",
        "recovery.opened=kill",
        "worker.ack.after=kill@3",
        "commit.between=kill",
        "align.complete=kill@2",
    ) as run:
        signal_worker(run.worker, signal.SIGKILL)
        storm.feed(1000)
        run.until(lambda: run.count("restarting"), "miss its worker")
    job.run()

    nothing_left(job)
    assert any(event.get("in_flight_bytes") for event in events(job) if event["event"] == "decided")
    payments = [json.loads(m.value()) for m in read(bootstrap, "payments")]
    assert len(payments) == storm.fed
    for name, state in (("settled", "settled"), ("given-up", "given up")):
        found = Counter((m.key(), *json.loads(m.value()).values()) for m in read(bootstrap, name))
        assert found == Counter(row for row in map(outcome, payments) if row[-1] == state)
    audit_passes(job)


def outcome(payment: dict[str, Any]) -> tuple[Any, ...]:
    """What a payment becomes: the key of its output, and the fields of its value."""
    number, account = payment["id"], payment["account"]
    attempts = next((n for n in range(1, MOST + 1) if (number + n) % 7 == 0), None)
    ending = (attempts, "settled") if attempts else (MOST, "given up")
    return account.encode(), number, account, payment["amount"], *ending


# ---------------------------------------------------------------- upgrades


def edited(job: Job, *edits: tuple[str, str]) -> None:
    """Give the job another version of its app."""
    text = job.app.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    job.app = job.directory / f"{job.name.replace('-', '_')}_{len(edits)}.py"
    job.app.write_text(text)


NOTED = (
    ("    seen: int = 0\n", '    seen: int = 0\n    note: str = "from before"\n'),
    ("value.seen + 1)", "value.seen + 1, value.note)"),
    ("    id: int\n\n\nclass Count", '    id: int\n    note: str = ""\n\n\nclass Count'),
    ("Visit(p.account, p.amount, p.id)", "Visit(p.account, p.amount, p.id, p.note)"),
)
"""A field with a default, which goes round and comes out."""
MARKED = (
    ("    seen: int = 0\n", '    seen: str = ""\n'),
    ("value.seen == ROUNDS", "len(value.seen) == ROUNDS"),
    ("value.seen + 1", 'value.seen + "."'),
    ("p.seen <", "len(p.seen) <"),
    ("p.seen ==", "len(p.seen) =="),
)
"""Rounds are counted in another type."""


@pytest.mark.campaign
@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 2)])
def test_rows_going_round_in_a_savepoint_get_the_field_that_was_added(new_job: NewJob, before: int, after: int) -> None:
    job = new_job(3000, "rounds.py", TEST_PAUSE=0.001, KAFKA_EOS_PARALLELISM=before)
    path = job.directory / "savepoint"
    with running(job) as run, feeding(job):
        run.until_committed(2)
        told = command(job, "stop", str(job.app), "--savepoint", "--path", str(path))
        assert (told.returncode, run.ended()) == (0, 0), told.stderr
    plan = plan_of(job)
    kept, files = savepoints.read_savepoint(path).in_flight, savepoints.SavepointFiles(path)
    rows = [
        row for _, _, batch in in_flight.read_rows(plan, files, job.directory / "rows", kept) for row in batch.values
    ]
    assert rows, "nothing went round"
    left_before = {json.loads(m.value())["id"] for m in read(job.bootstrap, job.output)}
    edited(job, *NOTED)
    shutil.rmtree(job.checkpoints)
    job.environment |= {"TEST_PAUSE": "0", "KAFKA_EOS_PARALLELISM": str(after)}

    done = command(job, "run", str(job.app), "--from", str(path), "--until-caught-up")

    assert done.returncode == 0, done.stderr
    check(job)
    values = {value["id"]: value for value in (json.loads(m.value()) for m in read(job.bootstrap, job.output))}
    assert left_before.isdisjoint(row.id for row in rows)
    assert all(values[row.id]["note"] == "from before" for row in rows)


@pytest.mark.campaign
@pytest.mark.parametrize("mode", ["aligned", campaign("unaligned")])
def test_a_job_that_is_stopped_while_rows_go_round_leaves_no_open_transaction(new_job: NewJob, mode: str) -> None:
    """It would hold up the readers of its topic until the next start."""
    job = new_job(3000, "rounds.py", KAFKA_EOS_PARALLELISM=3, KAFKA_EOS_CHECKPOINT_MODE=mode, TEST_PAUSE="0.001")
    for _ in range(MOST_STARTS):
        with running(job) as run, feeding(job):
            run.until_committed(2)
            run.drain()
        nothing_left(job)
        if manifests(job)[-1].in_flight:
            break
    else:
        raise Invalid("nothing went round when the job was stopped")

    job.run()
    check(job)


@pytest.mark.campaign
def test_a_loop_whose_rows_cannot_be_read_is_refused_until_it_has_run_empty(new_job: NewJob) -> None:
    """The refusal has changed nothing, and its advice holds."""
    job = new_job(2000, "rounds.py", TEST_PAUSE=0.001, KAFKA_EOS_PARALLELISM=2)
    with running(job) as run, feeding(job):
        run.until_committed(2)
        run.drain()
    assert manifests(job)[-1].in_flight
    old = job.app
    edited(job, *MARKED)

    said = refused(job, 2)
    job.app, job.environment["TEST_PAUSE"] = old, "0"
    job.run()
    assert not manifests(job)[-1].in_flight
    edited(job, *MARKED)
    feed(job.bootstrap, job.input, range(2000, 3000))
    job.run()

    assert "'rounds-feedback' were written with" in said and "the pipeline now declares" in said
    assert "'seen': {'type': 'integer', 'default': 0}" in said and "'seen': {'type': 'string', 'default': ''}" in said
    assert "--until-caught-up" in said
    check(job)


def command(job: Job, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "kafka_eos", *arguments]
    return subprocess.run(line, env=job.environ(), capture_output=True, text=True, check=False, timeout=PATIENCE)


def load_type(pipeline: object) -> type:
    """The example's ``Payment``."""
    source = pipeline.plan().sources[0].source  # type: ignore[attr-defined]
    found: type = source.value_type
    return found


def check(job: Job) -> None:
    sent = [p for p in (json.loads(m.value()) for m in read(job.bootstrap, job.input)) if p["amount"] > 0]
    got = [json.loads(m.value()) for m in read(job.bootstrap, job.output)]
    assert Counter(v["id"] for v in got) == Counter(p["id"] for p in sent)
    due, last = Counter[str](), Counter[str]()
    for p in sent:
        due[p["account"]] += ROUNDS * p["amount"]
    for v in got:
        last[v["account"]] = max(last[v["account"]], v["total"])
    assert last == due
    assert open_transactions(job) == []
