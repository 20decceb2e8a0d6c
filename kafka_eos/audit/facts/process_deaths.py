"""Which processes of a job died without a word, as far as its history tells.

Pure. Rule: only what the survivors saw counts. A worker's death is told by its supervisor; a supervisor's by the
next one, which starts although nobody stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Event = Mapping[str, Any]


def deaths(events: Sequence[Event]) -> list[Event]:
    """The events, oldest first, by which a SIGKILL of a worker or of a supervisor became known."""
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
