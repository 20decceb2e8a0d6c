"""A pyarrow file system whose renames fail, or end elsewhere, while another starter of the job is in the directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from pyarrow.fs import LocalFileSystem

from kafka_eos.storage.pyarrow_store import STAGED, PyArrowStore

CLAIM = "terms/00000001.claim.json"


class LocalRenames:
    """A local file system but for its renames."""

    def __init__(self) -> None:
        self._files = LocalFileSystem()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


class TakenOver(LocalRenames):
    """Just before the first rename another starter sweeps, then claims the same term."""

    def __init__(self, root: str) -> None:
        super().__init__()
        self._other = PyArrowStore(LocalFileSystem(), root)
        self._calm = False

    def move(self, source: str, target: str) -> None:
        if not self._calm:
            self._calm = True
            self._other.remove_debris()
            self._other.create(CLAIM, b"theirs")
        self._files.move(source, target)


def test_a_claim_that_was_swept_away_is_not_taken_for_the_one_that_is_there(tmp_path: Path) -> None:
    store = PyArrowStore(TakenOver(str(tmp_path)), str(tmp_path))

    with pytest.raises(OSError, match="No such file"):
        store.create(CLAIM, b"ours")

    assert b"".join(store.read(CLAIM)) == b"theirs"
    assert not list((tmp_path / STAGED).iterdir())
    with pytest.raises(FileExistsError):
        store.create(CLAIM, b"ours")


class MovesInside(LocalRenames):
    """As Hadoop's: a directory that is moved to one that exists comes to be inside it."""

    def move(self, source: str, target: str) -> None:
        inside = Path(target).is_dir()
        self._files.move(source, f"{target}/{source.rpartition('/')[2]}" if inside else target)


def test_what_was_moved_into_the_one_that_is_there_is_taken_out_again(tmp_path: Path) -> None:
    store = PyArrowStore(MovesInside(), str(tmp_path))
    store.create(CLAIM, b"theirs")

    with pytest.raises(FileExistsError):
        store.create(CLAIM, b"ours")

    assert b"".join(store.read(CLAIM)) == b"theirs"
    assert [path.name for path in (tmp_path / CLAIM).iterdir()] == ["content"]
    assert not list((tmp_path / STAGED).iterdir())
