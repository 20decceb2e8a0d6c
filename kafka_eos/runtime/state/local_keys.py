"""State behind ``key_by(local=True)``: whatever keys reached a subtask, of any key group.

Which subtask a key belongs to follows from the partition of its records, which no row tells. So such state is marked
where it is stored, and goes back to the subtask that it came from; or all of it to the only one; or, once the job no
longer says ``local=True``, each key to the owner of its group.

Rule: what nobody can divide is refused. Two values of one key are never made one by chance.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafka_eos.abc.state import StateHandle
from kafka_eos.core.errors import ConfigError
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.runtime.state.row_store import Row, Rows
from kafka_eos.runtime.state.schema_evolution import split

LOCAL = "local"
"""Mark of a state whose rows are of any key group; the handle's range only names the subtask."""


def is_local(handle: StateHandle) -> bool:
    """Does the handle hold rows of any key group?"""
    return any(LOCAL in split(described)[1] for described in handle.states)


def of_same_subtask(operator: str, key_groups: range, handles: Sequence[StateHandle]) -> list[StateHandle]:
    """What the subtask of ``key_groups`` continues: its own handle, or all if it is the only one. Else ConfigError."""
    if key_groups == range(MAX_KEY_GROUPS) or not handles:
        return list(handles)
    own = [h for h in handles if is_local(h) and h.key_groups == (key_groups.start, key_groups.stop - 1)]
    if len(own) == 1:
        return own
    count, before = 1, "without local=True"
    if all(map(is_local, handles)):
        count = len(handles)
        before = f"by {count} worker{'s' if count > 1 else ''}"
    raise ConfigError(
        f"state of operator {operator!r} is behind key_by(local=True) and was stored {before}: which worker needs "
        "which key now follows from the partitions of the input, of which the state knows nothing. Set "
        f"parallelism={count} (by default it is the number of cores), or leave local=True out: then keys go to their "
        "owners"
    )


def check_new(rows: Rows, imported: Sequence[Row], operator: str, state: str) -> None:
    """ConfigError if a row of ``imported`` is there already: its key was in two subtasks."""
    keys = [key for key, _ in imported]
    for key, found in zip(keys, rows.get(keys), strict=True):
        if found is not None:
            raise ConfigError(
                f"state {state!r} of operator {operator!r} has one key in two workers (stored as {key!r}): with "
                "key_by(local=True) its records were not in partitions of one worker. Only you know how to make one "
                "value of them (docs/aggregation.md)"
            )
