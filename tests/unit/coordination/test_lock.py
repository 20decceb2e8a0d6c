"""Who holds a job's lock, what is said of a holder that is frozen, and which process may be killed for it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kafka_eos.coordination import job_lock as locks
from kafka_eos.coordination.job_lock import find_holder, is_held, job_lock, kill_holder, state_locks
from kafka_eos.core.errors import ConfigError, JobLocked
from tests.waiting import eventually

SLEEPS = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
FREEZES = """
import os, signal, sys
open("/proc/self/comm", "w").write(sys.argv[1])
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_LOOKED_AT", 0.05)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "orders" / "lock"


@contextmanager
def held_by_another(lock: Path, command: list[str], *, as_input: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """Another process has the lock, and its number is in it; it is the first or the last file that it has open."""
    lock.parent.mkdir(parents=True)
    fd = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    passed = () if as_input else (fd,)
    process = subprocess.Popen(
        command, stdin=fd if as_input else subprocess.DEVNULL, pass_fds=passed, stdout=subprocess.PIPE
    )
    os.pwrite(fd, str(process.pid).encode(), 0)
    os.close(fd)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_lock_names_its_holder_while_it_is_held(lock: Path) -> None:
    lock.parent.mkdir()
    lock.write_text("1234567890123456789")
    assert (is_held(lock), find_holder(lock)) == (False, None)

    with job_lock(lock, "orders"):
        assert (is_held(lock), find_holder(lock)) == (True, os.getpid())
        for _ in range(2):
            with pytest.raises(JobLocked, match=f"already run by process {os.getpid()} "), job_lock(lock, "orders"):
                pass

    assert (is_held(lock), find_holder(lock)) == (False, None)


def test_who_only_looks_makes_nothing_and_holds_nothing(lock: Path) -> None:
    assert not is_held(lock)
    assert not lock.exists()
    with job_lock(lock, "orders"):
        pass
    for _ in range(3):
        assert not is_held(lock)
        with job_lock(lock, "orders"):
            assert is_held(lock)


def test_a_lock_is_free_when_what_was_done_under_it_fails(lock: Path) -> None:
    with pytest.raises(KeyError), job_lock(lock, "orders"):
        raise KeyError

    assert not is_held(lock)


def test_a_lock_without_a_number_is_held_by_somebody(lock: Path) -> None:
    """Its holder was about to write it."""
    with job_lock(lock, "orders"):
        os.truncate(lock, 0)
        assert find_holder(lock) is None
        with pytest.raises(JobLocked, match="already run by process unknown "), job_lock(lock, "orders"):
            pass


def test_what_is_no_file_of_its_own_is_no_lock(lock: Path, tmp_path: Path) -> None:
    lock.parent.mkdir()
    lock.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(ConfigError, match="cannot be used"), job_lock(lock, "orders"):
        pass
    with pytest.raises(OSError, match="symbolic links"):
        is_held(lock)
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used: File exists"), job_lock(tmp_path / "file" / "lock", "a"):
        pass


def test_all_directories_of_local_state_are_held_or_none(tmp_path: Path) -> None:
    directories = [tmp_path / name for name in "abc"]
    for taken in directories:
        with state_locks([taken], "orders"), pytest.raises(JobLocked, match=f"local state in {taken}"):
            ExitStack().enter_context(state_locks(directories, "orders"))
        assert not any(is_held(each / "lock") for each in directories)


@pytest.mark.parametrize("name", ["python", "a) S (b"])
def test_a_holder_that_is_frozen_is_named_with_what_ends_it(lock: Path, name: str) -> None:
    with held_by_another(lock, [sys.executable, "-c", FREEZES, name]) as process:
        stat = Path(f"/proc/{process.pid}/stat")
        eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "it is frozen")

        told = rf"frozen .*kill -CONT {process.pid}\).*kill -9 {process.pid}\)"
        with pytest.raises(JobLocked, match=told), job_lock(lock, "orders"):
            pass


def test_of_a_holder_that_works_nothing_is_said(lock: Path) -> None:
    with held_by_another(lock, SLEEPS), pytest.raises(JobLocked) as refused, job_lock(lock, "orders"):
        pass

    assert "frozen" not in str(refused.value)


@pytest.mark.parametrize("as_input", [True, False])
def test_a_holder_can_be_ended(lock: Path, as_input: bool) -> None:
    with held_by_another(lock, SLEEPS, as_input=as_input) as process:
        assert kill_holder(lock, process.pid)
        assert process.wait(30) == -signal.SIGKILL
    assert not is_held(lock)
    assert not kill_holder(lock, process.pid)


def test_nobody_is_killed_but_the_holder(lock: Path, tmp_path: Path) -> None:
    """Neither for another number than that in the lock, nor if the number is another process's by now."""
    with held_by_another(lock, SLEEPS) as process, held_by_another(tmp_path / "b" / "lock", SLEEPS) as other:
        assert not kill_holder(lock, other.pid)
        lock.write_text(str(other.pid))
        assert not kill_holder(lock, other.pid)
        assert not kill_holder(lock, process.pid)

        for each in (process, other):
            assert each.poll() is None
