"""FileSink on a real S3 server: the contract of every sink, and what becomes of an upload that somebody else has ended.

The server is versitygw if it was built (see ``s3_server``); without it, these tests are skipped.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import boto3
import pytest
import s3_server
from msgspec.structs import replace

from kafka_eos.abc.committer import CommitOutcome, CommitPermit, CommitStatus, Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.incarnation import IncarnationState
from kafka_eos.connectors.files import FileSink, Roll
from kafka_eos.connectors.files.s3.bucket import Bucket
from kafka_eos.connectors.files.sink.s3_names import UploadCommittable
from kafka_eos.core.errors import CommittableLost, ConfigError, CorruptCheckpoint, Fenced, Retryable
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch
from kafka_eos.testing import SINK_CHECKS, SinkUnderTest, check_sink
from kafka_eos.testing.check_sink import TWO_PROCESSES
from kafka_eos.testing.list_source import ListOrigin
from tests.examples import other_seeds
from tests.marks import campaign

FIRST = EpochId(Epoch(1), Term(1))
PERMIT = CommitPermit(FIRST)
A, B, C = (JobIdentity(letter * 12) for letter in "abc")


class Store:
    """The server, and what is below one prefix of its bucket."""

    def __init__(self, port: int) -> None:
        self.prefix = f"test-{secrets.token_hex(6)}"
        self.address = s3_server.address(port, self.prefix)
        self.client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1")

    def names(self) -> list[str]:
        listed = self.client.list_objects_v2(Bucket=s3_server.BUCKET, Prefix=f"{self.prefix}/").get("Contents", ())
        return [each["Key"].removeprefix(f"{self.prefix}/") for each in listed]

    def parts(self) -> list[str]:
        return [name for name in self.names() if not name.startswith((".", "_"))]

    def read(self, name: str) -> bytes:
        body: bytes = self.client.get_object(Bucket=s3_server.BUCKET, Key=f"{self.prefix}/{name}")["Body"].read()
        return body

    def delete(self, name: str) -> None:
        self.client.delete_object(Bucket=s3_server.BUCKET, Key=f"{self.prefix}/{name}")

    def uploads(self) -> list[Any]:
        found = self.client.list_multipart_uploads(Bucket=s3_server.BUCKET, Prefix=f"{self.prefix}/")
        return list(found.get("Uploads", ()))

    def expire(self) -> None:
        """As a lifecycle rule does that removes unfinished uploads."""
        for each in self.uploads():
            self.client.abort_multipart_upload(Bucket=s3_server.BUCKET, Key=each["Key"], UploadId=each["UploadId"])


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with s3_server.reachable(tmp_path_factory.mktemp("s3")) as found:
        yield found


@pytest.fixture
def store(port: int) -> Store:
    return Store(port)


@pytest.fixture
def sink(store: Store) -> FileSink:
    return FileSink(store.address)


def job(term: int = 1, identity: JobIdentity | None = None, name: str = "orders") -> JobContext:
    return JobContext(name, Term(term), {}, identity)


def prepared(sink: FileSink, *values: Any, ctx: JobContext | None = None, operator: str = "out") -> list[Committable]:
    ctx = ctx or job()
    writer = sink.writer(TaskContext(ctx, 0, 1, operator))
    writer.write(Batch(list(values), range(len(values)), ListOrigin("in", "list", 0, 0, list(values))))
    return list(writer.seal(EpochId(Epoch(1), ctx.term))())


@pytest.mark.parametrize("check", [campaign(name) if name in TWO_PROCESSES else name for name in SINK_CHECKS])
def test_uploads_keep_the_contract(check: str, port: int) -> None:
    def fresh() -> SinkUnderTest:
        store = Store(port)

        def read_back() -> list[Any]:
            return [json.loads(line) for name in store.parts() for line in store.read(name).splitlines()]

        def take_away() -> None:
            for name in store.parts():
                store.delete(name)

        arguments: dict[str, Json] = {"address": store.address}
        return SinkUnderTest("sink_factories:s3_sink", arguments, read_back, remove_visible=take_away)

    check_sink(fresh, check, seeds=other_seeds(1))


def test_what_is_staged_is_an_upload_and_no_object(sink: FileSink, store: Store) -> None:
    (committable,) = prepared(sink, "x")
    assert (store.names(), len(store.uploads())) == ([], 1)

    sink.committer(job()).commit(PERMIT, committable)

    assert store.parts() == ["part-000000000001-1-0000-orders.out.jsonl"]
    assert (store.read(store.parts()[0]), store.uploads()) == (b'"x"\n', [])


@pytest.mark.limits(upload_part_bytes=5 << 20)
def test_a_large_file_is_sent_in_parts_while_it_is_written(store: Store) -> None:
    sink, rows = FileSink(store.address), [str(n) * (1 << 20) for n in range(8)]
    (committable,) = prepared(sink, *rows)
    sink.committer(job()).commit(PERMIT, committable)

    assert len(UploadCommittable.read(committable.payload).tags) == 2
    assert [json.loads(line) for line in store.read(store.parts()[0]).splitlines()] == rows


def test_partitions_rolling_and_the_object_of_an_epoch_are_as_in_a_directory(store: Store) -> None:
    sink = FileSink(store.address, partition_by=lambda n: {"odd": n % 2 == 1}, roll=Roll(rows=2), epoch_files=True)
    committables, committer = prepared(sink, *range(5)), sink.committer(job())
    for each in committables:
        committer.commit(PERMIT, each)
    committer.announce(PERMIT, committables)  # type: ignore[attr-defined]
    told = json.loads(store.read("_epochs/000000000001-orders.json"))

    assert sorted(store.parts()) == [
        "odd=false/part-000000000001-1-0000-orders.out.jsonl",
        "odd=false/part-000000000001-1-0000-orders.out~0001.jsonl",
        "odd=true/part-000000000001-1-0000-orders.out~0002.jsonl",
    ]
    assert [(each["file"], each["rows"]) for each in told["files"]] == [
        (name, 1 if name.endswith("1.jsonl") else 2) for name in sorted(store.parts())
    ]


def test_the_object_of_an_epoch_lists_what_sinks_that_ask_for_it_have_written(store: Store) -> None:
    asking, silent = FileSink(store.address, epoch_files=True), FileSink(store.address)
    committables = [*prepared(silent, 1, operator="silent"), *prepared(asking, 2, operator="asking")]
    committer = asking.committer(job())
    committer.commit_all(PERMIT, committables)
    committer.announce(PERMIT, committables)  # type: ignore[attr-defined]
    told = json.loads(store.read("_epochs/000000000001-orders.json"))

    assert [each["file"] for each in told["files"]] == ["part-000000000001-1-0000-orders.asking.jsonl"]


# ---------------------------------------------------------------- what is there, and what is not


def status_of(sink: FileSink, committable: Committable) -> CommitStatus:
    return sink.committer(job(2)).probe(committable).status


def test_an_upload_that_a_rule_of_the_bucket_removed_is_unknown_and_a_trace_decides(
    sink: FileSink, store: Store
) -> None:
    (committable,) = prepared(sink, "x")
    store.expire()
    seen = sink.committer(job()).probe(committable)

    assert seen.status is CommitStatus.UNKNOWN and ".committed.orders.1.1.0.out" in seen.detail
    with pytest.raises(CommittableLost, match="lifecycle rule"):
        sink.committer(job()).commit(PERMIT, committable)
    store.client.put_object(Bucket=s3_server.BUCKET, Key=f"{store.prefix}/.aborted.orders.1.1.0.out", Body=b"")
    assert status_of(sink, committable) is CommitStatus.LOST
    store.client.put_object(Bucket=s3_server.BUCKET, Key=f"{store.prefix}/.committed.orders.1.1.0.out", Body=b"")
    assert status_of(sink, committable) is CommitStatus.UNKNOWN
    store.delete(".aborted.orders.1.1.0.out")
    assert status_of(sink, committable) is CommitStatus.COMMITTED


@pytest.mark.parametrize("other", [{"size": 5}, {"tags": ["other"]}])
def test_an_upload_without_the_parts_that_were_prepared_is_lost(sink: FileSink, other: dict[str, Json]) -> None:
    (committable,) = prepared(sink, "x")

    assert status_of(sink, replace(committable, payload={**committable.payload, **other})) is CommitStatus.LOST


def test_an_object_of_somebody_else_under_the_name_is_not_replaced(sink: FileSink, store: Store) -> None:
    (committable,) = prepared(sink, "x")
    name = str(committable.payload["name"])
    store.client.put_object(Bucket=s3_server.BUCKET, Key=f"{store.prefix}/{name}", Body=b"else")

    assert status_of(sink, committable) is CommitStatus.LOST
    with pytest.raises(CommittableLost, match="move it away"):
        sink.committer(job()).commit(PERMIT, committable)
    assert store.read(name) == b"else"


def test_an_object_that_appears_at_the_moment_of_the_commit_is_not_replaced(
    sink: FileSink, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (committable,) = prepared(sink, "x")
    name, real = str(committable.payload["name"]), Bucket.complete

    def late(self: Bucket, *args: Any) -> None:
        store.client.put_object(Bucket=s3_server.BUCKET, Key=f"{store.prefix}/{name}", Body=b"else")
        real(self, *args)

    monkeypatch.setattr(Bucket, "complete", late)
    with pytest.raises(Retryable, match="appeared"):
        sink.committer(job()).commit(PERMIT, committable)
    assert store.read(name) == b"else"


@pytest.mark.parametrize("dies", ["create", "complete"])
def test_a_commit_that_died_before_it_completed_is_prepared_until_it_is_undone(
    sink: FileSink, dies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trace proves nothing then."""
    (committable,) = prepared(sink, "x")

    def away(*args: Any) -> None:
        raise OSError("the server is away")

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, dies, away)
        with pytest.raises(Retryable):
            sink.committer(job()).commit(PERMIT, committable)
    assert status_of(sink, committable) is CommitStatus.PREPARED
    assert sink.committer(job(2)).abort_leftovers(job(2)) == [committable.payload["name"]]
    assert status_of(sink, committable) is CommitStatus.LOST


def test_a_completion_whose_answer_was_lost_is_committed(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    (committable,) = prepared(sink, "x")
    real = Bucket.complete

    def lost(self: Bucket, *args: Any) -> None:
        real(self, *args)
        raise OSError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "complete", lost)
        with pytest.raises(Retryable):
            sink.committer(job()).commit(PERMIT, committable)

    assert sink.committer(job(2)).commit(PERMIT, committable) is CommitOutcome.ALREADY


@pytest.mark.parametrize("lies", [1, 100], ids=["once", "for a while"])
def test_a_completion_that_is_done_and_answered_with_an_error_is_committed_once(
    store: Store, port: int, lies: int
) -> None:
    """The client itself asks again. Stores differ in what they answer to that; what counts is what is there."""
    with s3_server.Liar(port, lies) as liar:
        sink = FileSink(s3_server.address(liar.port, store.prefix))
        (committable,) = prepared(sink, "x")
        committer = sink.committer(job())
        with suppress(Retryable):
            committer.commit(PERMIT, committable)
        assert 0 < liar.told <= lies

        assert status_of(sink, committable) is CommitStatus.COMMITTED
        assert committer.commit(PERMIT, committable) is CommitOutcome.ALREADY
    assert [store.read(name) for name in store.parts()] == [b'"x"\n']
    assert store.uploads() == []


@pytest.mark.parametrize("step", ["list_parts", "create", "complete"])
def test_two_processes_that_commit_the_same_upload_at_once_both_succeed(
    sink: FileSink, store: Store, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one commit is at any step, another runs from its beginning to its end."""
    (committable,), real = prepared(sink, "x"), getattr(Bucket, step)

    def interrupted(self: Bucket, *args: Any) -> Any:
        monkeypatch.setattr(Bucket, step, real)
        sink.committer(job(2)).commit(PERMIT, committable)
        return real(self, *args)

    monkeypatch.setattr(Bucket, step, interrupted)
    committer = sink.committer(job())
    try:
        committer.commit(PERMIT, committable)
    except Retryable:
        assert committer.commit(PERMIT, committable) is CommitOutcome.ALREADY

    assert (status_of(sink, committable), store.uploads()) == (CommitStatus.COMMITTED, [])
    assert [store.read(name) for name in store.parts()] == [b'"x"\n']


def test_an_abort_while_a_commit_is_under_way_ends_in_one_of_both(
    sink: FileSink, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (committable,), real = prepared(sink, "x"), Bucket.complete

    def late(self: Bucket, *args: Any) -> None:
        assert sink.committer(job(2)).abort_leftovers(job(2))
        real(self, *args)

    monkeypatch.setattr(Bucket, "complete", late)
    with pytest.raises(CommittableLost, match="committed or aborted by another process"):
        sink.committer(job()).commit(PERMIT, committable)
    assert (status_of(sink, committable), store.parts()) == (CommitStatus.LOST, [])


def test_traces_go_when_a_later_term_proves_that_nobody_asks_for_them(sink: FileSink, store: Store) -> None:
    for term in (1, 2):
        (committable,) = prepared(sink, term, ctx=job(term))
        sink.committer(job(term)).commit(CommitPermit(EpochId(Epoch(1), Term(term))), committable)

    assert [name for name in store.names() if name.startswith(".")] == [".committed.orders.2.1.0.out"]


def test_a_writer_whose_upload_was_aborted_is_fenced(sink: FileSink) -> None:
    writer = sink.writer(TaskContext(job(), 0, 1, "out"))
    writer.write(Batch(["x"], range(1), ListOrigin("in", "list", 0, 0, ["x"])))
    (open_,) = sink.committer(job(2)).list_staged(job(2))
    assert sink.committer(job(2)).abort_leftovers(job(2)) == [open_.name]

    with pytest.raises(Fenced, match="aborted its upload"):
        writer.seal(FIRST)()


def test_incarnations_of_a_job_are_those_that_are_registered_or_have_an_upload(sink: FileSink, store: Store) -> None:
    committer: Any = sink.committer(job())
    committer.register(job())
    assert store.names() == []
    store.client.create_multipart_upload(Bucket=s3_server.BUCKET, Key=f"{store.prefix}/of-others")
    committer.register(job(identity=A))
    committer.register(job(identity=C, name="orders-2"))
    for ctx in (job(2, B), job(1, B), job(identity=C, name="orders-2")):
        prepared(sink, "x", ctx=ctx)

    found = {each.identity: (each.state, each.term) for each in committer.list_incarnations(job())}
    assert found == {A: (IncarnationState.ENDED, None), B: (IncarnationState.OPEN, Term(2))}
    assert (committer.retire(job(3, B), A), len(store.uploads())) == ([], 4)
    assert len(committer.retire(job(3, A), B)) == 2
    assert [part.name for part in committer.list_staged(job(name="orders-2"))] == [
        "part-000000000001-1-0000-orders-2.cccccccccccc.out.jsonl"
    ]
    assert f".incarnation.orders.{A}" not in store.names()


def test_an_incarnation_is_over_before_its_registration_is_gone(
    sink: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer: Any = sink.committer(job())
    committer.register(job(identity=A))

    def away(self: Bucket, name: str) -> None:
        raise OSError("the server is away")

    monkeypatch.setattr(Bucket, "delete", away)
    with pytest.raises(Retryable):
        committer.retire(job(identity=B), A)

    with pytest.raises(Fenced, match="took over from this one"):
        committer.register(job(identity=A))


def test_an_incarnation_whose_registration_was_taken_stops(sink: FileSink) -> None:
    committer: Any = sink.committer(job())
    committer.register(job(identity=A))
    committer.register(job(identity=A))
    (committable,) = prepared(sink, "x", ctx=job(identity=A))
    assert {
        incarnation.identity: incarnation.state for incarnation in committer.list_incarnations(job(identity=B))
    } == {A: IncarnationState.OPEN}

    assert committer.retire(job(identity=B), A) == [committable.payload["name"]]

    with pytest.raises(Fenced, match="took over from this one"):
        committer.register(job(identity=A))
    assert {
        incarnation.identity: incarnation.state for incarnation in committer.list_incarnations(job(identity=B))
    } == {A: IncarnationState.OVER}


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("s3://bucket", "the bucket or the prefix is missing"),
        ("gs://bucket/prefix", "s3://bucket/prefix, not in gs://"),
        ("s3://bucket/prefix?aws_secret_access_key=x", "does not belong in an address"),
        ("s3://bucket/prefix?colour=red", "colour is not an option"),
    ],
)
def test_an_address_that_is_none_is_refused_with_the_plan(address: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        FileSink(address)


def test_the_start_tries_what_commits_need_and_leaves_nothing(sink: FileSink, store: Store) -> None:
    """Also where a start has died after the first try."""
    tried = f"{store.prefix}/.check.orders.1.{os.getpid()}"
    store.client.put_object(Bucket=s3_server.BUCKET, Key=tried, Body=b"")

    assert list(sink.check(job())) == []
    assert (store.names(), store.uploads()) == ([], [])


def test_a_bucket_that_is_not_there_and_a_right_that_is_missing_stop_the_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="bucket nowhere does not exist"):
        FileSink(store.address.replace(s3_server.BUCKET, "nowhere")).check(job())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ConfigError, match="FileSink needs permission"):
        FileSink(store.address).check(job())


def test_a_server_that_is_away_is_asked_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Bucket, name: str) -> None:
        raise OSError("Could not connect")

    monkeypatch.setattr(Bucket, "delete", refused)
    with pytest.raises(Retryable, match="could not reach"):
        FileSink(store.address).check(job())


PAYLOAD: dict[str, Json] = {
    "version": 1, "name": "day=1/part-000000000007-2-0001-orders.aaaaaaaaaaaa.out~0012.parquet", "upload": "xyz",
    "upload_tag": "0123", "tags": ['"5d41"'], "size": 5, "announced": True,
}  # fmt: skip
"""A committable as version 1 has stored it. It is in manifests of jobs: never change it."""


def test_a_committable_is_read_and_one_that_leads_elsewhere_is_refused() -> None:
    upload = UploadCommittable.read(PAYLOAD)
    changes: Sequence[dict[str, Json]] = [
        {"name": "../part-000000000007-2-0001-orders.out.jsonl"},
        {"name": "a/part-000000000007-2-0001-orders.out.jsonl"},
        {"name": "other"},
        {"tags": [1]},
        {"version": 2},
        {"more": 1},
    ]

    assert upload.payload() == PAYLOAD and upload.part.number == 12 and upload.part.identity == A
    for change in changes:
        with pytest.raises(CorruptCheckpoint):
            UploadCommittable.read({**PAYLOAD, **change})
