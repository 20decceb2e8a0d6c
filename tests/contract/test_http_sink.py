"""HttpSink with a real receiver that deduplicates by key. Whole jobs: ``tests/chaos/test_http.py``."""

from __future__ import annotations

import gzip
import json
import stat
import threading
import uuid
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.abc.committer import CommitOutcome, CommitPermit, Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.connectors._outbox.committer import OutboxCommitter
from kafka_eos.connectors._outbox.outbox_rows import Row
from kafka_eos.connectors.http import HttpSink
from kafka_eos.connectors.http.client import HttpDeliveryClient
from kafka_eos.connectors.http.responses import ResponseClass, classify_response, pause
from kafka_eos.core.error_messages import show_error_messages
from kafka_eos.core.errors import Bug, ConfigError, PartialProgress, Retryable
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.records import Batch
from kafka_eos.testing import SinkUnderTest, check_sink
from kafka_eos.testing.list_source import ListOrigin
from tests.examples import other_seeds
from tests.marks import campaign
from tests.receiver import Receiver, receiving
from tests.scripted_http_server import Answering, Sent, dripping
from tests.waiting import eventually

IDENTITY = JobIdentity("a" * 12)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.mark.parametrize(("batch", "checks"), [(1, ["happy-path", "commit-again"]), campaign(1, []), campaign(2, [])])
def test_it_keeps_the_contract_of_a_sink(batch: int, checks: list[str], tmp_path: Path) -> None:
    """What is not of HTTP is tried with ``IdempotentSink``."""
    with pytest.MonkeyPatch.context() as patched, receiving() as receiver:
        patched.syspath_prepend(Path(__file__).parent)

        def fresh() -> SinkUnderTest:
            receiver.taken, receiver.asked = {}, Counter()
            where = {"url": receiver.url, "outbox": str(tmp_path / uuid.uuid4().hex), "batch": batch}
            return SinkUnderTest(
                "sink_factories:http_sink", where, lambda: seen(receiver), remove_visible=receiver.forget
            )

        check_sink(fresh, *checks, seeds=other_seeds(1))


def seen(receiver: Receiver) -> list[Any]:
    return [value for value in receiver.values() if value is not None]


@dataclass
class Kit:
    """An outbox, a receiver, and what tests do with both."""

    outbox: Path
    receiver: Receiver

    def sink(self, **options: Any) -> HttpSink[Any]:
        return HttpSink(self.receiver.url, outbox=self.outbox, **options)

    @contextmanager
    def writer(self, sink: HttpSink[Any], first: int = 1) -> Iterator[Any]:
        sink.check(job())
        writer = sink.writer(TaskContext(job(), 0, 1, "out", first_epoch=Epoch(first)))
        try:
            yield writer
        finally:
            writer.discard()

    def prepared(self, sink: HttpSink[Any], *values: Any) -> Committable:
        with self.writer(sink) as writer:
            writer.write(batch(*values))
            (committable,) = writer.seal(epoch(1))()
            found: Committable = committable
            return found

    def left(self) -> list[str]:
        """Names in the outbox, without marks and traces."""
        kept = (".incarnation.", ".committed.")
        return sorted(path.name for path in self.outbox.iterdir() if not path.name.startswith(kept))


def job(term: int = 1) -> JobContext:
    return JobContext("orders", Term(term), {}, IDENTITY)


def epoch(number: int) -> EpochId:
    return EpochId(Epoch(number), Term(1))


def permit(number: int = 1) -> CommitPermit:
    return CommitPermit(epoch(number))


def batch(*values: Any, first: int = 0) -> Batch[Any]:
    return Batch(list(values), range(len(values)), ListOrigin("in", "list", 0, first, list(values)))


@pytest.fixture
def kit(tmp_path: Path, receiver: Receiver) -> Kit:
    return Kit(tmp_path / "outbox", receiver)


@contextmanager
def committer_of(sink: HttpSink[Any]) -> Iterator[OutboxCommitter]:
    with closing(sink.committer(job())) as committer:
        yield committer


def test_each_value_has_a_key_of_its_own_which_a_later_process_sends_again(kit: Kit) -> None:
    """The first process dies after two rows; the next one sends all three."""
    kit.receiver.script = lambda key, body: (503, {}) if body["n"] == 3 else None
    sink = kit.sink(headers={"Authorization": "Bearer x"})
    committable = kit.prepared(sink, {"n": 1}, {"n": 2}, {"n": 3})
    with committer_of(sink) as committer, pytest.raises(Retryable, match="responded 503"):
        committer.commit_all(permit(), [committable])
    kit.receiver.script = lambda key, body: None

    with committer_of(kit.sink()) as committer:
        assert committer.commit_all(permit(), [committable]) == [CommitOutcome.COMMITTED]
        assert committer.commit_all(permit(), [committable]) == [CommitOutcome.ALREADY]

    assert kit.receiver.values() == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert sorted(kit.receiver.asked.values()) == [2, 2, 2]
    assert kit.receiver.headers[0]["Authorization"] == "Bearer x"
    assert kit.receiver.headers[1]["Kafka-Eos-Provenance"] == "orders.1.1/in/list/0/1/0.0"
    assert kit.left() == []


def test_the_same_process_goes_on_where_it_had_to_wait(kit: Kit) -> None:
    answers = iter([None, (503, {}), None, None])
    kit.receiver.script = lambda key, body: next(answers)
    sink = kit.sink()
    committable = kit.prepared(sink, 1, 2, 3)
    with committer_of(sink) as committer:
        with pytest.raises(Retryable):
            committer.commit_all(permit(), [committable])
        committer.commit_all(permit(), [committable])

    assert kit.receiver.values() == [1, 2, 3]
    assert sorted(kit.receiver.asked.values()) == [1, 1, 2]


def test_pauses_begin_anew_when_rows_went_through(kit: Kit) -> None:
    """A receiver that fails now and then, between rows that it takes, is not one that is away."""
    answers = iter([None, (503, {}), (503, {}), None, (500, {})])
    kit.receiver.script = lambda key, body: next(answers)
    committable = kit.prepared(kit.sink(), 1, 2, 3)
    raised = []
    with committer_of(kit.sink()) as committer:
        for _ in range(3):
            with pytest.raises(Retryable) as caught:
                committer.commit_all(permit(), [committable])
            raised.append(type(caught.value))

    assert raised == [PartialProgress, Retryable, PartialProgress]


def test_an_answer_that_is_lost_is_asked_for_again_under_the_same_key(kit: Kit) -> None:
    answers = iter([(-504, {}), None])
    kit.receiver.script = lambda key, body: next(answers)
    sink = kit.sink()
    committable = kit.prepared(sink, "only")
    with committer_of(sink) as committer:
        with pytest.raises(Retryable):
            committer.commit_all(permit(), [committable])
        committer.commit_all(permit(), [committable])

    assert kit.receiver.values() == ["only"]
    assert [*kit.receiver.asked.values()] == [2]


def test_an_answer_is_judged_by_its_status_if_its_body_cannot_be_decoded(kit: Kit) -> None:
    answers = iter([502, -200])
    kit.receiver.script = lambda key, body: (next(answers), {"Content-Encoding": "gzip"})
    committable = kit.prepared(kit.sink(), "only")
    with committer_of(kit.sink()) as committer:
        with pytest.raises(Retryable, match=r"responded 502: \{\}$"):
            committer.commit_all(permit(), [committable])
        assert committer.commit_all(permit(), [committable]) == [CommitOutcome.COMMITTED]

    assert kit.receiver.values() == ["only"]


def test_the_whole_answer_has_one_timeout_and_its_status_is_enough(kit: Kit) -> None:
    """Each byte arrives within the timeout, and the whole body does not."""
    outcomes = []
    for start in (b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"):
        with dripping(start) as url, closing(HttpDeliveryClient(url, "POST", {}, 0.3, None, False, frozenset())) as to:
            try:
                outcomes.append(to.deliver([Row("key", "orders.1.1/in/list/0/1/0.0", b"1")]))
            except Retryable as error:
                outcomes.append(str(error).removeprefix(url))

    assert outcomes == [" does not respond: TimeoutError", None]


def test_an_answer_that_was_compressed_again_and_again_is_not_decompressed() -> None:
    """Its 30 GiB are the name of a file in a header of gzip, so decompressing it produces nothing, for a minute."""
    body = _compress_repeated(b"\x1f\x8b\x08\x08\0\0\0\0\0\xff", b"A" * (1 << 24), 2_000)
    body = gzip.compress(gzip.compress(body))
    answer = Sent(200, body, {"Content-Encoding": "gzip, gzip, gzip"})
    with Answering(lambda request: answer) as server:
        to = HttpDeliveryClient(server.url, "POST", {}, 2, None, False, frozenset())
        before = set(threading.enumerate())
        assert to.deliver([Row("key", "orders.1.1/in/list/0/1/0.0", b"1")]) is None
        sending = [each for each in set(threading.enumerate()) - before if each.name.startswith("http-sink")]
        to.close()
        assert len(sending) == 1
        eventually(lambda: not sending[0].is_alive(), "the thread of the sink ends", 10)

    assert server.seen[0].headers["Accept-Encoding"] == "identity"


def _compress_repeated(start: bytes, block: bytes, times: int) -> bytes:
    """Return the gzip of ``start`` and then ``block`` so many times, without compressing each of them."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    first = packer.compress(start + block) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + (packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)) * times


def test_an_epoch_that_was_given_up_is_sent_before_the_one_that_it_goes_with(kit: Kit) -> None:
    sink = kit.sink()
    with kit.writer(sink) as writer:
        writer.write(batch("old", "older"))
        (first,) = writer.seal(epoch(1))()
        writer.write(batch("new", first=2))
        (second,) = writer.seal(epoch(2))()

    with committer_of(sink) as committer:
        committer.commit_all(permit(2), [second, first])

    assert kit.receiver.values() == ["old", "older", "new"]


def test_a_permit_for_an_earlier_epoch_sends_nothing(kit: Kit) -> None:
    sink = kit.sink()
    with kit.writer(sink, first=5) as writer:
        writer.write(batch(1))
        (committable,) = writer.seal(epoch(5))()
    with committer_of(sink) as committer, pytest.raises(Bug):
        committer.commit_all(permit(4), [committable])

    assert not kit.receiver.asked


def test_a_row_that_is_refused_stops_the_job_and_the_rows_behind_it_wait(kit: Kit) -> None:
    kit.receiver.script = lambda key, body: (422, {}) if body == "bad" else None
    sink = kit.sink()
    committable = kit.prepared(sink, "a", "bad", "b")
    with committer_of(sink) as committer:
        refusal = r"refuses a row: 422: \{\}\. The row comes from orders\.1\.1/in/list/0/1/0\.0"
        with pytest.raises(ConfigError, match=refusal):
            committer.commit_all(permit(), [committable])
        assert kit.receiver.values() == ["a"]
        kit.receiver.script = lambda key, body: None
        committer.commit_all(permit(), [committable])

    assert kit.receiver.values() == ["a", "bad", "b"]


@pytest.mark.parametrize("status", [422, 503, 401])
def test_the_answer_of_a_receiver_is_hidden_because_it_may_quote_the_row(kit: Kit, status: int) -> None:
    show_error_messages(False)
    kit.receiver.script = lambda *_: (status, {})
    committable = kit.prepared(kit.sink(), "a")
    with committer_of(kit.sink()) as committer, pytest.raises((ConfigError, Retryable)) as stopped:
        committer.commit_all(permit(), [committable])

    assert "{}" not in str(stopped.value), "the body"


@pytest.mark.parametrize("size", [1, 3])
def test_refused_rows_may_be_set_aside_on_disk_up_to_a_number(kit: Kit, size: int) -> None:
    def script(key: str, body: Any) -> tuple[int, dict[str, str]] | None:
        rows = [row["value"] for row in body] if isinstance(body, list) else [body]
        return (400, {}) if any(row.startswith("bad") for row in rows) else None

    kit.receiver.script = script
    committable = kit.prepared(kit.sink(), "a", "bad 1", "b", "bad 2", "c")
    with (
        committer_of(kit.sink(batch=size, set_aside=1)) as committer,
        pytest.raises(ConfigError, match="refuses a row"),
    ):
        committer.commit_all(permit(), [committable])
    with committer_of(kit.sink(batch=size, set_aside=2)) as committer:
        committer.commit_all(permit(), [committable])

    assert kit.receiver.values() == ["a", "b", "c"]
    (file,) = (kit.outbox / "refused").iterdir()
    assert {path: stat.S_IMODE(path.stat().st_mode) for path in (kit.outbox, file.parent, file)} == {
        kit.outbox: 0o700,
        file.parent: 0o700,
        file: 0o600,
    }
    aside = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["value"], row["answer"]) for row in aside] == [("bad 1", "400: {}"), ("bad 2", "400: {}")]
    assert all(kit.receiver.asked[row["key"]] for row in aside)


def test_rows_that_wait_in_a_directory_of_others_are_the_owners_alone(kit: Kit) -> None:
    """A directory that existed before keeps its mode."""
    kit.outbox.mkdir(mode=0o755)
    kit.outbox.chmod(0o755)
    committable = kit.prepared(kit.sink(set_aside=1), "a")

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in kit.outbox.iterdir() if path.stat().st_size}
    assert [*modes.values()] == [0o600], modes
    with committer_of(kit.sink()) as committer:
        committer.commit_all(permit(), [committable])
    assert kit.receiver.values() == ["a"]


def test_rows_of_one_request_have_their_own_keys_and_are_cut_alike_each_time(kit: Kit) -> None:
    sink = kit.sink(batch=2)
    committable = kit.prepared(sink, 1, 2, 3)
    kit.receiver.script = lambda key, body: (-500, {}) if len(body) == 1 else None
    with committer_of(sink) as committer, pytest.raises(Retryable):
        committer.commit_all(permit(), [committable])
    kit.receiver.script = lambda key, body: None
    with committer_of(sink) as committer:
        committer.commit_all(permit(), [committable])

    assert kit.receiver.values() == [1, 2, 3]
    keys = [headers["Idempotency-Key"] for headers in kit.receiver.headers]
    assert keys[:2] == keys[2:] and len(set(keys)) == 2


def test_a_receiver_that_asks_to_wait_is_left_alone_until_then(kit: Kit) -> None:
    kit.receiver.script = lambda key, body: (429, {"Retry-After": "3000"})
    sink = kit.sink()
    committable = kit.prepared(sink, 1)
    with committer_of(sink) as committer:
        with pytest.raises(Retryable, match="responded 429"):
            committer.commit_all(permit(), [committable])
        with pytest.raises(Retryable, match="requested a pause of 300 s more"):
            committer.commit_all(permit(), [committable])

    assert kit.receiver.asked.total() == 1


def test_a_login_that_has_expired_is_held_against_no_row(kit: Kit) -> None:
    kit.receiver.script = lambda key, body: (401, {})
    sink = kit.sink(set_aside=1000)
    committable = kit.prepared(sink, 1)
    with committer_of(sink) as committer, pytest.raises(ConfigError, match="the login or the method is wrong"):
        committer.commit_all(permit(), [committable])

    assert not (kit.outbox / "refused").exists()
    assert len(kit.left()) == 1


def test_a_receiver_that_is_away_is_waited_for_and_at_the_start_it_ends_it(tmp_path: Path) -> None:
    with receiving() as receiver:
        kit = Kit(tmp_path, receiver)
        committable = kit.prepared(kit.sink(), 1)
    with committer_of(kit.sink()) as committer, pytest.raises(Retryable, match="does not respond"):
        committer.commit_all(permit(), [committable])
    with pytest.raises(Retryable, match="does not respond"):
        kit.sink().check(job())


def test_a_stretch_of_sending_ends_with_how_far_it_is(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_eos.connectors._outbox.committer.AT_A_STRETCH", -1.0)
    sink = kit.sink()
    committable = kit.prepared(sink, 1, 2)
    with committer_of(sink) as committer:
        with pytest.raises(Retryable, match="sent 1 of 2 rows of epoch .*; retrying"):
            committer.commit_all(permit(), [committable])
        committer.commit_all(permit(), [committable])

    assert kit.receiver.asked.total() == 2


def test_a_receiver_may_say_in_its_own_way_that_it_has_it(kit: Kit) -> None:
    kit.receiver.script = lambda key, body: (409, {})
    committable = kit.prepared(kit.sink(), 1)
    with committer_of(kit.sink()) as committer, pytest.raises(Retryable, match="responded 409"):
        committer.commit_all(permit(), [committable])

    with committer_of(kit.sink(arrived=(409,))) as committer:
        assert committer.commit_all(permit(), [committable]) == [CommitOutcome.COMMITTED]


def test_nothing_that_is_secret_is_shown_or_stored(tmp_path: Path) -> None:
    sink = HttpSink("https://user:hush@example.com/rows?token=hush", outbox=tmp_path, headers={"Authorization": "hush"})

    assert "hush" not in f"{sink!r} {sink.describe()} {sink.scope(job())}"
    assert sink.scope(job()).startswith("http:https://example.com@")


def test_it_says_what_it_is(tmp_path: Path) -> None:
    sink = HttpSink("https://example.com/rows", outbox=tmp_path, method="PUT", batch=3, set_aside=2)
    common = {"outbox": str(tmp_path), "key": "header Idempotency-Key"}

    assert sink.describe() == {
        "connector": "http", "url": "https://example.com", "method": "PUT", "batch": 3,
        "refused": "up to 2 set aside", **common,
    }  # fmt: skip
    other = HttpSink("https://example.com/rows", outbox=tmp_path).describe()
    assert other == {
        "connector": "http",
        "url": "https://example.com",
        "method": "POST",
        "batch": 1,
        "refused": "stop",
        **common,
    }


def test_a_client_that_is_closed_has_no_thread_any_more_and_sends_again_when_asked(kit: Kit) -> None:
    def threads() -> int:
        return sum(each.name.startswith("http-sink") for each in threading.enumerate())

    before = threads()
    client = HttpDeliveryClient(kit.receiver.url, "POST", {}, 5.0, None, False, frozenset())
    for turn in range(2):
        assert client.deliver([Row(f"key-{turn}", "orders.1.1/in/list/0/0/0.0", b"%d" % turn)]) is None
        assert threads() == before + 1
        pool = client._thread
        client.close()
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(int)
        client.close()
        eventually(lambda: threads() == before, "its thread ends")
    assert kit.receiver.values() == [0, 1]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"url": "example.com"}, "does not name a receiver. Use an address such as"),
        ({"url": "ftp://example.com"}, "does not name a receiver"),
        ({"url": "https://app:hunter2@example.com:port"}, "cannot parse the address"),
        ({"headers": {"Authorization": "Bearer "}}, "Authorization has an invalid value"),
        ({"headers": {"X": "a\nb"}}, "without spaces at the ends"),
        ({"headers": {"X": ""}}, "Is a variable in it empty"),
        ({"headers": {"a b": "x"}}, "is not a valid header name"),
        ({"headers": {"idempotency-key": "x"}}, "is set by the sink"),
        ({"method": "GET"}, "sends POST, PUT or PATCH"),
        ({"batch": 0}, "at least 1 row per request .got 0"),
        ({"set_aside": -1}, "at least 0 rows .got -1"),
        ({"timeout": 0}, "a positive number of seconds .got 0"),
        ({"outbox": "s3://bucket/x"}, "is not a directory"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_when_the_sink_is_made(given: dict[str, Any], problem: str) -> None:
    options = {"url": "https://example.com", "outbox": "out", **given}

    with pytest.raises(ConfigError, match=problem):
        HttpSink(options.pop("url"), **options)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *((status, ResponseClass.ARRIVED) for status in (200, 201, 202, 204, 299)),
        *((status, ResponseClass.AGAIN) for status in (408, 409, 425, 429, 500, 502, 503, 504, 599)),
        *((status, ResponseClass.REFUSED) for status in (400, 413, 422)),
        *((status, ResponseClass.WRONG) for status in (100, 301, 308, 401, 403, 404, 405, 410, 415, 600)),
    ],
)
def test_what_an_answer_means(status: int, expected: ResponseClass) -> None:
    assert classify_response(status) is expected


@pytest.mark.parametrize(("said", "seconds"), [("7", 7), ("9999999", 300), ("", 0), ("-3", 0), ("²", 0), ("Wed, 1", 0)])
def test_a_pause_that_a_receiver_asks_for_has_a_bound(said: str, seconds: float) -> None:
    assert pause(said) == seconds
