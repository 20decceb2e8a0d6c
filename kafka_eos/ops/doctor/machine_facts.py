"""Facts of this machine for ``findings``: disks, limits of a process, memory."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from kafka_eos._util.cpu_quota import cgroups
from kafka_eos.config.settings import Settings
from kafka_eos.ops.doctor.findings import DiskUsage, MemoryBudget
from kafka_eos.plan import Plan
from kafka_eos.plan.worker_memory import WorkerMemory


def disks(settings: Settings, job: str, state: int) -> Iterator[DiskUsage]:
    """Yield the usage of each local disk with files of the job. ``state``: bytes of its newest checkpoint."""
    here = isinstance(settings.checkpoint_dir, Path)
    if here:
        yield _disk("checkpoint_dir", settings.job_dir(job), state)
    local = settings.local_dirs(job)
    for place in local:
        # Local state below the checkpoints consists of hard links to them.
        if not here or not place.is_relative_to(settings.job_dir(job)):
            yield _disk("state_dir", place, state // len(local))


def _disk(holds: str, path: Path, state: int) -> DiskUsage:
    there = next(each for each in (path, *path.parents) if each.exists())
    found = shutil.disk_usage(there)
    return DiskUsage(holds, path, found.total, found.free, state)


def open_files() -> int | None:
    """Return the hard limit of open files of a process; None if there is no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def memory(plan: Plan, settings: Settings, root: Path = Path("/")) -> MemoryBudget:
    """Return the memory budget of a job. ``root``: the directory that contains ``proc`` and ``sys``."""
    each = WorkerMemory.of(plan, settings, settings.parallelism)
    return MemoryBudget(settings.parallelism, each, usable_memory(root))


def usable_memory(root: Path = Path("/")) -> int | None:
    """Return the memory limit in bytes: the machine's, or the smallest cgroup's; None if neither is known."""
    limits = [*_of_machine(root), *_of_cgroups(root)]
    return min(limits, default=None)


def _of_machine(root: Path) -> Iterator[int]:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal" and value.split():
            yield int(value.split()[0]) * 1024


def _of_cgroups(root: Path) -> Iterator[int]:
    for version, group in cgroups(root, "memory"):
        text = _text(group / ("memory.max" if version == 2 else "memory.limit_in_bytes")).strip()
        if text.isdecimal():  # "max" means no limit
            yield int(text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
