"""The spilling queue against a plain one: the same entries in the same order, whatever is on disk."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_eos.runtime.exchange.spilling_queue import SpillingQueue

Entry = str | float | bytes


def encode(entry: Entry) -> bytes | None:
    """Numbers stay in memory, as barriers do."""
    return None if isinstance(entry, float) else entry if isinstance(entry, bytes) else entry.encode()


def plain(entry: Entry) -> Entry:
    return entry.encode() if isinstance(entry, str) else entry


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.none(), st.text(max_size=5), st.floats(0, 9))), st.integers(1, 4))
def test_entries_come_out_as_they_went_in(tmp_path_factory: pytest.TempPathFactory, script: list, limit: int) -> None:
    directory = tmp_path_factory.mktemp("spill")
    queue: SpillingQueue[Entry] = SpillingQueue(directory / "file", limit, encode)
    model: list[Entry] = []
    for step in script:
        if step is None and model:
            assert queue[0] in (model[0], plain(model[0]))
            assert plain(queue.popleft()) == plain(model.pop(0))
        elif step is not None:
            queue.append(step)
            model.append(step)
        assert len(queue) == len(model)
        assert list(map(plain, queue)) == list(map(plain, model))
        assert bool(list(directory.iterdir())) == any(isinstance(entry, int) and entry for entry in queue._rest)
    queue.close()


@pytest.mark.limits(spill_file_bytes=1000)
def test_a_queue_that_is_never_empty_does_not_fill_the_disk(tmp_path: Path) -> None:
    queue: SpillingQueue[Entry] = SpillingQueue(tmp_path / "file", 2, encode)
    for n in range(50):
        queue.append(f"{n:04}" * 25)
    for n in range(50, 5000):
        queue.append(f"{n:04}" * 25)
        assert plain(queue.popleft()) == f"{n - 50:04}".encode() * 25
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 7000
    assert [plain(entry)[:4] for entry in queue] == [f"{n:04}".encode() for n in range(4950, 5000)]
    queue.close()
    assert list(tmp_path.iterdir()) == []


def test_the_file_goes_with_the_queue(tmp_path: Path) -> None:
    queue: SpillingQueue[Entry] = SpillingQueue(tmp_path / "file", 1, encode)
    for text in "abc":
        queue.append(text)
    assert list(tmp_path.iterdir()) != []

    queue.close()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.limits(spill_file_bytes=10)
def test_a_full_disk_does_not_keep_the_files_of_a_queue_that_nobody_wants(tmp_path: Path) -> None:
    queue: SpillingQueue[Entry] = SpillingQueue(tmp_path / "file", 1, encode)
    for text in ("head", "a" * 10, "b" * 10, "c" * 10):
        queue.append(text)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for file in queue._files:
        file._file.write(b"x")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        queue.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert list(tmp_path.iterdir()) == []
