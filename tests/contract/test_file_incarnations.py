"""Two incarnations of one job's name in one directory of a FileSink."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kafka_eos.abc.committer import CommitOutcome, CommitPermit, CommitStatus, Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.incarnation import IncarnationState
from kafka_eos.connectors.files import FileSink
from kafka_eos.core.errors import Fenced
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin

A, B = JobIdentity("a" * 12), JobIdentity("b" * 12)
FIRST = EpochId(Epoch(1), Term(1))


def job(identity: JobIdentity | None, term: int = 1) -> JobContext:
    return JobContext("orders", Term(term), {}, identity)


def prepared(sink: FileSink, ctx: JobContext, *values: str) -> Committable:
    writer = sink.writer(TaskContext(ctx, 0, 1, "out"))
    writer.write(Batch(list(values), range(len(values)), ListOrigin("in", "list", 0, 0, list(values))))
    (committable,) = writer.seal(FIRST)()
    return committable


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(tmp_path / "out")


def test_the_same_epoch_of_two_incarnations_is_two_files(sink: FileSink) -> None:
    """Epochs begin again in another incarnation: its part must not be taken for the one that is there."""
    committer = sink.committer(job(A))
    outcomes = [
        committer.commit(CommitPermit(FIRST), prepared(sink, job(identity), str(identity))) for identity in (A, B, None)
    ]

    assert outcomes == [CommitOutcome.COMMITTED] * 3
    parts = sorted(path.name for path in sink.directory.glob("part-*"))
    assert parts == [f"part-000000000001-0000-orders{incarnation}.out.jsonl" for incarnation in (f".{A}", f".{B}", "")]


def test_the_audit_finds_the_files_of_all_names_that_a_job_had(sink: FileSink) -> None:
    renamed, other = JobContext("orders-2", Term(1), {}, B), JobContext("orders-3", Term(1), {}, B)
    for ctx in (job(A), renamed, other):
        sink.committer(ctx).commit(CommitPermit(FIRST), prepared(sink, ctx, "x"))
    _, pattern = sink.audit_files({"orders", "orders-2"}, "out")

    found = {name for name in sink.audit_names() if re.fullmatch(pattern, name)}

    assert found == {f"part-000000000001-0000-{name}.out.jsonl" for name in (f"orders.{A}", f"orders-2.{B}")}


def test_each_incarnation_undoes_its_own(sink: FileSink) -> None:
    mine, theirs, nameless = (prepared(sink, job(identity), "x") for identity in (A, B, None))
    committer = sink.committer(job(A, 9))

    assert committer.abort_leftovers(job(A, 9)) == [mine.payload["staged"]]
    assert {committer.probe(each).status for each in (theirs, nameless)} == {CommitStatus.PREPARED}
    assert committer.abort_leftovers(job(B, 9)) == [theirs.payload["staged"]]


def test_a_commit_leaves_the_traces_of_another_incarnation(sink: FileSink) -> None:
    """They tell that incarnation what became of its rows when readers have taken them."""
    theirs = prepared(sink, job(B), "theirs")
    sink.committer(job(B)).commit(CommitPermit(FIRST), theirs)
    for part in sink.directory.glob("part-*"):
        part.unlink()
    later = EpochId(Epoch(5), Term(5))

    sink.committer(job(A, 5)).commit(CommitPermit(later), prepared(sink, job(A), "mine"))

    assert sink.committer(job(B)).probe(theirs).status is CommitStatus.COMMITTED


def test_an_incarnation_is_listed_with_its_newest_committed_epoch(sink: FileSink) -> None:
    """By its parts, and by the traces of its newest commit when readers have taken them."""
    ctx = job(A)
    committer, writer = sink.committer(ctx), sink.writer(TaskContext(ctx, 0, 1, "out"))
    for number in (1, 2, 3):
        writer.write(Batch(["x"], range(1), ListOrigin("in", "list", 0, 0, ["x"])))
        (committable,) = writer.seal(EpochId(Epoch(number), Term(1)))()
        if number < 3:
            committer.commit(CommitPermit(EpochId(Epoch(number), Term(1))), committable)

    assert [sign.committed for sign in committer.list_incarnations(ctx)] == [Epoch(2)]
    for part in sink.directory.glob("part-*"):
        part.unlink()
    assert [sign.committed for sign in committer.list_incarnations(ctx)] == [Epoch(2)]


def test_incarnations_are_known_by_registration_by_what_is_staged_and_by_parts(sink: FileSink) -> None:
    committer = sink.committer(job(A))
    assert list(committer.list_incarnations(job(A))) == []
    committer.register(job(A))
    prepared(sink, job(B), "x")
    committer.commit(CommitPermit(FIRST), prepared(sink, job(None), "x"))
    prepared(sink, JobContext("orders-2", Term(1), {}, A), "x")

    found = {incarnation.identity: incarnation.state for incarnation in committer.list_incarnations(job(A))}

    assert found == {A: IncarnationState.ENDED, B: IncarnationState.OPEN, None: IncarnationState.ENDED}


def test_an_incarnation_whose_registration_was_taken_stops(sink: FileSink) -> None:
    committer = sink.committer(job(A))
    committer.register(job(A))
    committer.register(job(A))
    staged = prepared(sink, job(A), "x")

    assert committer.retire(job(B), A) == [staged.payload["staged"]]

    with pytest.raises(Fenced, match="took over from this one"):
        committer.register(job(A))
    assert committer.probe(staged).status is CommitStatus.LOST
    assert {incarnation.identity: incarnation.state for incarnation in committer.list_incarnations(job(B))} == {
        A: IncarnationState.OVER
    }
