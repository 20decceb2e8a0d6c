"""A thread that computes for ever is found, one that waits is not."""

from __future__ import annotations

import threading

from tests.spinning import spinning
from tests.waiting import eventually


def test_a_thread_that_computes_for_ever_is_found_by_its_name_and_stack() -> None:
    over, waits = threading.Event(), threading.Event()

    def compute() -> None:
        while not over.is_set():
            pass

    def looked() -> list[str]:
        """Threads of other tests may be at work, too."""
        return [each for each in spinning() if each.startswith(("computes:", "waits:"))]

    threads = [threading.Thread(target=compute, name="computes"), threading.Thread(target=waits.wait, name="waits")]
    for thread in threads:
        thread.start()
    try:
        found = eventually(looked, "a thread that computes, however busy the machine is")
    finally:
        over.set()
        waits.set()
        for thread in threads:
            thread.join()

    (shown,) = found
    assert shown.startswith("computes:")
    assert "in compute" in shown
