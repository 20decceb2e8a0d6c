"""State behind ``key_by(local=True)``: a subtask has keys of any key group.

The subtask of a key follows from the partition of its records, which rows do not store. So such state has an attribute,
and is restored to the subtask that wrote it; or all of it to the only subtask; or, once the job no longer says
``local=True``, each key to the owner of its group.

Rule: state that cannot be divided is refused. Two values of one key are never merged by chance.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafka_eos.abc.state import StateHandle
from kafka_eos.core.error_messages import show_value
from kafka_eos.core.errors import ConfigError
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.runtime.state.row_store import Row, StateRows
from kafka_eos.runtime.state.schema_evolution import split_description

LOCAL = "local"
"""Attribute of a state with rows of any key group; the handle's range only names the subtask."""


def is_local(handle: StateHandle) -> bool:
    """Return whether the handle holds rows of any key group."""
    return any(LOCAL in split_description(described)[1] for described in handle.states)


def select_local_handles(operator: str, key_groups: range, handles: Sequence[StateHandle]) -> list[StateHandle]:
    """Select the handles a subtask restores for local state. Raises ConfigError if the state cannot be divided."""
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
        f"state of operator {operator!r} follows key_by(local=True) and was stored {before}: "
        "which worker needs which key depends on the partitions of the input, which are not "
        f"part of the state. Set parallelism={count} (the default is the number of cores), or "
        "omit local=True"
    )


def check_new(rows: StateRows, imported: Sequence[Row], operator: str, state: str) -> None:
    """Raise ConfigError if a row of ``imported`` exists already: its key was in two subtasks."""
    keys = [key for key, _ in imported]
    for key, found in zip(keys, rows.get(keys), strict=True):
        if found is not None:
            raise ConfigError(
                f"state {state!r} of operator {operator!r} has one key in two workers (stored as {show_value(key)}): "
                "with key_by(local=True) its records were not in partitions of one worker. kafka_eos cannot merge "
                "the two values (docs/aggregation.md)"
            )
