"""The report of a replay, as text and as JSON.

Rule: what is not shown is counted, and what could not be compared is said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from kafka_eos._util.printable_text import as_message
from kafka_eos.core.errors import ConfigError
from kafka_eos.ops.epoch_replay.job_replay import JobReplay
from kafka_eos.plan import SinkNode, SourceNode
from kafka_eos.testing.epoch_replay import StateChange
from kafka_eos.testing.traced_chain import TracedRow, TraceStep, as_json, format_place

_MOST: Final = 10
"""Differences that are shown of each sink, and of the state."""


@dataclass(frozen=True)
class ReplayView:
    """The part of a replay that is shown. ``key``: as text, or as JSON if it is not text."""

    replay: JobReplay
    operator: str | None = None
    key: str | None = None
    record: str | None = None
    """Topic, partition and offset of the only record that is shown."""
    most: int | None = None
    """The number of steps and of state entries that are shown of each operator; None for all."""

    def __post_init__(self) -> None:
        names = [node.name for node in self.replay.plan.nodes]
        if self.operator is not None and self.operator not in names:
            raise ConfigError(f"the pipeline has no operator {self.operator!r}; it has {', '.join(names)}")
        if self.key is not None and not self.records and not any(map(self._has_key, self.replay.changes)):
            raise ConfigError(f"epoch {self.replay.input.epoch} has no row with the key {self.key!r}")

    @property
    def records(self) -> frozenset[str]:
        """Return the input records that are shown: those from which rows of the key were made."""
        if self.record is not None:
            return frozenset([self.record])
        steps = self.replay.run.steps
        rows = (row for step in steps for row in (*step.rows, *step.out))
        return frozenset(row.record for row in rows if row.key is not None and format_place(row.key) == self.key)

    @property
    def related_records(self) -> frozenset[str] | None:
        """Return the records on which the shown part depends: those with a key in common. None: all of the epoch."""
        if self.record is None:
            return None if self.key is None else self.records
        rows = [(step.operator, row) for step in self.replay.run.steps for row in (*step.rows, *step.out)]
        keyed = [(operator, format_place(row.key), row.record) for operator, row in rows if row.key is not None]
        keys = {(operator, key) for operator, key, record in keyed if record == self.record}
        return self.records | {record for operator, key, record in keyed if (operator, key) in keys}

    def list_operators(self) -> list[str]:
        """Return the operators that did something, in plan order."""
        active = {step.operator for step in self.replay.run.steps}
        active |= {change.operator for change in self.replay.changes} | self.replay.inexact.keys()
        names = [node.name for node in self.replay.plan.nodes if node.name in active]
        return names if self.operator is None else [self.operator]

    def list_steps(self, operator: str) -> list[TraceStep]:
        steps = [step for step in self.replay.run.steps if step.operator == operator]
        if self.key is None and self.record is None:
            return steps
        wanted = self.records
        return [step for step in steps if any(self._is_wanted(row, wanted) for row in (*step.rows, *step.out))]

    def _is_wanted(self, row: TracedRow, records: Collection[str]) -> bool:
        return row.record in records or (self.key is not None and format_place(row.key) == self.key)

    def list_changes(self, operator: str) -> list[StateChange]:
        changes = [change for change in self.replay.changes if change.operator == operator]
        if self.record is not None:
            keys = {format_place(row.key) for step in self.list_steps(operator) for row in (*step.rows, *step.out)}
            return [change for change in changes if format_place(change.key) in keys]
        return [change for change in changes if self.key is None or self._has_key(change)]

    def _has_key(self, change: StateChange) -> bool:
        return format_place(change.key) == self.key

    # ------------------------------------------------------------ JSON

    def encode(self) -> bytes:
        """Return everything that the view shows as JSON."""
        replay = self.replay
        failure = replay.run.failure
        return msgspec.json.encode({
            "job": replay.job,
            "epoch": replay.input.epoch,
            "state_of_epoch": replay.first,
            "decided_at": None if replay.entry is None else replay.input.decided_at,
            "records": len(replay.input.records),
            "equal": replay.is_equal,
            "failure": None if failure is None else {
                "record": failure.where, "operator": failure.operator, "reason": failure.reason
            },
            "operators": [self._describe(name) for name in self.list_operators()],
            "rejected": replay.run.rejected,
            "other_counts": {
                sink: {"replayed": replayed, "committed": committed}
                for sink, (replayed, committed) in replay.miscounted.items()
            },
            "other_rows": {
                sink: {"only_committed": committed, "only_replayed": replayed}
                for sink, (committed, replayed) in replay.other_rows.items()
            },
            "other_state": None if replay.stored is None else [
                {**_name(change), "replayed": as_json(change.before), "stored": as_json(change.after)}
                for change in replay.stored
            ],
            "notes": replay.notes,
        })  # fmt: skip

    def _describe(self, name: str) -> dict[str, Any]:
        steps, changes = self.list_steps(name), self.list_changes(name)
        return {
            "operator": name,
            "kind": self.replay.plan.node(name).kind,
            "rows_in": sum(len(step.rows) for step in steps),
            "rows_out": sum(len(step.out) for step in steps),
            "late": sum(step.late for step in steps),
            "steps": steps[: self.most],
            "state": [
                {**_name(change), "before": as_json(change.before), "after": as_json(change.after)}
                for change in changes[: self.most]
            ],
            "inexact": self.replay.inexact.get(name, []),
        }

    # ------------------------------------------------------------ text

    def lines(self) -> Iterator[str]:
        """Yield the view as text. Lines within a key or a reason are indented: none looks like one of the view."""
        return map(as_message, self._lines())

    def _lines(self) -> Iterator[str]:
        replay = self.replay
        when = "not decided" if replay.entry is None else f"decided {_format_time(replay.input.decided_at)}"
        yield (
            f"epoch {replay.input.epoch} of job {replay.job}, {when}: {len(replay.input.records):,} records, from the "
            f"state of epoch {replay.first}"
        )
        for name in self.list_operators():
            yield ""
            yield from self._operator_lines(name)
        yield ""
        for rejection in replay.run.rejected:
            yield f"rejected by {rejection.operator}: {rejection.record}: {rejection.error}"
        yield from self._verdict_lines()

    def _operator_lines(self, name: str) -> Iterator[str]:
        steps, changes, node = self.list_steps(name), self.list_changes(name), self.replay.plan.node(name)
        got, made, late = (
            sum(counts)
            for counts in (
                (len(step.rows) for step in steps),
                (len(step.out) for step in steps),
                (step.late for step in steps),
            )
        )
        rows = f"{made:,} rows out" if isinstance(node, SourceNode) else f"{got:,} rows in"
        if not isinstance(node, SourceNode | SinkNode):
            rows += f", {made:,} out"
        yield f"{name} ({node.kind}): {rows}" + (f", {late:,} late" if late else "")
        for step in steps[: self.most]:
            yield from _step_lines(step)
        yield from _count_rest(len(steps), self.most, "calls")
        for change in changes[: self.most]:
            place = f"{change.state} {format_place(change.place)}"
            yield f"  state {place}: {_show(change.before)} -> {_show(change.after)}"
        yield from _count_rest(len(changes), self.most, "entries of state")
        for reason in self.replay.inexact.get(name, ()):
            yield f"  not exact: {reason}"

    def _verdict_lines(self) -> Iterator[str]:
        replay = self.replay
        yield from (f"note: {note}" for note in replay.notes)
        if (failure := replay.run.failure) is not None:
            yield f"STOPPED, as the job would: {failure}"
            return
        for sink, (replayed, committed) in replay.miscounted.items():
            yield f"DIFFERS: sink {sink} gets {replayed:,} rows; the epoch committed {committed:,}"
        for sink, differences in replay.other_rows.items():
            for what, rows in zip(("only the job has committed", "only the code makes now"), differences, strict=True):
                yield from (f"DIFFERS: sink {sink}: {what} {_show(row)}" for row in rows[:_MOST])
                yield from _count_rest(len(rows), _MOST, "such rows")
        for change in (replay.stored or ())[:_MOST]:
            place = f"{change.operator}.{change.state} {format_place(change.place)}"
            yield f"DIFFERS: {place} is {_show(change.before)} here; the job stored {_show(change.after)}"
        yield from _count_rest(len(replay.stored or ()), _MOST, "entries of state that differ")
        if replay.stored is None:
            yield "the state after the epoch was not compared: the job's own is not stored, or not in the same form"
        if replay.is_equal and (compared := self._list_compared()):
            yield f"EQUAL to what the job stored in epoch {replay.input.epoch}: {', '.join(compared)}"

    def _list_compared(self) -> list[str]:
        replay = self.replay
        read = [] if replay.committed is None else [*replay.committed.rows]
        counted = [sink for sink in replay.run if sink not in read] if replay.is_counted else []
        return [
            *(f"the rows of sink {sink}" for sink in read),
            *(f"the number of rows of sink {sink}" for sink in counted),
            *(["the state"] if replay.stored is not None else []),
        ]


def _name(change: StateChange) -> dict[str, Any]:
    return {"operator": change.operator, "state": change.state, "key": as_json(change.place)}


def _step_lines(step: TraceStep) -> Iterator[str]:
    if not step.rows:
        cause = "" if step.cause == "row" else f"{step.cause}: "
        yield from (f"  {cause}{_format_row(row)}" for row in step.out)
        return
    late = " (late)" if step.late else ""
    yield from (f"  {_format_row(row)}{late}" for row in step.rows)
    yield from (f"    -> {_format_row(row, with_record=False)}" for row in step.out)


def _format_row(row: TracedRow, *, with_record: bool = True) -> str:
    parts = [
        row.record if with_record else "",
        "" if row.event_time is None else _format_time(row.event_time),
        "" if row.key is None else f"key {format_place(row.key)}",
        _show(row.value),
    ]
    return " ".join(filter(None, parts))


def _format_time(at: int) -> str:
    try:
        return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(at)


def _show(value: Any) -> str:
    return "none" if value is None else msgspec.json.encode(as_json(value)).decode()


def _count_rest(number: int, most: int | None, what: str) -> Sequence[str]:
    return [f"  … and {number - most:,} more {what}"] if most is not None and number > most else []
