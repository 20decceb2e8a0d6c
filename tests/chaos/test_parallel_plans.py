"""Three workers and every way for rows to change between them, under kills: nothing lost, doubled or out of order."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

import pytest

from kafka_eos.core.provenance import HEADER, parse_provenance
from tests.chaos.feeding import feeding
from tests.chaos.harness import Job, create_topic, read
from tests.chaos.running import audit_passes, manifests, nothing_left
from tests.chaos.storm import Storm
from tests.marks import campaign

NewJob = Callable[..., Job]
Row = dict[str, Any]

pytestmark = pytest.mark.chaos

WORKERS = 3
PAYMENTS = 300
KILLS = ("worker.ack.after=kill@3", "commit.before=kill@2", "recovery.restored=kill")
FEW_KILLS = ("align.complete=kill@4", "commit.between=kill@2")


@pytest.fixture
def stormy(new_job: NewJob) -> Callable[..., Job]:
    """``stormy("stages", "unaligned", *kills)``: a job of that route, that has seen the kills and is drained."""

    def run(route: str, mode: str, *kills: str, workers: int = WORKERS, **environment: object) -> Job:
        job = new_job(PAYMENTS, app="routes.py", TEST_ROUTE=route, TEST_PAUSE=0.001, **environment)
        storm = Storm(job, PAYMENTS)
        with storm.through(*kills, KAFKA_EOS_PARALLELISM=workers, KAFKA_EOS_CHECKPOINT_MODE=mode):
            storm.feed()
        job.run()
        nothing_left(job)
        return job

    return run


@pytest.mark.campaign
def test_two_exchanges_in_a_row(stormy: Callable[..., Job]) -> None:
    job = stormy("stages", "unaligned", *KILLS)

    rows, payments = _output(job), _input(job)
    assert Counter(row["id"] for row in rows) == Counter(p["id"] for p in payments)
    _counted(rows, by="branch")
    account = {p["id"]: p["account"] for p in payments}
    _in_order(rows, payments, lambda row: account[row["id"]])
    _provenance_is_unique(job)


@pytest.mark.campaign
def test_rows_under_way_through_two_exchanges_keep_their_order_in_a_single_worker(new_job: NewJob) -> None:
    """Those further down are older, so they go first: also where nothing lies between the two any more."""
    job = new_job(PAYMENTS, "routes.py", TEST_ROUTE="stages", TEST_PAUSE_AFTER=0.004)
    storm = Storm(job, PAYMENTS)
    with storm.through(KAFKA_EOS_PARALLELISM=WORKERS, KAFKA_EOS_CHECKPOINT_MODE="unaligned") as running, feeding(job):
        running.freeze_when(lambda: _exchanges(job) == {"first", "second"}, "fill")
    job.environment["KAFKA_EOS_PARALLELISM"] = "1"
    job.run()
    nothing_left(job)

    rows, payments = _output(job), _input(job)
    assert Counter(row["id"] for row in rows) == Counter(p["id"] for p in payments)
    _counted(rows, by="branch")
    account = {p["id"]: p["account"] for p in payments}
    _in_order(rows, payments, lambda row: account[row["id"]])


@pytest.mark.campaign
def test_rows_under_way_in_parts_apart_are_taken_up_by_a_single_worker(new_job: NewJob) -> None:
    """Each part is a piece of its own there, and its rows belong to it."""
    job = new_job(PAYMENTS, "routes.py", TEST_ROUTE="apart", TEST_PAUSE_AFTER=0.004)
    storm = Storm(job, PAYMENTS)
    with storm.through(KAFKA_EOS_PARALLELISM=2, KAFKA_EOS_CHECKPOINT_MODE="unaligned") as running, feeding(job):
        running.freeze_when(lambda: len(_exchanges(job)) == 2, "fill")
    job.environment["KAFKA_EOS_PARALLELISM"] = "1"
    job.run()
    nothing_left(job)

    payments = _input(job)
    for number in (0, 1):
        rows = [row for row in _output(job) if row["number"] == number]
        assert Counter(row["id"] for row in rows) == Counter(p["id"] for p in payments)
        _counted(rows, by="account")
        _in_order(rows, payments, lambda row: row["account"])


@pytest.mark.campaign
def test_flat_maps_before_exchanges(stormy: Callable[..., Job]) -> None:
    """Each output says which of many outputs of its payment it is, wherever it was made; the audit agrees."""
    job = stormy("fan-out", "aligned", *KILLS)

    rows, payments = _output(job), _input(job)
    wanted = [(f"{p['account']}-{n}-{k}", p["id"]) for p in payments for n in range(p["amount"] % 4) for k in range(2)]
    assert Counter((row["account"], row["id"]) for row in rows) == Counter(wanted)
    _counted(rows, by="account")
    _in_order(rows, payments, lambda row: row["account"])
    _provenance_is_unique(job)


@pytest.mark.campaign
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("route", ["once", "diamond"])
def test_the_audit_recomputes_what_three_workers_made(stormy: Callable[..., Job], route: str) -> None:
    job = stormy(route, "unaligned", *FEW_KILLS)

    audit_passes(job)


@pytest.mark.campaign
def test_dead_letters_from_behind_an_exchange(stormy: Callable[..., Job], bootstrap: str) -> None:
    """Their records travelled undecoded: what is written aside is what was read."""
    letters = f"letters-{uuid4().hex[:8]}"
    create_topic(bootstrap, letters, 2)
    job = stormy("letters", "aligned", *KILLS, TEST_LETTERS=letters)

    everything = read(bootstrap, job.input)
    bad = {m.value() for m in everything if json.loads(m.value())["id"] % 50 == 3}
    aside = read(bootstrap, letters)
    assert Counter(m.value() for m in aside) == Counter(bad)
    assert {m.key() for m in aside} == {m.key() for m in everything if m.value() in bad}
    rows = _output(job)
    good = [p for p in _input(job) if p["id"] % 50 != 3]
    assert Counter(row["id"] for row in rows) == Counter(p["id"] for p in good)
    _counted(rows, by="account")
    _in_order(rows, good, lambda row: row["account"])


@pytest.mark.parametrize("mode", ["unaligned", "aligned"])
@pytest.mark.campaign
def test_rows_without_keys_are_spread(stormy: Callable[..., Job], mode: str) -> None:
    """There is no state, so what is under way is all that a checkpoint of a worker may have to store."""
    job = stormy("spread", mode, *FEW_KILLS)

    assert Counter(row["id"] for row in _output(job)) == Counter(p["id"] for p in _input(job))
    _provenance_is_unique(job)


@pytest.mark.campaign
def test_every_worker_gets_a_broadcast_once(stormy: Callable[..., Job]) -> None:
    job = stormy("everywhere", "unaligned", *FEW_KILLS)

    assert Counter(row["id"] for row in _output(job)) == Counter({p["id"]: WORKERS for p in _input(job)})
    _provenance_is_unique(job)


@pytest.mark.campaign
def test_more_workers_than_partitions_and_no_exchange(stormy: Callable[..., Job]) -> None:
    """Some workers read nothing, and take part in every checkpoint."""
    job = stormy("straight", "aligned", *FEW_KILLS, workers=4)

    rows, payments = _output(job), _input(job)
    assert Counter(row["id"] for row in rows) == Counter(p["id"] for p in payments)
    _in_order(rows, payments, lambda row: row["account"])


@pytest.mark.campaign
@pytest.mark.parametrize("mode", ["unaligned", campaign("aligned")])
def test_a_way_with_an_exchange_meets_one_without(stormy: Callable[..., Job], mode: str) -> None:
    """Items of one payment stay together on the way without, and in their order; and they keep their names."""
    job = stormy("diamond", mode, *FEW_KILLS)

    rows, payments = _output(job), _input(job)
    assert Counter((row["number"], row["id"]) for row in rows) == _both_ways(payments)
    _in_order((row for row in rows if row["number"] > 0), payments, lambda row: row["account"])
    _provenance_is_unique(job)


@pytest.mark.campaign
def test_blocked_input_that_exceeds_memory_is_on_the_disk(new_job: NewJob) -> None:
    """Killed meanwhile, too: what was there is read again."""
    job = new_job(PAYMENTS, "routes.py", TEST_ROUTE="diamond", TEST_PAUSE_OF_ONE=0.05, TEST_FILLER=20_000)
    storm = Storm(job, PAYMENTS)
    spill = {"KAFKA_EOS_ALIGNMENT_SPILL": "100MB", "KAFKA_EOS_EXCHANGE_MEMORY": "1MB"}
    with storm.through(*FEW_KILLS, KAFKA_EOS_PARALLELISM=WORKERS, **spill) as running:
        storm.feed(900)
        running.until(lambda: any(file.stat().st_size for file in job.checkpoints.rglob("held-*")), "spill")
    job.run()
    nothing_left(job)

    rows, payments = _output(job), _input(job)
    assert Counter((row["number"], row["id"]) for row in rows) == _both_ways(payments)
    name = {p["id"]: p["account"] for p in payments}
    _in_order((row for row in rows if row["number"] > 0), payments, lambda row: name[row["id"]])
    _provenance_is_unique(job)


@pytest.mark.campaign
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("route", ["diamond", "keyed-diamond"])
def test_forwarded_rows_under_way_keep_their_order_at_another_parallelism(
    new_job: NewJob, route: str, workers: int
) -> None:
    """They go where later rows of their split, or of their key, will be."""
    job = new_job(PAYMENTS, "routes.py", TEST_ROUTE=route, TEST_PAUSE_AFTER=0.004)
    storm = Storm(job, PAYMENTS)
    with storm.through(KAFKA_EOS_PARALLELISM=WORKERS, KAFKA_EOS_CHECKPOINT_MODE="unaligned") as running, feeding(job):
        running.freeze_when(lambda: "both-forward-1" in _exchanges(job), "fill")
    job.environment["KAFKA_EOS_PARALLELISM"] = str(workers)
    job.run()
    nothing_left(job)

    rows, payments = _output(job), _input(job)
    stayed = [row for row in rows if row["number"] > 0]
    if route == "diamond":
        assert Counter((row["number"], row["id"]) for row in rows) == _both_ways(payments)
    else:
        assert Counter((row["number"], row["id"]) for row in rows) == Counter(
            (n, p["id"]) for p in payments for n in (0, 1)
        )
        _counted(stayed, by="account")
    _in_order(stayed, payments, lambda row: row["account"])
    _provenance_is_unique(job)


def _both_ways(payments: Iterable[Row]) -> Counter[tuple[int, int]]:
    """Item 0 of each payment went over, the others stayed."""
    return Counter((n, p["id"]) for p in payments for n in (0, *range(1, 1 + p["amount"] % 4)))


# ---------------------------------------------------------------- what a job left


def _exchanges(job: Job) -> set[str]:
    """Which exchanges have rows under way in the newest checkpoint."""
    return {part.exchange for part in manifests(job)[-1].in_flight}


@pytest.mark.campaign
@pytest.mark.parametrize(
    "told", [campaign({}, named="at once"), pytest.param({"KAFKA_EOS_ALIGNED_TIMEOUT": 0.2}, id="after a while")]
)
def test_rows_that_cannot_be_written_wait_for_the_barriers_of_unaligned_checkpoints(
    new_job: NewJob, told: dict[str, object]
) -> None:
    """Whatever is under way when a checkpoint is due: how much that is, is chance."""
    job = new_job(
        PAYMENTS,
        "untyped.py",
        KAFKA_EOS_PARALLELISM=2,
        KAFKA_EOS_CHECKPOINT_MODE="unaligned",
        TEST_PAUSE_AFTER=0.003,
        **told,
    )
    storm = Storm(job, PAYMENTS)
    with storm.through("align.complete=kill@6", "commit.before=kill@3"):
        storm.feed()
    job.environment["TEST_PAUSE_AFTER"] = "0"
    job.run()
    nothing_left(job)

    found = Counter((row["id"], row["number"]) for row in _output(job))
    assert found == Counter((payment["id"], number) for payment in _input(job) for number in (0, 1))
    _provenance_is_unique(job)


def _output(job: Job) -> list[Row]:
    visible = sorted(read(job.bootstrap, job.output), key=lambda m: (m.partition(), m.offset()))
    return [json.loads(message.value()) for message in visible]


def _input(job: Job) -> list[Row]:
    stored = sorted(read(job.bootstrap, job.input), key=lambda m: (m.partition(), m.offset()))
    return [json.loads(message.value()) for message in stored]


def _counted(rows: Iterable[Row], by: str) -> None:
    """State went from row to row: each key's outputs count 1, 2, 3 …, in the order in which they stand."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row[by]] += 1
        assert row["count"] == counts[row[by]], row


def _in_order(rows: Iterable[Row], payments: Iterable[Row], group: Callable[[Row], str]) -> None:
    """Rows of a group stand in the order of the payments that they came from."""
    place = {p["id"]: at for at, p in enumerate(payments)}
    seen: dict[str, int] = defaultdict(int)
    for row in rows:
        at = place[row["id"]]
        assert at >= seen[group(row)], f"{row} is out of order"
        seen[group(row)] = at


def _provenance_is_unique(job: Job) -> None:
    texts = [dict(m.headers())[HEADER].decode() for m in read(job.bootstrap, job.output)]
    doubled = [text for text, times in Counter(parse_provenance(text).identity for text in texts).items() if times > 1]
    assert doubled == [], f"{len(doubled)} outputs have the provenance of another one, such as {doubled[:3]}"
