"""State: ``python -m benchmarks.state_sizes``. What checkpoints and restores cost, by size and by keys touched.

    checkpoint  a state of a million keys, a share of them written, then a checkpoint: what blocks the worker (encoding,
                flush, hard links), what it takes in all, and the bytes that are new in the storage; both backends
    restore     opening the state again from its checkpoint: as it is, and as one half of it (another parallelism)
    recovery    a whole job over Kafka, its worker killed with kill -9; see ``benchmarks.recovery``

The first two work on the state backend and a local storage directly; no broker is near.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from benchmarks.command import Benchmark, middle, shown, table, tell, where
from benchmarks.plots import Row
from benchmarks.recovery import recoveries
from benchmarks.workloads import SEED
from kafka_eos.abc.state import BackendState, StateBackend, StateDescriptor, StateHandle
from kafka_eos.codecs import CountedCodec, KeyCodec, state_codec
from kafka_eos.core.ids import Epoch
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_storage import LocalStorage

Kind: TypeAlias = Literal["rocksdb", "memory"]
BACKENDS: tuple[Kind, ...] = ("rocksdb", "memory")
SHARES = (0.001, 0.01, 0.05, 0.2, 1.0)
_BATCH = 5000
_ALL = range(MAX_KEY_GROUPS)


class State:
    """Running sums in a backend, as a fold keeps them, and where their checkpoints go."""

    def __init__(self, kind: Kind, home: Path, storage: LocalStorage, found: Sequence[StateHandle] = ()) -> None:
        self._storage = storage
        self.backend = opened(kind, home, storage, found, _ALL)
        self.sums = declared(self.backend)
        self._epoch = 0
        self._known = {file.sha256 for handle in found for file in handle.files}

    def touch(self, keys: Sequence[int]) -> None:
        """Read and write each of them, in batches."""
        for start in range(0, len(keys), _BATCH):
            batch = keys[start : start + _BATCH]
            entries = self.sums.view(batch)
            for key in batch:
                count, total = entries.get(key, (0, 0))
                entries[key] = (count + 1, total + key)

    def checkpoint(self) -> tuple[StateHandle, Row]:
        """Blocking and whole time in ms, bytes that the storage did not have, bytes of the whole checkpoint."""
        self._epoch += 1
        began = time.perf_counter()
        upload = self.backend.snapshot(Epoch(self._epoch))
        blocked = time.perf_counter()
        handle = upload(self._storage)
        done = time.perf_counter()
        new = sum(file.size for file in handle.files if file.sha256 not in self._known)
        self._known |= {file.sha256 for file in handle.files}
        times = {"blocked_ms": (blocked - began) * 1000, "total_ms": (done - began) * 1000}
        return handle, {**times, "new_bytes": new, "state_bytes": sum(file.size for file in handle.files)}


def opened(kind: Kind, home: Path, storage: LocalStorage, found: Sequence[StateHandle], groups: range) -> StateBackend:
    """A backend of key groups, in a directory of its own below ``home``."""
    directory = home / f"state-{time.time_ns()}"
    return open_backend(kind, "sum", directory, groups, found, storage)


def declared(backend: StateBackend) -> BackendState[tuple[int, int]]:
    """The state as a fold declares it: numbers of outputs and sums, by key."""
    return backend.value(StateDescriptor("accumulator", KeyCodec(), CountedCodec(state_codec(int))))


def measure_all(options: argparse.Namespace, home: Path) -> list[Row]:
    rows: list[Row] = []
    sizes = [options.small, options.keys, *([options.large_keys] if options.large else [])]
    for kind in BACKENDS:
        rows += checkpoints(kind, options.keys, options.turns, home)
        for keys in sizes:
            if kind == "rocksdb" or keys <= options.keys:
                rows += restores(kind, keys, options.turns, home)
    for keys in [] if options.no_kafka else sizes:
        rows += _recovery(keys, options.kills)
    return rows


def checkpoints(kind: Kind, keys: int, turns: int, home: Path) -> list[Row]:
    """Rows of part ``checkpoint``: shares take turns."""
    storage = LocalStorage(home / f"checkpoints-{kind}-{time.time_ns()}")
    state = State(kind, home, storage)
    state.touch(range(keys))
    state.checkpoint()
    rng = random.Random(SEED)
    rows: list[Row] = []
    for turn in range(turns):
        for share in SHARES:
            load = os.getloadavg()[0]
            state.touch(rng.sample(range(keys), int(keys * share)))
            _, figures = state.checkpoint()
            rows.append({"part": "checkpoint", "backend": kind, "keys": keys, "share": share, **figures, "load": load})
        tell(f"turn {turn + 1}: checkpoints of {keys:,} keys, {kind}")
    state.backend.close()
    return rows


def restores(kind: Kind, keys: int, turns: int, home: Path) -> list[Row]:
    """Rows of part ``restore``."""
    storage = LocalStorage(home / f"restore-{kind}-{time.time_ns()}")
    state = State(kind, home, storage)
    state.touch(range(keys))
    handle, figures = state.checkpoint()
    state.backend.close()
    rows: list[Row] = []
    for _ in range(turns):
        load = os.getloadavg()[0]
        same, read = _restored(kind, home, storage, handle, _ALL, keys)
        half, _ = _restored(kind, home, storage, handle, range(MAX_KEY_GROUPS // 2), 0)
        times = {"same_ms": same, "read_ms": read, "half_ms": half}
        found = {"part": "restore", "backend": kind, "keys": keys, "load": load}
        rows.append({**found, **times, "state_bytes": figures["state_bytes"]})
    tell(f"restores of {keys:,} keys, {kind}")
    return rows


def _restored(
    kind: Kind, home: Path, storage: LocalStorage, handle: StateHandle, groups: range, keys: int
) -> tuple[float, float]:
    """Milliseconds until the state is open, and from then until a batch of (at most) 5000 keys is read."""
    began = time.perf_counter()
    backend = opened(kind, home, storage, [handle], groups)
    sums = declared(backend)
    open_ = time.perf_counter()
    found = sum(
        key in view for view in [sums.view(range(0, keys, max(keys // _BATCH, 1)))] for key in range(0, keys, 1000)
    )
    done = time.perf_counter()
    backend.close()
    if keys and not found:
        raise RuntimeError("the restored state is empty")
    return (open_ - began) * 1000, (done - open_) * 1000


def _recovery(keys: int, kills: int) -> list[Row]:
    found = recoveries(keys, kills, rate=2000)
    gc.collect()  # clients of a broker that is gone would go on asking for it
    parts = ("detect_ms", "restore_ms", "epoch_ms", "commit_ms")
    return [
        {
            "part": "recovery",
            "line": "kill -9 to new output committed",
            "keys": keys,
            "total_ms": each.total,
            **dict(zip(parts, each.parts, strict=True)),
            "load": os.getloadavg()[0],
        }
        for each in found
    ]


def tables(rows: Sequence[Row]) -> str:
    parts = [_checkpoint_table(where(rows, part="checkpoint")), _restore_table(where(rows, part="restore"))]
    killed = where(rows, part="recovery")
    return "\n\n".join([*parts, *([_recovery_table(killed)] if killed else [])])


def _checkpoint_table(rows: Sequence[Row]) -> str:
    headings = ("backend, keys touched", "blocked ms", "whole ms", "new MB", "checkpoint MB", "load before")
    lines = []
    for backend, share in dict.fromkeys((row["backend"], row["share"]) for row in rows):
        found = where(rows, backend=backend, share=share)
        lines.append(
            [
                f"{backend}, {share:.1%} of {found[0]['keys']:,}",
                shown(middle(found, "blocked_ms"), 1),
                shown(middle(found, "total_ms"), 1),
                shown(middle(found, "new_bytes"), 2, 1e-6),
                shown(middle(found, "state_bytes"), 1, 1e-6),
                shown(middle(found, "load"), 1),
            ]
        )
    return table(headings, lines)


def _restore_table(rows: Sequence[Row]) -> str:
    headings = (
        "backend, keys",
        "checkpoint MB",
        "restore ms",
        "then reading 5000 keys ms",
        "restore of one half, of two workers ms",
        "load before",
    )
    lines = []
    for backend, keys in dict.fromkeys((row["backend"], row["keys"]) for row in rows):
        found = where(rows, backend=backend, keys=keys)
        times = [shown(middle(found, name), 1) for name in ("same_ms", "read_ms", "half_ms")]
        size, load = shown(middle(found, "state_bytes"), 1, 1e-6), shown(middle(found, "load"), 1)
        lines.append([f"{backend}, {keys:,}", size, *times, load])
    return table(headings, lines)


def _recovery_table(rows: Sequence[Row]) -> str:
    headings = (
        "keys",
        "kills",
        "detect ms",
        "start, recover, restore ms",
        "first epoch ms",
        "commit ms",
        "kill → new output ms",
        "worst ms",
        "load after",
    )
    names = ("detect_ms", "restore_ms", "epoch_ms", "commit_ms", "total_ms")
    lines = []
    for keys in dict.fromkeys(row["keys"] for row in rows):
        found = where(rows, keys=keys)
        times = [shown(middle(found, name)) for name in names]
        worst = shown(max(row["total_ms"] for row in found))
        lines.append([f"{keys:,}", str(len(found)), *times, worst, shown(middle(found, "load"), 1)])
    return table(headings, lines)


BENCHMARK = Benchmark(
    "state_sizes",
    "Checkpoints by share of keys touched; restore and recovery by size of state",
    measure_all,
    tables,
    (
        ("turns", 3, 1),
        ("small", 10_000, 10_000),
        ("keys", 1_000_000, 100_000),
        ("large-keys", 10_000_000, 10_000_000),
        ("kills", 3, 1),
    ),
    (("large", "also ten million keys: some minutes more"), ("no-kafka", "leave out recovery, which needs a broker")),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
