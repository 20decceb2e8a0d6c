"""``kafka-eos dead-letters``: what was refused is shown, and put back once, whatever is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from kafka_eos.connectors.kafka.sink.dead_letters import DeadLetter
from kafka_eos.core.records import Record
from tests.chaos.harness import Job, create_topic, feed, read
from tests.commands import run_command
from tests.marks import campaign
from tests.producers import in_order
from tests.waiting import PATIENCE
from tests.wire import ongoing

NewJob = Callable[..., Job]

KILLS = ("sink.prepare.after=kill@1", "commit.before=kill@1", "worker.ack.before=kill@1", "receipt.before=kill@1")
"""Of the worker with its output prepared; of the supervisor when an epoch is decided, and when it is committed."""
MOST_STARTS = 8


@pytest.mark.parametrize("kills", [KILLS[:2], campaign(KILLS)], ids=["two", "all"])
def test_what_was_refused_is_put_back_once_whatever_is_killed(new_job: NewJob, kills: tuple[str, ...]) -> None:
    job = _refusing_job(new_job)
    before = read(job.bootstrap, job.input)
    letters = _letters(job)
    by_map = [letter for letter in letters if letter.operator == "checked"]
    _add_letter(job, by_map[0])
    _add_a_stranger(job)
    assert 0 < len(by_map) < len(letters)

    _said, first = _replay(job, ";".join(kills), "--operator", "checked")
    assert _back(job, before) == _originals(by_map), "some of the selection, each once, as it was"
    assert job.fired[-len(kills) :] == [kill.split("=")[0] for kill in kills]
    assert f": {len(by_map) + 1} records" in first
    assert "1 records of that topic are not dead letters" in first

    _replay(job, "")
    assert _back(job, before) == _originals(letters), "the rest, and none of those that were put back before"

    again, _ = _replay(job, "")
    assert "already replayed by job" in again
    assert "running" not in again
    assert _back(job, before) == _originals(letters), "a second replay of the same records writes nothing"
    assert [name for name in ongoing(job.bootstrap) if name.startswith(job.name)] == []

    job.environment["TEST_BAD"] = "none"
    job.run()
    assert Counter(json.loads(m.value())["id"] for m in read(job.bootstrap, job.output)) == Counter(
        payment["id"] for payment in (json.loads(m.value()) for m in before) if payment["amount"] > 0
    ), "each payment counts once, at last"


def test_what_was_refused_is_shown_and_counted(new_job: NewJob) -> None:
    job = _refusing_job(new_job)
    letters = _letters(job)
    by_map = [letter for letter in letters if letter.operator == "checked"]
    one = by_map[0]
    place = "--partition", str(one.partition), "--offsets", str(one.offset)

    counted = _json(_call(job, "show", "--counts", "--json"))
    chosen = _json(_call(job, "show", "--json", "--reason", "AMOUNT of 13", "--since", "2020-01-01"))
    text = _call(job, "show", *place)
    dry = _call(job, "replay", "--dry-run", *place)
    mistyped = [_call(job, command, "--operator", "cheked", code=2) for command in ("show", "replay")]
    none = _call(job, "show", "--operator", "payments")
    nowhere = _call(job, "replay", "--to", f"{job.input}-not-there", code=2)
    _add_letter(job, msgspec.structs.replace(one, partition=99, operator="of an older version"))
    older = _call(job, "show", "--operator", "of an older version")
    no_place = _call(job, "replay", code=2)

    assert {(row["operator"], row["error"]): row["count"] for row in counted} == Counter(
        (letter.operator, letter.error) for letter in letters
    )
    assert Counter((row["partition"], row["offset"], row["value"]) for row in chosen) == Counter(
        (letter.partition, letter.offset, (letter.value or b"").decode()) for letter in by_map
    )
    assert f"ValueError: {one.message}" in text
    assert (one.value or b"").decode() in text
    assert "1 dead letters of source payments" in text
    assert ": 1 records" in dry
    assert not (job.checkpoints / f"{job.name}-replay-payments").exists(), "a dry run leaves nothing"
    for said in mistyped:
        assert "Dead letters name 'checked', 'total'; the pipeline has" in said
    assert "0 dead letters of source payments" in none
    assert "1 dead letters of source payments" in older
    assert f"{job.input}-not-there" in nowhere
    assert "was in a partition that topic" in no_place


@pytest.mark.campaign
def test_of_several_topics_the_records_of_one_go_back_to_that_one(new_job: NewJob) -> None:
    job = new_job(100, app="payments.py", TEST_BAD="map")
    other, job.environment["TEST_LETTERS"] = f"{job.name}-other", f"{job.name}-letters"
    job.environment["TEST_OTHER"] = other
    create_topic(job.bootstrap, job.environment["TEST_LETTERS"], 2)
    create_topic(job.bootstrap, other, 3)
    feed(job.bootstrap, other, range(1000, 1100))
    job.run()
    letters, before = _letters(job), read(job.bootstrap, other)
    mine = [letter for letter in letters if letter.topic == other]
    assert 0 < len(mine) < len(letters)

    assert "choose one with --topic" in _call(job, "show", code=2)
    assert "not the topic 'nowhere'" in _call(job, "replay", "--topic", "nowhere", code=2)
    shown = _json(_call(job, "show", "--topic", job.input, "--json"))
    assert len(shown) == len(letters) - len(mine)
    _replay(job, "", "--topic", other)

    assert _back(replace(job, input=other), before) == _originals(mine)
    assert len(read(job.bootstrap, job.input)) == 100


def _refusing_job(new_job: NewJob) -> Job:
    """A job that has read its input and refused some of it, in two operators."""
    job = new_job(300, app="payments.py", TEST_BAD="map,step")
    job.environment["TEST_LETTERS"] = f"{job.name}-letters"
    create_topic(job.bootstrap, job.environment["TEST_LETTERS"], 2)
    job.run()
    return job


def _letters(job: Job) -> list[DeadLetter]:
    found = [_opened(message) for message in read(job.bootstrap, job.environment["TEST_LETTERS"])]
    return [letter for letter in found if letter is not None]


def _opened(message: Any) -> DeadLetter | None:
    headers = tuple(message.headers() or ())
    return DeadLetter.from_record(Record(message.key(), message.value(), headers, message.timestamp()[1]))


def _add_letter(job: Job, letter: DeadLetter) -> None:
    """As another operator that refuses the record would write it."""
    fields = "topic", "partition", "offset", "timestamp", "operator", "error", "message"
    why = [(f"dead_letter.{name}", str(getattr(letter, name)).encode()) for name in fields]
    producer = in_order(job.bootstrap)
    producer.produce(job.environment["TEST_LETTERS"], letter.value, key=letter.key, headers=[*letter.headers, *why])
    assert producer.flush(PATIENCE) == 0


def _add_a_stranger(job: Job) -> None:
    producer = in_order(job.bootstrap)
    producer.produce(job.environment["TEST_LETTERS"], b"no letter")
    assert producer.flush(PATIENCE) == 0


def _back(job: Job, before: list[Any]) -> Counter[Any]:
    """What is in the input that was not there before."""
    known = {(m.partition(), m.offset()) for m in before}
    new = [m for m in read(job.bootstrap, job.input) if (m.partition(), m.offset()) not in known]
    return Counter((m.partition(), m.key(), m.value(), m.timestamp()[1], _headers(m.headers())) for m in new)


def _originals(letters: list[DeadLetter]) -> Counter[Any]:
    return Counter(
        (letter.partition, letter.key, letter.value, letter.timestamp, _headers(letter.headers)) for letter in letters
    )


def _headers(headers: Any) -> tuple[Any, ...]:
    """Without where the record was written from."""
    return tuple((name, value) for name, value in headers or () if name != "kafka_eos")


def _replay(job: Job, failpoints: str, *options: str) -> tuple[str, str]:
    """Call it until it is through; what the last call and the first one have said."""
    said: list[str] = []
    for _ in range(MOST_STARTS):
        done = _process(job, failpoints, "replay", *options)
        said.append(done.stdout + done.stderr)
        if done.returncode != -9:
            assert done.returncode == 0, said[-1]
            return said[-1], said[0]
    raise AssertionError(f"it did not come to its end: {said[-1]}")


def _call(job: Job, command: str, *options: str, code: int = 0) -> str:
    call = "dead-letters", command, str(job.app), *options
    found, *said = run_command(job.directory, *call, environment=job.environ())
    assert found == code, said
    return "".join(said)


def _process(job: Job, failpoints: str, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "kafka_eos", "dead-letters", command, str(job.app), *options]
    return subprocess.run(call, env=job.environ(failpoints), capture_output=True, text=True, timeout=PATIENCE)


def _json(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
