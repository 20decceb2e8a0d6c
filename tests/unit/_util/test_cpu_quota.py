"""The number of cores is what the scheduler allows, limited by the quotas of all cgroups that the process is in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from kafka_eos._util.cpu_quota import usable_cores

HOST = 64


def machine(root: Path, membership: str, groups: Mapping[str, str]) -> Path:
    """A directory with what /proc and /sys would say; ``groups`` are files below /sys/fs/cgroup."""
    files = {"proc/self/cgroup": membership, **{f"sys/fs/cgroup/{name}": text for name, text in groups.items()}}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cores(root: Path, membership: str, groups: Mapping[str, str]) -> int:
    return usable_cores(HOST, machine(root, membership, groups))


@pytest.mark.parametrize(
    ("quota", "found"),
    [("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("10000000 100000", HOST), ("max 100000", HOST)],
)
def test_a_quota_of_version_2_is_rounded_up(tmp_path: Path, quota: str, found: int) -> None:
    assert cores(tmp_path, "0::/\n", {"cpu.max": f"{quota}\n"}) == found


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
@pytest.mark.parametrize(("quota", "found"), [("250000", 3), ("-1", HOST)])
def test_a_quota_of_version_1_too(tmp_path: Path, controllers: str, quota: str, found: int) -> None:
    groups = {"cpu/docker/a1/cpu.cfs_quota_us": f"{quota}\n", "cpu/docker/a1/cpu.cfs_period_us": "100000\n"}

    assert cores(tmp_path, f"11:memory:/docker/a1\n4:{controllers}:/docker/a1\n0::/docker/a1\n", groups) == found


def test_the_least_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    groups = {"pods/cpu.max": "300000 100000", "pods/a/cpu.max": "800000 100000", "pods/a/job/cpu.max": "max 100000"}

    assert cores(tmp_path, "0::/pods/a/job\n", groups) == 3


def test_the_quota_of_a_neighbour_does_not_count(tmp_path: Path) -> None:
    assert cores(tmp_path, "0::/pods/a\n", {"pods/b/cpu.max": "100000 100000"}) == HOST


@pytest.mark.parametrize("path", ["/docker/a1", "/../../elsewhere"])
def test_a_container_that_sees_a_path_of_its_host_has_the_quota_of_the_top(tmp_path: Path, path: str) -> None:
    groups = {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}

    assert cores(tmp_path, f"4:cpu,cpuacct:{path}\n", groups) == 2


@pytest.mark.parametrize(
    ("membership", "quota"),
    [("0::/\n", ""), ("0::/\n", "100000"), ("0::/\n", "0 100000"), ("0::/\n", "100000 0"), ("0::/\n", "two 1"),
     ("", "100000 100000"), ("nonsense\n\n", "100000 100000"), ("4:cpuset:/\n", "100000 100000")],
)  # fmt: skip
def test_what_cannot_be_understood_limits_nothing(tmp_path: Path, membership: str, quota: str) -> None:
    assert cores(tmp_path, membership, {"cpu.max": quota, "cpu/cpu.cfs_quota_us": quota}) == HOST


def test_a_system_without_cgroups_has_no_quota(tmp_path: Path) -> None:
    assert usable_cores(HOST, tmp_path) == HOST


def test_there_is_always_one(tmp_path: Path) -> None:
    assert usable_cores(0, tmp_path) == 1


def test_the_scheduler_is_asked(tmp_path: Path) -> None:
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mine)})
        assert usable_cores(root=tmp_path) == usable_cores() == 1
    finally:
        os.sched_setaffinity(0, mine)

    assert usable_cores(root=tmp_path) == len(mine)
