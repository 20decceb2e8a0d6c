"""A log in a directory: whatever is full, compressed or killed, each line is there once, and in order."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.storage.rolling_log import LocalLog

FULL = 200
WRITER = """
import sys
from pathlib import Path
from kafka_eos.storage.rolling_log import LocalLog

root, first, count, name = sys.argv[1:]
log = LocalLog(Path(root), "history.jsonl", segment_bytes=200)
for number in range(int(first), int(first) + int(count)):
    log.append(f"{name} {number:06d}")
    if number % 7 == 0:
        log.compress()
    print(number, flush=True)
"""


@pytest.fixture
def log(tmp_path: Path) -> LocalLog:
    return LocalLog(tmp_path, paths.HISTORY, FULL)


def write(log: LocalLog, numbers: range) -> list[str]:
    lines = [f"line {number:06d}" for number in numbers]
    for line in lines:
        log.append(line)
    return lines


def closed(log: LocalLog) -> list[str]:
    """The endings of the full files, the oldest first."""
    names = sorted(os.listdir(log.root / "history"))
    return [name.rpartition(".")[2] for name in names]


def writer(root: Path, first: int, count: int, name: str = "line") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(root), str(first), str(count), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_full_files_are_kept_and_compressed_but_the_newest(log: LocalLog) -> None:
    lines = write(log, range(100))
    plain = closed(log)
    log.compress()

    assert set(plain) == {"jsonl"} and len(plain) > 3
    assert closed(log) == ["gz"] * (len(plain) - 1) + ["jsonl"]
    assert log.lines() == lines
    assert all(path.stat().st_size < FULL + 20 for path in log.root.rglob("*.jsonl"))


def test_the_growing_file_and_its_name_are_made_durable(log: LocalLog, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    log.sync()
    assert synced == [], "there is none yet"
    write(log, range(1))
    synced.clear()

    log.sync()

    (growing,) = log.root.rglob("*.jsonl")
    assert synced == [growing.stat().st_ino, log.root.stat().st_ino]


def test_the_end_is_read_over_files(log: LocalLog) -> None:
    assert log.tail(1000) is None
    lines = write(log, range(100))
    log.compress()

    tails = [log.tail(size) for size in (12, 300, 700, 100_000)]

    assert all(tail is not None and tail == lines[-len(tail) :] for tail in tails)
    assert [len(tail or ()) for tail in tails] == [1, 25, 58, 100]


def test_a_log_of_an_earlier_version_goes_on(log: LocalLog) -> None:
    (log.root / paths.HISTORY).write_text("old\n" * 100)
    log.append("new")

    assert log.lines() == [*["old"] * 100, "new"]
    assert len(closed(log)) == 1


def test_what_a_crash_leaves_while_it_compresses_counts_once(log: LocalLog) -> None:
    lines = write(log, range(60))
    kept = {path: path.read_bytes() for path in (log.root / "history").iterdir()}
    log.compress()
    for path, content in kept.items():
        path.write_bytes(content)  # compressed, and not removed yet

    assert log.lines() == lines
    log.compress()
    assert log.lines() == lines and closed(log).count("jsonl") == 1


def test_a_reader_that_sleeps_while_what_it_has_opened_is_compressed_reads_no_line_twice(
    log: LocalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = write(log, range(10))
    listed = LocalLog._segments

    def late(self: LocalLog) -> list[paths.LogSegment]:
        monkeypatch.undo()
        lines.extend(write(log, range(10, 55)))
        log.compress()
        return listed(self)

    monkeypatch.setattr(LocalLog, "_segments", late)

    assert log.lines() == lines


def test_only_the_newest_are_kept_where_that_is_enough(tmp_path: Path) -> None:
    log = LocalLog(tmp_path, paths.LOCAL_HISTORY, FULL, retained_segments=1)
    lines = [f"line {number:06d}" for number in range(100)]
    for line in lines:
        log.append(line)

    found = log.lines()
    assert len(list((tmp_path / "told").iterdir())) == 1
    assert len(found) > 15 and found == lines[-len(found) :]


def test_several_processes_append(log: LocalLog) -> None:
    names = ("a", "b", "c")
    started = [writer(log.root, 0, 200, name) for name in names]
    for process in started:
        process.communicate(timeout=60)

    found = log.lines()

    assert len(found) == 600
    for name in names:
        assert [line for line in found if line[0] == name] == [f"{name} {number:06d}" for number in range(200)]


def test_a_file_that_got_its_new_name_while_another_lock_was_awaited_grows_no_more(
    log: LocalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody makes durable what would be written there."""
    lines = write(log, range(17))
    assert (log.root / paths.HISTORY).stat().st_size >= FULL and not (log.root / "history").exists()
    with (log.root / paths.HISTORY).open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        flock = fcntl.flock

        def overtaken(fd: int, how: int) -> None:
            try:
                flock(fd, how)
            except BlockingIOError:  # this lock is gone now, and the other process goes on
                monkeypatch.undo()
                flock(other, fcntl.LOCK_UN)
                lines.extend(write(log, range(17, 18)))
                raise

        monkeypatch.setattr(fcntl, "flock", overtaken)
        lines += write(log, range(18, 19))

    (full,) = (log.root / "history").iterdir()
    assert full.read_text().splitlines() == lines[:17]
    assert log.lines() == lines


def test_a_kill_in_the_middle_loses_and_doubles_no_line(log: LocalLog) -> None:
    chance, first = random.Random(7), 0
    for _ in range(12):
        process = writer(log.root, first, 100_000)
        assert process.stdout is not None
        last = first
        for _ in range(chance.randrange(20, 200)):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        last = max([last, *map(int, process.stdout.read().split("\n")[:-1])])
        process.wait()
        found = [int(line.split()[1]) for line in log.lines()]
        # The last line may be there though nobody was told.
        assert found in ([*range(last + 1)], [*range(last + 2)])
        first = len(found)
    log.compress()

    assert [int(line.split()[1]) for line in log.lines()] == [*range(first)]


def test_what_others_leave_beside_the_full_files_ends_no_job(log: LocalLog) -> None:
    (log.root / "history").mkdir()
    for name in (".DS_Store", ".nfs000000000001", "0000000000001-copy.jsonl"):
        (log.root / "history" / name).write_text("not of a log\n")

    lines = write(log, range(60))
    log.compress()

    assert log.lines() == lines and log.tail(10_000) == lines


@pytest.mark.limits(log_segment_bytes=8 << 20)
def test_the_storage_of_a_job_keeps_its_logs_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path / "job")
    lines = [f'{{"n": {number}}}' + " " * (1 << 20) for number in range(20)]
    for line in lines:
        storage.append(paths.LEDGER, line)
        storage.sync_log(paths.LEDGER)
    storage.compress_logs()

    assert list(LocalStorage(tmp_path / "job").lines(paths.LEDGER)) == lines
    assert len(list((tmp_path / "job" / "ledger").iterdir())) == 2
    with pytest.raises(CorruptCheckpoint, match=r"other\.jsonl"):
        storage.append("other.jsonl", "x")
