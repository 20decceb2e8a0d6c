"""Selection of the state handles that a subtask restores after rescaling, and their merged attributes.

Pure. Rule: the selected handles cover each key group of the subtask once; the group of each row decides whether it
belongs to the subtask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from kafka_eos.abc.state import StateHandle
from kafka_eos.core.errors import Bug
from kafka_eos.core.json_values import Json
from kafka_eos.runtime.state import rocksdb_store as rocksdb
from kafka_eos.runtime.state.local_keys import is_local, select_local_handles
from kafka_eos.runtime.state.schema_evolution import CURSOR, WATERMARKS, split_description
from kafka_eos.runtime.state.timers import GroupWatermark

Attributes: TypeAlias = dict[str, int]


def bounds(groups: range) -> tuple[int, int]:
    """Return the first and the last group, as a handle stores them."""
    return groups.start, groups.stop - 1


def select_handles(
    operator: str,
    key_groups: range,
    handles: Sequence[StateHandle],
    *,
    local: bool,
    of_all: bool,
) -> list[StateHandle]:
    """Select the handles that may hold rows of a subtask's key groups.

    Raises ConfigError if local state cannot be divided.
    """
    _check_cover(operator, key_groups, handles)
    if of_all:
        return list(handles)
    if local:
        return select_local_handles(operator, key_groups, handles)
    if any(map(is_local, handles)):
        return list(handles)
    return [h for h in handles if h.key_groups[0] < key_groups.stop and h.key_groups[1] >= key_groups.start]


def _check_cover(operator: str, groups: range, handles: Sequence[StateHandle]) -> None:
    covered = [group for h in handles for group in range(h.key_groups[0], h.key_groups[1] + 1) if group in groups]
    foreign = {h.operator for h in handles} - {operator}
    if foreign or (handles and sorted(covered) != list(groups)):
        raise Bug(f"operator {operator!r} needs each of key groups {groups} once, and was handed {list(handles)}")


def find_reusable_handle(kind: str, key_groups: range, handles: Sequence[StateHandle]) -> StateHandle | None:
    """Return the only handle if it can be opened in place, else None."""
    if len(handles) != 1:
        return None
    (handle,) = handles
    is_database = kind == rocksdb.KIND == handle.backend
    return handle if is_database and handle.key_groups == bounds(key_groups) else None


def merge_descriptions(operator: str, handles: Sequence[StateHandle]) -> dict[str, tuple[dict[str, Json], Attributes]]:
    """Merge the state descriptions and attributes of all subtasks."""
    found: dict[str, tuple[dict[str, Json], Attributes]] = {}
    for each in (each for handle in handles for each in handle.states):
        state, attributes = split_description(each)
        name = str(state["name"])
        known, highest = found.setdefault(name, (state, {}))
        if known != state:
            raise Bug(f"operator {operator!r}: subtasks of one epoch wrote state {name!r} with different codecs")
        highest.update({name: max(value, highest.get(name, value)) for name, value in attributes.items()})
    return found


def merge_watermarks(
    handles: Sequence[StateHandle], key_groups: range, *, local: bool
) -> dict[str, list[GroupWatermark]]:
    """Merge the event times that a subtask's key groups have reached.

    If keys may be of any group, it is the lowest of all of them.
    """
    found: dict[str, list[GroupWatermark]] = {}
    mixed = local or any(map(is_local, handles))
    for state in (state for handle in handles for state in handle.states if WATERMARKS in state):
        watermarks: Any = state[WATERMARKS]
        found.setdefault(str(state["name"]), []).extend((first, last, time) for first, last, time in watermarks)
    first, last = bounds(key_groups)
    if mixed:
        return {name: [(first, last, min(time for *_, time in all_))] for name, all_ in found.items()}
    return {
        name: [(max(f, first), min(end, last), time) for f, end, time in all_ if f <= last and end >= first]
        for name, all_ in found.items()
    }


def cursors(handles: Sequence[StateHandle]) -> dict[str, bytes]:
    """Return the clean-up position of each state; several subtasks together start over."""
    states = handles[0].states if len(handles) == 1 else ()
    return {str(state["name"]): bytes.fromhex(str(state[CURSOR])) for state in states if CURSOR in state}
