"""What ``kafka-eos doctor`` makes of the facts of a machine, a store and a clock; whatever is not good has a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_eos.config.settings import Settings
from kafka_eos.ops.doctor import findings
from kafka_eos.ops.doctor import machine_facts as machine
from kafka_eos.ops.doctor.findings import CheckResult, ClockOffset, DiskUsage, MemoryBudget, Severity, StoreGuarantees
from kafka_eos.ops.doctor.store_probe import try_store
from kafka_eos.plan.worker_memory import PROCESS_BYTES, WorkerMemory
from kafka_eos.storage.job_storage import LocalStorage, MemoryStorage

GB = 1 << 30


def expect(found: CheckResult, verdict: Severity) -> None:
    assert found.verdict == verdict, found
    assert bool(found.remedy) == (verdict in ("warning", "bad"))


@pytest.mark.parametrize(
    ("free", "state", "verdict"),
    [(50 * GB, GB, "ok"), (2 * GB, GB, "ok"), (2 * GB - 1, GB, "warning"), (GB - 1, GB, "bad"), (GB - 1, 0, "warning"),
     (GB, 0, "ok"), ((100 << 20) - 1, 0, "bad")],
)  # fmt: skip
def test_a_disk_has_room_for_the_state_once_more(free: int, state: int, verdict: Severity) -> None:
    expect(findings.check_disk(DiskUsage("state_dir", Path("/data"), 100 * GB, free, state)), verdict)


@pytest.mark.parametrize(
    ("workers", "hard", "verdict"), [(4, None, "ok"), (4, 524, "ok"), (4, 523, "bad"), (64, 4096, "bad")]
)
def test_sockets_between_workers_are_open_files(workers: int, hard: int | None, verdict: Severity) -> None:
    expect(findings.check_open_files(workers, hard), verdict)


@pytest.mark.parametrize(
    ("limit", "verdict"),
    [(None, "unknown"), (8 * GB, "ok"), (2 * GB, "warning"), (GB, "warning"), (900 << 20, "bad")],
)
def test_what_workers_may_take_is_less_than_there_is(limit: int | None, verdict: Severity) -> None:
    memory = MemoryBudget(2, WorkerMemory(GB // 4, GB // 64, GB // 2), limit)

    expect(findings.check_memory(memory), verdict)
    assert memory.needed == 2 * (GB // 4 + GB // 64 + GB // 2) + 3 * PROCESS_BYTES


@pytest.mark.parametrize(
    "broken", ["creates_exclusively", "lists_own_writes", "reads_own_writes", "forgets_deleted", None]
)
def test_a_store_that_breaks_a_guarantee_is_refused_for_checkpoints(broken: str | None) -> None:
    guarantees = {
        name: name != broken
        for name in ("creates_exclusively", "lists_own_writes", "reads_own_writes", "forgets_deleted")
    }

    expect(
        findings.check_store(StoreGuarantees("s3://b/jobs", seconds=0.05, **guarantees), 1.0), "bad" if broken else "ok"
    )


def test_a_store_that_takes_half_of_the_interval_is_slow() -> None:
    expect(findings.check_store(StoreGuarantees("s3://b/jobs", True, True, True, True, 0.6), 1.0), "warning")


@pytest.mark.parametrize(
    ("ahead", "unsure", "verdict"),
    [(0.1, 0.0, "ok"), (-5.0, 0.1, "warning"), (5.0, 4.0, "ok"), (90.0, 1.0, "bad"), (-90.0, 1.0, "bad")],
)
def test_a_clock_is_judged_by_what_is_sure(ahead: float, unsure: float, verdict: Severity) -> None:
    found = findings.check_clock(ClockOffset("kafka://a:1", ahead, unsure))

    expect(found, verdict)
    assert ("ahead" if ahead > 0 else "behind") in found.what


def test_what_sources_and_sinks_say_is_told_line_by_line() -> None:
    assert [found.verdict for found in findings.check_connectors([], "no topic a\nno topic b")] == ["bad", "bad"]
    assert [found.what for found in findings.check_connectors(["one replica"], None)] == ["one replica"]
    assert [found.verdict for found in findings.check_connectors([], None)] == ["ok"]


class Replaces(MemoryStorage):
    """A store that ignores that a name must be new."""

    def publish(self, name: str, data: bytes) -> None:
        self.delete(name)
        super().publish(name, data)


class ListsLate(MemoryStorage):
    def list(self, prefix: str) -> list[str]:
        return []


def test_a_trial_sees_what_a_store_does_and_leaves_nothing(tmp_path: Path) -> None:
    good, memory = LocalStorage(tmp_path), MemoryStorage()
    assert [try_store(store, "here").creates_exclusively for store in (good, memory, Replaces())] == [True, True, False]
    assert [try_store(store, "here").lists_own_writes for store in (good, ListsLate())] == [True, False]

    assert findings.check_store(try_store(good, "here"), 60.0).verdict == "ok"
    assert not memory.objects
    assert list((tmp_path / "trials").iterdir()) == []


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        ("0::/\n", {}, 2 * GB),
        ("0::/a/b\n", {"a/memory.max": str(GB), "a/b/memory.max": "max"}, GB),
        ("5:memory:/a\n", {"memory/a/memory.limit_in_bytes": str(GB)}, GB),
        ("5:memory:/a\n", {"memory/a/memory.limit_in_bytes": str(1 << 62)}, 2 * GB),
    ],
)
def test_memory_is_that_of_the_machine_or_of_a_cgroup(
    tmp_path: Path, membership: str, files: dict[str, str], limit: int
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {2 * GB // 1024} kB\nMemFree: 1 kB\n")
    (tmp_path / "proc/self/cgroup").write_text(membership)
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    assert machine.usable_memory(tmp_path) == limit


def test_disks_are_those_of_checkpoints_and_state(tmp_path: Path) -> None:
    settings = Settings.resolve(code={"checkpoint_dir": tmp_path / "a", "state_dir": (tmp_path / "b", tmp_path / "c")})
    seen = list(machine.disks(settings, "orders", 1000))

    assert [(each.holds, each.path, each.state) for each in seen] == [
        ("checkpoint_dir", tmp_path / "a/orders", 1000),
        ("state_dir", tmp_path / "b/orders", 500),
        ("state_dir", tmp_path / "c/orders", 500),
    ]
    assert all(each.total >= each.free > 0 for each in seen)
    elsewhere = Settings.resolve(code={"checkpoint_dir": "s3://bucket/jobs", "state_dir": tmp_path})
    assert [each.holds for each in machine.disks(elsewhere, "orders", 0)] == ["state_dir"]
