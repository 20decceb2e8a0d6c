"""What the generated jobs work on: small records with a key, and where the benchmark wants them run."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmarks.workloads import SEED

COUNTERS = Path(os.environ["BENCH_DIRECTORY"]) / "counters"
COUNT = int(os.environ["BENCH_COUNT"]) if "BENCH_COUNT" in os.environ else None
KEYS = int(os.environ.get("BENCH_KEYS", "10000"))
RING = 100_000


class Event(msgspec.Struct, array_like=True, gc=False):
    """Sent between workers by its type, as a user's Struct would be."""

    key: int
    amount: int


def ring(hot_share: float = 0.0) -> Callable[[int], list[Event]]:
    """Values of a split: keys drawn evenly from ``KEYS``, but key 0 for ``hot_share`` of the tuples."""

    def values(split: int) -> list[Event]:
        rng = random.Random(SEED + split)
        drawn = [0 if rng.random() < hot_share else int(rng.random() * KEYS) for _ in range(RING)]
        return [Event(key, n % 1000) for n, key in enumerate(drawn)]

    return values
