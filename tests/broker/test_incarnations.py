"""Two incarnations of one job's name on a real cluster: a sink's committer and a source tell whose is what."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_eos.abc.committer import CommitOutcome, CommitStatus, Committable
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import IncarnationState
from kafka_eos.abc.sink import Writer
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.connectors.kafka.sink.committer import KafkaCommitter
from kafka_eos.connectors.kafka.sink.producer_pool import SPARE
from kafka_eos.core.errors import Fenced, RestartFromCheckpoint
from kafka_eos.core.ids import JobIdentity, Term
from kafka_eos.devtools.broker import Broker
from tests.broker.kafka_kit import batch, commit, epoch, prepare, show, task
from tests.broker.transaction_kit import create_topic
from tests.waiting import eventually

Topic = Callable[..., str]
Lived = Callable[..., "Side"]


class Side:
    """One incarnation of a name: a writer of its term 1, and what recovers it."""

    def __init__(self, sink: KafkaSink[Any], ctx: JobContext) -> None:
        self.ctx, self._sink = ctx, sink
        self.writer: Writer[Any] = sink.writer(task(ctx))
        self.committer = sink.committer(ctx)
        assert isinstance(self.committer, KafkaCommitter)

    def prepare(self, value: bytes, number: int = 1) -> Committable:
        (one,) = prepare(self.writer, batch(value), epoch(number))
        return one

    def close(self) -> None:
        self.writer.discard()
        self.committer.close()


@pytest.fixture
def lived(bootstrap: str, topic: Topic) -> Iterator[Lived]:
    """``lived(identity)``: an incarnation of the one name of this test, in its one topic."""
    name, sink = f"incarnations-{uuid.uuid4().hex[:8]}", KafkaSink[Any](topic())
    made: list[Side] = []

    def incarnation(identity: JobIdentity | None, *, term: int = 1) -> Side:
        settings = {"bootstrap_servers": bootstrap}
        made.append(Side(sink, JobContext(name, Term(term), settings, identity)))
        return made[-1]

    yield incarnation
    for side in made:
        side.close()


@pytest.fixture
def two(lived: Lived) -> tuple[Side, Side]:
    return lived(JobIdentity.new()), lived(JobIdentity.new())


def test_orphans_of_another_incarnation_are_left_alone(two: tuple[Side, Side], lived: Lived) -> None:
    """The defect: a start from another directory was taken for the next term, and fenced what was decided."""
    ours, theirs = two
    mine, other = ours.prepare(b"ours"), theirs.prepare(b"theirs")
    later = lived(theirs.ctx.identity, term=7)

    aborted = later.committer.abort_leftovers(later.ctx)

    assert [name.split(" ")[0] for name in aborted if "Ongoing" in name] == [other.payload["transactional_id"]]
    assert commit(ours.committer, [mine], epoch(1)) == [CommitOutcome.COMMITTED]


def test_markers_of_two_incarnations_do_not_overwrite_each_other(two: tuple[Side, Side], lived: Lived) -> None:
    """The marker proves a commit when the id has moved on; another incarnation's commit in between must not hide it."""
    ours, theirs = two
    mine, other = ours.prepare(b"ours"), theirs.prepare(b"theirs")
    commit(ours.committer, [mine], epoch(1))
    commit(theirs.committer, [other], epoch(1))
    later = lived(ours.ctx.identity, term=2)
    later.committer.abort_leftovers(later.ctx)

    assert later.committer.probe(mine).status is CommitStatus.COMMITTED


def test_what_is_open_is_shown_with_its_incarnation(two: tuple[Side, Side], lived: Lived) -> None:
    ours, theirs = two
    nameless = lived(None)
    for side in (ours, theirs, nameless):
        side.prepare(b"x")

    shown = eventually(
        lambda: (found := ours.committer.list_staged(ours.ctx)) and len(found) == 3 and found, "all three"
    )

    assert {each.identity for each in shown} == {ours.ctx.identity, theirs.ctx.identity, None}
    assert [each.identity for each in shown if ours.ctx.owns(each.identity)] == [ours.ctx.identity]


def test_incarnations_are_told_apart_by_what_they_have_open(two: tuple[Side, Side]) -> None:
    ours, theirs = two
    ours.committer.register(ours.ctx)
    theirs.prepare(b"open")

    found = {each.identity: each for each in ours.committer.list_incarnations(ours.ctx)}

    assert found[ours.ctx.identity].state is IncarnationState.ENDED
    assert found[theirs.ctx.identity].state is IncarnationState.OPEN
    assert found[theirs.ctx.identity].term == theirs.ctx.term


def test_an_incarnation_whose_registration_was_taken_stops_and_has_nothing_open(two: tuple[Side, Side]) -> None:
    ours, theirs = two
    ours.committer.register(ours.ctx)
    ours.committer.register(ours.ctx)
    decided = ours.prepare(b"decided")

    ended = theirs.committer.retire(theirs.ctx, ours.ctx.identity)

    assert any(name.startswith(str(decided.payload["transactional_id"])) for name in ended)
    with pytest.raises(Fenced, match="took over from this one"):
        ours.committer.register(ours.ctx)
    eventually(lambda: ours.committer.probe(decided).status is CommitStatus.LOST, "the abort")
    (over,) = (each for each in theirs.committer.list_incarnations(theirs.ctx) if each.identity == ours.ctx.identity)
    assert over.state is IncarnationState.OVER


def test_a_producer_that_was_warm_when_its_incarnation_ended_writes_nothing(two: tuple[Side, Side]) -> None:
    """Each producer is initialized before the incarnation ends: a listing does not show one that comes later."""
    ours, theirs = two
    ours.committer.register(ours.ctx)
    started = f"{SPARE + 1} transactional ids"
    eventually(
        lambda: any(
            each.identity == ours.ctx.identity and each.detail.startswith(started)
            for each in theirs.committer.list_incarnations(theirs.ctx)
        ),
        "the producers that a writer starts with",
    )
    assert len(theirs.committer.retire(theirs.ctx, ours.ctx.identity)) == SPARE + 1

    with pytest.raises(RestartFromCheckpoint):
        ours.prepare(b"late")


def test_group_offsets_name_the_incarnation_that_committed_them(bootstrap: str, topic: Topic) -> None:
    source: KafkaSource[bytes] = KafkaSource(topic())
    settings = {"bootstrap_servers": bootstrap}
    ctx = JobContext(f"incarnations-{uuid.uuid4().hex[:8]}", Term(4), settings, JobIdentity.new())
    positions = source.discover(ctx, None)
    assert source.list_incarnations(ctx) == []
    assert not KafkaSource[bytes]("nobody-made-it").list_incarnations(ctx), (
        "discover names it, with all others that are missing"
    )

    show(source, ctx, epoch(3, 4), positions)

    (found,) = source.list_incarnations(ctx)
    assert (found.identity, found.term, found.state) == (ctx.identity, Term(4), IncarnationState.ENDED)
    assert ctx.job in found.place


def test_a_new_cluster_without_any_group_shows_no_incarnation(broker_factory: Callable[..., Broker]) -> None:
    """The admin client of librdkafka crashed there, and the process with it."""
    broker = broker_factory()
    create_topic(broker.bootstrap, "first")
    ctx = JobContext("incarnations", Term(1), {"bootstrap_servers": broker.bootstrap}, JobIdentity.new())

    assert KafkaSource[bytes]("first").list_incarnations(ctx) == []
    committer = KafkaSink[bytes]("first").committer(ctx)
    assert isinstance(committer, KafkaCommitter)
    assert committer.list_incarnations(ctx) == []
    committer.close()
