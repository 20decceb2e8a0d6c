"""The steps on the disk that a commit is made of: each happens as said, or raises."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_eos.connectors.files import disk
from tests.power_cuts import after, breaks, broken, recorded


@pytest.fixture
def plain_modes() -> Iterator[None]:
    """Modes as they are asked for."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


# ---------------------------------------------------------------- directories


def test_a_directory_is_durable_with_all_its_parents(tmp_path: Path, plain_modes: None) -> None:
    wanted = tmp_path / "a" / "b" / "c"
    with recorded(tmp_path) as recording:
        disk.create_directory(wanted)
    with recorded(tmp_path) as again:
        disk.create_directory(wanted)

    assert wanted.is_dir()
    assert (len(recording.syncs), len(again.syncs)) == (3, 0), "an entry for each, and nothing where it is there"
    assert mode(wanted) == mode(wanted.parent) == 0o755


def test_only_what_is_missing_is_made(tmp_path: Path) -> None:
    with recorded(tmp_path) as recording:
        disk.create_directory(tmp_path / "a")

    assert len(recording.syncs) == 1


def test_a_directory_that_another_process_makes_at_that_moment_is_as_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.is_dir

    def made_after_the_look(self: Path) -> bool:
        monkeypatch.setattr(Path, "is_dir", real)
        os.mkdir(self)
        return False

    monkeypatch.setattr(Path, "is_dir", made_after_the_look)

    disk.create_directory(tmp_path / "a")


def test_only_directories_are_synced_and_nothing_stays_open(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = os.listdir("/proc/self/fd")
    disk.sync_directory(tmp_path)

    assert len(os.listdir("/proc/self/fd")) == len(before)
    with pytest.raises(NotADirectoryError):
        disk.sync_directory(tmp_path / "file")


# ---------------------------------------------------------------- files


def test_an_empty_file_is_made_once(tmp_path: Path, plain_modes: None) -> None:
    os.symlink(tmp_path / "nowhere", tmp_path / "link")

    assert disk.create_empty(tmp_path / "new")
    assert (mode(tmp_path / "new"), (tmp_path / "new").read_bytes()) == (0o644, b"")
    assert not disk.create_empty(tmp_path / "new")
    assert not disk.create_empty(tmp_path / "link")
    assert not (tmp_path / "nowhere").exists()


def test_a_whole_file_is_absent_or_whole_in_every_power_cut_and_there_once_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()

    def absent_or_whole(root: Path) -> None:
        assert not (root / "file").exists() or (root / "file").read_bytes() == b"content"

    with recorded(tmp_path / "disk") as recording:
        disk.write_whole(tmp_path / "disk" / "file", b"content")

    assert len(recording.syncs) == 2
    assert broken(recording, absent_or_whole, tmp_path / "states") == []
    assert breaks(recording.forgetting(0), absent_or_whole, tmp_path / "states")
    for number, tree in enumerate(after(recording)):
        tree.write(tmp_path / "after" / str(number))
        assert (tmp_path / "after" / str(number) / "file").read_bytes() == b"content"


def test_a_whole_file_replaces_one_with_its_own_mode_and_leaves_no_other(tmp_path: Path, plain_modes: None) -> None:
    before = os.listdir("/proc/self/fd")
    disk.write_whole(tmp_path / "file", b"a longer content", 0o600)
    assert (mode(tmp_path / "file"), (tmp_path / "file").read_bytes()) == (0o600, b"a longer content")
    disk.write_whole(tmp_path / "file", b"content")

    assert (mode(tmp_path / "file"), (tmp_path / "file").read_bytes()) == (0o644, b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_whole_file_that_cannot_have_its_name_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()

    with pytest.raises(IsADirectoryError):
        disk.write_whole(tmp_path / "taken", b"content")

    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_checksum_is_that_of_the_content_and_of_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    os.symlink(tmp_path / "file", tmp_path / "link")

    assert disk.sha256(tmp_path / "file") == hashlib.sha256(b"content").hexdigest()
    with pytest.raises(OSError, match="symbolic"):
        disk.sha256(tmp_path / "link")


# ---------------------------------------------------------------- renames


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").write_text("ours")
    return tmp_path / "source"


def refusing(number: int) -> object:
    def rename(source: str, target: str) -> None:
        raise OSError(number, os.strerror(number), source, None, target)

    return rename


def test_a_rename_takes_a_name_that_is_free(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk.rename_new(source, tmp_path / "target")
    monkeypatch.chdir(tmp_path)
    assert disk.rename_new(Path("target"), Path("again"))

    assert [path.name for path in tmp_path.iterdir()] == ["again"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP])
def test_where_there_is_no_such_rename_the_name_is_looked_for(
    source: Path, tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_rename_noreplace", refusing(number))
    os.symlink(tmp_path / "nowhere", tmp_path / "taken")

    with pytest.raises(FileExistsError) as raised:
        disk.rename_new(source, tmp_path / "taken")
    assert raised.value.filename == str(tmp_path / "taken")
    assert not disk.rename_new(source, tmp_path / "target")
    assert ((tmp_path / "target").read_text(), source.exists()) == ("ours", False)


def test_a_rename_that_fails_is_not_tried_in_another_way(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "_rename_noreplace", refusing(errno.EIO))

    with pytest.raises(OSError, match="Input/output error"):
        disk.rename_new(source, tmp_path / "target")
    assert source.exists()


def test_a_name_that_is_taken_or_a_file_that_is_gone_is_said_so(source: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("theirs")

    with pytest.raises(FileExistsError) as raised:
        disk.rename_new(source, tmp_path / "taken")
    assert (raised.value.filename, raised.value.filename2) == (str(source), str(tmp_path / "taken"))
    assert ((tmp_path / "taken").read_text(), source.read_text()) == ("theirs", "ours")
    with pytest.raises(FileNotFoundError):
        disk.rename_new(tmp_path / "gone", tmp_path / "target")


def test_a_library_without_such_a_rename_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())

    assert disk._system_call() is disk._missing
    with pytest.raises(OSError, match="not implemented") as raised:
        disk._missing("a", "b")
    assert (raised.value.errno, raised.value.filename, raised.value.filename2) == (errno.ENOSYS, "a", "b")


# ---------------------------------------------------------------- where it is


def test_a_filesystem_is_that_of_the_nearest_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk.filesystem(Path("/proc/self")) == "proc"
    assert disk.filesystem(tmp_path) not in ("", "proc")

    mounts = [
        "22 1 0:1 / / rw,relatime shared:1 - ext4 /dev/a rw",
        "23 22 0:2 / /data rw,relatime - nfs server:/ rw",
        "24 23 0:3 / /data/fast rw shared:2 master:3 - xfs /dev/b rw",
        "25 22 0:4 / /data rw - tmpfs tmpfs rw",
    ]
    monkeypatch.setattr(Path, "read_text", lambda self, **_: "\n".join(mounts))
    found = [disk.filesystem(Path(path)) for path in ("/home", "/data/x", "/data/fast/x", "/database")]
    assert found == ["ext4", "tmpfs", "xfs", "ext4"], "of two at one place the later one counts"

    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert disk.filesystem(tmp_path) == ""
