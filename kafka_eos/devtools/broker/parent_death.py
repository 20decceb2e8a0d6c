"""Wrapper process: ``parent_death.py PARENT_PID COMMAND...`` becomes COMMAND, which the kernel kills when the parent
dies.

Rule: on Linux the parent is the *thread* that started this process, so start brokers from a thread that outlives them.
On other systems the command runs without this protection.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def build_command(command: list[str]) -> list[str]:
    """Return the command that runs ``command`` and ends with the calling thread."""
    return [sys.executable, "-ISs", __file__, str(os.getpid()), *command]


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit("the parent has already ended")
    os.execv(command[0], command)  # noqa: S606 - becomes the program that this one was given


if __name__ == "__main__":
    main()
