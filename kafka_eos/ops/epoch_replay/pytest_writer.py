"""Writes a replayed epoch as a test: a fixture with its records and its state, and a pytest file beside it.

The test expects what the job has committed and stored. As written it passes if the code still gives that; otherwise its
failure shows the difference. To make a test of a wrong output of unchanged code, correct the expected row.

Rule: the fixture has the state of the keys that the records touch, and no other.
"""

from __future__ import annotations

import os
import pprint
import shutil
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kafka_eos.core.errors import ConfigError, PoisonRecord
from kafka_eos.core.ids import AppRef
from kafka_eos.ops.epoch_replay.job_replay import JobReplay, compare_rows
from kafka_eos.savepoints import SavepointBuilder
from kafka_eos.testing.epoch_replay import ReplayedEpoch
from kafka_eos.testing.replay_fixture import INPUT, STATE, FixtureInput, replay_fixture, write_input
from kafka_eos.testing.traced_chain import as_json, format_place

_TEST = '''"""Epoch {epoch} of job {job!r}, replayed from its records and its state in {directory}.

{origin}
"""

from pathlib import Path

from kafka_eos.testing import replay_fixture

HERE = Path(__file__).parent


def test_epoch_{epoch}() -> None:
    run = replay_fixture(str(HERE / {app!r}), HERE / {directory!r})

{body}'''


@dataclass(frozen=True)
class WrittenTest:
    """The test that was written."""

    path: Path
    records: int
    failure: str | None
    """The error by which it fails; None if it passes."""
    is_repeatable: bool
    """Whether the replay of the fixture gave the same outputs and the same state as the replay before it."""


def write_test(replay: JobReplay, app: AppRef, path: Path, records: Collection[str] | None = None) -> WrittenTest:
    """Write the test. ``records``: only these records of the epoch, by topic, partition and offset.

    Raises ConfigError if the file or the directory of its fixture exists already.
    """
    directory = path.with_suffix("")
    if path.suffix != ".py" or not path.name.startswith("test_"):
        raise ConfigError(f"--write-test {path}: pytest finds files that are named test_….py")
    for taken in (path, directory):
        if taken.exists():
            raise ConfigError(f"{taken} exists already")
    try:
        directory.mkdir(parents=True, mode=0o700)  # it has data of the job's records
        chosen = _choose(replay, records)
        write_input(replay.plan, directory / INPUT, chosen)
        _write_state(replay, directory / STATE, None if records is None else frozenset(records))
        failure, run = None, None
        try:
            run = replay_fixture(replay.plan, directory)
        except PoisonRecord as error:
            failure = str(error)
        expected = None if run is None else _expect(replay, run, chosen, records)
        if run is not None and expected is not None:
            failure = _describe_difference(run, expected)
        text = _TEST.format(
            epoch=replay.input.epoch,
            job=replay.job,
            directory=directory.name,
            app=_format_app(app, path),
            origin=_describe_origin(replay),
            body=_format_body(expected),
        )
        path.write_text(text, encoding="utf-8")
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    whole = replay.run
    repeatable = records is not None or run is None or (run.outputs, run.changes) == (whole.outputs, whole.changes)
    return WrittenTest(path, len(chosen.epoch.records), failure, repeatable)


def _choose(replay: JobReplay, records: Collection[str] | None) -> FixtureInput:
    chosen = [each for each in replay.input.records if records is None or each.raw.location in records]
    return FixtureInput(
        replay.job,
        replay.start.at,
        {source: list(splits) for source, splits in replay.start.splits.items()},
        {source: list(splits) for source, splits in replay.start.excluded.items()},
        replace(replay.input, records=chosen),
    )


def _write_state(replay: JobReplay, path: Path, records: frozenset[str] | None) -> None:
    """Write the state before the epoch. For keyed operators, write only the keys of the fixture's rows."""
    with SavepointBuilder.from_snapshot(replay.start.state) as builder:
        for node in replay.plan.nodes:
            if node.keyed:
                touched = _list_keys(replay, node.name, records)
                builder.retain(node.name, lambda key, touched=touched: format_place(key) in touched)  # type: ignore[misc]
        builder.write(path)


def _list_keys(replay: JobReplay, operator: str, records: frozenset[str] | None) -> frozenset[str]:
    """Return the keys, as text, of which an operator has got or emitted rows, or changed the state."""
    steps = (step for step in replay.run.steps if step.operator == operator)
    rows = (row for step in steps for row in (*step.rows, *step.out))
    keys = {format_place(row.key) for row in rows if row.key is not None and (records is None or row.record in records)}
    if records is None:
        keys |= {format_place(change.key) for change in replay.changes if change.operator == operator}
    return frozenset(keys)


def _format_app(app: AppRef, path: Path) -> str:
    """Return the pipeline as the test loads it: relative to the test's directory."""
    relative = os.path.relpath(app.path, path.absolute().parent)
    return relative if app.pipeline is None else f"{relative}:{app.pipeline}"


@dataclass(frozen=True)
class _Expectation:
    """The expectations of a test, as the plain values that ``ReplayedEpoch`` returns."""

    outputs: Mapping[str, Sequence[Any]]
    changes: Mapping[str, Mapping[str, Any]]
    late: Mapping[str, int]


def _expect(
    replay: JobReplay, run: ReplayedEpoch, chosen: FixtureInput, records: Collection[str] | None
) -> _Expectation:
    """Return what the job has committed and stored, as far as it is known, and what the fixture gives otherwise."""
    order = {record.raw.location: number for number, record in enumerate(chosen.epoch.records)}
    outputs: dict[str, Sequence[Any]] = dict(run.outputs)
    for sink, rows in ({} if replay.committed is None else replay.committed.rows).items():
        wanted = [row for row in rows if records is None or row.record in records]
        wanted.sort(key=lambda row: order.get(row.record, len(order)))
        values = [row.value for row in wanted]
        if any(compare_rows(values, outputs[sink])):
            outputs[sink] = values
    changes = {state: dict(entries) for state, entries in run.changes.items()}
    before = {(each.operator, each.state, format_place(each.place)): each.before for each in replay.changes}
    for each in replay.stored or ():
        if records is None or format_place(each.key) in _list_keys(replay, each.operator, frozenset(records)):
            place = format_place(each.place)
            entries = changes.setdefault(f"{each.operator}.{each.state}", {})
            entries[place] = as_json(each.after)
            if before.get((each.operator, each.state, place), each.before) == each.after:
                del entries[place]  # the job left it as it was
    changes = {state: entries for state, entries in changes.items() if entries}
    return _Expectation(outputs, changes, run.late)


def _describe_difference(run: ReplayedEpoch, expected: _Expectation) -> str | None:
    """Describe the first difference by which the test fails; None if it passes."""
    for sink, values in expected.outputs.items():
        committed, made = compare_rows(values, run.outputs[sink])
        if committed or made:
            return f"sink {sink}: the job committed {_list_first(committed)}, the code makes {_list_first(made)}"
    states = {*expected.changes, *run.changes}
    for state in sorted(states):
        stored, made_now = expected.changes.get(state, {}), run.changes.get(state, {})
        for key in sorted({*stored, *made_now}):
            if (one := stored.get(key, "no change")) != (other := made_now.get(key, "no change")):
                return f"{state} {key}: the job stored {one}, the code makes {other}"
    return None


def _list_first(values: Sequence[Any]) -> str:
    shown = ", ".join(map(repr, values[:3])) or "nothing"
    return f"{shown} and {len(values) - 3} more" if len(values) > 3 else shown


def _describe_origin(replay: JobReplay) -> str:
    """Describe for the test's readers where the expected rows come from."""
    read = [] if replay.committed is None else [*replay.committed.rows]
    known = [f"the rows of {sink}" for sink in read]
    made = [f"the rows of {sink}" for sink in replay.run if sink not in read]
    (made if replay.stored is None else known).append("the state")
    origins = {"as the job committed them": known, "as the pipeline made them when the file was written": made}
    text = " ".join(f"Expected {origin}: {', '.join(parts)}." for origin, parts in origins.items() if parts)
    advice = "Correct what is wrong, so that the test fails until the pipeline is fixed."
    return textwrap.fill(f"Written by kafka-eos replay. {text} {advice}", 100)


def _format_body(expected: _Expectation | None) -> str:
    if expected is None:
        return "    assert run  # add what the outputs should be once the record is processed\n"
    parts: dict[str, Any] = {f"run.outputs[{sink!r}]": rows for sink, rows in expected.outputs.items()}
    parts["sorted(run.changes)"] = sorted(expected.changes)
    parts |= {f"run.changes[{state!r}]": entries for state, entries in expected.changes.items()}
    parts |= {"run.late": expected.late} if expected.late else {}
    return "".join(f"    assert {name} == {_format(value)}\n" for name, value in parts.items())


def _format(value: Any) -> str:
    text = pprint.pformat(value, width=92, sort_dicts=False)
    return text.replace("\n", "\n        ")
