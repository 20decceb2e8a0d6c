"""How long a barrier waits while very many windows close at once: ``python -m benchmarks.closing``.

A chain of operators with state in RocksDB, no broker: each key has a window, and one record makes all of them due. What
is measured is the longest time for which the chain does not come back to its task, which would see to a barrier then;
once with all of it in one go, and once in the slices of the embedded engine.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from benchmarks.command import Benchmark, attempts, middle, shown, table, tell, where
from benchmarks.plots import Row
from kafka_eos import Pipeline, monotonic, tumbling
from kafka_eos.core.records import Batch
from kafka_eos.plan import Plan, TimestampsNode
from kafka_eos.runtime.operators.event_time import PERIODIC, WITH_EACH_BATCH
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin

SLICES = (math.inf, PERIODIC.slice)
_AT_ONCE = 1000


def measure_all(options: argparse.Namespace, home: Path) -> list[Row]:
    return attempts(
        partial(_point, int(options.keys), home / f"{turn}-{slice_}", turn, slice_)
        for turn in range(options.turns)
        for slice_ in SLICES
    )


def _point(keys: int, home: Path, turn: int, slice_: float) -> Row:
    plan, results = _plan(), 0

    def count(batch: Batch[object]) -> None:
        nonlocal results
        results += len(batch)

    with ExitStack() as closing:
        backends = {}
        for node in plan.nodes:
            if node.stateful:
                split = isinstance(node, TimestampsNode)
                given = ("rocksdb", node.name, home / node.name, range(128), (), MemoryStorage())
                backends[node.name] = open_backend(*given, by_split=split)
                closing.callback(backends[node.name].close)
        chain = OperatorChain(plan, backends, {"out": count}, pace=replace(WITH_EACH_BATCH, slice=slice_))
        closing.callback(chain.close)
        chain.assign("in", ["list/0"])
        for start in range(0, keys, _AT_ONCE):
            chain.push("in", _rows(start, min(keys, start + _AT_ONCE), 0))
        chain.flush()
        began = last = time.perf_counter()
        longest = 0.0
        chain.push("in", _rows(keys, keys + 1, 3_600_000))
        while True:
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
            if not chain.has_due_work:
                break
            chain.continue_due()
        whole = last - began
    if results != keys:
        raise RuntimeError(f"{results} results of {keys} windows")
    tell(f"turn {turn + 1}: slices of {slice_:g} s: the longest wait {longest * 1000:.0f} ms, all {whole:.2f} s")
    return {"slice": str(slice_), "longest": longest, "whole": whole}


def _plan() -> Plan:
    pipeline = Pipeline("closing")
    keyed = pipeline.source(ListSource([]), name="in").with_timestamps(watermarks=monotonic()).key_by(lambda n: n)
    windows = keyed.window(tumbling(seconds=300)).fold(name="sums", init=int, step=lambda total, n: total + n)
    windows.map(lambda found: found.value).sink(MemorySink(), name="out")
    return pipeline.plan()


def _rows(first: int, end: int, at: int) -> Batch[int]:
    values = list(range(first, end))
    return Batch(values, range(len(values)), ListOrigin("in", "list", 0, first, values, [at] * len(values)))


def tables(rows: Sequence[Row]) -> str:
    lines = [
        [
            "all in one go" if slice_ == math.inf else f"slices of {slice_ * 1000:.0f} ms",
            shown(middle(found, "longest"), 0, 1e3),
            shown(middle(found, "whole"), 2),
        ]
        for slice_ in SLICES
        for found in [where(rows, slice=str(slice_))]
    ]
    return table(("what is due is done", "a barrier waits, ms at most", "all windows, s"), lines)


BENCHMARK = Benchmark(
    "closing",
    "A barrier while very many windows close at once",
    measure_all,
    tables,
    (("turns", 5, 1), ("keys", 100_000, 2_000)),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
