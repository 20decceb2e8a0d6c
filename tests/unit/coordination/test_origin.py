"""A job that began with a savepoint: what its next starts need of that, and what they refuse."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kafka_eos import Pipeline, monotonic, tumbling
from kafka_eos.abc.state import InFlightRows, StateHandle
from kafka_eos.coordination import job_history as history
from kafka_eos.coordination import savepoint_start as origin
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json
from kafka_eos.plan import Plan
from kafka_eos.runtime.epoch_reports import RestorePoint
from kafka_eos.runtime.state.schema_evolution import DEFINITION
from kafka_eos.savepoints import SavepointBuilder
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.storage.savepoint_files import Savepoint
from kafka_eos.testing import ListSource, MemorySink

Start = Callable[[Path | None], RestorePoint]


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
    return lambda path: coordinator(total(), start_from=path).recovery.restore()


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
    (event,) = (event for event in history.read_events(storage) if event["event"] == "origin-unread")
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

    assert all(event["event"] != "origin-unread" for event in history.read_events(storage))


def test_another_savepoint_in_its_place_is_refused(start: Start, tmp_path: Path) -> None:
    start(savepoint(tmp_path / "first"))
    shutil.rmtree(tmp_path / "first")
    savepoint(tmp_path / "first")

    with pytest.raises(ConfigError, match=r"has already begun, with savepoint .*cannot start again from"):
        start(tmp_path / "first")


def test_a_place_that_is_not_its_own_and_holds_nothing_is_refused(start: Start, tmp_path: Path) -> None:
    start(savepoint(tmp_path / "first"))

    with pytest.raises(ConfigError, match="cannot be compared with it: .*is not a savepoint"):
        start(tmp_path / "second")


def test_a_job_that_began_without_one_is_refused_any(start: Start, tmp_path: Path) -> None:
    start(None)

    for path in (savepoint(tmp_path / "first"), tmp_path / "nothing"):
        with pytest.raises(ConfigError, match="has already begun, without a savepoint"):
            start(path)


# ---------------------------------------------------------------- what a plan has use for


def two_of_each() -> Plan:
    """Two sources, two operators with state that are told what they are held for, and two exchanges."""
    pipeline = Pipeline("orders")
    for name in "ab":
        timed: Any = pipeline.source(ListSource([1]), name=f"source-{name}").with_timestamps(
            int, watermarks=monotonic()
        )
        rows = timed.key_by(str, name=f"by-{name}", values=int)
        counted = rows.window(tumbling(seconds=60)).fold(name=f"count-{name}", init=int, step=max)
        counted.sink(MemorySink(), name=f"out-{name}")
    return pipeline.plan()


def of(operator: str, *states: Mapping[str, Json]) -> StateHandle:
    return StateHandle(operator, "memory", (0, 127), (), tuple(states))


def rows_to(exchange: str) -> InFlightRows:
    return InFlightRows(exchange, {}, (), overtaken=False)


def test_a_plan_takes_what_it_has_use_for_and_names_all_the_rest() -> None:
    plan = two_of_each()
    states = [of(name) for name in ("gone", "count-a", "lost", "count-b", "count-a")]
    in_flight = [rows_to(name) for name in ("by-gone", "by-a", "by-lost", "by-b")]
    sources = ["source-a", "source-gone", "source-b", "source-lost"]

    assert origin.select_used(plan, states, in_flight) == (
        (states[1], states[3], states[4]), (in_flight[1], in_flight[3]),
    )  # fmt: skip
    assert origin.find_unused(plan, states, sources, in_flight) == [
        "by-gone", "by-lost", "gone", "lost", "source-gone", "source-lost",
    ]  # fmt: skip
    assert origin.select_used(plan, states[::-1], in_flight[::-1])[0] == (states[4], states[3], states[1])
    assert origin.find_unused(plan, states[1::2], sources[::2], in_flight[1::2]) == []
    last = origin.find_unused(plan, states[:3], sources, in_flight[:3])
    assert last == ["by-gone", "by-lost", "gone", "lost", "source-gone", "source-lost"]


@pytest.mark.parametrize("names", [["gone"], ["lost", "gone"]])
def test_what_a_plan_has_no_use_for_is_dropped_with_leave_alone(storage: LocalStorage, names: list[str]) -> None:
    diary = History(storage, print)
    origin.drop_unused(diary, False, "epoch 3/1", [])
    origin.drop_unused(diary, True, "epoch 3/1", [])
    with pytest.raises(ConfigError, match=f"^epoch 3/1 contains state of {', '.join(map(repr, names))}, but"):
        origin.drop_unused(diary, False, "epoch 3/1", names)
    assert history.read_events(storage) == []

    origin.drop_unused(diary, True, "epoch 3/1", names)

    assert [event["names"] for event in history.read_events(storage)] == [names]


@pytest.mark.parametrize("operator", ["count-a", "count-b"])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_state_that_is_held_for_something_else_is_refused_wherever_it_is(operator: str, at: int) -> None:
    plan = two_of_each()
    states: dict[str, dict[str, Json]] = {
        node.name: {"name": "rows", DEFINITION: node.definition} for node in plan.nodes if node.definition is not None
    }
    another: dict[str, Json] = {"name": "rows", DEFINITION: "another"}
    fine = [of(name, {"name": "plain"}, state, state) for name, state in states.items()]
    origin.ensure_same_definitions(plan, [*fine, of("gone", another)])

    other = of(operator, *[another if number == at else states[operator] for number in range(3)])
    for handles in ([other, *fine], [*fine, other]):
        with pytest.raises(ConfigError, match=f"state 'rows' of operator '{operator}'"):
            origin.ensure_same_definitions(plan, handles)


def test_a_savepoint_with_other_key_groups_is_refused(tmp_path: Path) -> None:
    first = savepoint(tmp_path / "first")
    record = records.decode(Savepoint, paths.SAVEPOINT, (first / paths.SAVEPOINT).read_bytes())
    other = msgspec.structs.replace(record, max_key_groups=64)
    (first / paths.SAVEPOINT).write_bytes(records.encode(other))

    with pytest.raises(ConfigError, match="has 64 key groups and this kafka-eos"):
        origin.SavepointStart.read(first)


def test_state_of_a_savepoint_that_the_plan_has_no_use_for_needs_leave(
    coordinator: Callable[..., Coordinator], storage: LocalStorage, tmp_path: Path
) -> None:
    with SavepointBuilder.new("orders") as builder:
        for operator in ("total", "gone"):
            builder.bootstrap_fold(operator, [("1", 1)], accumulator=int)
        builder.write(tmp_path / "both")

    with pytest.raises(ConfigError, match=r"^savepoint .* contains state of 'gone'.*--allow-dropped-state"):
        coordinator(total(), start_from=tmp_path / "both").recovery.restore()
    resumed = coordinator(total(), start_from=tmp_path / "both", allow_dropped_state=True).recovery.restore()

    assert {handle.operator for handle in resumed.states} == {"total"}
    assert [event["names"] for event in history.read_events(storage) if event["event"] == "dropped"] == [["gone"]]
