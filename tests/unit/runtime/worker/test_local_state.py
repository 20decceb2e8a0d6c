"""State that earlier sessions have left on a machine: taken if it is the right one, and removed later."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from kafka_eos.abc.storage import FileRef
from kafka_eos.runtime.transport import handshake
from kafka_eos.runtime.worker.local_state import (
    LocalFirstStorage,
    find_older_state,
    list_largest_files,
    remove_older_state,
)
from kafka_eos.runtime.worker.tcp_connections import WorkerHello
from kafka_eos.storage.job_storage import MemoryStorage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """State of subtask 1, of terms 3 to 5."""
    for term in ("3", "4", "5"):
        _write(tmp_path / "local" / "1" / term / "count" / "000012.sst", f"of {term}")
    return tmp_path / "local"


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _stored(tmp_path: Path, *texts: str, suffix: str = ".sst") -> tuple[MemoryStorage, Sequence[FileRef]]:
    storage = MemoryStorage()
    files = [_write(tmp_path / "before" / f"{number}{suffix}", text) for number, text in enumerate(texts)]
    return storage, [storage.upload(path, path.name) for path in files]


def _terms(root: Path) -> set[str]:
    return {path.name for path in (root / "1").iterdir()}


def test_a_file_with_the_right_content_is_linked_and_any_other_is_fetched(root: Path, tmp_path: Path) -> None:
    storage, (known, altered, absent) = _stored(tmp_path, "of 4", "or 4", "elsewhere")
    local, passed = LocalFirstStorage(storage, find_older_state([root], 5)), list[int]()

    for ref, text in ((known, "of 4"), (altered, "or 4"), (absent, "elsewhere")):
        target = tmp_path / text
        local.fetch(ref, target, passed.append)
        assert target.read_text() == text

    assert (tmp_path / "of 4").samefile(root / "1" / "4" / "count" / "000012.sst")
    assert sum(passed) == len("of 4or 4elsewhere")


def test_of_files_of_one_size_the_one_with_the_right_content_is_linked(root: Path, tmp_path: Path) -> None:
    storage, refs = _stored(tmp_path, "of 3", "of 4")
    local = LocalFirstStorage(storage, find_older_state([root], 5))

    for ref, term in zip(refs, "34", strict=True):
        local.fetch(ref, tmp_path / term)
        assert (tmp_path / term).samefile(root / "1" / term / "count" / "000012.sst")


def test_only_files_that_never_change_are_taken(root: Path, tmp_path: Path) -> None:
    storage, (manifest,) = _stored(tmp_path, "of 4", suffix="")
    local = LocalFirstStorage(storage, find_older_state([root], 5))

    local.fetch(manifest, tmp_path / "target")

    assert (tmp_path / "target").stat().st_nlink == 1


def test_a_file_that_another_worker_has_removed_meanwhile_is_fetched(root: Path, tmp_path: Path) -> None:
    storage, (known,) = _stored(tmp_path, "of 4")
    local = LocalFirstStorage(storage, find_older_state([root], 5))
    remove_older_state(root / "1", 5, kept=0)

    local.fetch(known, tmp_path / "target")

    assert (tmp_path / "target").read_text() == "of 4"


def test_state_of_older_terms_is_removed_but_for_the_newest_while_it_is_of_use(root: Path) -> None:
    """State of the same term or a newer one belongs to a worker that may be running."""
    assert {path.name for path in find_older_state([root], 5)} == {"3", "4"}
    remove_older_state(root / "1", 5, kept=1)
    assert _terms(root) == {"4", "5"}
    remove_older_state(root / "1", 4, kept=0)
    assert _terms(root) == {"4", "5"}
    remove_older_state(root / "1", 6, kept=0)
    assert _terms(root) == set()
    remove_older_state(root / "2", 6, kept=0)
    assert (root / "2").is_dir()


def test_a_worker_says_which_files_its_machine_has_by_their_sizes(root: Path, tmp_path: Path) -> None:
    _write(root / "7" / "5" / "count" / "000009.sst", "of another")
    _write(root / "7" / "5" / "count" / "MANIFEST-000004", "no state file")

    assert list_largest_files([root, tmp_path / "missing"]) == (10, 4, 4, 4)


def test_the_largest_files_are_named_in_a_first_message_that_is_not_too_long(tmp_path: Path) -> None:
    for number in range(600):
        path = _write(tmp_path / "0" / "1" / f"{number:06}.sst", "")
        os.truncate(path, (1 << 40) + number)
    sizes = list_largest_files([tmp_path])

    assert sizes == tuple(range((1 << 40) + 599, (1 << 40) + 199, -1))
    assert (
        len(msgspec.msgpack.encode(WorkerHello(1 << 40, 1 << 31, "x" * 200, 65535, sizes)))
        <= handshake._MOST_HELLO_BYTES
    )
