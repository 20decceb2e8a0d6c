"""Where processes stand is told by the kernel and their interpreters, whatever their code does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kafka_eos._util import thread_dumps as stacks
from kafka_eos._util.thread_dumps import DumpTarget, NoStacks
from tests.waiting import eventually

READY = (
    "from kafka_eos._util import thread_dumps as stacks; "
    "stacks.enable_dumps('worker 7'); stacks.enable_dumps('another')"
)
HANGS = f"""
import threading
{READY}

def forever():
    while True:
        pass

threading.Thread(target=threading.Event().wait, daemon=True).start()
forever()
"""


@contextmanager
def process(code: str) -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def ready(started: subprocess.Popen[bytes]) -> DumpTarget:
    found: DumpTarget = eventually(lambda: stacks.find_target(started.pid), "is ready")
    return found


def test_a_loop_without_an_end_is_told_with_all_threads_and_again() -> None:
    with process(HANGS) as started:
        place = ready(started)

        assert (place.pid, place.what) == (started.pid, "worker 7"), "the first name counts"
        told = eventually(lambda: text if "in forever" in (text := stacks.read_stacks(place)) else "", "comes there")
        assert told.count("most recent call first") == 2
        again = stacks.read_stacks(place, started.send_signal)
        assert again.count("in forever") == 1, "only what is new is told"
        assert started.poll() is None


def test_a_process_that_is_stopped_does_not_answer_and_the_kernel_says_why() -> None:
    with process(HANGS) as started:
        place = ready(started)
        started.send_signal(signal.SIGSTOP)

        with pytest.raises(NoStacks, match=r"within 0\.2 s: it is stopped"):
            stacks.read_stacks(place, within=0.2)


def test_a_process_that_is_gone_is_told_as_such() -> None:
    with process(HANGS) as started:
        place = ready(started)
        started.kill()
        started.wait()

        with pytest.raises(NoStacks, match="does not exist any more"):
            stacks.read_stacks(place)


def has_file(pid: int) -> bool:
    with suppress(OSError):
        return any("kafka-eos-stacks" in os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_a_process_that_does_not_handle_the_signal_gets_none() -> None:
    """It would end."""
    with process("import os, time; os.memfd_create('kafka-eos-stacks worker 0'); time.sleep(60)") as started:
        eventually(lambda: has_file(started.pid), "has the file")

        assert stacks.find_target(started.pid) is None


def test_children_are_those_of_a_process() -> None:
    with process(HANGS) as first, process(HANGS) as second:
        assert {first.pid, second.pid} <= {*stacks.child_pids(os.getpid())}
        assert [*stacks.child_pids(first.pid)] == []
