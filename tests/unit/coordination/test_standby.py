"""What a standby makes of the heartbeats in a store, and of the lock."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from pathlib import Path

import pytest

from kafka_eos.coordination import heartbeats, standby
from kafka_eos.coordination.heartbeats import HeartbeatWriter, LeaderHeartbeat
from kafka_eos.coordination.job_lock import is_held
from kafka_eos.coordination.standby import Standby
from kafka_eos.core.errors import JobLocked
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import JobStorage, LocalStorage, MemoryStorage
from tests.store_faults import Objects, Requests, every
from tests.waiting import eventually

LEASE = 10.0

ONE, OTHER = "0" * 16, "1" * 16


@pytest.fixture(autouse=True)
def _no_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "_NAP", 0.001)


def put(storage: MemoryStorage, writer: str, count: int, content: bytes) -> None:
    storage.publish(paths.heartbeat_name(writer, count), content)


def test_the_newest_heartbeat_of_each_writer_counts() -> None:
    storage = MemoryStorage()
    put(storage, ONE, 9, b'{"host":"a","pid":1,"lock":"l"}')
    put(storage, ONE, 10, b'{"host":"a","pid":1,"lock":"l","ended":"left"}')
    put(storage, OTHER, 2, b'{"host":"b","pid":2,"lock":"m"}')

    assert heartbeats.read_heartbeats(storage) == {
        ONE: (10, LeaderHeartbeat("a", 1, "l", "left")),
        OTHER: (2, LeaderHeartbeat("b", 2, "m")),
    }


def test_what_is_no_heartbeat_says_nothing() -> None:
    storage = MemoryStorage()
    put(storage, ONE, 1, b"torn")
    put(storage, OTHER, 2, b'{"host":"b","pid":2,"lock":"m"}')
    storage.publish(f"{paths.HEARTBEATS}/notes.txt", b"of somebody")

    assert heartbeats.read_heartbeats(storage) == {OTHER: (2, LeaderHeartbeat("b", 2, "m"))}


def test_a_leader_that_lives_is_seen_by_whoever_looks_between_any_two_of_its_requests(tmp_path: Path) -> None:
    """Also if one of them fails."""
    for requests in every("refuse", "lose answer"):
        place, seen = Objects(), [0]
        reader, pulse = place.open(), _pulse(tmp_path, place.open())

        def look(reader: JobStorage = reader, seen: list[int] = seen) -> None:
            ((count, _),) = heartbeats.read_heartbeats(reader).values()
            seen.append(count)
            assert seen[-2] <= seen[-1]

        requests.between = look
        pulse.start()
        with place.reached(requests):
            for _ in range(3):
                pulse._attempt(pulse._alive)
            pulse.stop("left")

        assert requests.failed or (seen[-1], len(reader.list(paths.HEARTBEATS))) == (5, 2)
        _pulse(tmp_path, place.open()).start()
        assert len(reader.list(paths.HEARTBEATS)) == 1, requests


@pytest.mark.parametrize("beats", [1, 3])
def test_a_leader_that_goes_on_between_any_two_requests_of_who_looks_is_seen(tmp_path: Path, beats: int) -> None:
    """A standby that sees none takes over. Within a list that is made there is no more than one heartbeat.

    The heartbeat before those could not be written.
    """
    for at in itertools.count(1):
        place, left = Objects(), [beats]
        place.lists_at_once = beats > 1
        pulse = _pulse(tmp_path, place.open())
        pulse.start()
        with place.reached(Requests("refuse", 1)):
            pulse._attempt(pulse._alive)

        def go_on(pulse: HeartbeatWriter = pulse, left: list[int] = left, at: int = at) -> None:
            if requests.count == at - 1 and left:
                for _ in range(left.pop()):
                    pulse._attempt(pulse._alive)

        with place.reached(requests := Requests(between=go_on)):
            assert heartbeats.read_heartbeats(place.open()), at
        pulse.stop("left")
        if left:
            break
    assert at > 2


def _pulse(directory: Path, storage: JobStorage) -> HeartbeatWriter:
    """One that beats when it is told to."""
    (directory / "lock").touch()
    return HeartbeatWriter(storage, directory / "lock", lease=10_000)


def test_a_leader_goes_on_beside_what_others_put_there(tmp_path: Path) -> None:
    storage, lock = MemoryStorage(), tmp_path / "lock"
    lock.touch()
    storage.publish(f"{paths.HEARTBEATS}/notes.txt", b"of somebody")
    pulse = HeartbeatWriter(storage, lock, lease=0.05)
    pulse.start()

    eventually(
        lambda: any(count > 3 for count, _ in heartbeats.read_heartbeats(storage).values()), "the fourth heartbeat"
    )

    pulse.stop("left")
    assert f"{paths.HEARTBEATS}/notes.txt" in storage.list(paths.HEARTBEATS)
    assert [found.ended for _, found in heartbeats.read_heartbeats(storage).values()] == ["left"]


class Broken(MemoryStorage):
    """Fails in a way that no store should, from the second object on."""

    def publish(self, name: str, data: bytes) -> None:
        if self.list(paths.HEARTBEATS):
            raise KeyError("a defect")
        super().publish(name, data)


def test_heartbeats_that_end_for_a_defect_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "lock").touch()
    HeartbeatWriter(Broken(), tmp_path / "lock", lease=0.05).start()

    eventually(lambda: caplog.records, "a message")

    (record,) = caplog.records
    assert "no more heartbeats are written" in record.getMessage() and record.levelname == "ERROR"
    assert record.exc_info is not None and isinstance(record.exc_info[1], KeyError)


def test_the_last_heartbeat_never_ends_a_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "lock").touch()
    pulse = HeartbeatWriter(Broken(), tmp_path / "lock", lease=3600)
    pulse.start()

    pulse.stop("left")

    assert [type(record.exc_info[1]) for record in caplog.records if record.exc_info] == [KeyError]


class Full(MemoryStorage):
    """Has no room for anything."""

    def publish(self, name: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "no room")


def test_a_leader_whose_store_is_full_shows_its_life_by_its_lock(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    before = heartbeats.read_touch_time(lock)
    pulse = HeartbeatWriter(Full(), lock, lease=0.05)
    pulse.start()

    eventually(lambda: heartbeats.read_touch_time(lock) > before, "the lock is touched")
    pulse.stop("left")


def test_a_leader_does_not_touch_the_lock_of_another(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    pulse = HeartbeatWriter(MemoryStorage(), lock, lease=3600)
    lock.rename(tmp_path / "old")
    lock.touch()
    before = heartbeats.read_touch_time(lock)

    pulse.start()
    pulse.stop("left")

    assert heartbeats.read_touch_time(lock) == before


def test_what_ends_a_leader_ends_it_also_if_it_is_a_lock(tmp_path: Path) -> None:
    """Of its local state, for example: the job's own lock was taken, and is free again afterwards."""
    lock = tmp_path / "job" / paths.LOCK
    waiting = Standby(LocalStorage(tmp_path / "job"), lock, "job", LEASE, lambda event, **facts: None)

    def lead() -> None:
        with waiting.lead(threading.Event()) as pulse:
            assert pulse is not None
            assert is_held(lock)
            pulse.stop("left")
            raise JobLocked("local state")

    with pytest.raises(JobLocked, match="local state"):
        lead()
    assert not is_held(lock)


class Slow(MemoryStorage):
    """Each list of names takes so many seconds of a clock that stands still otherwise."""

    def __init__(self, takes: float, lists: int) -> None:
        super().__init__()
        self.now, self._takes, self._lists = 0.0, takes, lists
        self.over = threading.Event()

    def list(self, prefix: str) -> list[str]:
        self.now, self._lists = self.now + self._takes, self._lists - 1
        if not self._lists:
            self.over.set()
        return super().list(prefix)


@pytest.mark.parametrize(("takes", "leads"), [(1.0, True), (3.0, False)])
def test_a_store_that_answers_late_does_not_tell_that_a_leader_is_silent(
    tmp_path: Path, takes: float, leads: bool
) -> None:
    """A look takes three lists; a leader that has given no other heartbeat in ten seconds is gone."""
    storage, said = Slow(takes, lists=60), list[str]()
    put(storage, ONE, 1, b'{"host":"a","pid":1,"lock":"elsewhere"}')
    (tmp_path / "job").mkdir()

    def observe(event: str, **facts: object) -> None:
        said.append(str(facts["text"]))

    waiting = Standby(storage, tmp_path / "job" / paths.LOCK, "job", LEASE, observe, lambda: storage.now)
    with waiting.lead(storage.over) as pulse:
        if pulse is not None:
            pulse.stop("left")

    assert (pulse is not None) == leads
    assert any("took longer than 5 s to respond" in text for text in said) != leads


def test_a_heartbeat_that_cannot_be_read_is_told_once(tmp_path: Path) -> None:
    """Three looks, in which the other leader is not taken for gone."""
    storage, notices = Slow(takes=1.0, lists=9), list[str]()
    put(storage, ONE, 1, b"")
    put(storage, OTHER, 2, b'{"host":"b","pid":2,"lock":"elsewhere"}')
    (tmp_path / "job").mkdir()

    def observe(event: str, **facts: object) -> None:
        if event == "notice":
            notices.append(str(facts["text"]))

    waiting = Standby(storage, tmp_path / "job" / paths.LOCK, "job", LEASE, observe, lambda: storage.now)
    with waiting.lead(storage.over) as pulse:
        assert pulse is None

    assert [text.split(":")[0] for text in notices] == [f"heartbeats/{ONE}-0000000001.json is not a valid heartbeat"]


def test_a_standby_whose_disk_is_full_waits_until_it_has_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leads no sooner, because as a leader it would fail at once."""
    said, left = list[str](), [OSError(errno.ENOSPC, "No space left on device")] * 2

    def allocate(file: int, start: int, size: int) -> None:
        if left:
            raise left.pop()

    monkeypatch.setattr("os.posix_fallocate", allocate)
    waiting = Standby(
        MemoryStorage(), tmp_path / "lock", "orders", 0.01, lambda event, **facts: said.append(str(facts["text"]))
    )
    put(waiting._storage, ONE, 1, b'{"host":"a","pid":1,"lock":"l","ended":"left"}')  # type: ignore[arg-type]

    with waiting.lead(threading.Event()) as pulse:
        assert pulse is not None
        pulse.stop("left")

    assert left == []
    assert any("cannot lead the job yet: no disk space for" in text for text in said)


def test_a_standby_that_cannot_create_its_lock_for_lack_of_space_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may fill up after it had space."""
    said, left, pwrite = list[str](), [OSError(errno.ENOSPC, "No space left on device")], os.pwrite

    def write(file: int, data: bytes, at: int) -> int:
        if left:
            raise left.pop()
        return pwrite(file, data, at)

    monkeypatch.setattr("os.pwrite", write)
    storage = MemoryStorage()
    put(storage, ONE, 1, b'{"host":"a","pid":1,"lock":"l","ended":"left"}')
    waiting = Standby(storage, tmp_path / "lock", "orders", 0.01, lambda event, **facts: said.append(facts["text"]))

    with waiting.lead(threading.Event()) as pulse:
        assert pulse is not None
        pulse.stop("left")

    assert any("cannot lead the job yet: the directory" in text for text in said)


def test_a_store_without_heartbeats_has_none() -> None:
    assert heartbeats.read_heartbeats(MemoryStorage()) == {}


def test_machines_of_one_image_have_locks_with_different_names(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert f":{start}:" in heartbeats.lock_id(lock)
