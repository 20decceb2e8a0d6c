"""The recompute of broadcast state inside Spark's Python workers: the pipeline's own functions process rules and rows,
turn by turn.

Rule: records are sorted by turn, rules first. So a row is processed with the rules of all earlier turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from kafka_eos.audit.tables.broadcast.judgeable_sinks import above
from kafka_eos.audit.tables.plan_cut import Cut
from kafka_eos.audit.tables.python_tasks import (
    Backends,
    Collector,
    ExpectedOutputs,
    chain_of,
    columns_of,
    feed,
    headers_of,
    ignore,
    runs,
)
from kafka_eos.core.ids import AppRef, Epoch
from kafka_eos.core.records import RawRecord
from kafka_eos.plan import BroadcastConnectNode, Plan
from kafka_eos.runtime.operators.operator_chain import OperatorChain, Output
from kafka_eos.runtime.program import load_program
from kafka_eos.runtime.state import broadcast_copies as copies
from kafka_eos.storage.job_storage import MemoryStorage

DOUBTED = "turn long"


def outputs(
    app: str, workers: int, sinks: tuple[str, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Compute EXPECTED rows of ``sinks``. Input: INPUT rows, in one task."""
    parts = _cut_of(app, workers, sinks)
    made = ExpectedOutputs()
    with ExitStack() as stack:
        found: dict[str, Output] = {sink.name: ignore for sink in parts.plan.sinks}
        found |= {sink: Collector(parts.plan, sink, made) for sink in sinks}
        _, chain = _opened(parts, found, stack)
        for batch in batches:
            for source, raws in runs(batch):
                feed(parts.plan, chain, source, raws)
            yield made.take()


def first_doubt(
    app: str, workers: int, sinks: tuple[str, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the first turn after which the rules differ when partitions are read in the reverse order, if any.

    Input: the turn, and the INPUT columns, of broadcast records, by turn, source, partition and offset, in one task.
    """
    parts = _cut_of(app, workers, sinks)
    storage, found = MemoryStorage(), list[int]()
    with ExitStack() as stack:
        ends = dict.fromkeys((sink.name for sink in parts.plan.sinks), ignore)
        both = [_opened(parts, ends, stack) for _ in range(2)]
        for turn, read in groupby(_records(batches), key=itemgetter(0)):
            streams = [
                (source, [raw for *_, raw in run])
                for (source, _), run in groupby(read, key=lambda r: (r[1], r[2].partition))
            ]
            for (_, chain), way in zip(both, (streams, streams[::-1]), strict=True):
                for source, raws in way:
                    feed(parts.plan, chain, source, raws)
            handles = [
                backends.by_operator[node.name].snapshot(Epoch(1))(storage)
                for backends, _ in both
                for node in parts.plan.nodes
                if isinstance(node, BroadcastConnectNode)
            ]
            if copies.find_differing_copies(handles):
                found.append(turn)
                break
    yield pa.RecordBatch.from_arrays([pa.array(found, pa.int64())], names=["turn"])


def _records(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, str, RawRecord]]:
    for batch in batches:
        turns, sources, *raw, headers = columns_of(batch)
        yield from zip(turns, sources, map(RawRecord, *raw, map(headers_of, headers)), strict=True)


def _opened(parts: Cut, outputs: dict[str, Any], stack: ExitStack) -> tuple[Backends, OperatorChain]:
    backends = stack.enter_context(Backends(parts.plan, None))
    return backends, stack.enter_context(chain_of(parts, parts.plan, backends.by_operator, outputs))


@cache
def _cut_of(app: str, workers: int, sinks: tuple[str, ...]) -> Cut:
    """Return the part of the plan above ``sinks``, as the job runs it, and the sinks of its dead letters."""
    whole = load_program(AppRef.parse(app)).plan()
    wanted = {node.name for sink in sinks for node in above(whole, sink)} | {*sinks}
    letters = {node.name for node in whole.sinks if node.is_dead_letter_sink and wanted.issuperset(node.inputs)}
    nodes = tuple(node for node in whole.nodes if node.name in wanted | letters)
    return Cut(Plan(whole.name, nodes, whole.where), whole, (), serial=True, parallelism=workers)
