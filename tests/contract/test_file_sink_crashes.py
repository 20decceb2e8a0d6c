"""A file sink whose process is killed, or whose machine loses power, at every step of a commit.

Readers take what is published, at once or never. Rule: whatever happens, they get each row once in the end, and no row
is visible whose epoch was not decided.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.abc.committer import CommitStatus, Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.connectors.files import FileSink, disk
from kafka_eos.core.errors import CommittableLost, Retryable
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.records import Batch
from kafka_eos.protocol.commit import CommitAuthorized, authorize
from kafka_eos.testing.list_source import ListOrigin
from tests.power_cuts import Recording, breaks, broken, recorded

EPOCH = EpochId(Epoch(1), Term(1))
ROWS = ["a", "b", "c"]
LINES = '"a"\n"b"\n"c"\n'
Take = Callable[[Path, Path], object]


def _nothing(part: Path, target: Path) -> None:
    """The reader leaves files where they are."""


def _copied_and_deleted(part: Path, target: Path) -> None:
    shutil.copy(part, target)
    part.unlink()


READERS: dict[str, Take] = {"reads": _nothing, "moves": os.rename, "copies-and-deletes": _copied_and_deleted}


def _job(term: int) -> JobContext:
    return JobContext("orders", Term(term), {})


def _prepared(root: Path) -> Committable:
    writer = FileSink(root / "out").writer(TaskContext(_job(1), 0, 1, "out"))
    writer.write(Batch(list(ROWS), range(len(ROWS)), ListOrigin("in", "events", 0, 0, ROWS)))
    (committable,) = writer.seal(EPOCH)()
    return committable


def _take(root: Path, take: Take) -> None:
    (root / "taken").mkdir(exist_ok=True)
    for part in (root / "out").glob("part-*"):
        take(part, root / "taken" / f"{part.name}.{len(os.listdir(root / 'taken'))}")


def _commit(root: Path, committable: Committable, term: int) -> None:
    """Probe, authorize, commit, as the coordinator does."""
    committer = FileSink(root / "out").committer(_job(term))
    decision = authorize(EPOCH, [committer.probe(committable)], 0.0)
    if not isinstance(decision, CommitAuthorized):
        raise CommittableLost(decision.reason)
    committer.commit(decision.permit, committable)


def _visible(root: Path) -> str:
    """All that readers have got, and what is there for them."""
    parts = [*(root / "out").glob("part-*"), *(root / "taken").glob("part-*")]
    return "".join(part.read_text() for part in parts)


# ---------------------------------------------------------------- killed


def _dies(at: int, root: Path, committable: Committable, term: int, take: Take) -> None:
    """In a process of its own: commit, with a reader at work as soon as there is a file; killed at the n-th step.

    The reader is never killed: whether it copies and deletes in one step is its own affair.
    """
    gc.disable()  # of what other tests have left: clients of Kafka, whose threads are not in this process
    steps, committing = 0, True

    def stepping(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps, committing
            if steps == at and committing:
                os.kill(os.getpid(), signal.SIGKILL)
            steps += committing
            result = real(*args, **kwargs)
            if real is rename:
                committing = False
                _take(root, take)
                committing = True
            return result

        return step

    rename = disk.rename_new
    for name in ("create_empty", "sync_directory", "rename_new"):
        setattr(disk, name, stepping(getattr(disk, name)))
    os.unlink = stepping(os.unlink)
    _commit(root, committable, term)


def _killed(at: int, *args: Any) -> bool:
    """Whether it died at that step; False if the commit has fewer."""
    process = multiprocessing.get_context("fork").Process(target=_dies, args=(at, *args))
    process.start()
    process.join(60)
    assert process.exitcode in (-signal.SIGKILL, 0)
    return process.exitcode != 0


@pytest.mark.parametrize("renames", ["as-it-can", "no-such-rename"])
@pytest.mark.parametrize("reader", READERS)
def test_rows_are_read_once_wherever_a_commit_and_its_repetition_are_killed(
    reader: str, renames: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if renames == "no-such-rename":
        monkeypatch.setattr(disk, "_rename_noreplace", disk._missing)
    take, first, deaths = READERS[reader], 0, 0
    while True:
        root = tmp_path / f"{first}"
        committable = _prepared(root)
        if not _killed(first, root, committable, 1, take):
            break
        again = 0
        while _killed(again, root, committable, 2 + again, take):
            again += 1
            deaths += 1
        _commit(root, committable, 50)

        assert _visible(root) == LINES, f"killed at step {first}"
        first += 1
    assert first >= 4 and deaths >= first, "trace, sync, rename, sync; and each again"


@pytest.mark.parametrize("undone", [False, True])
def test_what_was_undone_before_a_kill_is_lost_and_what_was_committed_is_not(undone: bool, tmp_path: Path) -> None:
    """Killed between the trace and the rename, the epoch is revoked: its trace of a commit proves nothing."""
    committable = _prepared(tmp_path)
    assert _killed(2, tmp_path, committable, 1, _nothing)
    committer = FileSink(tmp_path / "out").committer(_job(2))
    assert list((tmp_path / "out").glob(".committed.*"))
    if undone:
        committer.abort_leftovers(_job(2))

    assert committer.probe(committable).status is (CommitStatus.LOST if undone else CommitStatus.PREPARED)


# ---------------------------------------------------------------- power cuts


def _cut(root: Path, reader: str) -> tuple[Recording, Committable, int]:
    """A commit with a reader who comes when it has returned. Also, how many operations prepared the output."""
    (root / "out").mkdir(parents=True)
    (root / "taken").mkdir()
    with recorded(root) as recording:
        committable = _prepared(root)
        prepared = len(recording.operations)
        _commit(root, committable, 1)
        _take(root, READERS[reader])
    return recording, committable, prepared


@pytest.mark.parametrize("reader", ["reads", "moves"])
def test_rows_are_read_once_whenever_the_power_is_cut_after_the_decision(reader: str, tmp_path: Path) -> None:
    recording, committable, prepared = _cut(tmp_path / "disk", reader)

    def once(root: Path) -> None:
        _commit(root, committable, 2)
        _take(root, READERS[reader])
        assert _visible(root) == LINES

    assert broken(recording, once, tmp_path / "states", prepared) == []
    needed = [n for n in range(len(recording.syncs)) if breaks(recording.forgetting(n), once, tmp_path / "s", prepared)]
    assert needed[:2] == [0, 1], "the file and its staged name, before the decision"
    assert len(recording.syncs) == 4


def test_before_the_decision_nothing_is_visible_and_nothing_stays(tmp_path: Path) -> None:
    recording, _, prepared = _cut(tmp_path / "disk", "reads")

    def nothing(root: Path) -> None:
        FileSink(root / "out").committer(_job(2)).abort_leftovers(_job(2))
        assert _visible(root) == ""
        assert [path.name for path in (root / "out").iterdir() if path.stat().st_size] == []

    assert broken(recording.cut(prepared), nothing, tmp_path / "states") == []
    assert breaks(recording, nothing, tmp_path / "states"), "committed rows are visible: this claim can fail"


@pytest.mark.parametrize("forgotten", [None, 2])
def test_the_trace_is_durable_before_a_reader_can_take_the_file(
    forgotten: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader who comes at the moment of the rename, before it is synced: the file may come back under its name, and
    nobody takes what is gone for lost, or does not know. With the trace's sync left out somebody would not know.
    """
    root = tmp_path / "disk"
    (root / "out").mkdir(parents=True)
    (root / "taken").mkdir()
    real = disk.rename_new

    def seen_at_once(source: Path, target: Path) -> bool:
        result = real(source, target)
        _take(root, os.rename)
        return result

    monkeypatch.setattr(disk, "rename_new", seen_at_once)
    with recorded(root) as recording:
        committable = _prepared(root)
        prepared = len(recording.operations)
        _commit(root, committable, 1)

    def known(root: Path) -> None:
        seen = FileSink(root / "out").committer(_job(2)).probe(committable)
        assert seen.status in (CommitStatus.PREPARED, CommitStatus.COMMITTED), seen.detail

    made = recording if forgotten is None else recording.forgetting(forgotten)
    assert breaks(made, known, tmp_path / "states", prepared) is (forgotten is not None)


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_an_abort_undid_stays_undone(forgotten: bool, tmp_path: Path) -> None:
    """Whoever is told that output is gone writes it again, so it must not come back. The abort's sync is the point."""
    root = tmp_path / "disk"
    committable = _prepared(root)
    with recorded(root) as recording:
        FileSink(root / "out").committer(_job(2)).abort_leftovers(_job(2))
    made = recording.forgetting(0) if forgotten else recording

    def lost(root: Path) -> None:
        assert FileSink(root / "out").committer(_job(3)).probe(committable).status is CommitStatus.LOST

    assert breaks(made, lost, tmp_path / "states", len(made.operations)) is forgotten


def test_a_disk_that_fails_in_a_commit_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step fails once; the commit is repeated, as the coordinator does, and makes the rows visible once."""
    for name in ("create_empty", "sync_directory", "rename_new"):
        root = tmp_path / name
        committable = _prepared(root)

        def failing(*_: Path) -> Any:
            raise OSError(5, "input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(disk, name, failing)
            with pytest.raises(Retryable):
                _commit(root, committable, 1)
        _commit(root, committable, 1)

        assert _visible(root) == LINES
