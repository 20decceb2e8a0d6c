"""A replay of epochs gives what the epochs gave, from the state before them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from kafka_eos import Pipeline, Ttl, monotonic, tumbling
from kafka_eos.connectors.kafka import KafkaSource, dead_letter
from kafka_eos.core.errors import ConfigError, PoisonRecord
from kafka_eos.core.ids import Epoch
from kafka_eos.core.records import Batch, RawRecord
from kafka_eos.savepoints import SavepointBuilder, Snapshot
from kafka_eos.testing import ListSource, MemorySink, replay_fixture, run_local
from kafka_eos.testing.epoch_replay import EpochInput, InputRecord, ReplayStart, replay_epochs
from kafka_eos.testing.list_source import ListOrigin
from kafka_eos.testing.replay_fixture import INPUT, STATE, FixtureInput, write_input
from kafka_eos.testing.traced_chain import TracedRejection


class Click(Struct):
    user: str
    at: int


def _windows() -> Pipeline:
    pipeline = Pipeline("clicks")
    (
        pipeline.source(KafkaSource("clicks", value=Click, bootstrap_servers="nowhere:1"), on_error=dead_letter("dead"))
        .with_timestamps(lambda click: click.at, watermarks=monotonic())
        .key_by(lambda click: click.user)
        .window(tumbling(seconds=10))
        .fold(name="count", init=lambda: 0, step=lambda count, _: count + 1)
        .sink(MemorySink(), name="counts")
    )
    return pipeline


def _raw(offset: int, value: bytes, partition: int = 0) -> RawRecord:
    return RawRecord("clicks", partition, offset, offset, None, value, ())


def _click(offset: int, user: str, second: int) -> InputRecord:
    return InputRecord("clicks", _raw(offset, b'{"user":"%s","at":%d}' % (user.encode(), second * 1000)))


CLICKS = [_click(0, "ann", 1), _click(1, "bob", 12), _click(2, "ann", 13), _click(3, "ann", 2), _click(4, "bob", 25)]


def _empty(tmp_path: Path, job: str) -> Snapshot:
    with SavepointBuilder.new(job) as builder:
        builder.write(tmp_path / "empty")
    return Snapshot.open(tmp_path / "empty")


def _start(state: Snapshot) -> ReplayStart:
    return ReplayStart(state, 0, {"clicks": ["clicks/0"]})


@pytest.mark.parametrize("cut", range(len(CLICKS) + 1))
def test_two_epochs_give_what_one_run_gives_and_the_second_begins_with_the_state_of_the_first(
    cut: int, tmp_path: Path
) -> None:
    plan, start = _windows().plan(), _start(_empty(tmp_path, "clicks"))
    one, other = EpochInput(1, 100, CLICKS[:cut]), EpochInput(2, 200, CLICKS[cut:])

    first = replay_epochs(plan, start, [one])
    second = replay_epochs(plan, _start(first.after), [other])
    both = replay_epochs(plan, start, [one, other])

    whole = run_local(plan, {"clicks": [click.raw for click in CLICKS]})
    assert [*first["counts"], *second["counts"]] == whole["counts"] != []
    assert dict(both) == dict(second)
    assert both.changes == second.changes
    assert both.steps == second.steps
    assert (first.late.get("count", 0), second.late) == (int(cut > 3), {"count": 1} if cut <= 3 else {})


def test_steps_show_rows_late_rows_and_what_event_time_emits(tmp_path: Path) -> None:
    run = replay_epochs(_windows().plan(), _start(_empty(tmp_path, "clicks")), [EpochInput(1, 0, CLICKS)])

    steps = [step for step in run.steps if step.operator == "count"]
    assert [(step.cause, [row.key for row in step.rows], step.late) for step in steps] == [
        ("row", ["ann"], 0),
        ("row", ["bob"], 0),
        ("event time", [], 0),
        ("row", ["ann"], 0),
        ("row", ["ann"], 1),
        ("row", ["bob"], 0),
        ("event time", [], 0),
    ]
    assert [len(step.out) for step in steps if step.cause == "event time"] == [1, 2]
    assert [row.event_time for step in steps for row in step.rows] == [1000, 12000, 13000, 2000, 25000]


def test_rejected_records_are_shown_with_their_reason(tmp_path: Path) -> None:
    bad = InputRecord("clicks", _raw(0, b"{"))

    run = replay_epochs(_windows().plan(), _start(_empty(tmp_path, "clicks")), [EpochInput(1, 0, [bad])])

    assert [(each.operator, each.record) for each in run.rejected] == [("clicks", "clicks/0/0")]
    assert run.rejected[0].error.startswith("ValueError: ")
    assert isinstance(run.rejected[0], TracedRejection)


def _division() -> Pipeline:
    pipeline = Pipeline("division")
    source = pipeline.source(ListSource([], name="numbers"), name="numbers")
    source.map(lambda n: 12 // n, name="divide").sink(MemorySink(), name="quotients")
    return pipeline


def _number(offset: int, value: int) -> InputRecord:
    origin = ListOrigin("numbers", "numbers", 0, offset, [value])
    return InputRecord("numbers", origin.raw(0), Batch([value], [0], origin))


def test_a_record_that_stops_the_job_stops_the_replay_after_the_rows_before_it(tmp_path: Path) -> None:
    epoch = EpochInput(1, 0, [_number(0, 3), _number(1, 0), _number(2, 4)])
    start = ReplayStart(_empty(tmp_path, "division"), 0, {"numbers": ["numbers/0"]})

    run = replay_epochs(_division().plan(), start, [epoch], stop=False)

    assert run.outputs == {"quotients": [4]}
    assert run.failure is not None
    assert (run.failure.where, run.failure.operator) == ("numbers/0/1", "divide")
    assert [row.value for step in run.steps if step.operator == "divide" for row in step.rows] == [3, 0]
    with pytest.raises(PoisonRecord, match="numbers/0/1"):
        replay_epochs(_division().plan(), start, [epoch])


def _sessions() -> Pipeline:
    pipeline = Pipeline("sessions")
    names = pipeline.source(ListSource([], name="names"), name="names").key_by(lambda name: name)
    names.fold(name="count", init=int, step=lambda count, _: count + 1, state=int, ttl=Ttl(3600)).sink(
        MemorySink(), name="counts"
    )
    return pipeline


def _name(offset: int) -> InputRecord:
    origin = ListOrigin("names", "names", 0, offset, ["ann"])
    return InputRecord("names", origin.raw(0), Batch(["ann"], [0], origin))


def test_the_clock_stands_during_an_epoch_and_moves_to_its_decision(tmp_path: Path) -> None:
    hour = 3_600_000
    start = ReplayStart(_empty(tmp_path, "sessions"), 0, {"names": ["names/0"]})
    first = EpochInput(1, 2 * hour, [_name(0), _name(1)])

    run = replay_epochs(_sessions().plan(), start, [first])
    later = replay_epochs(_sessions().plan(), start, [first, EpochInput(2, 3 * hour, [_name(2)])])

    assert run.outputs == {"counts": [["ann", 1], ["ann", 2]]}
    assert later.outputs == {"counts": [["ann", 1]]}  # expired between the epochs


# ---------------------------------------------------------------- fixtures


def _write(plan: Any, state: Snapshot, directory: Path, records: list[InputRecord], source: str) -> None:
    directory.mkdir()
    splits = {source: [f"{source}/0"]}
    write_input(plan, directory / INPUT, FixtureInput(plan.name, 5, splits, {}, EpochInput(2, 7, records)))
    with SavepointBuilder.from_snapshot(state) as builder:
        builder.write(directory / STATE)


def test_a_fixture_replays_the_same(tmp_path: Path) -> None:
    plan = _windows().plan()
    first = replay_epochs(plan, _start(_empty(tmp_path, "clicks")), [EpochInput(1, 0, CLICKS[:2])])
    records = [*CLICKS[2:], InputRecord("clicks", RawRecord("clicks", 0, 9, -1, b"\xff", None, (("h", b"\x00"),)))]
    _write(plan, first.after, tmp_path / "fixture", records, "clicks")

    run = replay_fixture(plan, tmp_path / "fixture")

    expected = replay_epochs(plan, _start(first.after), [EpochInput(2, 7, records)])
    assert dict(run) == dict(expected)
    assert (run.steps, run.changes, run.rejected) == (expected.steps, expected.changes, expected.rejected)


def test_a_fixture_holds_the_rows_of_a_source_without_a_codec(tmp_path: Path) -> None:
    plan = _division().plan()
    _write(plan, _empty(tmp_path, "division"), tmp_path / "fixture", [_number(4, 3)], "numbers")

    run = replay_fixture(plan, tmp_path / "fixture")

    assert run.outputs == {"quotients": [4]}
    assert run.steps[0].out[0].record == "numbers/0/4"


def test_what_is_no_fixture_is_refused(tmp_path: Path) -> None:
    (tmp_path / INPUT).write_text('{"version": 2}')
    with pytest.raises(ConfigError, match="version 2"):
        replay_fixture(_division().plan(), tmp_path)
    (tmp_path / INPUT).write_text("[")
    with pytest.raises(ConfigError, match="not the input of a replay"):
        replay_fixture(_division().plan(), tmp_path)


def test_a_savepoint_may_keep_some_keys_only(tmp_path: Path) -> None:
    pipeline = Pipeline("sums")
    numbers = pipeline.source(ListSource([]), name="numbers").key_by(lambda n: n % 3)
    numbers.fold(name="sum", init=int, step=int.__add__, state=int).sink(MemorySink(), name="sums")
    with SavepointBuilder.new("sums") as builder:
        builder.bootstrap_fold("sum", [(0, 5), (1, 6), (2, 7)], accumulator=int)
        builder.retain("sum", lambda key: key != 1)
        builder.write(tmp_path / "some")

    assert [key for key, _ in Snapshot.open(tmp_path / "some").read("sum")] == [0, 2]
    with SavepointBuilder.from_snapshot(Snapshot.open(tmp_path / "some")) as builder:
        builder.retain("sum", lambda key: key == 2)
        builder.write(tmp_path / "one")
    assert [key for key, _ in Snapshot.open(tmp_path / "one").read("sum")] == [2]
    assert Epoch(Snapshot.open(tmp_path / "one").epoch) == Epoch(0)
