"""``run_local``: the output of a pipeline for given inputs, in this process, without a broker or a disk.

The same operators run as in an engine, in the same order of batches, and so do the codecs of sources, sinks and state.
Rule: values reach operators, and rows reach results, only as in the job: encoded and decoded by the source, encoded by
the sink, with the timestamp of the record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

from kafka_eos._util.temporary_directories import temporary_directory
from kafka_eos.abc.auditable import AuditableSource
from kafka_eos.core.durations import Seconds, to_seconds
from kafka_eos.core.errors import PlanError
from kafka_eos.core.ids import Epoch
from kafka_eos.core.records import Batch, RawRecord
from kafka_eos.plan import Plan, SourceNode, TableNode, TimestampsNode
from kafka_eos.protocol.watermarks import STEP
from kafka_eos.runtime.operators.event_time import WITH_EACH_BATCH, WatermarkSchedule
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.program import Program
from kafka_eos.runtime.state.ttl_clock import wall_clock
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing.in_place_changes import detect_in_place_changes
from kafka_eos.testing.list_source import ListOrigin
from kafka_eos.testing.local_parts import LocalClock, LocalRun, SinkOutput, open_states

_EPOCH = Epoch(1)
"""The only one that a run has."""
_Reject: TypeAlias = Callable[[RawRecord, Exception], None]


@dataclass(frozen=True, slots=True)
class TimestampedValue:
    """An input value with the timestamp of its record."""

    value: Any
    timestamp: int


@dataclass(frozen=True, slots=True)
class AdvanceClock:
    """An input item that moves the processing-time clock forward."""

    seconds: Seconds


def run_local(
    pipeline: Plan | Program, inputs: Mapping[str, Sequence[Any]], *, batch_size: int = 1, now: int | None = None
) -> LocalRun:
    """Run all ``inputs`` and return the values each sink got, by name, in order.

    ``inputs`` has the records of each source, by its name, one by one as
        a value               what the operators get; the codec of the source encodes and decodes it
        ``TimestampedValue``  the same, with a timestamp
        ``RawRecord``         a record as it arrives: bytes, which the codec may reject; for sources with a codec only
        ``AdvanceClock``      no record: the clock advances, timers fire, state expires, partitions become idle

    Event time advances after each record, so that a row which is older than the watermark is late here too, whatever
    the size of the job's batches is. ``batch_size`` makes it advance after so many records, and gives the functions of
    ``map_batches`` as many. ``LocalRun.late`` counts late rows.

    Tables are read first, then sources, one after the other in the order of the pipeline. A source that is not named
    has no input. All input is one epoch, which matters for a fold with ``merge=`` only. The clock of timers and of
    state starts at ``now``, in milliseconds since the Unix epoch (default: the time of the call), and advances by each
    ``AdvanceClock``. Dead letters appear under their sink's name.

    Raises PoisonRecord as an engine would. Raises PlanError if ``inputs`` names a source that the pipeline does not
    have, holds a value that the source's codec cannot encode, or if a function changes a value that it is given. Raises
    ConfigError if the state at the end could not be stored.
    """
    plan = pipeline if isinstance(pipeline, Plan) else pipeline.plan()
    return run_plan(detect_in_place_changes(plan), inputs, batch_size=batch_size, now=now)


def run_plan(
    plan: Plan,
    inputs: Mapping[str, Sequence[Any]],
    *,
    batch_size: int = 1,
    now: int | None = None,
    make_chain: Callable[..., OperatorChain] = OperatorChain,
) -> LocalRun:
    """Run a plan as ``run_local`` does, with the functions that it has. ``make_chain`` creates the operator chain."""
    names = [source.name for source in plan.sources]
    if unknown := sorted(set(inputs) - set(names)):
        raise PlanError(f"pipeline {plan.name!r} has no source {unknown}; its sources are {names}")
    results = LocalRun([sink.name for sink in plan.sinks])
    with ExitStack() as closing:
        directory = closing.enter_context(temporary_directory())
        outputs = {sink.name: SinkOutput(sink, results) for sink in plan.sinks}
        clock = LocalClock(wall_clock() if now is None else now)
        pace = WatermarkSchedule(WITH_EACH_BATCH.every, clock.seconds)
        assigned: dict[str, list[str]] = {}
        unread = set(plan.deferred_sources)

        def waived(source: str) -> Collection[str]:
            """Return the splits that are excluded from the watermark: their source waits, or one waits for it."""
            first = {after.after for after in plan.sources if after.name not in unread}
            return assigned.get(source, ()) if source in unread | first else ()

        backends = open_states(plan, directory, closing, clock.read, (), MemoryStorage())
        chain = make_chain(plan, backends, outputs, pace=pace, clock=clock.read, waived=waived)
        closing.callback(chain.close)
        for output in outputs.values():
            output.refuse = chain.rejections.reject_output
        read = {
            source.name: _batches(source, inputs.get(source.name, ()), batch_size, chain)
            for source in sorted(plan.sources, key=lambda source: not isinstance(source, TableNode))
        }
        for name, batches in read.items():
            origins = [batch.origin for batch in batches if isinstance(batch, Batch)]
            splits = {(origin.topic, partition) for origin in origins for partition in origin.partitions}
            assigned[name] = [f"{topic}/{partition}" for topic, partition in splits]
            chain.assign(name, assigned[name])
        timed = {
            node.source for node in plan.nodes if isinstance(node, TimestampsNode) and node.strategy.detects_idleness
        }
        silent = [name for name in names if name in timed]
        for name, batches in read.items():
            unread.discard(name)
            for batch in batches:
                if isinstance(batch, AdvanceClock):
                    _wait(to_seconds(batch.seconds), clock, chain, silent)
                else:
                    chain.push(name, batch)
                    chain.make_room()
            chain.note_empty_read(name)
        chain.finish()
        for backend in backends.values():
            backend.snapshot(_EPOCH)
        results.late = chain.counts.late
    return results


def _wait(seconds: float, clock: LocalClock, chain: OperatorChain, silent: Sequence[str]) -> None:
    """Advance the clock while no source has records.

    ``silent``: sources with idleness detection, checked at each step.
    """
    left = round(seconds * 1000)
    step = round(STEP * 1000) if silent else left
    while True:
        clock.now += min(step, left)
        left -= min(step, left)
        for source in silent:
            chain.note_empty_read(source)
        chain.tick()
        if not left:
            return


def _batches(
    source: SourceNode, given: Sequence[Any], size: int, chain: OperatorChain
) -> list[Batch[Any] | AdvanceClock]:
    """Return the batches that the source's reader would return, with the clock advances between them."""
    reject = partial(chain.rejections.reject_record, source.name)
    found: list[Batch[Any] | AdvanceClock] = []
    offset = 0
    for waits, group in groupby(given, key=lambda item: isinstance(item, AdvanceClock)):
        items = list(group)
        if waits:
            found += items
            continue
        found += [_read(source, items[at : at + size], offset + at, reject) for at in range(0, len(items), size)]
        offset += len(items)
    return found


def _read(source: SourceNode, given: Sequence[Any], start: int, reject: _Reject) -> Batch[Any]:
    """Return the batch that the source's reader would make of these inputs, the first of which has offset ``start``."""
    items = [item if isinstance(item, TimestampedValue | RawRecord) else TimestampedValue(item, -1) for item in given]
    if not isinstance(source.source, AuditableSource):
        if any(isinstance(item, RawRecord) for item in items):
            raise PlanError(f"source {source.name!r} has no codec: pass values or TimestampedValue, not RawRecord")
        values = [item.value for item in items]
        times = [item.timestamp for item in items if isinstance(item, TimestampedValue)]
        return Batch(values, range(len(values)), ListOrigin(source.name, source.name, 0, start, values, times))
    raws = [_raw(source, source.source, item, start + index) for index, item in enumerate(items)]
    return source.source.decode(source.name, raws, reject)


def _raw(node: SourceNode, source: AuditableSource, item: TimestampedValue | RawRecord, offset: int) -> RawRecord:
    if isinstance(item, RawRecord):
        return item
    try:
        return source.raw(item.value, offset, item.timestamp)
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"input {offset} of source {node.name!r} cannot be encoded by its codec: {error}. Give a value of the "
            "source's type, or the bytes as a RawRecord"
        ) from error
