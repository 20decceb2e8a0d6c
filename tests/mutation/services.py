"""The place of a run's broker, PostgreSQL and schema registry, which the first test that needs one starts.

Rule: it is led by a process of its own, because the process that forks the mutants must not import the library.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.mutation.signatures import ROOT


@contextmanager
def services() -> Iterator[str]:
    """The directory to join. What was started ends with the block."""
    command = [sys.executable, "-m", "tests.mutation.services"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        yield leader.stdout.readline().strip()
        leader.communicate()


def lead() -> None:
    """Make the place, tell it, and clear up when nobody asks for it any more."""
    from tests.shared_broker import SharedBroker

    place = SharedBroker.led()
    print(place.directory, flush=True)
    sys.stdin.read()
    place.close()


if __name__ == "__main__":
    lead()
