"""A full disk is told from other failures, and waited for; a failure is a failure of the environment then."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_eos.coordination.disk_space import DiskFull, ensure_disk_space, is_disk_full
from kafka_eos.core.errors import RestartFromCheckpoint
from tests.chaos.small_disk import MayNotMount, SmallDisk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    try:
        with small_disk(tmp_path / "small", megabytes=8) as disk:
            yield disk
    except MayNotMount as error:
        pytest.skip(f"a small file system needs the right to mount one: {error}")


@pytest.mark.parametrize(
    ("text", "full"),
    [
        (str(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))), True),
        ("checkpoint 7 was declined by subtask 1: [Errno 122] Disk quota exceeded; 3 in a row", True),
        ("Exception: IO error: No space left on device: While appending to file: /state/1/000012.log", True),
        ("the broker is away", False),
    ],
)
def test_a_full_disk_is_known_by_its_words_whoever_says_them(text: str, full: bool) -> None:
    assert is_disk_full(RestartFromCheckpoint(text)) is full


def test_a_disk_without_room_is_named_until_there_is_some_and_nothing_is_left_on_it(disk: SmallDisk) -> None:
    place = disk.where / "state" / "orders"
    ensure_disk_space([place])
    disk.fill()

    with pytest.raises(DiskFull, match=f"no disk space for {place}: No space left on device, 0 of 8 MB"):
        ensure_disk_space([Path("/nowhere/at/all"), place])

    disk.make_room()
    ensure_disk_space([place])
    assert [*disk.where.iterdir()] == []
