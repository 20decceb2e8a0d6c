"""What a restore tells while it goes on: bytes of files as they come, and rows as they are converted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_eos.abc.state import StateDescriptor, StateHandle
from kafka_eos.abc.storage import FileRef, ignore_progress
from kafka_eos.codecs import KeyCodec, MsgpackCodec
from kafka_eos.core.ids import Epoch
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.runtime.state.restore_progress import RestoreFetcher, RestoreProgress
from kafka_eos.storage.job_storage import LocalStorage
from tests.waiting import PATIENCE

ROWS = 20_000
NUMBERS = StateDescriptor("numbers", KeyCodec(), MsgpackCodec(int))
TEXTS = StateDescriptor("numbers", KeyCodec(), MsgpackCodec(int | str))


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "job")


@pytest.fixture(params=["memory", "rocksdb"])
def handle(request: pytest.FixtureRequest, storage: LocalStorage, tmp_path: Path) -> StateHandle:
    """The state of all key groups, as one worker stored it."""
    backend = open_backend(request.param, "total", tmp_path / "first", range(128), (), storage)
    state = backend.value(NUMBERS)
    for number in range(ROWS):
        state.put(str(number), number)
    stored = backend.snapshot(Epoch(1))(storage)
    backend.close()
    return stored


def _restored(handle: StateHandle, storage: LocalStorage, directory: Path, groups: range) -> list[RestoreProgress]:
    told: list[RestoreProgress] = []
    open_backend("rocksdb", "total", directory, groups, [handle], storage, on_progress=told.append).close()
    return told


def test_the_end_of_a_restore_is_all_of_its_files(handle: StateHandle, storage: LocalStorage, tmp_path: Path) -> None:
    last = _restored(handle, storage, tmp_path / "second", range(128))[-1]

    assert (last.files, last.bytes) == (last.of_files, last.of_bytes)
    assert last.of_bytes == sum(file.size for file in handle.files)


def test_rows_are_told_while_they_are_converted(handle: StateHandle, storage: LocalStorage, tmp_path: Path) -> None:
    told = _restored(handle, storage, tmp_path / "second", range(64))

    assert told[-1].rows == ROWS
    assert any(0 < restored.rows < ROWS for restored in told)


def test_rows_are_told_while_their_type_changes(handle: StateHandle, storage: LocalStorage, tmp_path: Path) -> None:
    told: list[RestoreProgress] = []
    backend = open_backend(
        "rocksdb", "total", tmp_path / "next", range(128), [handle], storage, on_progress=told.append
    )
    before = told[-1].rows
    backend.value(TEXTS)
    backend.close()

    assert told[-1].rows == before + ROWS


@pytest.mark.limits(copied_bytes=1 << 20)
def test_a_file_is_told_piece_by_piece(storage: LocalStorage, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 3_500_000)
    told: list[RestoreProgress] = []
    file = storage.upload(source, "rows.sst")
    RestoreFetcher("total", storage, [file], told.append).fetch(file, tmp_path / "back")

    assert [(restored.files, restored.bytes) for restored in told] == [
        (0, 1 << 20),
        (0, 2 << 20),
        (0, 3 << 20),
        (0, 3_500_000),
        (1, 3_500_000),
    ]


class Meeting(LocalStorage):
    """A storage that serves a file when another one is asked for, too."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._both = threading.Barrier(2)

    def fetch(self, ref: FileRef, target: Path, passed: Callable[[int], None] = ignore_progress) -> None:
        self._both.wait(PATIENCE)
        super().fetch(ref, target, passed)


def test_several_files_are_fetched_at_the_same_time(storage: LocalStorage, tmp_path: Path) -> None:
    backend = open_backend("rocksdb", "total", tmp_path / "first", range(128), (), storage)
    backend.value(NUMBERS).put("1", 1)
    stored = backend.snapshot(Epoch(1))(storage)
    backend.close()

    assert len(stored.files) == 2, "a table and a manifest"
    told = _restored(stored, Meeting(storage.root), tmp_path / "second", range(128))
    assert [progress.files for progress in told] == sorted(progress.files for progress in told)
    assert told[-1].files == 2


def test_it_is_shown_in_units_that_people_read() -> None:
    assert (
        str(RestoreProgress("total", 12, 40, 3_200_000_000, 9_800_000_000, 0))
        == "'total': 3.2 of 9.8 GB, 12 of 40 files"
    )
    assert str(RestoreProgress("total", 1, 2, 0, 1500, 120_000)) == "'total': 0.0 of 1.5 KB, 1 of 2 files, 120,000 rows"
    assert str(RestoreProgress("total", 1, 2, 2_500_000, 10**7, 0)) == "'total': 2.5 of 10.0 MB, 1 of 2 files"
    assert str(RestoreProgress("total", 0, 1, 0, 10**6, 0)) == "'total': 0.0 of 1.0 MB, 0 of 1 files"
    assert str(RestoreProgress("total", 0, 1, 17, 900, 0)) == "'total': 17 of 900 bytes, 0 of 1 files"
