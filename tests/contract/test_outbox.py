"""What a receiver gets of an outbox, row by row and in order, over flushes, retries, aborted epochs and restarts.

Hypothesis draws what becomes of each request. The receiver writes down all that arrives, under whatever key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.abc.committer import CommitOutcome, CommitPermit, CommitStatus, Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.connectors._outbox import committer as outbox
from kafka_eos.connectors._outbox.committer import OutboxCommitter
from kafka_eos.connectors.idempotent import DeliveryRefused, IdempotentSink, Receiver, Row
from kafka_eos.core.errors import ConfigError, PartialProgress, Retryable
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin
from tests.examples import examples

IDENTITY = JobIdentity("a" * 12)
MOST_CALLS = 100
"""Of a committer, for one epoch: each may get nowhere, or send a request."""


class Answer(Enum):
    """What becomes of one request."""

    TAKEN = "taken"
    AWAY = "the receiver gets nothing"
    LOST = "the receiver takes it, and its answer is lost"
    DIES = "the receiver takes it, and the coordinator dies"


class Died(BaseException):
    """The process that sends is dead."""


@dataclass
class Service(Receiver):
    """It refuses rows that are in ``refused``, and does otherwise what its answers say, as long as there are any."""

    answers: Iterator[Answer] = field(default_factory=lambda: iter(()))
    refused: frozenset[int] = frozenset()
    requests: list[list[int]] = field(default_factory=list)
    """The rows of each request that arrived."""
    taken: dict[str, int] = field(default_factory=dict)
    """By key, in the order of first arrival."""
    confirmed: list[int] = field(default_factory=list)
    """Rows that the process which sends now was told of."""
    name = "service:test"

    def send(self, rows: Sequence[Row]) -> None:
        values = [json.loads(row.value) for row in rows]
        answer = next(self.answers, Answer.TAKEN)
        if answer is Answer.AWAY:
            raise TimeoutError("no answer")
        assert not {*self.confirmed} & {*values}, "a row is sent again by the process that was told that it has arrived"
        self.requests.append(values)
        refused = bool(self.refused.intersection(values))
        if not refused:
            for row, value in zip(rows, values, strict=True):
                assert self.taken.setdefault(row.key, value) == value, "two rows have one key"
        if answer is Answer.LOST:
            raise TimeoutError("the answer is lost")
        if answer is Answer.DIES:
            raise Died
        if refused:
            raise DeliveryRefused("not wanted")
        self.confirmed += values


def job(term: int = 1) -> JobContext:
    return JobContext("orders", Term(term), {}, IDENTITY)


def epoch(number: int) -> EpochId:
    return EpochId(Epoch(number), Term(1))


@dataclass
class Kit:
    """An outbox, its receiver, and what tests do with both."""

    directory: Path
    service: Service
    batch: int = 1
    set_aside: int = 100

    def sink(self) -> IdempotentSink[int]:
        return IdempotentSink(
            self.service, outbox=self.directory, value=int, batch=self.batch, set_aside=self.set_aside
        )

    def prepared(self, *sizes: int) -> list[Committable]:
        """An epoch of each size by one writer; rows are numbers that go on from one to the next."""
        sink = self.sink()
        sink.check(job())
        writer = sink.writer(TaskContext(job(), 0, 1, "out", first_epoch=Epoch(1)))
        found, first = list[Committable](), 0
        for number, size in enumerate(sizes, 1):
            values = [*range(first, first + size)]
            writer.write(Batch(values, range(size), ListOrigin("in", "list", 0, first, values)))
            found += writer.seal(epoch(number))()
            first += size
        writer.discard()
        return found

    def committer(self) -> OutboxCommitter:
        """That of a process that has sent nothing yet."""
        self.service.confirmed = []
        return self.sink().committer(job())

    def aside(self) -> list[int]:
        """What is set aside, in the order of files and lines."""
        directory = self.directory / outbox.REFUSED
        files = sorted(directory.iterdir()) if directory.exists() else []
        return [json.loads(line)["value"] for file in files for line in file.read_text().splitlines()]

    def commit(self, committables: Sequence[Committable], newest: int) -> None:
        """Until all is sent, by one process after the other: each goes on as long as it lives."""
        for _ in range(MOST_CALLS):
            with closing(self.committer()) as committer, suppress(Died):
                until_answered(partial(committer.commit_all, CommitPermit(epoch(newest)), committables))
                return
        raise AssertionError(f"{MOST_CALLS} processes were not enough")


def until_answered(call: Callable[[], Sequence[CommitOutcome]]) -> Sequence[CommitOutcome]:
    for _ in range(MOST_CALLS):
        with suppress(Retryable):
            return call()
    raise AssertionError(f"{MOST_CALLS} calls were not enough")


@given(
    epochs=st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=4),
    answers=st.lists(st.sampled_from([*Answer, Answer.TAKEN, Answer.TAKEN]), max_size=25),
    refused=st.frozensets(st.integers(0, 19), max_size=4),
    batch=st.integers(1, 3),
    short=st.booleans(),
    backward=st.booleans(),
)
@examples(25)
def test_each_row_arrives_in_its_order_whatever_becomes_of_requests(
    epochs: Sequence[tuple[int, bool]],
    answers: Sequence[Answer],
    refused: frozenset[int],
    batch: int,
    short: bool,
    backward: bool,
) -> None:
    """``epochs``: how many rows each has, and whether it is aborted. ``short``: a stretch of sending is one request."""
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patched:
        if short:
            patched.setattr(outbox, "AT_A_STRETCH", -1.0)
        service = Service(iter(answers), refused)
        kit = Kit(Path(directory), service, batch)
        prepared = kit.prepared(*(size for size, _ in epochs))
        manifest = list[Committable]()
        for number, (committable, (_, aborted)) in enumerate(zip(prepared, epochs, strict=True), 1):
            manifest.append(committable)
            if not aborted or number == len(epochs):
                kit.commit(manifest[::-1] if backward else manifest, number)
                manifest = []

        written = [*range(sum(size for size, _ in epochs))]
        assert [*service.taken.values()] == [value for value in written if value not in refused]
        assert kit.aside() == [value for value in written if value in refused]
        left = [path.name for path in kit.directory.iterdir() if path.is_file()]
        assert not [name for name in left if not name.startswith((".committed.", ".incarnation."))]
        with closing(kit.committer()) as committer:
            assert {committer.probe(each).status for each in prepared[-1:]} == {CommitStatus.COMMITTED}


def test_a_row_that_was_refused_in_a_request_is_not_counted_twice(tmp_path: Path) -> None:
    """Of rows that are refused together each goes alone; what comes behind them begins behind them."""
    service = Service(iter([Answer.TAKEN] * 4 + [Answer.AWAY]), frozenset({1, 3}))
    kit = Kit(tmp_path, service, batch=3)
    (committable,) = kit.prepared(5)
    with closing(kit.committer()) as committer:
        with pytest.raises(PartialProgress):
            committer.commit_all(CommitPermit(epoch(1)), [committable])
        assert committer.commit_all(CommitPermit(epoch(1)), [committable]) == [CommitOutcome.COMMITTED]

    assert service.requests == [[0, 1, 2], [0], [1], [2], [3, 4], [3], [4]]
    assert kit.aside() == [1, 3]


def test_nothing_says_that_a_file_is_done_before_all_of_it_has_arrived(tmp_path: Path) -> None:
    """Neither the trace nor what is set aside: a process that dies then sends the rest."""
    service = Service(iter([Answer.TAKEN, Answer.TAKEN, Answer.AWAY]), frozenset({1}))
    kit = Kit(tmp_path, service)
    (committable,) = kit.prepared(3)
    with closing(kit.committer()) as committer, pytest.raises(Retryable):
        committer.commit_all(CommitPermit(epoch(1)), [committable])

    assert kit.aside() == []
    with closing(kit.committer()) as committer:
        assert committer.probe(committable).status is CommitStatus.PREPARED


def test_a_key_is_that_of_its_input_in_each_attempt_and_of_no_other_sink_or_incarnation(tmp_path: Path) -> None:
    """A record is the same row in any epoch and term, and another row in another sink, subtask or incarnation."""

    def key(ctx: JobContext, operator: str, number: int, offset: int) -> str:
        service = Service()
        sink = IdempotentSink(service, outbox=tmp_path / "out", value=int)
        sink.check(ctx)
        writer = sink.writer(TaskContext(ctx, 0, 1, operator, first_epoch=Epoch(number)))
        writer.write(Batch([7], range(1), ListOrigin("in", "list", 0, offset, [7])))
        at = EpochId(Epoch(number), ctx.term)
        with closing(sink.committer(ctx)) as committer:
            committer.commit_all(CommitPermit(at), writer.seal(at)())
        writer.discard()
        (found,) = service.taken
        return found

    first = key(job(), "out", 1, 0)
    assert key(job(2), "out", 5, 0) == first
    other_incarnation = JobContext("orders", Term(1), {}, JobIdentity("b" * 12))
    others = [key(job(), "out-2", 1, 0), key(job(), "out", 2, 1), key(other_incarnation, "out", 1, 0)]
    assert len({first, *others}) == 4


def test_what_ends_the_job_is_raised_before_what_is_asked_again(tmp_path: Path) -> None:
    """Files of several writers are sent at the same time; a row that is refused must not hide behind one that waits."""

    class Split(Service):
        def send(self, rows: Sequence[Row]) -> None:
            if json.loads(rows[0].value) == 0:
                raise TimeoutError("no answer")
            raise DeliveryRefused("not wanted")

    kit = Kit(tmp_path, Split(), set_aside=0)
    sink = kit.sink()
    sink.check(job())
    found = list[Committable]()
    for subtask in (0, 1):
        writer = sink.writer(TaskContext(job(), subtask, 2, "out", first_epoch=Epoch(1)))
        writer.write(Batch([subtask], range(1), ListOrigin("in", "list", subtask, 0, [subtask])))
        found += writer.seal(epoch(1))()
        writer.discard()
    with closing(kit.committer()) as committer, pytest.raises(ConfigError, match="refuses a row: not wanted"):
        committer.commit_all(CommitPermit(epoch(1)), found)


def test_outcomes_are_in_the_order_of_the_committables(tmp_path: Path) -> None:
    kit = Kit(tmp_path, Service())
    first, second = kit.prepared(1, 1)
    with closing(kit.committer()) as committer:
        committer.commit_all(CommitPermit(epoch(2)), [first])
        outcomes = committer.commit_all(CommitPermit(epoch(2)), [second, first])

    assert outcomes == [CommitOutcome.COMMITTED, CommitOutcome.ALREADY]
