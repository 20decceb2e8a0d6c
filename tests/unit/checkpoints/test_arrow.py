"""A pyarrow file system whose renames fail while another starter of the job works in the same directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from pyarrow.fs import LocalFileSystem

from kafka_eos.checkpoints.arrow import STAGED, PyArrowStore

CLAIM = "terms/00000001.claim.json"


class TakenOver:
    """A local file system; just before the first rename another starter sweeps, then claims the same term."""

    def __init__(self, root: str) -> None:
        self._files, self._other = LocalFileSystem(), PyArrowStore(LocalFileSystem(), root)
        self._calm = False

    def move(self, source: str, target: str) -> None:
        if not self._calm:
            self._calm = True
            self._other.sweep()
            self._other.create(CLAIM, b"theirs")
        self._files.move(source, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


def test_a_claim_that_was_swept_away_is_not_taken_for_the_one_that_is_there(tmp_path: Path) -> None:
    store = PyArrowStore(TakenOver(str(tmp_path)), str(tmp_path))

    with pytest.raises(OSError, match="No such file"):
        store.create(CLAIM, b"ours")

    assert b"".join(store.read(CLAIM)) == b"theirs"
    assert not list((tmp_path / STAGED).iterdir())
    with pytest.raises(FileExistsError):
        store.create(CLAIM, b"ours")
