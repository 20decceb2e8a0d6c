"""CPU time and memory of a process and all its descendants, as Linux tells them in /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """``cpu``: user and system seconds, of children that have ended too. ``memory``: resident bytes, in sum.

    ``own``: the seconds of the process itself, without its descendants.
    """

    cpu: float
    memory: int
    own: float


def usage(root: int) -> Usage:
    """Of ``root`` and its descendants now; zero if it is gone."""
    facts = _all()
    own = facts[root][3] if root in facts else 0
    cpu = memory = 0
    todo = [root]
    while todo:
        pid = todo.pop()
        if pid in facts:
            cpu, memory = cpu + facts[pid][1], memory + facts[pid][2]
        todo += [child for child, (parent, *_) in facts.items() if parent == pid]
    return Usage(cpu / _TICK, memory * _PAGE, own / _TICK)


def _all() -> dict[int, tuple[int, int, int, int]]:
    """Parent, ticks, pages, and ticks without children of each process, by its id."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path("/proc", pid, "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        fields = text.rpartition(")")[2].split()
        own, ended = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
        found[int(pid)] = (int(fields[1]), own + ended, int(fields[21]), own)
    return found
