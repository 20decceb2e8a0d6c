"""What the handles of several subtasks make together for the share of one: which it needs, and marks of all.

Pure. Rule: what is handed over covers each key group of the share once; which rows of it belong to the share, their
groups say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from kafka_eos.abc.state import StateHandle
from kafka_eos.core.errors import Bug
from kafka_eos.core.json_values import Json
from kafka_eos.runtime.state import rocksdb_store as rocksdb
from kafka_eos.runtime.state.local_keys import is_local, of_same_subtask
from kafka_eos.runtime.state.schema_evolution import CURSOR, WATERMARKS, split
from kafka_eos.runtime.state.timers import Floor

Marks: TypeAlias = dict[str, int]


def bounds(groups: range) -> tuple[int, int]:
    """As a handle says it: the first and the last."""
    return groups.start, groups.stop - 1


def taken(
    operator: str,
    key_groups: range,
    handles: Sequence[StateHandle],
    *,
    local: bool,
    of_all: bool,
) -> list[StateHandle]:
    """Those of all subtasks that may hold something of a share; ``of_all``: it is part of all of them.

    ConfigError if local state is not to be divided.
    """
    _check_cover(operator, key_groups, handles)
    if of_all:
        return list(handles)
    if local:
        return of_same_subtask(operator, key_groups, handles)
    if any(map(is_local, handles)):
        return list(handles)
    return [h for h in handles if h.key_groups[0] < key_groups.stop and h.key_groups[1] >= key_groups.start]


def _check_cover(operator: str, groups: range, handles: Sequence[StateHandle]) -> None:
    covered = [group for h in handles for group in range(h.key_groups[0], h.key_groups[1] + 1) if group in groups]
    foreign = {h.operator for h in handles} - {operator}
    if foreign or (handles and sorted(covered) != list(groups)):
        raise Bug(f"operator {operator!r} needs each of key groups {groups} once, and was handed {list(handles)}")


def as_it_is(kind: str, key_groups: range, handles: Sequence[StateHandle]) -> StateHandle | None:
    """The only handle of a share if it can be opened in place; None if rows must be taken out of handles."""
    if len(handles) != 1:
        return None
    (handle,) = handles
    is_database = kind == rocksdb.KIND == handle.backend
    return handle if is_database and handle.key_groups == bounds(key_groups) else None


def described(operator: str, handles: Sequence[StateHandle]) -> dict[str, tuple[dict[str, Json], Marks]]:
    """What is stored of each state, and its marks: the highest of all subtasks."""
    found: dict[str, tuple[dict[str, Json], Marks]] = {}
    for each in (each for handle in handles for each in handle.states):
        state, marks = split(each)
        name = str(state["name"])
        known, highest = found.setdefault(name, (state, {}))
        if known != state:
            raise Bug(f"operator {operator!r}: subtasks of one epoch wrote state {name!r} with different codecs")
        highest.update({mark: max(value, highest.get(mark, value)) for mark, value in marks.items()})
    return found


def floors(handles: Sequence[StateHandle], key_groups: range, *, local: bool) -> dict[str, list[Floor]]:
    """The event times that the share's key groups have come to, by the name of the timers.

    Where keys are of any group, the least of all of them is what can be said.
    """
    found: dict[str, list[Floor]] = {}
    mixed = local or any(map(is_local, handles))
    for state in (state for handle in handles for state in handle.states if WATERMARKS in state):
        told: Any = state[WATERMARKS]
        found.setdefault(str(state["name"]), []).extend((first, last, time) for first, last, time in told)
    first, last = bounds(key_groups)
    if mixed:
        return {name: [(first, last, min(time for *_, time in all_))] for name, all_ in found.items()}
    return {
        name: [(max(f, first), min(end, last), time) for f, end, time in all_ if f <= last and end >= first]
        for name, all_ in found.items()
    }


def cursors(handles: Sequence[StateHandle]) -> dict[str, bytes]:
    """Where the clean-up of each state had come to; of several subtasks together it begins anew."""
    states = handles[0].states if len(handles) == 1 else ()
    return {str(state["name"]): bytes.fromhex(str(state[CURSOR])) for state in states if CURSOR in state}
