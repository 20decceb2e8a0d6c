"""Processes that the kernel kills when their parent dies.

As a program, ``parent_death.py PARENT_PID COMMAND...`` becomes COMMAND with that protection.

Rule: on Linux the parent is the *thread* that started this process, so start brokers from a thread that outlives them.
Other systems have no such call: there a worker ends with its control channel, and a broker may outlive its parent.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def build_command(command: list[str]) -> list[str]:
    """Return the command that runs ``command`` and ends with the calling thread."""
    return [sys.executable, "-ISs", __file__, str(os.getpid()), *command]


def die_with_parent(parent: int) -> bool:
    """Let the kernel kill this process when its parent dies. Return False if ``parent`` has died already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl") and libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    return os.getppid() == parent


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if not die_with_parent(parent):
        sys.exit("the parent has already ended")
    os.execv(command[0], command)  # noqa: S606 - becomes the program that this one was given


if __name__ == "__main__":
    main()
