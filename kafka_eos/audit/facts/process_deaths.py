"""Processes of a job that were killed, as far as its history shows.

Pure. Rule: only what the survivors recorded counts. A supervisor records the death of its worker. The death of a
supervisor follows from the next one, which starts although no stop was recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]


def deaths(events: Sequence[Event]) -> list[Event]:
    """Return the events that show a SIGKILL of a worker or a supervisor, oldest first."""
    found: list[Event] = []
    alive = False
    for event in events:
        name = str(event.get("event", ""))
        if "kill" in name or (name == "restarting" and "killed by signal" in str(event.get("reason", ""))):
            found.append(event)
        elif name == "started":
            if alive:
                found.append(event)
            alive = True
        elif name in ("stopped", "failed"):
            alive = False
    return found
