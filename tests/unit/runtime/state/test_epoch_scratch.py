"""The contract of an epoch's scratch, in memory and on disk; nothing of it stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_world import Kind

from kafka_eos.runtime.state import rocksdb_store as rocksdb
from kafka_eos.runtime.state.epoch_scratch import SpillStore
from kafka_eos.runtime.state.keyed_backend import open_scratch
from kafka_eos.runtime.state.rocksdb_options import StateOptions

OPTIONS = StateOptions(memory=8 << 20)
Open = Callable[[], SpillStore]
Put = tuple[int, bytes]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "1" / "sum.scratch"


@pytest.fixture
def opened(kind: Kind, place: Path) -> Iterator[Open]:
    made: list[SpillStore] = []

    def again() -> SpillStore:
        made.append(open_scratch(kind, place, 10, OPTIONS))
        return made[-1]

    yield again
    for scratch in made:
        scratch.close()


puts = st.lists(st.tuples(st.sampled_from([0, 1, 2, 255, 256, 65535]), st.binary(max_size=4)), max_size=20)


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
@settings(deadline=None, max_examples=40)
@given(st.lists(puts, min_size=1, max_size=3))
def test_blocks_come_out_once_heap_by_heap_and_in_their_order(
    kind: Kind, epochs: list[list[tuple[int, bytes]]]
) -> None:
    with TemporaryDirectory() as directory:
        scratch = open_scratch(kind, Path(directory) / "scratch", 10, OPTIONS)
        for epoch in epochs:
            for heap, block in epoch:
                scratch.put(heap, block)

            assert list(scratch.drain()) == sorted(epoch, key=lambda put: put[0])
            assert list(scratch.drain()) == []
        scratch.close()


def test_more_than_write_buffers_hold(opened: Open) -> None:
    scratch = opened()
    for number in range(3000):
        scratch.put(number % 7, b"%d" % number + b"v" * 5_000)

    found = [(heap, int(block[:-5_000])) for heap, block in scratch.drain()]

    assert found == [(heap, number) for heap in range(7) for number in range(heap, 3000, 7)]


def test_nothing_is_left_after_close(opened: Open, place: Path) -> None:
    scratch = opened()
    scratch.put(1, b"a")
    scratch.close()
    scratch.close()

    assert list(scratch.drain()) == []
    assert not place.exists()


def test_close_while_somebody_reads(opened: Open, place: Path) -> None:
    scratch = opened()
    scratch.put(1, b"a")
    scratch.put(2, b"b")
    reading = scratch.drain()
    next(reading)
    scratch.close()

    assert not place.exists()
    again = opened()
    again.put(3, b"c")
    assert list(again.drain()) == [(3, b"c")]


def test_it_is_on_disk_only_while_something_is_set_aside(place: Path) -> None:
    scratch = open_scratch("rocksdb", place, 10, OPTIONS)
    assert not place.exists()
    scratch.put(1, b"a")
    assert place.exists()
    assert list(scratch.drain()) == [(1, b"a")]
    assert not place.exists()


def test_what_a_killed_worker_left_is_removed_by_the_next_one(place: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from kafka_eos.runtime.state.keyed_backend import open_scratch
from kafka_eos.runtime.state.rocksdb_options import StateOptions
scratch = open_scratch("rocksdb", Path({str(place)!r}), 10, StateOptions())
scratch.put(1, b"a")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    assert any(place.iterdir())

    scratch = open_scratch("rocksdb", place, 10, OPTIONS)

    assert not place.exists()
    assert list(scratch.drain()) == []
    scratch.put(2, b"b")
    assert list(scratch.drain()) == [(2, b"b")]


def test_a_tenth_of_what_a_state_may_keep_is_in_memory(kind: Kind, place: Path) -> None:
    assert [open_scratch(kind, place, entries, OPTIONS).max_keys for entries in (1, 70, 1_000_000)] == [1, 7, 100_000]


def test_it_is_within_the_memory_of_the_state(place: Path) -> None:
    """Its write buffers, and the blocks of files that are read."""
    cache, _ = rocksdb._memory(OPTIONS.memory)
    scratch, highest = open_scratch("rocksdb", place, 10, OPTIONS), 0
    for number in range(5_000):
        scratch.put(number % 256, b"%d" % number + b"v" * 10_000)
        highest = max(highest, cache.get_usage())
    for _ in scratch.drain():
        highest = max(highest, cache.get_usage())

    assert 0 < highest <= 1.2 * OPTIONS.memory
