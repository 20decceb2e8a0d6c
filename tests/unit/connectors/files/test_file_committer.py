"""The committer of a directory: what others may do between two of its steps, what it leaves, and what it says."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.abc.committer import CommitOutcome, CommitPermit, CommitStatus, Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.incarnation import IncarnationState
from kafka_eos.connectors.files import FileSink, disk
from kafka_eos.connectors.files.sink import committer
from kafka_eos.core.errors import CommittableLost, Retryable
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin
from tests.power_cuts import after, recorded

FIRST = EpochId(Epoch(1), Term(1))
PERMIT = CommitPermit(FIRST)
A, B = JobIdentity("a" * 12), JobIdentity("b" * 12)


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return FileSink(tmp_path / "out")


def job(term: int = 1, identity: JobIdentity | None = None, *, name: str = "orders") -> JobContext:
    return JobContext(name, Term(term), {}, identity)


def prepared(sink: FileSink, ctx: JobContext | None = None, operator: str = "out") -> Committable:
    ctx = ctx or job()
    writer = sink.writer(TaskContext(ctx, 0, 1, operator))
    writer.write(Batch(["x"], range(1), ListOrigin("in", "list", 0, 0, ["x"])))
    (committable,) = writer.seal(EpochId(Epoch(1), ctx.term))()
    return committable


def staged(sink: FileSink, committable: Committable) -> Path:
    return sink.directory / str(committable.payload["staged"])


def final(sink: FileSink, committable: Committable) -> Path:
    return sink.directory / str(committable.payload["final"])


def names(sink: FileSink) -> list[str]:
    return sorted(path.name for path in sink.directory.iterdir())


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, module: Any, step: str, act: Callable[[], object], *, after: bool
) -> None:
    """Before or after the next call of this step somebody else acts."""
    real = getattr(module, step)

    def once(*args: Any) -> Any:
        monkeypatch.setattr(module, step, real)
        result = real(*args) if after else None
        act()
        return result if after else real(*args)

    monkeypatch.setattr(module, step, once)


# ---------------------------------------------------------------- commits


def test_a_commit_leaves_the_part_its_trace_and_nothing_in_memory(sink: FileSink) -> None:
    committable, ours = prepared(sink), sink.committer(job())
    assert ours.probe(committable).status is CommitStatus.PREPARED

    assert ours.commit(PERMIT, committable) is CommitOutcome.COMMITTED

    assert names(sink) == [".committed.orders.1.1.0.out", final(sink, committable).name]
    assert ours._checked == {}  # type: ignore[attr-defined]


def test_a_directory_may_be_named_from_where_the_process_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sink = FileSink(Path("out"))
    committable = prepared(sink)

    assert sink.committer(job()).commit(PERMIT, committable) is CommitOutcome.COMMITTED
    assert (tmp_path / "out" / final(sink, committable).name).read_text() == '"x"\n'


def test_a_part_that_another_commit_published_and_a_reader_took_is_asked_again(
    sink: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trace is the other's: it proves that the output was not undone."""
    committable = prepared(sink)

    def committed_and_taken() -> None:
        sink.committer(job()).commit(PERMIT, committable)
        final(sink, committable).unlink()

    meanwhile(monkeypatch, disk, "create_empty", committed_and_taken, after=False)
    ours = sink.committer(job())
    with pytest.raises(Retryable, match="was committed by another process"):
        ours.commit(PERMIT, committable)

    assert ours.commit(PERMIT, committable) is CommitOutcome.ALREADY


def test_what_was_undone_while_it_was_committed_is_lost(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    committable = prepared(sink)
    meanwhile(monkeypatch, disk, "create_empty", lambda: sink.committer(job(2)).abort_leftovers(job(2)), after=True)

    with pytest.raises(CommittableLost, match="was committed or aborted by another process"):
        sink.committer(job()).commit(PERMIT, committable)


def test_another_file_under_the_final_name_is_not_replaced(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    committable = prepared(sink)
    meanwhile(monkeypatch, disk, "create_empty", lambda: final(sink, committable).write_text("theirs"), after=True)
    ours = sink.committer(job())

    with pytest.raises(Retryable, match="appeared while it was being committed"):
        ours.commit(PERMIT, committable)
    with pytest.raises(CommittableLost, match="its content is not that of"):
        ours.commit(PERMIT, committable)
    assert final(sink, committable).read_text() == "theirs"


def test_directories_of_partitions_that_a_dead_process_made_are_durable_when_their_file_is(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "out", partition_by=lambda value: {"a": 1, "b": 2, "c": 3})
    committable = prepared(sink)
    with recorded(tmp_path) as recording:
        final(sink, committable).parent.mkdir(parents=True)
        sink.committer(job()).commit(PERMIT, committable)

    assert all(f"out/{committable.payload['final']}" in tree.listing() for tree in after(recording))


# ---------------------------------------------------------------- what is staged


def test_what_is_staged_has_the_age_of_its_last_byte(sink: FileSink) -> None:
    paths = [staged(sink, prepared(sink, operator=operator)) for operator in ("a", "b")]
    for path, age in zip(paths, (100, -3600), strict=True):
        os.utime(path, (0, time.time() - age))
    one, other = sink.committer(job()).list_staged(job())

    assert (one.term, one.name, one.detail, one.identity) == (
        Term(1),
        paths[0].name,
        f"4 bytes in {sink.directory}",
        None,
    )
    assert 100 <= one.age < 1000
    assert other.age == 0.0, "a clock was ahead"


def test_what_ends_while_it_is_listed_is_not_staged(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    path = staged(sink, prepared(sink))
    meanwhile(monkeypatch, committer, "hidden", path.unlink, after=True)

    assert sink.committer(job()).list_staged(job()) == []


def test_a_directory_that_is_not_there_holds_nothing_and_is_not_made(sink: FileSink) -> None:
    shutil.rmtree(sink.directory, ignore_errors=True)
    ours = sink.committer(job(2))

    assert (ours.list_staged(job(2)), ours.abort_leftovers(job(2)), ours.list_incarnations(job(2))) == ([], [], [])
    assert not sink.directory.exists()


# ---------------------------------------------------------------- aborts


def opened(sink: FileSink, ctx: JobContext | None = None) -> Path:
    """The file of a writer that has not sealed it."""
    ctx = ctx or job()
    writer = sink.writer(TaskContext(ctx, 0, 1, "open"))
    writer.write(Batch(["x"], range(1), ListOrigin("in", "list", 0, 0, ["x"])))
    (path,) = sink.directory.glob(f".open.*.{ctx.term}.1.0.open")
    return path


def test_an_abort_ends_what_is_open_and_undoes_what_is_staged_of_older_terms(sink: FileSink) -> None:
    path, old, young = opened(sink), prepared(sink), prepared(sink, job(2), "young")

    assert sink.committer(job(2)).abort_leftovers(job(2)) == [path.name, staged(sink, old).name]

    assert names(sink) == [".aborted.orders.1.1.0.out", staged(sink, young).name]
    assert (sink.directory / ".aborted.orders.1.1.0.out").read_bytes() == b"", "its content goes at once"


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_what_leads_to_a_file_of_others_is_undone_and_that_file_is_left_as_it_is(
    sink: FileSink, tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    committable = prepared(sink)
    (tmp_path / "theirs").write_text("theirs")
    staged(sink, committable).unlink()
    link(tmp_path / "theirs", staged(sink, committable))

    assert sink.committer(job(2)).abort_leftovers(job(2)) == [staged(sink, committable).name]
    assert (tmp_path / "theirs").read_text() == "theirs"


@pytest.mark.parametrize("what", ["open", "staged"])
def test_what_an_abort_removes_is_durable_when_it_returns(sink: FileSink, what: str, tmp_path: Path) -> None:
    prepared(sink) if what == "staged" else opened(sink)
    with recorded(tmp_path) as recording:
        assert len(sink.committer(job(2)).abort_leftovers(job(2))) == 1

    assert len(recording.syncs) == 1


@pytest.mark.parametrize("kind", ["open", "staged"])
def test_what_its_writer_ends_while_it_is_listed_is_not_aborted(
    sink: FileSink, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = opened(sink) if kind == "open" else staged(sink, prepared(sink))
    meanwhile(monkeypatch, committer, "hidden", path.unlink, after=True)

    assert sink.committer(job(2)).abort_leftovers(job(2)) == ([path.name] if kind == "open" else [])
    assert names(sink) == []


def test_what_is_committed_while_it_is_listed_is_not_aborted(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    committable = prepared(sink)
    meanwhile(monkeypatch, committer, "hidden", lambda: sink.committer(job()).commit(PERMIT, committable), after=True)

    assert sink.committer(job(2)).abort_leftovers(job(2)) == []

    assert sink.committer(job(2)).probe(committable).status is CommitStatus.COMMITTED


# ---------------------------------------------------------------- traces


def traces(sink: FileSink) -> list[str]:
    return [name for name in names(sink) if name.startswith((".committed.", ".aborted."))]


def test_a_trace_of_an_abort_goes_with_a_later_epoch(sink: FileSink) -> None:
    """Within a term it is the receipt of the next one that proves that nobody asks; then the first of a new term."""
    ours = sink.committer(job(2))
    prepared(sink)
    ours.abort_leftovers(job(2))
    assert traces(sink) == [".aborted.orders.1.1.0.out"]

    ours.commit(CommitPermit(EpochId(Epoch(1), Term(1))), prepared(sink, operator="b"))
    assert ".aborted.orders.1.1.0.out" in traces(sink), "the very epoch may still be asked for"
    ours.commit(CommitPermit(EpochId(Epoch(2), Term(2))), prepared(sink, job(2), "c"))
    assert traces(sink) == [".committed.orders.2.1.0.c"]


def test_a_trace_of_an_abort_in_the_middle_of_a_term_goes_with_a_later_epoch(sink: FileSink) -> None:
    """A zombie of an older term has staged something after the traces of its term were removed."""
    ours = sink.committer(job(2))
    ours.commit(CommitPermit(EpochId(Epoch(1), Term(2))), prepared(sink, job(2), "a"))
    prepared(sink)
    assert len(ours.abort_leftovers(job(2))) == 1

    ours.commit(CommitPermit(EpochId(Epoch(1), Term(2))), prepared(sink, job(2), "b"))
    assert ".aborted.orders.1.1.0.out" in traces(sink), "epoch 1 may still be asked for"
    ours.commit(CommitPermit(EpochId(Epoch(2), Term(2))), prepared(sink, job(2), "c"))
    assert traces(sink) == [".committed.orders.2.1.0.c"]


def test_traces_of_older_terms_go_once_a_term_and_those_of_its_own_stay(sink: FileSink) -> None:
    for term in (1, 2):
        sink.committer(job(term)).commit(
            CommitPermit(EpochId(Epoch(1), Term(term))), prepared(sink, job(term), f"of{term}")
        )
    assert traces(sink) == [".committed.orders.2.1.0.of2"]

    ours = sink.committer(job(2))
    ours.commit(CommitPermit(EpochId(Epoch(1), Term(2))), prepared(sink, job(2), "more"))
    (sink.directory / ".committed.orders.1.1.0.late").touch()
    ours.commit(CommitPermit(EpochId(Epoch(1), Term(2))), prepared(sink, job(2), "again"))

    assert traces(sink) == [
        ".committed.orders.1.1.0.late",
        *(f".committed.orders.2.1.0.{operator}" for operator in ("again", "more", "of2")),
    ], "one that stays by accident goes in a later term"
    sink.committer(job(3)).commit(CommitPermit(EpochId(Epoch(1), Term(3))), prepared(sink, job(3), "new"))
    assert traces(sink) == [".committed.orders.3.1.0.new"]


def test_a_committer_that_lives_longer_than_a_term_looks_again_in_the_next(sink: FileSink) -> None:
    ours = sink.committer(job())
    ours.commit(PERMIT, prepared(sink))
    (sink.directory / ".committed.orders.1.1.0.late").touch()

    ours.commit(CommitPermit(EpochId(Epoch(1), Term(2))), prepared(sink, job(2), "next"))

    assert traces(sink) == [".committed.orders.2.1.0.next"]


def test_who_removes_old_traces_leaves_what_is_staged_alone(sink: FileSink) -> None:
    """Somebody may still have to commit it: an older epoch that was given up belongs to this one."""
    old, open_ = prepared(sink, operator="old"), opened(sink)

    sink.committer(job(2)).commit(CommitPermit(EpochId(Epoch(1), Term(2))), prepared(sink, job(2)))

    assert staged(sink, old).exists()
    assert open_.exists()


def test_a_trace_that_somebody_removed_is_not_missed(sink: FileSink) -> None:
    ours = sink.committer(job())
    ours.commit(PERMIT, prepared(sink))
    for name in traces(sink):
        (sink.directory / name).unlink()

    assert (
        ours.commit(CommitPermit(EpochId(Epoch(2), Term(1))), prepared(sink, operator="b")) is CommitOutcome.COMMITTED
    )


# ---------------------------------------------------------------- the details of a probe


def said(sink: FileSink, committable: Committable) -> str:
    return sink.committer(job()).probe(committable).detail


def test_a_probe_describes_the_file_it_found(sink: FileSink) -> None:
    committable = prepared(sink)
    hidden, published = staged(sink, committable), final(sink, committable)
    assert said(sink, committable) == f"{hidden} exists"
    sink.committer(job()).commit(PERMIT, committable)
    assert said(sink, committable) == f"{published} exists"
    published.unlink()
    assert said(sink, committable) == f"{published} was committed and then moved away by a reader"


def test_a_probe_describes_why_a_file_is_lost(sink: FileSink) -> None:
    aborted = prepared(sink, operator="a")
    sink.committer(job(2)).abort_leftovers(job(2))
    damaged, hidden = prepared(sink, operator="b"), prepared(sink, operator="c")
    staged(sink, damaged).write_text("broken")
    final(sink, hidden).write_text("theirs")

    assert said(sink, aborted) == f"{staged(sink, aborted)} was aborted"
    final(sink, aborted).write_text("theirs")
    assert said(sink, aborted) == f"{staged(sink, aborted)} was aborted", "whatever else has its name"
    assert said(sink, damaged).startswith(f"{staged(sink, damaged)} is damaged: ")
    assert said(sink, hidden).startswith(
        f"{final(sink, hidden)} exists, but its content is not that of {staged(sink, hidden).name}"
    )


@pytest.mark.parametrize("final_file", ["absent", "other"])
def test_a_probe_describes_how_a_user_records_an_unknown_outcome(sink: FileSink, final_file: str) -> None:
    committable = prepared(sink)
    staged(sink, committable).unlink()
    if final_file == "other":
        final(sink, committable).write_text("theirs")
    told = said(sink, committable)

    found = "differs from what was prepared" if final_file == "other" else "does not exist"
    assert told.startswith(
        f"{final(sink, committable)} {found}, {staged(sink, committable).name} does not exist either"
    )
    assert f"touch {sink.directory / '.committed.orders.1.1.0.out'}" in told
    assert f"touch {sink.directory / '.aborted.orders.1.1.0.out'}" in told


# ---------------------------------------------------------------- content


def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file whose checksum is taken from now on."""
    found: list[Path] = []
    real = disk.sha256

    def noted(path: Path) -> str:
        found.append(path)
        return real(path)

    monkeypatch.setattr(disk, "sha256", noted)
    return found


def test_a_staged_file_is_read_once_unless_it_changes(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    committable, ours, read = prepared(sink), sink.committer(job()), reads(monkeypatch)
    for _ in range(2):
        assert ours.probe(committable).status is CommitStatus.PREPARED
    assert read == [staged(sink, committable)]

    staged(sink, committable).write_text('"y"\n')
    assert ours.probe(committable).status is CommitStatus.LOST
    assert read == [staged(sink, committable)] * 2


def test_a_final_file_is_read_at_each_look(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its readers may change it, and nobody tells us."""
    committable, ours = prepared(sink), sink.committer(job())
    ours.commit(PERMIT, committable)
    read = reads(monkeypatch)
    for _ in range(2):
        ours.probe(committable)

    assert read == [final(sink, committable)] * 2


@pytest.mark.parametrize("size", [3, 5])
def test_a_file_of_another_length_is_not_read(sink: FileSink, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    committable, read = prepared(sink), reads(monkeypatch)
    staged(sink, committable).write_bytes(b"x" * size)

    assert sink.committer(job()).probe(committable).status is CommitStatus.LOST
    assert read == []


def test_a_link_is_never_the_staged_file(sink: FileSink) -> None:
    committable = prepared(sink)
    shutil.move(staged(sink, committable), sink.directory / "else")
    os.symlink("else", staged(sink, committable))  # as long as the staged file, and a link to it

    assert sink.committer(job()).probe(committable).status is CommitStatus.LOST


# ---------------------------------------------------------------- incarnations


def of(sink: FileSink, name: str = "orders") -> dict[JobIdentity | None, Any]:
    return {
        incarnation.identity: incarnation
        for incarnation in sink.committer(job(name=name)).list_incarnations(job(name=name))
    }


def test_an_incarnation_is_as_old_as_the_newest_of_what_it_has_open(sink: FileSink) -> None:
    for term in (1, 3, 2):
        path = staged(sink, prepared(sink, job(term, A), f"of{term}"))
        os.utime(path, (0, time.time() - 1000 * term))
    (incarnation,) = of(sink).values()

    assert (incarnation.identity, incarnation.term, incarnation.state) == (A, Term(3), IncarnationState.OPEN)
    assert incarnation.detail == staged(sink, prepared(sink, job(3, A), "of3")).name
    assert incarnation.place == f"file:{sink.directory}"


def test_an_incarnation_without_anything_open_is_known_by_its_registration_or_its_parts(sink: FileSink) -> None:
    ours = sink.committer(job(1, A))
    ours.register(job(1, A))
    ours.commit(PERMIT, prepared(sink, job(1, B)))
    ours.commit(PERMIT, prepared(sink, job(1, name="another")))
    sink.committer(job(1, B, name="another")).register(job(1, B, name="another"))

    assert {
        identity: (incarnation.state, incarnation.detail, incarnation.term)
        for identity, incarnation in of(sink).items()
    } == {
        A: (IncarnationState.ENDED, "files of it", None),
        B: (IncarnationState.ENDED, "files of it", None),
    }
    assert of(sink, "another").keys() == {B, None}


def test_who_takes_a_registration_leaves_its_own_in_the_place(sink: FileSink) -> None:
    sink.committer(job(1, A)).register(job(1, A))
    theirs = prepared(sink, job(1, A))

    assert sink.committer(job(1, B)).retire(job(1, B), A) == [staged(sink, theirs).name]

    assert names(sink) == [f".aborted.orders.{A}.1.1.0.out", f".retired.orders.{A}"]
    assert {identity: incarnation.state for identity, incarnation in of(sink).items()} == {A: IncarnationState.OVER}


def test_a_registration_that_is_not_there_is_taken_all_the_same(sink: FileSink) -> None:
    """Before that incarnation has come so far as to leave one; then it finds that it may not."""
    shutil.rmtree(sink.directory, ignore_errors=True)

    assert sink.committer(job(1, B)).retire(job(1, B), A) == []
    assert names(sink) == [f".retired.orders.{A}"]


def test_output_without_an_identity_is_ended_without_a_registration(sink: FileSink) -> None:
    nameless, named = prepared(sink), prepared(sink, job(1, A))

    assert sink.committer(job(1, B)).retire(job(1, B), None) == [staged(sink, nameless).name]
    assert names(sink) == [".aborted.orders.1.1.0.out", staged(sink, named).name]


def test_a_registration_is_durable_when_it_is_left_or_taken(sink: FileSink, tmp_path: Path) -> None:
    sink.directory.mkdir(exist_ok=True)
    ours = sink.committer(job(1, B))
    for act, syncs in ((ours.register, 1), (ours.register, 0), (lambda ctx: ours.retire(ctx, A), 1)):
        with recorded(tmp_path) as recording:
            act(job(1, B))
        assert len(recording.syncs) == syncs


def test_who_has_no_identity_leaves_no_registration(sink: FileSink) -> None:
    sink.committer(job()).register(job())

    assert not sink.directory.exists() or names(sink) == []
