"""A job that began with a savepoint: what its next starts need of that, and what they refuse."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_eos import Pipeline
from kafka_eos.checkpoints import paths
from kafka_eos.checkpoints.storage import LocalStorage
from kafka_eos.coordinator import history
from kafka_eos.coordinator.coordinator import Coordinator
from kafka_eos.coordinator.handover import Resumed
from kafka_eos.errors import ConfigError
from kafka_eos.state.reader import SavepointBuilder
from kafka_eos.testing import ListSource, MemorySink

Start = Callable[[Path | None], Resumed]


def total() -> Pipeline:
    pipeline = Pipeline("orders")
    keyed = pipeline.source(ListSource([1, 2, 3]), name="numbers").key_by(str)
    keyed.fold(name="total", init=int, step=lambda acc, n: acc + n).sink(MemorySink(), name="sums")
    return pipeline


def savepoint(path: Path) -> Path:
    with SavepointBuilder.new("orders") as builder:
        builder.bootstrap_fold("total", [("1", 1)], accumulator=int)
        builder.write(path)
    return path


@pytest.fixture
def start(coordinator: Callable[..., Coordinator]) -> Start:
    """What a supervisor does first, in every attempt."""
    return lambda path: coordinator(total(), start_from=path).recover()


def test_a_job_begins_with_a_savepoint_that_it_may_only_read(start: Start, tmp_path: Path) -> None:
    """Such as one that somebody else has copied, or on a disk that is mounted to read: nothing of it is changed."""
    first = savepoint(tmp_path / "first")
    kept = [path for path in first.rglob("*") if path.is_file()]
    for path in kept:
        path.chmod(0o444)

    assert start(first).states

    assert {(stat.S_IMODE(path.stat().st_mode), path.stat().st_nlink) for path in kept} == {(0o444, 1)}


@pytest.mark.parametrize("loss", ["dropped", "unmounted", "damaged"])
def test_a_job_goes_on_when_its_savepoint_is_gone(
    storage: LocalStorage, start: Start, tmp_path: Path, loss: str
) -> None:
    """Nothing of it is needed once the job has begun: a service restarts with the command line that it has."""
    first = savepoint(tmp_path / "backup" / "first")
    begun = start(first)
    if loss == "damaged":
        (first / paths.SAVEPOINT).write_bytes(b"")
    else:
        shutil.rmtree(first if loss == "dropped" else first.parent)

    resumed = start(first)

    assert (resumed.base, resumed.states) == (begun.base, begun.states)
    (event,) = (event for event in history.read(storage) if event["event"] == "origin-unread")
    assert event["path"] == str(first) and str(first) in str(event["reason"])


def test_a_relative_path_is_the_same_place(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(savepoint(tmp_path / "first"))
    shutil.rmtree(tmp_path / "first")
    monkeypatch.chdir(tmp_path)

    assert start(Path("./first")).base.epoch.n == 1


def test_a_copy_elsewhere_is_the_same_savepoint(storage: LocalStorage, start: Start, tmp_path: Path) -> None:
    start(savepoint(tmp_path / "first"))
    shutil.move(tmp_path / "first", tmp_path / "moved")

    start(tmp_path / "moved")

    assert all(event["event"] != "origin-unread" for event in history.read(storage))


def test_another_savepoint_in_its_place_is_refused(start: Start, tmp_path: Path) -> None:
    start(savepoint(tmp_path / "first"))
    shutil.rmtree(tmp_path / "first")
    savepoint(tmp_path / "first")

    with pytest.raises(ConfigError, match=r"has begun already, with savepoint .*cannot begin again with"):
        start(tmp_path / "first")


def test_a_place_that_is_not_its_own_and_holds_nothing_is_refused(start: Start, tmp_path: Path) -> None:
    start(savepoint(tmp_path / "first"))

    with pytest.raises(ConfigError, match="cannot be compared with that: .*is not a savepoint"):
        start(tmp_path / "second")


def test_a_job_that_began_without_one_is_refused_any(start: Start, tmp_path: Path) -> None:
    start(None)

    for path in (savepoint(tmp_path / "first"), tmp_path / "nothing"):
        with pytest.raises(ConfigError, match="has begun already, without a savepoint"):
            start(path)
