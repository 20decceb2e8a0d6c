"""Check that all subtasks have equal copies of broadcast state at a barrier.

Pure. Rule: an epoch with different copies is not decided. One subtask stores each entry, so a restore would give all
subtasks a state that some of them did not have.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafka_eos.abc.state import StateHandle
from kafka_eos.core.errors import PlanError
from kafka_eos.runtime.state.schema_evolution import split_description

COPY = "copy"
"""Attribute of a state that every subtask holds completely: a digest of all of its rows."""


def find_differing_copies(states: Iterable[StateHandle]) -> list[tuple[str, str]]:
    """List the states whose copies differ between subtasks."""
    found: dict[tuple[str, str], set[int]] = {}
    for handle in states:
        for stored in handle.states:
            described, attributes = split_description(stored)
            if COPY in attributes:
                found.setdefault((handle.operator, str(described["name"])), set()).add(attributes[COPY])
    return sorted(name for name, copies in found.items() if len(copies) > 1)


def expect_same(states: Iterable[StateHandle]) -> None:
    """Raise PlanError that names the states whose copies differ."""
    if different := find_differing_copies(states):
        names = ", ".join(f"{state!r} of operator {operator!r}" for operator, state in different)
        raise PlanError(
            f"broadcast state {names} differs between workers, so the epoch is not committed: "
            "process_broadcast gave different results for the same records. Its result may "
            "depend only on its record and on broadcast state (no clock, random number or set "
            "order), and not on the order between partitions: all records of a key of the state "
            "must be in one partition of one source"
        )
