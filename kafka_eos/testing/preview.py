"""``preview``: what every operator of a pipeline makes of some records, without a job, a disk or a commit.

The records pass the operators one by one, as in ``run_local``. Rule: a record that an operator rejects, and a late row,
are shown and do not end the preview.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from kafka_eos._util.printable_text import printable
from kafka_eos.abc.auditable import SampleStart, SupportsSampling
from kafka_eos.abc.context import JobContext
from kafka_eos.core.error_messages import describe_error
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.records import MIN_EVENT_TIME, Batch, RawRecord
from kafka_eos.plan import ExchangeNode, ForwardNode, LoopNode, Node, Plan, SinkNode, TimestampsNode, UnionNode
from kafka_eos.plan.nodes import is_dead_letter_sink
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.operators.rejections import RejectionHandler
from kafka_eos.runtime.program import Program
from kafka_eos.testing.run_local import run_plan
from kafka_eos.testing.traced_chain import TracedChain, TraceStep

_SHOWN: Final = 120
"""Characters of a value in a table."""
_PASSING: Final = (UnionNode, LoopNode, ForwardNode, ExchangeNode)
"""Nodes that pass rows on as they are, and have no steps."""


@dataclass(frozen=True, slots=True)
class PreviewStep:
    """The rows that one operator emitted while one record was processed."""

    operator: str
    kind: str
    values: tuple[str, ...]
    event_times: tuple[int, ...] = ()


@dataclass(slots=True)
class PreviewRow:
    """One input record and its way through the plan. Times are in milliseconds since the Unix epoch."""

    source: str
    place: str
    value: str
    timestamp: int | None = None
    event_time: int | None = None
    watermark: int | None = None
    steps: list[PreviewStep] = field(default_factory=list)
    late_at: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    """Operator and reason of each rejection."""

    ends_at: tuple[str, ...] = ()
    """The operators that took rows of the record and emitted none meanwhile."""

    @property
    def outcome(self) -> str:
        """Return in a few words what became of the record."""
        if self.rejected:
            return f"rejected by {self.rejected[0]}"
        late = f"late at {', '.join(self.late_at)}; " if self.late_at else ""
        sinks = [f"{step.operator} ({len(step.values)})" for step in self.steps if step.kind == "sink"]
        return late + (f"→ {', '.join(sinks)}" if sinks else f"no row from {', '.join(self.ends_at)}")


@dataclass(frozen=True, slots=True)
class OperatorTotals:
    """The rows that an operator took and emitted, and those that were late there."""

    operator: str
    kind: str
    rows_in: int
    rows_out: int
    late: int


@dataclass(frozen=True, slots=True)
class Preview:
    """The result of ``preview``: a table in a terminal, HTML in a notebook. ``way(n)`` shows one record's way."""

    pipeline: str
    rows: Sequence[PreviewRow]
    totals: Sequence[OperatorTotals]
    at_end: Sequence[PreviewStep]
    """Rows that operators emitted after the last record."""

    def way(self, number: int) -> Tree:
        """Return the way of record ``number`` (from 1) through the plan, for ``rich.print``."""
        row = self.rows[number - 1]
        tree = Tree(Text(f"{number}. {row.place}  {row.value}"))
        for step in row.steps:
            branch = tree.add(Text(f"{step.operator} ({step.kind})"))
            for index, value in enumerate(step.values):
                time = f"  at {_time(step.event_times[index])}" if step.event_times else ""
                branch.add(Text(f"{value}{time}"))
        for name in row.late_at:
            tree.add(Text(f"late at {name}: the watermark is {_time(row.watermark)}", style="yellow"))
        for reason in row.rejected:
            tree.add(Text(f"rejected by {reason}", style="red"))
        return tree

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._table()
        if self.at_end:
            rows = ", ".join(f"{step.operator} ({len(step.values)})" for step in self.at_end)
            yield Text(f"rows after the last record: {rows}")
        yield self._operators()

    def _table(self) -> Table:
        timed = any(row.event_time is not None for row in self.rows)
        table = Table(title=f"{self.pipeline}: {len(self.rows)} records", title_justify="left", box=None)
        for name in ("#", "record", *(("event time", "watermark") if timed else ()), "value", "what became of it"):
            table.add_column(name, overflow="fold")
        for number, row in enumerate(self.rows, start=1):
            times = (_time(row.event_time), _time(row.watermark)) if timed else ()
            style = "red" if row.rejected else "yellow" if row.late_at else ""
            cells = (str(number), row.place, *times, _short(row.value), row.outcome)
            table.add_row(*(Text(cell, style=style) for cell in cells))
        return table

    def _operators(self) -> Table:
        table = Table(title="operators", title_justify="left", box=None)
        for name in ("operator", "kind"):
            table.add_column(name)
        for name in ("rows in", "rows out", "late"):
            table.add_column(name, justify="right")
        for each in self.totals:
            table.add_row(each.operator, each.kind, f"{each.rows_in:,}", f"{each.rows_out:,}", f"{each.late:,}")
        return table

    def __str__(self) -> str:
        console = Console(width=200)
        with console.capture() as captured:
            console.print(self)
        return printable(captured.get(), keep="\n")

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{number}</td><td>{html.escape(row.place)}</td><td>{_time(row.event_time)}</td>"
            f"<td>{_time(row.watermark)}</td><td><details><summary>{html.escape(_short(row.value))}</summary>"
            f"{_way_as_html(row)}</details></td><td>{html.escape(row.outcome)}</td></tr>"
            for number, row in enumerate(self.rows, start=1)
        )
        totals = "".join(
            f"<tr><td>{html.escape(each.operator)}</td><td>{each.kind}</td><td>{each.rows_in:,}</td>"
            f"<td>{each.rows_out:,}</td><td>{each.late:,}</td></tr>"
            for each in self.totals
        )
        return (
            f"<h4>{html.escape(self.pipeline)}: {len(self.rows)} records</h4><table><tr><th>#</th><th>record</th>"
            f"<th>event time</th><th>watermark</th><th>value</th><th>what became of it</th></tr>{rows}</table>"
            "<table><tr><th>operator</th><th>kind</th><th>rows in</th><th>rows out</th><th>late</th></tr>"
            f"{totals}</table>"
        )


def sample_inputs(plan: Plan, context: JobContext, count: int, start: SampleStart) -> dict[str, Sequence[RawRecord]]:
    """Read some records of each source. Raise ConfigError for a source that cannot be read without a job."""
    found: dict[str, Sequence[RawRecord]] = {}
    for node in plan.sources:
        if not isinstance(node.source, SupportsSampling):
            raise ConfigError(
                f"source {node.name!r} cannot be read without a job. Give its records: --from {node.name}=FILE, or in "
                f"Python inputs={{{node.name!r}: [...]}}\n  {node.code_line}"
            )
        found[node.name] = node.source.sample(context, count, start)
    return found


def preview(pipeline: Plan | Program, inputs: Mapping[str, Sequence[Any]]) -> Preview:
    """Run ``inputs``, as of ``run_local``, through the pipeline, and return what every operator made of each record.

    Raises PlanError as ``run_local`` does, and an error of user code that is not that of a record.
    """
    plan = pipeline if isinstance(pipeline, Plan) else pipeline.plan()
    chains: list[_PreviewChain] = []

    def make_chain(*args: Any, **kwargs: Any) -> OperatorChain:
        chains.append(_PreviewChain(*args, **kwargs))
        return chains[0]

    run_plan(plan, inputs, make_chain=make_chain)
    (chain,) = chains
    totals = [
        OperatorTotals(
            node.name,
            node.kind,
            chain.stats[node.name].rows_in,
            chain.stats[node.name].rows_out,
            chain.counts.late.get(node.name, 0),
        )
        for node in plan.nodes
    ]
    return Preview(plan.name, chain.in_order(inputs), totals, chain.at_end)


class _PreviewChain(TracedChain):
    """A traced chain that knows the steps of every record."""

    recording = True

    def __init__(self, plan: Plan, *args: Any, **options: Any) -> None:
        self.rows: list[PreviewRow] = []
        super().__init__(plan, *args, show=_show, **options)
        self.rejections = _Rejections(plan, self.counts, self._note_rejection)

    def push(self, head: str, batch: Batch[Any]) -> None:
        if not len(batch):
            super().push(head, batch)
            return
        raw, began = batch.origin.raw(0), len(self.steps)
        row = PreviewRow(head, raw.location, _show(batch.values[0]), raw.timestamp if raw.timestamp >= 0 else None)
        self.rows.append(row)
        super().push(head, batch)
        steps = self.steps[began:]
        del self.steps[began:]
        row.steps = self._list_steps(steps)
        row.late_at = list(dict.fromkeys(step.operator for step in steps if step.late))
        row.event_time = next((at for at in map(self._read_event_time, steps) if at is not None), None)
        row.watermark = self._read_watermark(head)
        row.ends_at = tuple(self._list_ends(row))

    @property
    def at_end(self) -> list[PreviewStep]:
        """Return the steps of no record."""
        return self._list_steps(self.steps)

    def _list_steps(self, steps: Sequence[TraceStep]) -> list[PreviewStep]:
        found = []
        for step in steps:
            node = self._plan.node(step.operator)
            rows = step.rows if isinstance(node, SinkNode) else step.out
            if rows and node.inputs:
                times = tuple(row.event_time for row in rows if row.event_time is not None)
                found.append(PreviewStep(node.name, node.kind, tuple(row.value for row in rows), times))
        return found

    def _read_event_time(self, step: TraceStep) -> int | None:
        is_assigned = isinstance(self._plan.node(step.operator), TimestampsNode) and step.out
        return step.out[0].event_time if is_assigned else None

    def in_order(self, inputs: Mapping[str, Sequence[Any]]) -> list[PreviewRow]:
        """Return the rows in the order of the inputs: a record that cannot be decoded is rejected before the others."""
        given = [each for values in inputs.values() for each in values if isinstance(each, RawRecord)]
        places = {raw.location: number for number, raw in enumerate(given)}
        return sorted(self.rows, key=lambda row: places.get(row.place, 0)) if given else self.rows

    def _list_ends(self, row: PreviewRow) -> list[str]:
        """Return the operators behind those that emitted rows which emitted none."""
        emitted = {row.source, *(step.operator for step in row.steps)}
        behind, waiting = dict[str, Node](), [*emitted]
        while waiting:
            for node, _ in self._plan.downstream(waiting.pop()):
                if node.name not in behind:
                    behind[node.name] = node
                    if isinstance(node, _PASSING):
                        waiting.append(node.name)
        return [
            name
            for name, node in behind.items()
            if name not in emitted and not isinstance(node, _PASSING) and not is_dead_letter_sink(node)
        ]

    def _note_rejection(self, raw: RawRecord, operator: str, error: Exception) -> None:
        row = next((each for each in self.rows if each.place == raw.location), None)
        if row is None:  # it could not be decoded, so it is never pushed
            value = _show(raw.value)
            row = PreviewRow(operator, raw.location, value, raw.timestamp if raw.timestamp >= 0 else None)
            self.rows.append(row)
        row.rejected.append(f"{operator}: {describe_error(error)}")

    def _read_watermark(self, source: str) -> int | None:
        names = [node.name for node in self._plan.nodes if isinstance(node, TimestampsNode) and node.source == source]
        emitted = self.event_time.emitted
        times = [emitted[name][0].time for name in names if name in emitted]
        return min((time for time in times if time != MIN_EVENT_TIME), default=None)


class _Rejections(RejectionHandler):
    """A handler that notes each rejection, whatever the policy of its source."""

    def __init__(self, plan: Plan, counts: Any, note: Any) -> None:
        super().__init__(plan, counts)
        self._note = note
        self._sources_of_plan = plan

    def _expect_permitted(self, source: str, operator: str, raw: RawRecord, error: Exception) -> None:
        self._sources_of_plan.attribution(source).expect_record(error, operator, raw.location)

    def _add(
        self, source: str, topic: str, branch: str, operator: str, raw: RawRecord, error: Exception, *, is_result: bool
    ) -> None:
        self._note(raw, operator, error)
        if source in self.sources:
            super()._add(source, topic, branch, operator, raw, error, is_result=is_result)


def _show(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return repr(value)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _time(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "–"
    try:
        found = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return f"{found:%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03}"


def _way_as_html(row: PreviewRow) -> str:
    lines = [
        f"<li>{html.escape(step.operator)} ({step.kind})<ul>"
        + "".join(f"<li>{html.escape(value)}</li>" for value in step.values)
        + "</ul></li>"
        for step in row.steps
    ]
    lines += [f"<li>late at {html.escape(name)}</li>" for name in row.late_at]
    lines += [f"<li>rejected by {html.escape(reason)}</li>" for reason in row.rejected]
    return f"<ul>{''.join(lines)}</ul>"
