"""Kill drivers and Python workers at every named step that the Spark engine passes, and again while it recovers.

One job a phase: its script is a chain of kills, and each driver that dies is replaced until the chain is at its end.
What kills a task kills its Python worker; Spark tries the task again, so that the same point is passed again.
"""

from __future__ import annotations

import itertools
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_eos._util.failpoints import POINTS
from tests.chaos.test_failpoints import second_death
from tests.marks import campaign
from tests.spark.drivers import Run, fired
from tests.spark.kit import SUMS, TOTALS, WINDOW, WINDOWS, Job, feed, payment, rows, same, totals

pytestmark = [pytest.mark.spark, pytest.mark.chaos, pytest.mark.timeout(2400)]
NewJob = Callable[..., Job]

IN_TASKS = (
    "source.capture.before", "source.capture.after", "snapshot.flush", "snapshot.linked", "snapshot.upload",
    "snapshot.uploaded", "sink.seal", "sink.flush.before", "sink.flush.after", "sink.prepare.before",
    "sink.prepare.after", "worker.ack.before", "recovery.restored", "recovery.opened",
)  # fmt: skip
ELSEWHERE = {
    "align.barrier": "an epoch is a Spark job: no barriers are under way",
    "align.complete": "an epoch is a Spark job: no barriers are under way",
    "in-flight.logged": "feedback edges are refused",
    "in-flight.stored": "a checkpoint of Spark holds no rows under way",
    "in-flight.replayed": "rows under way are refused: such a checkpoint is moved by a savepoint",
    "scratch.put": "a plain fold sets nothing aside; see test_pipelines.py",
    "scratch.taken": "a plain fold sets nothing aside; see test_pipelines.py",
    "recovery.verified": "each task verifies the files that it opens",
    "worker.ack.after": "a task ends with its answer",
    "worker.complete": "a task ends before the decision",
    "coordinator.ack": "the answers of all tasks come together",
}
"""Points that the Spark engine does not pass, and why."""
DECIDED = "commit.before"
EPOCH, ACCOUNTS = 40, 200
SETTINGS = {
    "KAFKA_EOS_MAX_RECORDS_PER_EPOCH": str(EPOCH),
    # A task that dies four times ends the attempt, and several points in a row are in tasks.
    "KAFKA_EOS_TOLERATED_CHECKPOINT_FAILURES": "20",
}


def chain(family: str) -> list[str]:
    """Points to die at, one after the other: each once, and once more with a second death in what comes next."""
    points = [p for p in POINTS if p.split(".")[0] == family and p not in ELSEWHERE]
    return [death for point in points for death in (*_deaths(point, family), *_deaths(point, family, again=True))]


def _deaths(point: str, family: str, *, again: bool = False) -> Iterator[str]:
    if point in IN_TASKS:
        yield from (point, point) if again else (point,)
    elif family == "recovery":
        # Only what was decided is looked at, probed and committed; finished once, it is not finished again.
        yield from (DECIDED, point, DECIDED, point) if again else (DECIDED, point)
    else:
        yield from (point, second_death(point)) if again else (point,)


OTHERS = {"savepoint", "micro-batch", "timers", "bootstrap", "async-map", "lake", "outbox"}
"""Families of which this job has nothing: operators and sinks with tests of their own."""
FAMILIES = sorted({p.split(".")[0] for p in POINTS if p not in ELSEWHERE} - OTHERS)


@pytest.mark.parametrize("family", [campaign(family) for family in FAMILIES])
def test_nothing_is_lost_or_doubled(family: str, new_job: NewJob) -> None:
    job, deaths = new_job(TOTALS, input=3, output=2), chain(family)
    script = ";".join(f"{point}=kill" for point in deaths)
    numbers = itertools.count()
    fed: list[dict[str, Any]] = []

    codes: list[int] = []
    while not codes or codes[-1] != 0 or fired(job) != deaths:
        before = len(fired(job))
        new = [payment(next(numbers), ACCOUNTS) for _ in range(3 * EPOCH)]
        feed(job, "input", new)
        fed += new
        run = Run(job, "local[2,4]", "--until-caught-up", "-p", "2", failpoints=script, **SETTINGS)
        codes.append(run.ended())
        assert codes[-1] in (0, -signal.SIGKILL), run.tail()
        assert len(fired(job)) > before or len(fired(job)) == len(deaths), f"no {deaths[before]} in {fired(job)}"

    assert codes.count(-signal.SIGKILL) == sum(point not in IN_TASKS for point in deaths)
    same(rows(job.values("output")), totals(fed))
    assert job.left_open() == []


@pytest.mark.campaign
def test_sums_that_are_set_aside_survive_kills(new_job: NewJob) -> None:
    """A task that is killed leaves its scratch; the next one removes it."""
    job, deaths = new_job(SUMS, input=3, output=2), ["scratch.put", "scratch.taken", "scratch.taken"]
    fed = [payment(number, ACCOUNTS) for number in range(3 * EPOCH)]
    feed(job, "input", fed)
    few = {**SETTINGS, "KAFKA_EOS_STATE_CACHE_ENTRIES": "10"}

    script = ";".join(f"{point}=kill@10" for point in deaths)
    run = Run(job, "local[2,4]", "--until-caught-up", "-p", "2", failpoints=script, **few)

    assert run.ended() == 0, run.tail()
    assert fired(job) == deaths
    wanted: Counter[str] = Counter()
    for each in fed:
        wanted[each["account"]] += each["amount"]
    assert {row["account"]: row["total"] for row in job.values("output")} == dict(wanted)
    assert job.left_open() == []
    assert list(job.checkpoints.rglob("*.scratch")) == []


@pytest.mark.campaign
def test_timers_fire_once_whoever_is_killed(new_job: NewJob) -> None:
    """Tasks and drivers; windows stay open over many epochs, and each is summed up once."""
    job, deaths = new_job(WINDOWS, input=3, output=2), ["sink.seal", "snapshot.uploaded", "commit.before"]
    fed = [payment(number) for number in range(8 * EPOCH)]
    feed(job, "input", fed)

    script = ";".join(f"{point}=kill@3" for point in deaths)
    codes = [-signal.SIGKILL]
    while codes[-1] == -signal.SIGKILL:
        run = Run(job, "local[2,4]", "--until-caught-up", "-p", "2", failpoints=script, **SETTINGS)
        codes.append(run.ended())
    assert codes[1:] == [-signal.SIGKILL, 0], run.tail()

    assert fired(job) == deaths
    newest: dict[int, int] = {}
    sums: Counter[tuple[str, int]] = Counter()
    for message in job.read("input"):
        each = json.loads(message.value())
        newest[message.partition()] = each["id"]
        sums[each["account"], (each["id"] // WINDOW + 1) * WINDOW] += each["amount"]
    over = {window: total for window, total in sums.items() if window[1] <= min(newest.values())}
    assert Counter(rows(job.values("output"))) == Counter(
        (account, total, end) for (account, end), total in over.items()
    )
    assert len(over) > 5 * 20
    assert job.left_open() == []
