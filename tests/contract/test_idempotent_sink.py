"""IdempotentSink with a receiver that deduplicates by key. Its parts from HttpSink are tested there."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.abc.committer import CommitOutcome, CommitPermit, Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.connectors.idempotent import DeliveryRefused, IdempotentSink, Receiver, Row
from kafka_eos.core.errors import ConfigError, Retryable
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.records import Batch
from kafka_eos.testing import SINK_CHECKS, SinkUnderTest, check_sink
from kafka_eos.testing.check_sink import TWO_PROCESSES
from kafka_eos.testing.list_source import ListOrigin
from tests.examples import other_seeds
from tests.marks import campaign

JOB = JobContext("orders", Term(1), {}, JobIdentity("a" * 12))
EPOCH = EpochId(Epoch(1), Term(1))


@pytest.mark.parametrize("check", [campaign(name) if name in TWO_PROCESSES else name for name in SINK_CHECKS])
def test_it_keeps_the_contract_of_a_sink(check: str, tmp_path: Path) -> None:
    def fresh() -> SinkUnderTest:
        name = uuid.uuid4().hex
        path = tmp_path / f"{name}.db"
        where = {"path": str(path), "outbox": str(tmp_path / name), "batch": 2}

        def asked(statement: str) -> list[Any]:
            with closing(sqlite3.connect(path)) as connection, connection:
                return [json.loads(value) for (value,) in connection.execute(statement)]

        asked("CREATE TABLE rows (n INTEGER PRIMARY KEY, key TEXT UNIQUE, provenance TEXT, value TEXT)")
        return SinkUnderTest(
            "sink_factories:idempotent_sink",
            where,
            lambda: asked("SELECT value FROM rows ORDER BY n"),
            remove_visible=lambda: asked("DELETE FROM rows"),
        )

    check_sink(fresh, check, seeds=other_seeds(1))


class Service(Receiver):
    """It does with each call what the test says."""

    name = "service:test"

    def __init__(self, script: Callable[[list[Any]], None]) -> None:
        self._script, self.taken, self.keys = script, dict[str, Any](), list[str]()

    def send(self, rows: Sequence[Row]) -> None:
        self.keys += [row.key for row in rows]
        self._script([json.loads(row.value) for row in rows])
        for row in rows:
            self.taken.setdefault(row.key, json.loads(row.value))


def sink(service: Receiver, outbox: Path, **options: Any) -> IdempotentSink[Any]:
    return IdempotentSink(service, outbox=outbox, **options)


def prepared(made: IdempotentSink[Any], *values: Any) -> Sequence[Committable]:
    assert made.check(JOB) == []
    writer = made.writer(TaskContext(JOB, 0, 1, "out", first_epoch=Epoch(1)))
    writer.write(Batch(list(values), range(len(values)), ListOrigin("in", "list", 0, 0, list(values))))
    return writer.seal(EPOCH)()


def sent(made: IdempotentSink[Any], committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
    with closing(made.committer(JOB)) as committer:
        return committer.commit_all(CommitPermit(EPOCH), committables)


def test_what_passes_is_asked_again_under_the_same_keys_by_whatever_process(tmp_path: Path) -> None:
    away = [True]

    def script(values: list[Any]) -> None:
        if values == [3] and away:
            away.pop()
            raise TimeoutError("no answer")

    service = Service(script)
    made = sink(service, tmp_path)
    committables = prepared(made, 1, 2, 3)
    with pytest.raises(Retryable, match="could not send to service:test: TimeoutError: no answer"):
        sent(made, committables)

    assert sent(sink(service, tmp_path), committables) == [CommitOutcome.COMMITTED]
    assert [*service.taken.values()] == [1, 2, 3]
    assert service.keys == [*service.taken, *service.taken]


def test_rows_of_files_have_keys_of_their_own_whatever_the_files_are_called(tmp_path: Path) -> None:
    """Names as long as each other, which differ in letters that are not ASCII; and what would end a text of JSON."""
    names = ["июнь.jsonl", "июль.jsonl", 'report "final".jsonl', "report 'final'.jsonl", 'a","value":0,"b', "a\\"]
    service = Service(lambda values: None)
    made = sink(service, tmp_path)
    assert made.check(JOB) == []
    writer = made.writer(TaskContext(JOB, 0, 1, "out", first_epoch=Epoch(1)))
    for name in names:
        writer.write(Batch([name], range(1), ListOrigin("in", name, 0, 0, [name])))
    committables = writer.seal(EPOCH)()

    assert sent(made, committables) == [CommitOutcome.COMMITTED]
    assert [*service.taken.values()] == names


def test_values_without_a_type_are_json_by_the_type_of_the_stream(tmp_path: Path) -> None:
    service = Service(lambda values: None)
    made = sink(service, tmp_path).for_stream_type(tuple[str, int])

    sent(made, prepared(made, ("ann", 3)))

    assert [*service.taken.values()] == [["ann", 3]]


def test_what_does_not_pass_stops_the_job_and_nothing_is_lost(tmp_path: Path) -> None:
    broken = [True]

    def script(values: list[Any]) -> None:
        if broken:
            raise ValueError("the login is over")

    service = Service(script)
    made = sink(service, tmp_path)
    committables = prepared(made, 1)
    with pytest.raises(ConfigError, match=r"to service:test: ValueError: the login is over .*\. Nothing is"):
        sent(made, committables)
    broken.pop()

    assert sent(made, committables) == [CommitOutcome.COMMITTED]


def test_of_rows_that_are_refused_together_each_goes_alone_and_some_may_be_set_aside(tmp_path: Path) -> None:
    def script(values: list[Any]) -> None:
        if 2 in values:
            raise DeliveryRefused("two is no number of ours")

    service = Service(script)
    made = sink(service, tmp_path, batch=3)
    committables = prepared(made, 1, 2, 3)
    with pytest.raises(ConfigError, match="service:test refuses a row: two is no number of ours"):
        sent(made, committables)

    assert sent(sink(service, tmp_path, batch=3, set_aside=1), committables) == [CommitOutcome.COMMITTED]
    assert [*service.taken.values()] == [1, 3]
    (aside,) = [path for path in (tmp_path / "refused").iterdir() if path.is_file()]
    line = json.loads(aside.read_text())
    assert (line["value"], line["answer"]) == (2, "two is no number of ours")


def test_a_receiver_that_is_away_at_the_start_ends_it(tmp_path: Path) -> None:
    class Away(Service):
        def check_reachable(self) -> None:
            raise ConnectionRefusedError("nobody is there")

    with pytest.raises(Retryable, match="could not look for service:test: ConnectionRefusedError: nobody is there"):
        sink(Away(lambda values: None), tmp_path).check(JOB)


def test_a_receiver_that_refuses_before_it_got_a_row_ends_the_start_with_its_reason(tmp_path: Path) -> None:
    class Closed(Service):
        def check_reachable(self) -> None:
            raise DeliveryRefused("closed for good")

    with pytest.raises(ConfigError, match="could not look for service:test: DeliveryRefused: closed for good"):
        sink(Closed(lambda values: None), tmp_path).check(JOB)


def test_it_says_what_it_is(tmp_path: Path) -> None:
    made = sink(Service(lambda values: None), tmp_path, batch=5)

    assert made.guarantee is Guarantee.AT_LEAST_ONCE
    assert "effectively once if the receiver honors the key" in made.guarantee_reason
    assert made.describe() == {
        "connector": "idempotent", "receiver": "service:test", "outbox": str(tmp_path), "batch": 5,
        "key": "key of each row", "refused": "stop",
    }  # fmt: skip
    assert made.scope(JOB) == f"idempotent:service:test@{tmp_path}"


def test_what_is_no_receiver_is_refused_when_the_sink_is_made(tmp_path: Path) -> None:
    class Nameless(Service):
        name = ""

    for given, why in (
        (print, "pass an instance of a subclass of Receiver"),
        (Nameless(print), "name must be a string"),
    ):
        with pytest.raises(ConfigError, match=why):
            sink(given, tmp_path)  # type: ignore[arg-type]
