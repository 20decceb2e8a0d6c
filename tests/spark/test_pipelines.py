"""What the DSL offers, on Spark: outputs as they must be, restarts, and a job that moves between engines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos.audit import Conclusion, audit
from kafka_eos.core.failure_causes import RemoteUserError
from kafka_eos.core.ids import AppRef
from kafka_eos.storage import job_records as records
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import LocalStorage
from tests.chaos.harness import KEPT
from tests.spark.kit import SUMS, Job, feed, payment, rows, same, totals

NewJob = Callable[..., Job]

TOTALS = """
pipeline = Pipeline("{name}")
totals = (
    pipeline.source(KafkaSource("{input}", value=Payment), name="payments")
    .filter(lambda payment: payment.amount > 0)
    .key_by(lambda payment: payment.account)
    .fold(name="total", init=lambda: Total("", 0, -1), step=add, emit=lambda account, total: total)
)
totals.sink(KafkaSink("{output}", value=Total, key=lambda total: total.account), name="to-kafka")
totals.sink(FileSink("{directory}/files", value=Total), name="to-files")
"""


def in_files(job: Job) -> list[dict[str, Any]]:
    parts = sorted((job.directory / "files").glob("part-*"))
    return [json.loads(line) for part in parts for line in part.read_bytes().splitlines()]


def check_totals(job: Job, count: int) -> None:
    wanted = totals(map(payment, range(count)))
    same(rows(job.values("output")), wanted)
    assert Counter(rows(in_files(job))) == Counter(wanted)
    assert job.left_open() == []
    assert [p.name for p in (job.directory / "files").glob(".*") if not p.name.startswith(KEPT)] == []


def test_stateless_stages_and_two_sinks_of_one_source(new_job: NewJob, spark: Any) -> None:
    job = new_job(
        """
pipeline = Pipeline("{name}")
payments = pipeline.source(KafkaSource("{input}", value=Payment), name="payments")
payments.filter(lambda p: p.id % 2 == 0).map(lambda p: p.id).sink(KafkaSink("{even}", value=int), name="even")
payments.flat_map(lambda p: [p.id, -p.id]).sink(KafkaSink("{both}", value=int), name="both")
""",
        input=3,
        even=1,
        both=2,
    )
    feed(job, "input", map(payment, range(200)))

    job.on_spark(spark)

    assert Counter(job.values("even")) == Counter(range(0, 200, 2))
    assert Counter(job.values("both")) == Counter([sign * n for n in range(200) for sign in (1, -1)])
    assert job.left_open() == []


def test_state_goes_on_over_epochs_and_restarts(new_job: NewJob, spark: Any) -> None:
    job = new_job(TOTALS, input=3, output=2)
    feed(job, "input", map(payment, range(300)))

    job.on_spark(spark, max_records_per_epoch=120)
    assert job.count("committed") >= 3
    feed(job, "input", map(payment, range(300, 400)))
    job.on_spark(spark)

    check_totals(job, 400)


@pytest.mark.campaign
def test_a_job_moves_between_engines_and_parallelisms(new_job: NewJob, spark: Any) -> None:
    job = new_job(TOTALS, input=3, output=2)
    runs: list[Callable[[], None]] = [
        lambda: job.embedded(),
        lambda: job.on_spark(spark, parallelism=3),
        lambda: job.embedded(parallelism=2),
        lambda: job.on_spark(spark, parallelism=2),
        lambda: job.embedded(),
    ]
    for turn, run in enumerate(runs):
        feed(job, "input", map(payment, range(turn * 60, turn * 60 + 60)))
        run()

    check_totals(job, 300)
    storage = LocalStorage(job.checkpoints / job.name)
    newest = records.load(storage, Manifest, storage.list("manifests")[-1], job.name)
    assert newest.parallelism == 1


@pytest.mark.campaign
def test_a_job_with_provenance_in_the_ledger_is_proved_whatever_engine_it_ran_on(new_job: NewJob, spark: Any) -> None:
    """Tasks of Spark write their own transactions; what they recorded is stored as the embedded engine stores it."""
    told = TOTALS.replace("key=lambda total: total.account)", 'key=lambda total: total.account, provenance="ledger")')
    job = new_job(told, input=3, output=2)
    for turn, run in enumerate((lambda: job.on_spark(spark, max_records_per_epoch=40), lambda: job.embedded(2))):
        feed(job, "input", map(payment, range(turn * 90, turn * 90 + 90)))
        run()

    verdict = audit(job.plan(), job.settings(), app=AppRef(job.app), spark=spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, verdict.skipped), verdict.headline
    assert {name for message in job.read("output") for name, _ in message.headers() or ()} == set()


def test_processes_unions_and_chained_exchanges(new_job: NewJob, spark: Any) -> None:
    job = new_job(
        """
class Rank(ProcessFunction[str, Payment, Total]):
    def open(self, ctx):
        self.seen = ctx.value_state("seen", int, 0)

    def process(self, key, payment):
        self.seen.put(self.seen.get() + 1)
        yield Total(key, self.seen.get(), payment.id)

pipeline = Pipeline("{name}")
first = pipeline.source(KafkaSource("{one}", value=Payment), name="first")
second = pipeline.source(KafkaSource("{two}", value=Payment), name="second").rebalance(name="spread")
ranked = first.union(second, name="both").key_by(lambda p: p.account).process(Rank, name="rank")
ranked.sink(KafkaSink("{ranks}", value=Total), name="ranks")
(
    ranked.key_by(lambda t: str(t.total % 2), values=Total)
    .fold(name="parity", init=lambda: 0, step=lambda n, t: n + 1, emit=lambda key, n: Total(key, n, 0))
    .sink(KafkaSink("{parities}", value=Total), name="parities")
)
""",
        one=2,
        two=1,
        ranks=1,
        parities=1,
    )
    feed(job, "one", (payment(n, 4) for n in range(100)))
    feed(job, "two", (payment(n, 4) for n in range(100, 200)))

    job.on_spark(spark, max_records_per_epoch=90)

    ranks = Counter((value["account"], value["total"]) for value in job.values("ranks"))
    assert ranks == Counter((f"a{a}", n) for a in range(4) for n in range(1, 51))
    parities = Counter((value["account"], value["total"]) for value in job.values("parities"))
    assert parities == Counter((p, n) for p in "01" for n in range(1, 101))
    assert job.left_open() == []


def test_a_broadcast_reaches_every_task(new_job: NewJob, spark: Any) -> None:
    job = new_job(
        """
pipeline = Pipeline("{name}")
(
    pipeline.source(ListSource(list(range(50)), splits=2), name="numbers")
    .broadcast(name="all", values=int)
    .sink(KafkaSink("{output}", value=int), name="out")
)
""",
        output=1,
    )

    job.on_spark(spark, parallelism=2)

    assert Counter(job.values("output")) == Counter(2 * list(range(50)))
    headers = [dict(message.headers())["kafka_eos"] for message in job.read("output")]
    assert len(set(headers)) == 100


def test_refused_records_go_aside_from_any_level(new_job: NewJob, spark: Any) -> None:
    job = new_job(
        """
def refuse(total, payment):
    if payment.id % 10 == 3:
        raise ValueError("three")
    return add(total, payment)

pipeline = Pipeline("{name}")
(
    pipeline.source(KafkaSource("{input}", value=Payment), name="payments", on_error=dead_letter("{letters}"))
    .key_by(lambda payment: payment.account)
    .fold(name="total", init=lambda: Total("", 0, -1), step=refuse, emit=lambda account, total: total)
    .sink(KafkaSink("{output}", value=Total), name="out")
)
""",
        input=2,
        letters=1,
        output=1,
    )
    feed(job, "input", [b"not json", *map(payment, range(100)), b"[]"])

    job.on_spark(spark)

    good = [p for p in map(payment, range(100)) if p["id"] % 10 != 3]
    assert Counter(value["id"] for value in job.values("output")) == Counter(p["id"] for p in good)
    letters = [message.value() for message in job.read("letters")]
    bad = [json.dumps(payment(n)).encode() for n in range(3, 100, 10)]
    assert Counter(letters) == Counter([b"not json", b"[]", *bad])
    assert job.left_open() == []


def test_a_bad_record_stops_the_job_at_once_and_leaves_nothing_open(new_job: NewJob, spark: Any) -> None:
    job = new_job(TOTALS, input=1, output=1)
    feed(job, "input", [*map(payment, range(20)), b"not json"])

    with pytest.raises(RemoteUserError, match="Nothing was skipped") as refused:
        job.on_spark(spark)

    assert refused.value.error == "PoisonRecord"
    assert job.count("restarting") == 0
    assert job.values("output") == []
    assert job.left_open() == []


@pytest.mark.parametrize("in_memory", [1_000_000, 10])
def test_a_fold_in_two_phases_gives_one_output_a_key_and_epoch(new_job: NewJob, spark: Any, in_memory: int) -> None:
    job = new_job(SUMS, input=3, output=1)
    feed(job, "input", map(payment, range(200)))
    job.on_spark(spark, state_cache_entries=in_memory)
    feed(job, "input", map(payment, range(200, 300)))
    job.on_spark(spark, state_cache_entries=in_memory)

    sums: Counter[str] = Counter()
    for each in map(payment, range(300)):
        sums[each["account"]] += each["amount"]
    assert len(job.values("output")) == 40
    assert {value["account"]: value["total"] for value in job.values("output")} == dict(sums)
    assert job.left_open() == []
