"""The history of a job for the dashboard: its epochs with the time of each phase, and its other events.

Pure. Rule: a supervisor that was killed left no final event. The next ``started`` event reveals it, if no event of an
end precedes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafka_eos.core.json_values import Json

_EPOCHS = 80
_HAPPENINGS = 60
"""Number of the newest incidents shown."""

Event = Mapping[str, Any]


def epochs(events: Iterable[Event]) -> list[dict[str, Json]]:
    """Return the newest epochs, oldest first, with the milliseconds of each phase."""
    found: dict[int, dict[str, Json]] = {}
    for event in events:
        match event["event"]:
            case "decided":
                found[event["epoch"]] = _decided(event)
            case "committed" if (epoch := found.get(event["epoch"])) is not None:
                epoch["committed_at"] = event["at"]
                epoch["term"] = event.get("term")
                epoch["commit"] = max(0, event["at"] - epoch["decided_at"])
            case "aborted":
                found[event["epoch"]] = {"epoch": event["epoch"], "decided_at": event["at"], "aborted": True}
    return list(found.values())[-_EPOCHS:]


def _decided(event: Event) -> dict[str, Json]:
    """Return the phases of an epoch: alignment, snapshot of memory, then the asynchronous upload."""
    total = event["seconds"] * 1000
    align = min(event.get("aligning_ms", 0.0), total)
    snapshot = min(event.get("blocked_ms", 0.0), total - align)
    return {
        "epoch": event["epoch"],
        "decided_at": event["at"],
        "align": align,
        "snapshot": snapshot,
        "store": total - align - snapshot,
        "commit": None,
        "records": sum(event.get("records_by_sink", {}).values()),
        "state_bytes": event.get("state_bytes"),
    }


def list_incidents(events: Iterable[Event], held: bool) -> list[dict[str, Json]]:
    """List starts, ends, failures and recoveries, newest first. ``held``: whether a supervisor runs the job now."""
    found: list[dict[str, Json]] = []
    open_since: int | None = None
    """Start time of a supervisor that has recorded no end."""
    for event in events:
        if event["event"] == "started" and open_since is not None:
            found.append(_killed(event["at"]))
        match event["event"]:
            case "started":
                open_since = event["at"]
            case "stopped" | "failed":
                open_since = None
        if (description := _describe_event(event)) is not None:
            found.append({"event": event["event"], "at": event["at"], **description})
            _note_recovery_time(found)
    if open_since is not None and not held:
        found.append(_killed(None))
    return list(reversed(found))[:_HAPPENINGS]


def _killed(at: int | None) -> dict[str, Json]:
    return {
        "event": "killed",
        "at": at,
        "title": "the supervisor was killed",
        "text": "it left no final event; the next start commits what was decided",
        "fault": True,
    }


def _note_recovery_time(found: list[dict[str, Json]]) -> None:
    """Note on the failure how long it took until rows were processed again."""
    if found[-1]["event"] != "running":
        return
    for before in reversed(found[:-1]):
        if before["event"] == "running":
            return
        if before["event"] in ("restarting", "started"):
            before["back"] = max(0, found[-1]["at"] - before["at"])  # type: ignore[operator]


def _describe_event(event: Event) -> dict[str, Json] | None:
    """Return the title and text of an event for display, or None for an event of every epoch."""
    match event["event"]:
        case "started":
            title, text, fault = "the job was started", "", False
        case "running":
            workers = event.get("parallelism")
            title = f"running from epoch {event['base']}"
            text, fault = f"term {event['term']}, parallelism {workers}", False
        case "restarting":
            title, text, fault = f"{event['what']}; restarting from the last checkpoint", event["reason"], True
        case "failed":
            title, text, fault = f"the job failed: {event['error']}", event["reason"], True
        case "stopped":
            title, text, fault = "the job was drained and stopped", "", False
        case "aborted":
            title, text, fault = f"epoch {event['epoch']} was aborted", "its output is part of the next epoch", True
        case "unresponsive":
            title = f"worker {event['worker']} sent no heartbeat for {event['seconds']:.0f} s"
            text, fault = str(event.get("stacks", "")), True
        case "hung":
            title = f"worker {event['worker']} is alive but made no progress for {event['seconds']:.0f} s"
            text, fault = f"at {event['place']}\n{event['stacks']}", True
        case "savepoint":
            title, text, fault = f"a savepoint of epoch {event['epoch']} was created", event["path"], False
        case "revoked":
            title, text, fault = f"epoch {event['epoch']} was revoked", event["reason"], True
        case "dropped":
            title, text, fault = f"{event['what']} dropped", ", ".join(map(str, event["names"])), False
        case _:
            return None
    return {"title": title, "text": text, "fault": fault}
