"""Records that cannot be decoded, or that user code refuses: the job stops at them, or sends them aside."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from kafka_eos.coordination.status_file import STATUS
from tests.broker.kafka_kit import set_topic_config
from tests.chaos.harness import Job, by_account, create_topic, open_transactions, read
from tests.chaos.running import events, nothing_left, refused, running
from tests.marks import campaign
from tests.producers import in_order
from tests.waiting import PATIENCE

NewJob = Callable[..., Job]

KILLS = ("sink.prepare.after=kill@2", "worker.ack.before=kill@2", "commit.before=kill@2", "receipt.before=kill@2")
NOT_PAYMENTS = (b"not JSON", b'{"id": 1, "account": "a1"}', b"\xff\xfe", None)
HEADERS = ("topic", "partition", "offset", "timestamp", "operator", "error", "message")


def _feed_undecodable(job: Job) -> None:
    """A few on each partition, with keys, headers and timestamps of their own."""
    producer = in_order(job.bootstrap)
    for number in range(24):
        producer.produce(
            job.input,
            NOT_PAYMENTS[number % len(NOT_PAYMENTS)],
            key=f"bad-{number}",
            partition=number % 3,
            timestamp=1_700_000_000_000 + number,
            headers={"trace": f"t{number}"},
        )
    assert producer.flush(PATIENCE) == 0


Where = tuple[int, int]
Fate = tuple[str, str]
"""The operator that refuses a record, and the error."""


def _recompute(messages: list[Any]) -> tuple[list[tuple[str, int, int]], dict[Where, Fate]]:
    """What must be written, and by partition and offset what must be refused; independent of the engine."""
    totals: Counter[str] = Counter()
    rows: list[tuple[str, int, int]] = []
    bad: dict[Where, Fate] = {}
    for message in sorted(messages, key=lambda m: (m.partition(), m.offset())):
        where = (message.partition(), message.offset())
        if (message.key() or b"").startswith(b"bad-"):
            bad[where] = ("payments", "UnfitValue" if message.value() is None else "ValueError")
            continue
        payment = json.loads(message.value())
        number, account, amount = payment["id"], payment["account"], payment["amount"]
        if amount == 13:
            bad[where] = ("checked", "ValueError")
        elif amount == 0:
            continue
        elif number % 50 == 3:
            bad[where] = ("total", "ArithmeticError")
        elif number % 50 == 4:
            bad[where] = ("total", "LookupError")
        else:
            totals[account] += amount
            rows.append((account, totals[account], number))
    return rows, bad


def _visible(job: Job) -> list[tuple[str, int, int]]:
    messages = sorted(read(job.bootstrap, job.output), key=lambda m: (m.partition(), m.offset()))
    return [(row["account"], row["total"], row["id"]) for row in (json.loads(m.value()) for m in messages)]


def test_the_job_stops_at_a_bad_record_and_skips_nothing(new_job: NewJob) -> None:
    job = new_job(300, app="payments.py", TEST_BAD="map")
    everything = read(job.bootstrap, job.input)
    places = [f"{job.input}/{m.partition()}/{m.offset()}" for m in everything if json.loads(m.value())["amount"] == 13]

    said = refused(job, 2)
    again = refused(job, 2)

    assert "PoisonRecord" in said
    assert any(f"the record at {place} " in said for place in places)
    assert "operator 'checked'" in said
    assert re.search(r"ValueError \(raised at /\S+/payments\.py:\d+ in checked\); its message is hidden", said)
    told = [
        said,
        again,
        *(path.read_text() for path in (job.checkpoints / job.name / name for name in (STATUS, "history.jsonl"))),
    ]
    assert not [text for text in told if "an amount of 13" in text], (
        "a message that quotes the record is told to nobody"
    )
    ended = [event for event in events(job) if event["event"] == "failed"]
    assert [event["error"] for event in ended] == ["PoisonRecord"] * 2
    assert all(str(event["reason"]).startswith("the record at ") for event in ended)
    assert any(f"the record at {place} " in again for place in places), "the second start did not get past it"
    assert open_transactions(job) == [], "what a stopped job leaves open hides what others write behind it"

    job.environment["TEST_BAD"] = "none"
    job.run()
    wanted: list[tuple[str, int, int]] = []
    totals: Counter[str] = Counter()
    for payment in (json.loads(m.value()) for m in sorted(everything, key=lambda m: (m.partition(), m.offset()))):
        if payment["amount"] > 0:
            totals[payment["account"]] += payment["amount"]
            wanted.append((payment["account"], totals[payment["account"]], payment["id"]))
    assert by_account(_visible(job)) == by_account(wanted)
    nothing_left(job)


def test_a_run_of_nothing_but_bad_records_has_an_exit_code_of_its_own(new_job: NewJob) -> None:
    job = new_job(0, app="payments.py", KAFKA_EOS_MAX_DEAD_LETTERS="none")
    letters = job.environment["TEST_LETTERS"] = f"{job.name}-letters"
    create_topic(job.bootstrap, letters, 2)
    _feed_undecodable(job)

    said = refused(job, 4)

    assert "input of this run: 24 from payments; output of this run: 24 to " in said
    assert "nothing but dead letters was written: check the source type" in said
    assert "input of this run: none" in refused(job, 0), "one that reads nothing is no fault"
    assert len(read(job.bootstrap, letters)) == 24


@pytest.mark.parametrize("kills", [KILLS[1:3], campaign(KILLS)], ids=["two", "all"])
def test_bad_records_are_in_the_dead_letter_topic_once_whatever_is_killed(
    new_job: NewJob, kills: tuple[str, ...]
) -> None:
    job = new_job(500, app="payments.py", TEST_BAD="map,step,emit", TEST_PAUSE=0.002)
    letters = job.environment["TEST_LETTERS"] = f"{job.name}-letters"
    create_topic(job.bootstrap, letters, 2)
    _feed_undecodable(job)

    job.run(";".join(kills))

    messages = read(job.bootstrap, job.input)
    rows, bad = _recompute(messages)
    assert {operator for operator, _ in bad.values()} == {"payments", "checked", "total"}
    assert by_account(_visible(job)) == by_account(rows)
    dead = read(job.bootstrap, letters)
    assert Counter(map(_where, dead)) == Counter(bad.keys())
    assert {_where(letter): _fate(letter) for letter in dead} == bad
    originals = {(m.partition(), m.offset()): m for m in messages}
    for letter in dead:
        _is_the_original(letter, originals[_where(letter)], job.input)
    _one_transaction_an_epoch(job, len(rows) + len(dead))
    assert open_transactions(job) == []
    nothing_left(job)


def test_bad_records_that_are_too_large_for_a_dead_letter_stop_no_job(new_job: NewJob) -> None:
    """As large as their topic takes, or larger: a producer may compress megabytes into a few kilobytes."""
    job = new_job(20, app="payments.py")
    letters = job.environment["TEST_LETTERS"] = f"{job.name}-letters"
    create_topic(job.bootstrap, letters, 2)
    producer = in_order(job.bootstrap, {"message.max.bytes": 10_000_000, "compression.type": "gzip"})
    sizes = (1_040_000, 8_000_000)
    for size in sizes:
        producer.produce(job.input, b"x" * size, key="bad", partition=0)
        assert producer.flush(PATIENCE) == 0

    job.run()

    dead = read(job.bootstrap, letters)
    assert [letter.value() for letter in dead] == [None, None]
    assert sorted(int(_headers(letter)["dead_letter.left_out"]) for letter in dead) == [size + 3 for size in sizes]
    assert len(_visible(job)) == 18
    assert [event for event in events(job) if event["event"] == "restarting"] == []
    nothing_left(job)


def test_results_that_cannot_be_made_or_written_stop_no_job(new_job: NewJob) -> None:
    """One user's numbers exceed 64 bits where panes, or the parts of two workers, are merged; her texts exceed the
    limit of the topic.
    """
    base = round(time.time() * 1000) // 1000 * 1000 - 10_000
    job = new_job(0, app="results.py", KAFKA_EOS_PARALLELISM="3", TEST_BASE=base)
    letters = job.environment["TEST_LETTERS"] = f"{job.name}-letters"
    create_topic(job.bootstrap, letters, 2)
    for name in ("sums", "notes", "totals"):
        create_topic(job.bootstrap, f"{job.output}-{name}", 1)
    large = {"amount": 2**62, "note": "x" * 600_000}
    sales = [(partition, {"user": f"u{partition}", "at": at, "amount": 1}) for at in range(0, 1000, 10)
             for partition in range(3)]  # fmt: skip
    sales[1:1] = [(1, {"user": "eve", "at": 5, **large})]
    sales[30:30] = [(2, {"user": "eve", "at": 65, **large})]
    producer = in_order(job.bootstrap)
    for partition, sale in sales:
        producer.produce(job.input, json.dumps(sale).encode(), partition=partition)
    assert producer.flush(PATIENCE) == 0

    job.run("commit.before=kill@2")

    dead = read(job.bootstrap, letters)
    assert Counter(map(_fate, dead)) == {
        ("sums", "OverflowError"): 1,
        ("to-notes", "UnfitValue"): 1,
        ("totals", "OverflowError"): 1,
    }
    at = {_headers(letter)["dead_letter.operator"]: _headers(letter) for letter in dead}
    where = at["sums"]["dead_letter.topic"], at["sums"]["dead_letter.offset"]
    assert where == ("timers of sums", str(base + 99))
    assert [json.loads(letter.value()) for letter in dead if _fate(letter)[0] == "sums"] == [{"key": "eve"}]
    sums = [json.loads(message.value()) for message in read(job.bootstrap, f"{job.output}-sums")]
    honest = Counter((row["key"], row["start"] - base, row["sum"]) for row in sums if row["key"] != "eve")
    ends = range(100, 1000, 50)
    assert honest == Counter((f"u{n}", end - 100, 10) for n in range(3) for end in ends) + Counter(
        (f"u{n}", -50, 5) for n in range(3)
    )
    totals = [json.loads(message.value()) for message in read(job.bootstrap, f"{job.output}-totals")]
    last = {row["user"]: row["sum"] for row in totals}
    assert last == {"u0": 100, "u1": 100, "u2": 100, "eve": 2**62}
    assert [event for event in events(job) if event["event"] == "restarting" and "killed" not in str(event)] == []
    nothing_left(job)


def _headers(message: Any) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in message.headers() or ()}


def _where(letter: Any) -> Where:
    headers = _headers(letter)
    return int(headers["dead_letter.partition"]), int(headers["dead_letter.offset"])


def _fate(letter: Any) -> Fate:
    headers = _headers(letter)
    return headers["dead_letter.operator"], headers["dead_letter.error"]


def _is_the_original(letter: Any, original: Any, topic: str) -> None:
    headers = _headers(letter)
    assert (letter.key(), letter.value()) == (original.key(), original.value())
    assert letter.timestamp()[1] == original.timestamp()[1]
    assert {f"dead_letter.{name}" for name in HEADERS} <= headers.keys()
    assert headers["dead_letter.topic"] == topic
    assert _headers(original).items() <= headers.items()


def _one_transaction_an_epoch(job: Job, records: int) -> None:
    """Outputs and dead letters have no committables of their own: each epoch is committed by at most one."""
    committed = {e["epoch"]: e for e in events(job) if e["event"] == "committed"}
    assert max(len(e["outcomes"]) for e in committed.values()) == 1
    assert sum(sum(e["records"].values()) for e in committed.values()) == records


def _feed_long_accounts(job: Job, ids: range) -> None:
    """Payments whose outputs take over 5000 bytes: one each on partition 0."""
    producer = in_order(job.bootstrap)
    for number in ids:
        account = f"long-{number}" + "x" * 5000
        producer.produce(job.input, json.dumps({"id": number, "account": account, "amount": 1}).encode(), partition=0)
    assert producer.flush(PATIENCE) == 0


def _long(job: Job) -> list[Where]:
    return [(m.partition(), m.offset()) for m in read(job.bootstrap, job.input) if b'"long-' in (m.value() or b"")]


@pytest.mark.campaign
def test_an_output_over_the_topics_limit_stops_the_job_with_its_place(new_job: NewJob) -> None:
    job = new_job(100, app="payments.py")
    set_topic_config(job.bootstrap, job.output, "max.message.bytes", "2000")
    _feed_long_accounts(job, range(1000, 1002))
    (partition, offset), _ = sorted(_long(job))

    said = refused(job, 2)

    assert "PoisonRecord" in said
    assert f"the record at {job.input}/{partition}/{offset} " in said
    assert f"the topic {job.output} takes at most 2000 (max.message.bytes" in said
    assert not any(event["event"] == "restarting" for event in events(job))
    set_topic_config(job.bootstrap, job.output, "max.message.bytes", "20000")
    job.run()
    assert len(_visible(job)) == 100 - 100 // 10 + 2
    nothing_left(job)


@pytest.mark.parametrize("kills", [campaign(KILLS[2:3]), campaign(KILLS)], ids=["one", "all"])
def test_outputs_over_the_topics_limit_are_in_the_dead_letter_topic_once(
    new_job: NewJob, kills: tuple[str, ...]
) -> None:
    job = new_job(300, app="payments.py", TEST_PAUSE=0.002)
    letters = job.environment["TEST_LETTERS"] = f"{job.name}-letters"
    create_topic(job.bootstrap, letters, 2)
    set_topic_config(job.bootstrap, job.output, "max.message.bytes", "2000")
    _feed_long_accounts(job, range(1000, 1010))

    job.run(";".join(kills))

    dead = read(job.bootstrap, letters)
    assert Counter(map(_where, dead)) == Counter(_long(job))
    assert {_fate(letter) for letter in dead} == {("to-kafka", "UnfitValue")}
    ids = [json.loads(m.value())["id"] for m in read(job.bootstrap, job.input) if b'"long-' not in (m.value() or b"")]
    paid = [n for n in ids if n % 10 != 7]
    assert sorted(number for _, _, number in _visible(job)) == sorted(paid)
    nothing_left(job)


@pytest.mark.campaign
def test_a_limit_that_is_lowered_while_the_job_runs_names_the_record(new_job: NewJob) -> None:
    """The broker refuses a batch, and says of none of its records which it was; the next attempt knows the limit."""
    job = new_job(50, app="payments.py", KAFKA_EOS_KAFKA_CONFIG='{"compression.type": "none"}')
    with running(job) as started:
        started.until_output()
        set_topic_config(job.bootstrap, job.output, "max.message.bytes", "2000")
        _feed_long_accounts(job, range(1000, 1001))
        assert started.ended() == 2, started.log[-6000:]
        said, why = started.log, started.events("restarting")

    ((partition, offset),) = _long(job)
    assert "refused a batch of records as larger than its max.message.bytes" in why[0]["reason"]
    assert f"the record at {job.input}/{partition}/{offset} " in said
    assert f"the topic {job.output} takes at most 2000 (max.message.bytes" in said
    set_topic_config(job.bootstrap, job.output, "max.message.bytes", "20000")
    job.run()
    nothing_left(job)


def test_good_records_wait_for_a_registry_that_is_down(new_job: NewJob) -> None:
    """The port refuses until the job has come back to it several times; then what is bad is sent aside, and no more."""
    with socket.socket() as registry:
        registry.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        job = new_job(100, app="registry.py", TEST_REGISTRY=registry.getsockname()[1])
        letters = job.environment["TEST_LETTERS"] = f"{job.name}-letters"
        create_topic(job.bootstrap, letters, 2)
        _feed_undecodable(job)
        with running(job, "", "--until-caught-up") as started:
            started.until(lambda: started.count("restarting") >= 5, "go back to its checkpoint five times")
            assert read(job.bootstrap, letters) == [], "nothing is refused for what the registry did"
            reason = started.events("restarting")[-1]
            registry.listen()
            answering = threading.Thread(target=_answer, args=(registry,), daemon=True)
            answering.start()
            assert started.ended() == 0, started.log[-6000:]
            said = started.log

    assert reason["what"] == "the environment failed"
    assert "RegistryCodec.decode (registry.py, line " in reason["reason"]
    assert "ConnectionRefusedError" in reason["reason"]
    assert "not the record's fault" in said
    assert "PoisonRecord" not in said
    bad = [m for m in read(job.bootstrap, job.input) if (m.key() or b"").startswith(b"bad-")]
    assert Counter(map(_where, read(job.bootstrap, letters))) == Counter((m.partition(), m.offset()) for m in bad)
    assert sorted(json.loads(m.value())["id"] for m in read(job.bootstrap, job.output)) == list(range(100))
    nothing_left(job)


def _answer(registry: socket.socket) -> None:
    """Tell everybody who asks which fields a payment has, until the socket is closed."""
    with suppress(OSError):
        while True:
            connection, _ = registry.accept()
            with connection:
                connection.sendall(b'["id", "account", "amount"]\n')


@pytest.mark.campaign
def test_too_many_dead_letters_stop_the_job_before_the_epoch_is_decided(new_job: NewJob) -> None:
    job = new_job(300, app="payments.py", TEST_BAD="map", KAFKA_EOS_MAX_DEAD_LETTERS="5")
    letters = job.environment["TEST_LETTERS"] = f"{job.name}-letters"
    create_topic(job.bootstrap, letters, 2)
    bad = sum(json.loads(m.value())["amount"] == 13 for m in read(job.bootstrap, job.input))

    said = refused(job, 2)

    assert "TooManyDeadLetters" in said
    assert "by operator 'checked'" in said
    assert "ValueError (raised at " in said
    assert len(read(job.bootstrap, letters)) <= 5
    assert open_transactions(job) == []
    job.environment["KAFKA_EOS_MAX_DEAD_LETTERS"] = "none"
    with running(job, "", "--until-caught-up") as started:
        assert started.ended() == 0, started.log[-6000:]
        aside = len(read(job.bootstrap, letters)) - sum(
            sum(event["counts"]["payments"].values()) for event in started.events("dead-letters")
        )
        assert started.last("dead-letters")["total"] == {"payments": {"checked": bad - aside}}
        assert f"drained and committed, {bad - aside} dead letters (payments: {bad - aside} by checked)" in started.log
    assert len(read(job.bootstrap, letters)) == bad
    nothing_left(job)
