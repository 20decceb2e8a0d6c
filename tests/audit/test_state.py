"""The state of real jobs beside what their input makes: right ones pass, what was changed is named by its key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_eos.abc.state import InFlightRows
from kafka_eos.abc.storage import FileRef
from kafka_eos.audit import Conclusion, Verdict
from kafka_eos.audit.checks.verdict import StateCheck
from kafka_eos.audit.state import audit_state
from kafka_eos.cli.savepoints import write_offline_savepoint
from kafka_eos.codecs import CountedCodec, KeyCodec, MsgpackCodec
from kafka_eos.core.ids import AppRef
from kafka_eos.runtime.program import load_program
from kafka_eos.runtime.state import memory_store as memory
from kafka_eos.runtime.state.key_groups import row_keys
from kafka_eos.runtime.state.stored_rows import open_handles
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest
from tests.audit.job import Job
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(300)

STATES = """
import msgspec
from kafka_eos import Pipeline, ProcessFunction, Ttl
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import KafkaSource

class Order(msgspec.Struct):
    user: str
    amount: int

class Seen(ProcessFunction):
    def open(self, ctx):
        self.count = ctx.value_state("count", int, 0)
        self.amounts = ctx.list_state("amounts", int)
        self.of = ctx.map_state("of", str, int)

    def process(self, user, order):
        self.count.put(self.count.get() + 1)
        self.amounts.add(order.amount)
        self.of.put("even" if order.amount % 2 == 0 else "odd", order.amount)
        yield self.count.get()

class Once(ProcessFunction):
    def open(self, ctx):
        self.seen = ctx.value_state("seen", bool, ttl=Ttl(0.0001))
        self.ever = ctx.value_state("ever", bool, ttl=Ttl(3600))
        self.news = ctx.value_state("news", int, 0)

    def process(self, user, order):
        if not self.seen.get():
            self.news.put(self.news.get() + 1)
            yield user
        self.seen.put(True)
        self.ever.put(True)

pipeline = Pipeline("{name}", checkpoint_interval=0.2, retained_checkpoints=2)
users = pipeline.source(KafkaSource("{input}", value=Order), name="orders").key_by(lambda order: order.user)
users.fold(name="total", init=lambda: 0, step=lambda total, order: total + order.amount) \\
    .sink(FileSink("{output}/totals", value=tuple[str, int]), name="totals")
users.fold(name="summed", init=lambda: 0.0, step=lambda total, order: total + order.amount / 10,
           merge=lambda a, b: a + b).sink(FileSink("{output}/summed", value=tuple[str, float]), name="sums")
users.process(Seen, name="seen").sink(FileSink("{output}/seen"), name="counts")
users.process(Once, name="once").sink(FileSink("{output}/once"), name="news")
"""
USERS = ("ann", "bob", "cid", "dee")
BOTH = "both"
"""A user with orders in both partitions."""


def feed(job: Job, numbers: range) -> None:
    """Orders of users that have a partition each, and of one that has none."""
    users = [(n % 2, BOTH if n % 10 > 7 else USERS[n % 4]) for n in numbers]
    job.feed(job.topics["input"], [
        (p, user, json.dumps({"user": user, "amount": n % 7}).encode())
        for n, (p, user) in zip(numbers, users, strict=True)
    ])  # fmt: skip


def audited(job: Job, spark: Any, **options: Any) -> Verdict:
    ref = AppRef(job.app, job.name)
    return audit_state(load_program(ref), job.settings, app=ref, spark=spark, **options)


def found(verdict: Verdict) -> dict[Any, dict[str, int]]:
    return {finding.check: dict(finding.by_sink) for finding in verdict.findings}


def told(verdict: Verdict) -> list[str]:
    return sorted(offender.detail for finding in verdict.findings for offender in finding.examples)


def newest(job: Job) -> Manifest:
    return records.load(job.store, Manifest, max(job.store.list(paths.MANIFESTS)), job.name)


def exchange(job: Job, manifest: Manifest) -> None:
    job.store.delete(manifest.name)
    records.publish(job.store, manifest)


@contextmanager
def spoiling(job: Job, scratch: Path, operator: str) -> Iterator[dict[str, dict[bytes, bytes]]]:
    """All stored rows of an operator by state, to be changed: the newest checkpoint then holds what is left there."""
    manifest, rows = newest(job), dict[str, dict[bytes, bytes]]()
    handles = [handle for handle in manifest.states if handle.operator == operator]
    scratch.mkdir()
    with open_handles(handles, job.store, scratch) as sources:
        for name in (str(described["name"]) for described in handles[0].states):
            rows[name] = {key: value for source in sources for key, value in source.scan(name)}
    yield rows
    changed = []
    for handle in handles:
        first, last = handle.key_groups
        files = []
        for name, every in rows.items():
            path = scratch / memory.rows_file(name)
            with path.open("wb") as target:
                own = {key: value for key, value in every.items() if first <= int.from_bytes(key[:2], "big") <= last}
                memory.write_rows(target, own.items())
            files.append(job.store.upload(path, path.name))
            path.unlink()
        changed.append(msgspec.structs.replace(handle, backend=memory.KIND, files=tuple(files)))
    others = [handle for handle in manifest.states if handle.operator != operator]
    exchange(job, msgspec.structs.replace(manifest, states=(*others, *changed)))


def row_key(user: str) -> bytes:
    return row_keys([KeyCodec().encode(user)])[0]


def test_the_state_of_a_job_that_was_killed_and_rescaled_is_what_its_input_makes_and_what_is_changed_is_named(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, tmp_path: Path
) -> None:
    job = new_job(STATES, input=topic(partitions=2), output=str(tmp_path / "out"))
    feed(job, range(60))
    job.run(workers=2, failpoints="worker.ack.before=kill@1")
    feed(job, range(60, 100))
    job.run(workers=3)

    verdict = audited(job, spark, report_dir=tmp_path / "report")

    assert (Conclusion.PASS, ()) == (verdict.conclusion, verdict.findings), verdict.headline
    facts = verdict.facts
    assert facts.state is not None
    assert facts.kills >= 1, "a kill is in the history"
    # Of each user a total, a sum, a count, a number of news, two kinds of amount, and each amount of theirs.
    assert facts.state.stored == facts.state.made == 5 * 4 + 5 * 2 + 100
    left = {(each.state, each.why): each.entries for each in facts.state.uncompared}
    assert left["ever of once", "it depends on when state with a time to live expired: its own"] == 5
    assert 0 < left["news of once", "it depends on when state with a time to live expired"] <= 5
    assert f"100 records in, {facts.state.stored} entries of 6 states of epoch" in verdict.headline
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert ("PASS", facts.state.stored) == (report["verdict"], report["state"]["stored"])
    assert ["wrong state", "lost state", "unexpected state"] == [check["check"] for check in report["checks"]]
    assert "entries stored" in (tmp_path / "report" / "report.html").read_text()

    _spoil(job, tmp_path)
    verdict = audited(job, spark)

    assert Conclusion.FAIL is verdict.conclusion
    assert found(verdict) == {
        StateCheck.WRONG_STATE: {"seen.amounts": 1, "seen.of": 1, "summed.accumulator": 1, "total.accumulator": 1},
        StateCheck.LOST_STATE: {"seen.count": 1, "total.accumulator": 1},
        StateCheck.UNEXPECTED_STATE: {"total.accumulator": 1},
    }
    ann, bob = (sum(n % 7 for n in range(100) if n % 10 < 8 and USERS[n % 4] == user) for user in ("ann", "bob"))
    number = sum(n % 10 < 8 and n % 4 == 0 for n in range(100))
    assert f"key 'ann' is {ann + 1} after {number} updates: expected {ann} after {number} updates" in told(verdict)
    assert f"key 'bob' is missing: expected {bob} after {number} updates" in told(verdict)
    assert "key 'eve' is unexpected: 5 after 1 updates" in told(verdict)
    assert any(text.startswith("key 'cid', element 1 is 99: expected") for text in told(verdict))
    assert any(text.startswith("key 'dee', entry 'odd' is 98: expected") for text in told(verdict))
    assert {o.topic for f in verdict.findings for o in f.examples} >= {"total.accumulator", "seen.amounts"}


def _spoil(job: Job, scratch: Path) -> None:
    """Change what a job has stored of some users."""
    entry, number = CountedCodec(MsgpackCodec(int)), MsgpackCodec(int)
    with spoiling(job, scratch / "total", "total") as rows:
        totals = rows["accumulator"]
        updates, total = entry.decode(totals[row_key("ann")])
        totals[row_key("ann")] = entry.encode((updates, total + 1))
        del totals[row_key("bob")]
        totals[row_key("eve")] = entry.encode((1, 5))
    with spoiling(job, scratch / "summed", "summed") as rows:
        sums = CountedCodec(MsgpackCodec(float))
        updates, total = sums.decode(rows["accumulator"][row_key("ann")])
        rows["accumulator"][row_key("ann")] = sums.encode((updates, total + 0.1))
    with spoiling(job, scratch / "seen", "seen") as rows:
        of_cid = sorted(key for key in rows["amounts"] if b"cid" in key)
        rows["amounts"][of_cid[1]] = number.encode(99)
        rows["of"][next(key for key in rows["of"] if b"dee" in key and key.endswith(b"odd"))] = number.encode(98)
        del rows["count"][row_key("dee")]


LAST = """
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

pipeline = Pipeline("{name}", state_backend="memory")
words = pipeline.source(KafkaSource("{input}", value=str), name="words")
(
    words.key_by(lambda word: word[0])
    .fold(name="last", init=lambda: "", step=lambda _, word: word, emit=lambda _, word: word)
    .sink(KafkaSink("{output}", value=str), name="lasts")
)
"""


@pytest.mark.campaign
def test_a_key_from_several_partitions_is_compared_in_the_order_that_the_outputs_tell(
    new_job: Callable[..., Job], topic: Callable[..., str], admin: AdminClient, spark: Any, tmp_path: Path
) -> None:
    """Once the outputs are gone nothing tells it any more: a difference is said, and is no finding."""
    job = new_job(LAST, input=topic(partitions=2), output=topic())
    job.feed(job.topics["input"], [(n % 2, None, b"%c%d" % (b"ab"[n % 3 % 2], n)) for n in range(20)])
    job.run(workers=1)

    with spoiling(job, tmp_path / "last", "last") as rows:
        rows["accumulator"][row_key("a")] = CountedCodec(MsgpackCodec(str)).encode((1, "else"))
    status, said = verified(job)
    assert (1, 1) == (status, said.count("is not the one that was committed")), said
    assert "FAIL: wrong state: 1" in said
    assert "last.accumulator: key 'a' is 'else' after 1 updates: expected 'a" in said

    (gone,) = admin.delete_records([TopicPartition(job.topics["output"], 0, -1)]).values()
    gone.result(PATIENCE)
    verdict = audited(job, spark)

    assert (Conclusion.PASS, ()) == (verdict.conclusion, verdict.findings), verdict.headline
    assert "of state accumulator of last not compared: no record shows in which order" in verdict.headline


def verified(job: Job) -> tuple[int, str]:
    """What ``checkpoints verify --against-input`` says, and its exit code."""
    where = ("--checkpoint-dir", str(job.checkpoint_dir))
    return job.ask("checkpoints", "verify", job.name, "--against-input", str(job.app), *where)


@pytest.mark.slow
def test_state_in_an_object_store_is_read_there(
    new_job: Callable[..., Job], topic: Callable[..., str], s3: str, tmp_path: Path
) -> None:
    job = replace(new_job(LAST, input=topic(), output=topic()), checkpoints=s3)
    job.feed(job.topics["input"], [(0, None, word) for word in (b"a1", b"b1", b"a2")])
    job.run(workers=2)

    right = verified(job)
    with spoiling(job, tmp_path / "last", "last") as rows:
        rows["accumulator"][row_key("a")] = CountedCodec(MsgpackCodec(str)).encode((2, "a1"))
    wrong = verified(job)

    assert (0, True) == (right[0], "PASS: 3 records in, 2 entries of 1 state" in right[1]), right[1]
    assert (1, True) == (wrong[0], "FAIL: wrong state: 1" in wrong[1]), wrong[1]
    assert "key 'a' is 'a1' after 2 updates: expected 'a2' after 2 updates" in wrong[1]


NESTED = """
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

pipeline = Pipeline("{name}")
words = pipeline.source(KafkaSource("{input}", value=str), name="words")
(
    words.key_by(lambda word: word[0])
    .fold(name="count", init=lambda: 0, step=lambda n, _: n + 1)
    .key_by(lambda pair: pair[1] % 2, values=tuple[str, int])
    .fold(name="letters", init=lambda: "", step=lambda letters, pair: letters + pair[0])
    .map(lambda pair: pair[1])
    .sink(KafkaSink("{output}", value=str), name="lists")
)
"""


@pytest.mark.campaign
def test_state_behind_state_of_a_job_on_spark(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any, tmp_path: Path
) -> None:
    job = new_job(NESTED, input=topic(), output=topic())
    job.feed(job.topics["input"], [(0, None, word) for word in (b"a", b"b", b"a", b"c", b"a", b"b")])
    job.run("--engine", "spark", "--master", "local[1]", workers=1)

    verdict = audited(job, spark)

    assert (Conclusion.PASS, ()) == (verdict.conclusion, verdict.findings), verdict.headline
    assert "6 records in, 5 entries of 2 states of epoch" in verdict.headline
    assert "not compared" not in verdict.headline

    with spoiling(job, tmp_path / "letters", "letters") as rows:
        odd = next(key for key in rows["accumulator"] if key.endswith(KeyCodec().encode(1)))
        rows["accumulator"][odd] = CountedCodec(MsgpackCodec(str)).encode((4, "abac"))
    assert ["key 1 is 'abac' after 4 updates: expected 'abca' after 4 updates"] == told(audited(job, spark))


@pytest.mark.campaign
def test_a_job_that_began_with_a_savepoint_has_the_state_of_both_and_what_expired_cannot_be_judged(
    new_job: Callable[..., Job], topic: Callable[..., str], admin: AdminClient, spark: Any, tmp_path: Path
) -> None:
    """Of the users that come after the savepoint one is new, one goes on, and two do not come any more."""
    source = topic(partitions=2)
    first = new_job(LAST, input=source, output=topic())
    first.feed(source, [(0, None, word) for word in (b"a1", b"b1", b"c1", b"a2")])
    first.run(workers=1)
    write_offline_savepoint(first.settings, first.name, tmp_path / "savepoint")
    home = tmp_path / "second"
    home.mkdir()
    second = Job(first.bootstrap, home, first.app, first.name, first.topics)
    second.feed(source, [(0, None, word) for word in (b"a3", b"d1")])
    second.run("--from", str(tmp_path / "savepoint"), workers=2)

    verdict = audited(second, spark)

    assert (Conclusion.PASS, ()) == (verdict.conclusion, verdict.findings), verdict.headline
    assert verdict.facts.state is not None
    assert (2, 4, 4) == (verdict.facts.inputs, verdict.facts.state.stored, verdict.facts.state.made)

    whole = audited(second, spark, earlier=[first.directory / "checkpoints" / first.name])
    assert (Conclusion.PASS, 6) == (whole.conclusion, whole.facts.inputs), whole.headline

    with spoiling(second, tmp_path / "last", "last") as rows:
        del rows["accumulator"][row_key("b")]
    assert ["key 'b' is missing: expected 'b1' after 1 updates"] == told(audited(second, spark))

    (gone,) = admin.delete_records([TopicPartition(source, 0, 5)]).values()
    gone.result(PATIENCE)
    verdict = audited(second, spark)

    assert Conclusion.INCONCLUSIVE is verdict.conclusion
    assert f"input {source}/0 was read from offset 4, but now begins at 5" in verdict.headline


def test_what_no_input_can_tell_is_said_before_spark_starts(
    new_job: Callable[..., Job], topic: Callable[..., str]
) -> None:
    job = new_job(LAST, input=topic(), output=topic())
    verdict = audited(job, None)
    assert (Conclusion.INCONCLUSIVE, True) == (verdict.conclusion, "no committed checkpoint" in verdict.headline)

    job.feed(job.topics["input"], [(0, None, b"a1")])
    job.run(workers=1)
    whole = newest(job)
    under_way = InFlightRows("x", {"name": "json", "schema": None}, (FileRef("rows", "ab" * 32, 1),), overtaken=False)
    exchange(job, msgspec.structs.replace(whole, in_flight=(under_way,)))
    verdict = audited(job, None)

    assert Conclusion.INCONCLUSIVE is verdict.conclusion
    assert f"epoch {whole.id} contains in-flight rows" in verdict.headline
    assert f"kafka-eos stop {job.app.name}" in verdict.headline
    assert {*StateCheck} == {*verdict.skipped}
