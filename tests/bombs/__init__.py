"""Hostile inputs, made by construction: schemas of a registry, files that others drop, and compressed files of the
store.

    python -m tests.bombs 10000 7 "files of CSV"     10,000 inputs of that kind from seed 7; one line of JSON per kind

Rule: each input is read, or refused with one of our errors, within ``MOST_SECONDS`` of the processor and within
``MOST_MEMORY`` bytes more than before, which the kernel enforces too. An input that kills the process is named by the
number that was printed before it.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from tests.unit.codecs.test_hostile import Memory

MOST_SECONDS = 5.0
MOST_MEMORY = 256 << 20
REFUSED = (ValueError, ConfigError, CorruptCheckpoint)

Attempt: TypeAlias = Callable[[], object]
"""The reading of one input."""


@dataclass
class Outcome:
    read: int = 0
    refused: int = 0
    slowest: float = 0.0
    """Seconds of the processor."""
    memory: int = 0
    """Bytes more than before, at most."""


def attack(attempts: Iterator[Attempt]) -> Outcome:
    """Make all attempts. Raises AssertionError for one that takes too long or too much, and whatever else it raises."""
    found = Outcome()
    for number, attempt in enumerate(attempts):
        print(number, file=sys.stderr, flush=True)
        memory, begun = Memory.watched(), time.process_time()
        with _limited_memory():
            try:
                attempt()
                found.read += 1
            except REFUSED:
                found.refused += 1
        seconds = time.process_time() - begun
        found.slowest, found.memory = max(found.slowest, seconds), max(found.memory, memory.most)
        assert seconds < MOST_SECONDS, f"input {number} took {seconds:.1f} s"
        assert found.memory < MOST_MEMORY, f"input {number} took {found.memory:,} bytes"
    return found


@contextmanager
def _limited_memory() -> Iterator[None]:
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + 4 * MOST_MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
