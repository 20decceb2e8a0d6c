"""Broadcast state, as all subtasks hold it: whether their copies are the same at a barrier.

Pure. Rule: an epoch in which they are not is not decided. Each entry is stored by one subtask, so whoever restored it
would go on with another state than some of them had.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafka_eos.abc.state import StateHandle
from kafka_eos.core.errors import PlanError
from kafka_eos.runtime.state.schema_evolution import split

COPY = "copy"
"""Mark of a state that every subtask holds whole: a number made of all of its rows."""


def differing(states: Iterable[StateHandle]) -> list[tuple[str, str]]:
    """Operator and name of the states of which two subtasks have copies that are not the same."""
    found: dict[tuple[str, str], set[int]] = {}
    for handle in states:
        for stored in handle.states:
            described, marks = split(stored)
            if COPY in marks:
                found.setdefault((handle.operator, str(described["name"])), set()).add(marks[COPY])
    return sorted(name for name, copies in found.items() if len(copies) > 1)


def expect_same(states: Iterable[StateHandle]) -> None:
    """PlanError that names the states of which copies differ."""
    if different := differing(states):
        names = ", ".join(f"{state!r} of operator {operator!r}" for operator, state in different)
        raise PlanError(
            f"broadcast state {names} is not the same in all workers, so the epoch is not committed: process_broadcast "
            "made something else of the same records. It must depend on its record and on broadcast state alone (no "
            "clock, random number or set order), and on no order between partitions: let the records of a key of the "
            "state be in one partition of one source"
        )
