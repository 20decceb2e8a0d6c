"""CPU time and memory of a process and all its descendants, as Linux tells them in /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """``cpu``: user and system seconds, of children that have ended too. ``memory``: resident bytes, in sum."""

    cpu: float
    memory: int


def usage(root: int) -> Usage:
    """Of ``root`` and its descendants now; zero if it is gone."""
    facts = _all()
    cpu = memory = 0
    todo = [root]
    while todo:
        pid = todo.pop()
        if pid in facts:
            cpu, memory = cpu + facts[pid][1], memory + facts[pid][2]
        todo += [child for child, (parent, _, _) in facts.items() if parent == pid]
    return Usage(cpu / _TICK, memory * _PAGE)


def _all() -> dict[int, tuple[int, int, int]]:
    """Parent, ticks and pages of each process, by its id."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = Path("/proc", pid, "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        fields = text.rpartition(")")[2].split()
        found[int(pid)] = (int(fields[1]), sum(map(int, fields[11:15])), int(fields[21]))
    return found
