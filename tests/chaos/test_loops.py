"""Loops under kills: every round of every row counts once in state and leaves once, at any parallelism."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_eos.app import load
from kafka_eos.ids import AppRef
from kafka_eos.testing import run_local
from tests.chaos.harness import Job, open_transactions, read
from tests.chaos.running import events
from tests.chaos.storm import Storm
from tests.marks import campaign

NewJob = Callable[..., Job]
ROUNDS = 3
EXAMPLE = Path(__file__).parents[2] / "docs/examples/retries.py"


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
@pytest.mark.parametrize("parallelism", [campaign(1), 3])
def test_rows_on_their_way_round_come_back_once(new_job: NewJob, parallelism: int, mode: str) -> None:
    settings = {"KAFKA_EOS_PARALLELISM": parallelism, "KAFKA_EOS_CHECKPOINT_MODE": mode}
    job = new_job(4000, "rounds.py", **settings)

    job.run("align.complete=kill@2;recovery.opened=kill;snapshot.linked=kill")

    check(job)


def test_the_log_of_a_loop_is_part_of_checkpoints(new_job: NewJob) -> None:
    """Otherwise the tests above may never have had anything to replay."""
    job = new_job(3000, "rounds.py")

    with Storm(job, 3000).through("in-flight.logged=kill", "in-flight.stored=kill", "worker.ack.after=kill@3"):
        pass
    job.run()

    assert any(event.get("in_flight_bytes") for event in events(job) if event["event"] == "decided")
    check(job)


def test_the_example_gives_up_after_five_attempts() -> None:
    pipeline = load(AppRef(EXAMPLE))
    payment = load_type(pipeline)

    out = run_local(pipeline, {"payments": [payment(id=n, account=f"a{n % 3}", amount=1) for n in range(40)]})

    assert sorted(p.id for p in [*out["settled"], *out["given-up"]]) == list(range(40))
    assert {p.attempts for p in out["settled"]} == {1, 2, 3, 4, 5}
    assert {p.attempts for p in out["given-up"]} == {5}


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
