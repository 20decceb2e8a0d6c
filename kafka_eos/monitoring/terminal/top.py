"""One job as a screen of tables: rates, back-pressure, lag, and the times of the phases of its newest epoch.

Pure. Rule: an unknown value is shown as a dash, never as a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kafka_eos.coordination.job_status import JobStatus, job_status
from kafka_eos.core.json_values import Json
from kafka_eos.monitoring.dashboard import job_facts as facts
from kafka_eos.monitoring.dashboard.job_directories import JobFiles
from kafka_eos.monitoring.terminal.live_view import format_bytes

_UNKNOWN: Final = "–"
_COLOURS: Final = {"running": "green", "failed": "red", "killed": "red", "recovering": "yellow", "starting": "yellow"}
_OPERATORS: Final = ("operator", "in/s", "out/s", "busy", "back-pressure", "idle", "state", "cached", "misses/s")
_SPLITS: Final = ("source", "partition", "position", "lag", "")


def render_job(found: JobFiles, rates: Mapping[str, Any] | None, rows: int) -> Group:
    """Render one job as tables. ``rows``: the maximum number of partitions shown."""
    stands = job_status(found.job, found.status, found.is_running, found.now)
    last: Mapping[str, Any] = found.status["last"]
    progress: Mapping[str, Any] = last.get("progress", {})
    rates = rates if rates is not None and stands.state == "running" else {}
    parts: list[Text | Table] = [_render_state(stands), _flow(stands, rates)]
    if (spent := _epoch(last)) is not None:
        parts.append(spent)
    if plan := facts.operators(last, progress):
        parts += [Text(), _operators(plan, progress, rates)]
    if splits := facts.splits(progress):
        behind = sorted(splits, key=_lag, reverse=True)
        parts += [Text(), _splits(behind[:rows])]
        if more := behind[rows:]:
            parts.append(Text(f"and {len(more):,} more with less lag", "dim"))
    return Group(*parts)


def _render_state(stands: JobStatus) -> Text:
    text = Text.assemble((stands.job, "bold"), "  ", (stands.state, _COLOURS.get(stands.state, "")))
    if stands.pid is not None:
        text.append(f"  process {stands.pid}")
    if stands.workers is not None:
        text.append(f", {stands.workers} worker{'s' if stands.workers > 1 else ''}")
    if stands.reason is not None:
        text.append(f"  {stands.reason}", "yellow")
    return text


def _flow(stands: JobStatus, rates: Mapping[str, Any]) -> Text:
    restarts = f"{stands.restarts} restart{'' if stands.restarts == 1 else 's'}"
    text = Text(f"in {_rate(rates.get('in'))}/s  out {_rate(rates.get('out'))}/s  lag {_count(stands.lag)}  {restarts}")
    if stands.set_aside:
        text.append(f"  {stands.set_aside:,} rows set aside", "yellow")
    if stands.dead_letters:
        text.append(f"  {stands.dead_letters:,} dead letters", "yellow")
    return text


def _epoch(last: Mapping[str, Any]) -> Text | None:
    """Describe the newest committed epoch, with the slowest worker's time of each phase."""
    committed: Mapping[str, Any] = last.get("committed", {})
    if "epoch" not in committed:
        return None
    text = Text(f"epoch {committed['epoch']}: {_milliseconds(committed['seconds'])}")
    phases: Mapping[str, Any] = last.get("phases", {})
    spans = phases.get("spans", []) if phases.get("epoch") == committed["epoch"] else []
    commits = [{"phase": "commit", "started": at[0], "ended": at[1]} for at in committed.get("commits", {}).values()]
    slowest: dict[str, float] = {}
    for span in (*spans, *commits):
        seconds = max(0.0, span["ended"] - span["started"])
        slowest[span["phase"]] = max(seconds, slowest.get(span["phase"], 0.0))
    if slowest:
        text.append(": " + " · ".join(f"{phase} {_milliseconds(seconds)}" for phase, seconds in slowest.items()))
    return text


def _operators(plan: Sequence[Json], progress: Mapping[str, Any], rates: Mapping[str, Any]) -> Table:
    """Return the table of operators, in the order of the plan; the busiest one is highlighted."""
    table, at_work = _table(_OPERATORS), rates.get("operators", {})
    busiest = max((rate.get("busy") or 0.0 for rate in at_work.values()), default=0.0)
    for operator in plan:
        assert isinstance(operator, Mapping)
        name = str(operator["name"])
        rate, done = at_work.get(name, {}), progress.get("operators", {}).get(name, {})
        size, entries = operator["state_bytes"], done.get("entries")
        table.add_row(
            name,
            _rate(rate.get("rows_in")),
            _rate(rate.get("rows_out")),
            *(_share(rate.get(state)) for state in ("busy", "blocked", "idle")),
            format_bytes(size) if isinstance(size, int | float) else _UNKNOWN,
            _count(entries or None),
            _rate(rate.get("cache_misses") if done.get("cache_misses") or entries else None),
            style="bold" if busiest and rate.get("busy") == busiest else None,
        )
    return table


def _splits(splits: Sequence[Json]) -> Table:
    table = _table(_SPLITS)
    for split in splits:
        assert isinstance(split, Mapping)
        waits = "paused (watermark alignment)" if split["waits"] else ""
        table.add_row(str(split["source"]), str(split["split"]), _count(split["position"]), _count(split["lag"]), waits)
    return table


def _lag(split: Json) -> float:
    assert isinstance(split, Mapping)
    lag = split["lag"]
    return lag if isinstance(lag, int | float) else -1.0


def _table(columns: Sequence[str]) -> Table:
    table = Table(show_edge=False, pad_edge=False, box=None)
    for column, justify in zip(columns, _justified(columns), strict=True):
        table.add_column(column, justify=justify)
    return table


def _justified(columns: Sequence[str]) -> Iterator[Any]:
    """Yield the alignment of each column: names left, numbers right."""
    return ("left" if name in ("operator", "source", "partition", "") else "right" for name in columns)


def _rate(rate: float | None) -> str:
    return _UNKNOWN if rate is None else f"{rate:,.0f}"


def _share(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{min(1.0, share):.0%}"


def _count(number: object) -> str:
    return f"{number:,}" if isinstance(number, int | float) else _UNKNOWN


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"
