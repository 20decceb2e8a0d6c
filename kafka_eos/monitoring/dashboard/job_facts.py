"""The facts that the dashboard shows of a job, derived from the files of its directory.

Pure. Rule: a fact that is not known is None or empty, never a guess; times are milliseconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka_eos.coordination.job_status import JobStatus, job_status
from kafka_eos.core.json_values import Json
from kafka_eos.monitoring.dashboard.epoch_history import epochs, list_incidents
from kafka_eos.monitoring.dashboard.job_directories import JobFiles
from kafka_eos.storage.savepoint_files import ListedSavepoint


def build_summary(found: JobFiles) -> dict[str, Json]:
    """Build the entry of a job in the list of jobs."""
    status = _build_status(found)
    when = found.status.get("when", {})
    return {
        "job": status.job,
        "state": status.state,
        "fault": status.is_fault or status.silence is not None,
        "reason": status.reason or status.silence,
        "pid": status.pid,
        "epoch": status.epoch,
        "committed_at": when.get("committed"),
        "since": when.get("running"),
        "told_at": found.status.get("at"),
        "lag": status.lag,
        "records_in": status.records_in,
        "records_out": status.records_out,
        "workers": status.workers,
        "restarts": status.restarts,
        "dead_letters": status.dead_letters,
        "set_aside": status.set_aside,
    }


def build_details(found: JobFiles) -> dict[str, Json]:
    """Build everything that the page of one job shows."""
    last: Mapping[str, Any] = found.status["last"]
    progress: Mapping[str, Any] = last.get("progress", {})
    events = found.history or []
    return {
        **build_summary(found),
        "operators": operators(last, progress),
        "splits": splits(progress),
        "watermarks": _watermarks(last),
        "dead": _dead(last),
        "refused": _refused(last),
        "epochs": [*epochs(events)],
        "happenings": [*list_incidents(events, found.is_running)],
        "savepoints": [_savepoint(each) for each in found.savepoints],
        "has_diary": found.history is not None,
        "errors": _errors(found.status),
        "settings": last.get("plan", {}).get("settings", []),
    }


def _savepoint(listed: ListedSavepoint) -> dict[str, Json]:
    """Return the figures of a savepoint; a damaged one has an error instead."""
    held = listed.savepoint
    return {
        "name": listed.path.name,
        "path": str(listed.path),
        "epoch": None if held is None else held.epoch,
        "made_at": None if held is None else held.created_at,
        "bytes": None if held is None else sum(file.size for file in held.files),
        "problem": listed.problem,
    }


def _build_status(found: JobFiles) -> JobStatus:
    return job_status(found.job, found.status, found.is_running, found.now)


def operators(last: Mapping[str, Any], progress: Mapping[str, Any]) -> list[Json]:
    """Return the plan, in the order of its rows, each operator with its known facts."""
    plan: list[Mapping[str, Any]] = last.get("plan", {}).get("operators", [])
    decided: Mapping[str, Any] = last.get("decided", {})
    state, timers = decided.get("state_bytes_by_operator", {}), decided.get("pending_timers", {})
    late: Mapping[str, int] = last.get("late-rows", {}).get("total", {})
    at_work = _segments(plan, progress.get("segments", {}))
    return [
        {
            **operator,
            "segment": at_work.get(operator["name"]),
            "read": progress.get("read", {}).get(operator["name"], {}).get("records"),
            "written": progress.get("written", {}).get(operator["name"]),
            "state_bytes": state.get(operator["name"]),
            "timers": timers.get(operator["name"]),
            "late": late.get(operator["name"]),
        }
        for operator in plan
    ]


def _segments(plan: list[Mapping[str, Any]], known: Mapping[str, Any]) -> dict[str, str]:
    """Return the chain of each operator, named after the source or exchange where its rows arrive."""
    found: dict[str, str] = {}
    for operator in plan:  # inputs stand before who reads them, loops aside
        name = operator["name"]
        above = [found[each] for each in operator["inputs"] if each in found]
        if name in known:
            found[name] = name
        elif above:
            found[name] = above[0]
    return found


def splits(progress: Mapping[str, Any]) -> list[Json]:
    waiting = {
        (source, split)
        for group in progress.get("waiting", {}).values()
        for source, splits in group["waiting"].items()
        for split in splits
    }
    return [
        {
            "source": source,
            "split": split,
            "position": at["position"].get("offset"),
            "lag": at["lag"],
            "waits": (source, split) in waiting,
        }
        for source, source_progress in progress.get("read", {}).items()
        for split, at in sorted(source_progress["splits"].items())
    ]


def _watermarks(last: Mapping[str, Any]) -> list[Json]:
    watermarks: Mapping[str, Mapping[str, int]] = last.get("decided", {}).get("watermarks", {})
    return [
        {"operator": operator, "split": split, "at": at}
        for operator, splits in watermarks.items()
        for split, at in sorted(splits.items())
    ]


def _dead(last: Mapping[str, Any]) -> list[Json]:
    total: Mapping[str, Mapping[str, int]] = last.get("dead-letters", {}).get("total", {})
    return [
        {"source": source, "operator": operator, "count": count}
        for source, by in total.items()
        for operator, count in by.items()
    ]


def _refused(last: Mapping[str, Any]) -> list[Json]:
    """Return the first few records that were rejected in this run: the record, the operator and the reason."""
    first: Mapping[str, list[dict[str, Json]]] = last.get("dead-letters", {}).get("first", {})
    return [{"source": source, **refusal} for source, refusals in first.items() for refusal in refusals]


_TEXTS: Mapping[str, tuple[str, ...]] = {
    "failed": ("error", "reason"),
    "restarting": ("what", "reason"),
    "hung": ("place", "stacks"),
    "unresponsive": ("stacks",),
    "notice": ("text",),
    "observer-failed": ("text",),
}
"""Events about an error, and their facts that describe it."""


def _errors(status: Mapping[str, Any]) -> list[Json]:
    """Return the newest complete text of each kind of error, newest first."""
    when: Mapping[str, int] = status.get("when", {})
    latest_events = {event: facts for event, facts in status["last"].items() if event in _TEXTS}
    return [
        {
            "event": event,
            "at": when.get(event),
            "text": ": ".join(str(facts[name]) for name in _TEXTS[event] if facts.get(name)),
        }
        for event, facts in sorted(latest_events.items(), key=lambda each: when.get(each[0], 0), reverse=True)
    ]
