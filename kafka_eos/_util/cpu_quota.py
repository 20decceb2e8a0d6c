"""The number of cores that this process may use, limited by its scheduler affinity and its cgroup's CPU quota.

A container with two CPUs of a 64-core host still sees 64 cores. It is limited by a CPU quota of its own cgroup or of
one above it. So all of them are read, in cgroup version 2 and version 1, and rounded up.

Rule: the result is at least 1; a file that cannot be read limits nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_MEMBERSHIP = Path("proc/self/cgroup")
_HIERARCHY = Path("sys/fs/cgroup")


def usable_cores(scheduled: int | None = None, root: Path = Path("/")) -> int:
    """Return the number of cores that this process can keep busy.

    By default both arguments are those of this machine: the number of cores on which the scheduler may run the process,
    and the directory that contains /proc and /sys.
    """
    cores = _scheduled() if scheduled is None else scheduled
    return max(1, min([cores, *(_rounded_up(*quota) for quota in _quotas(root))]))


def _scheduled() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _rounded_up(time: int, period: int) -> int:
    return -(-time // period)


def cgroups(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """Yield version and directory of each cgroup of this process that may limit what ``controller`` counts."""
    for line in _text(root / _MEMBERSHIP).splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "none", "")
        if not controllers:
            yield from ((2, root / _HIERARCHY / group) for group in _upwards(path))
        elif controller in controllers.split(","):
            yield from ((1, root / _HIERARCHY / controller / group) for group in _upwards(path))


def _quotas(root: Path) -> Iterator[tuple[int, int]]:
    """Yield CPU time and period of each cgroup of the process that has a quota."""
    for version, group in cgroups(root, "cpu"):
        yield from _version_2(group) if version == 2 else _version_1(group)


def _upwards(path: str) -> Iterator[PurePosixPath]:
    """Yield a cgroup and all above it, as paths below the top.

    A container may see a path of its host: then only the top exists, and it is the container's own cgroup.
    """
    own = PurePosixPath(path.lstrip("/"))
    if ".." in own.parts:
        own = PurePosixPath()
    yield own
    yield from own.parents


def _version_2(group: Path) -> Iterator[tuple[int, int]]:
    """Parse ``cpu.max``: two numbers, or ``max`` and one."""
    yield from _valid(_text(group / "cpu.max").split())


def _version_1(group: Path) -> Iterator[tuple[int, int]]:
    """Read two files with a number each; without a quota the first one is -1."""
    yield from _valid([_text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")])


def _valid(words: list[str]) -> Iterator[tuple[int, int]]:
    if len(words) == 2 and all(word.isdecimal() for word in words):
        time, period = map(int, words)
        if time and period:
            yield time, period


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
