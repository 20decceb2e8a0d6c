"""Timers and windows that were due and had not fired when the newest checkpoint was taken.

A job processes due work in slices, and a snapshot may be taken in between. Outputs of such a timer are legitimately
missing, and follow when the job resumes; so are those of a window that closes without a timer. Rule: the rows of the
checkpoint determine this for each key, so another missing firing of the same time is still found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.audit.facts.checkpoint_state import Checkpoint, states
from kafka_eos.audit.tables.python_tasks import columns_of
from kafka_eos.plan.window_assigners import PanedAssigner, SessionWindows
from kafka_eos.runtime.operators.timer_firing import EVENT_STATE
from kafka_eos.runtime.state.key_groups import GROUP_BYTES
from kafka_eos.runtime.state.row_keys import create_key_locator
from kafka_eos.runtime.state.schema_evolution import WATERMARKS
from kafka_eos.runtime.state.timers import TimeCodec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS = "grp binary, unfired long"
_SCHEMA = pa.schema([("grp", pa.binary()), ("unfired", pa.int64())])
_AT_ONCE = 50_000


def without_unfired(
    arrivals: DataFrame, checkpoint: Checkpoint, handles: Sequence[int], assigner: PanedAssigner | SessionWindows | None
) -> DataFrame:
    """Return ``told`` with the ``floor`` of a key limited to the time before its pending timer.

    ``handles``: the numbers of the operator's handles that may contain timers. ``assigner``: that of its windows, if
    any.
    """
    numbers = arrivals.sparkSession.createDataFrame([(number,) for number in handles], "handle int")
    left = numbers.mapInArrow(partial(_left, checkpoint, assigner), _ROWS)
    same = [arrivals["grp"] == left["grp"], arrivals["floor"] == left["unfired"]]
    floor = F.when(F.col("unfired").isNull(), F.col("floor")).otherwise(F.col("floor") - 1)
    return arrivals.join(left, same, "left").drop(left["grp"]).withColumn("floor", floor).drop("unfired")


def _left(
    checkpoint: Checkpoint, assigner: PanedAssigner | SessionWindows | None, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the pending timers of handles. Input: numbers of handles."""
    storage, manifest = checkpoint.open()
    for batch in batches:
        for (number,) in zip(*columns_of(batch), strict=True):
            yield from _unfired(manifest.states[number], storage, assigner)


def _unfired(
    handle: StateHandle, storage: CheckpointStorage, assigner: PanedAssigner | SessionWindows | None
) -> Iterator[pa.RecordBatch]:
    time_of, keys, times = TimeCodec().decode, list[bytes](), list[int]()
    ranges: Any = next((state.get(WATERMARKS, ()) for state in handle.states if state["name"] == EVENT_STATE), ())
    come = {group: time for first, last, time in ranges for group in range(first, last + 1)}
    has_panes = any(described.get("kind") == "pane" for described in handle.states)
    paned = assigner if has_panes and not isinstance(assigner, SessionWindows) else None
    for described, rows in states(handle, storage):
        # Windows of one pane have no timers: the panes tell.
        if described["name"] != EVENT_STATE if paned is None else described.get("kind") != "pane":
            continue
        span = create_key_locator(described)
        for row, _ in rows:
            start, end = span(row)
            group, time = int.from_bytes(row[:GROUP_BYTES], "big"), time_of(row[GROUP_BYTES:start])
            time = time if paned is None else paned.ends(time)[-1] - 1
            if time <= come.get(group, time - 1):
                keys.append(row[start:end])
                times.append(time)
            if len(keys) == _AT_ONCE:
                yield pa.record_batch([keys, times], schema=_SCHEMA)
                keys, times = [], []
    yield pa.record_batch([keys, times], schema=_SCHEMA)
