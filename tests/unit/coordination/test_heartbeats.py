"""What a leader writes of itself, what it deletes, and what a standby and ``kafka-eos status`` make of it."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from kafka_eos.coordination import heartbeats, standby
from kafka_eos.coordination.heartbeats import HeartbeatWriter, LeaderHeartbeat
from kafka_eos.coordination.standby import Standby
from kafka_eos.core.ids import Term
from kafka_eos.protocol.standby import LeaderExit
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage, MemoryStorage
from tests.unit.coordination.test_lock import SLEEPS, held_by_another
from tests.waiting import eventually

LEASE = 10.0
WRITERS = ["0" * 16, "1" * 16, "2" * 16]


@pytest.fixture(autouse=True)
def _no_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "_NAP", 0.001)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "lock"
    path.touch()
    return path


def put(storage: MemoryStorage, writer: str, count: int, beat: LeaderHeartbeat) -> None:
    storage.publish(paths.heartbeat_name(writer, count), msgspec.json.encode(beat))


def of(host: str, ended: LeaderExit | None = None) -> LeaderHeartbeat:
    return LeaderHeartbeat(host, 7, f"lock of {host}", ended)


class Noting(MemoryStorage):
    """Notes how many heartbeats there are before each deletion."""

    def __init__(self) -> None:
        super().__init__()
        self.before_deletions: list[int] = []

    def delete(self, name: str) -> None:
        self.before_deletions.append(len(self.list(paths.HEARTBEATS)))
        super().delete(name)


def test_a_leader_deletes_its_heartbeats_but_two_and_those_of_leaders_before_it_alone(lock: Path) -> None:
    storage = Noting()
    for writer in WRITERS[:2]:
        for count in (9, 10):
            put(storage, writer, count, of("before"))
    pulse = HeartbeatWriter(storage, lock, lease=3600)

    pulse.start()
    ((count, beat),) = heartbeats.read_heartbeats(storage).values()
    assert (count, beat) == (
        1,
        LeaderHeartbeat(socket.gethostname(), os.getpid(), heartbeats.lock_id(lock), every=720.0),
    )
    assert storage.before_deletions == [5, 4, 3, 2], "the new one is there first"
    put(storage, WRITERS[2], 1, of("later"))
    pulse.stop("left")

    found = heartbeats.read_heartbeats(storage)
    assert len(storage.list(paths.HEARTBEATS)) == 3
    assert found.pop(WRITERS[2]) == (1, of("later"))
    assert [(count, beat.ended) for count, beat in found.values()] == [(2, "left")]


def test_a_leader_goes_on_until_it_ends_and_no_longer(lock: Path) -> None:
    storage = MemoryStorage()
    pulse = HeartbeatWriter(storage, lock, lease=0.05)
    pulse.start()
    eventually(
        lambda: any(count > 3 for count, _ in heartbeats.read_heartbeats(storage).values()), "the fourth heartbeat"
    )

    pulse.stop("stopped")

    names = storage.list(paths.HEARTBEATS)
    assert [beat.ended for _, beat in heartbeats.read_heartbeats(storage).values()] == ["stopped"]
    assert len(names) == 2 and not any(thread.name == "heartbeat" for thread in threading.enumerate())


class Away(MemoryStorage):
    """Takes nothing while it is ``away``."""

    away = True

    def __init__(self) -> None:
        super().__init__()
        self.tries = 0

    def publish(self, name: str, data: bytes) -> None:
        self.tries += 1
        if self.away:
            raise OSError(errno.EIO, "away")
        super().publish(name, data)


def test_that_heartbeats_cannot_be_written_is_said_once_until_they_can_again(
    lock: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = Away()
    pulse = HeartbeatWriter(storage, lock, lease=0.05)

    def tried_again() -> None:
        before = storage.tries
        eventually(lambda: storage.tries > before + 2, "some more heartbeats")

    pulse.start()
    tried_again()
    assert len(caplog.records) == 1
    storage.away = False
    tried_again()
    storage.away = True
    tried_again()
    pulse.stop("left")

    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["heartbeats cannot be written"] * 2


class Vanishing(MemoryStorage):
    """Heartbeats that go while somebody looks."""

    def __init__(self, *gone: str) -> None:
        super().__init__()
        self.gone = gone

    def list(self, prefix: str) -> list[str]:
        return sorted([*super().list(prefix), *(paths.heartbeat_name(writer, 3) for writer in self.gone)])


@pytest.mark.parametrize("gone", WRITERS)
def test_a_heartbeat_that_goes_while_it_is_read_hides_no_other(gone: str) -> None:
    storage = Vanishing(gone)
    there = [writer for writer in WRITERS if writer != gone]
    for writer in there:
        put(storage, writer, 2, of(writer))

    assert heartbeats.read_heartbeats(storage) == {writer: (2, of(writer)) for writer in there}


# ---------------------------------------------------------------- standing by


class Clocked(MemoryStorage):
    """Each look takes a second of its clock. ``at``: what happens at which look, before it."""

    def __init__(self, at: dict[int, Callable[[], object]], looks: int = 60) -> None:
        super().__init__()
        self.now, self._at, self._left = 0.0, at, looks
        self.looked, self.over = 0, threading.Event()

    def list(self, prefix: str) -> list[str]:
        if prefix == paths.HEARTBEATS and not self.over.is_set():
            self.looked, self.now = self.looked + 1, self.now + 2.0
            self._at.get(self.looked, lambda: None)()
            if self.looked == self._left:
                self.over.set()
        return super().list(prefix)


class Watcher:
    """A standby of another machine, or of the one whose lock it shares; what it says, and when it leads."""

    def __init__(self, storage: Clocked, lock: Path) -> None:
        self.said: list[str] = []
        self.storage = storage
        waiting = Standby(storage, lock, "orders", LEASE, self._observe, lambda: storage.now)
        with waiting.lead(storage.over) as pulse:
            self.leads = pulse is not None
            if pulse is not None:
                pulse.stop("left")

    def _observe(self, event: str, **facts: object) -> None:
        self.said.append(str(facts["text"]))


def beating(storage: Clocked, writer: str, host: str, looks: Sequence[int]) -> dict[int, Callable[[], object]]:
    """A leader that shows itself at these looks."""

    def beat(count: int) -> Callable[[], object]:
        def written() -> None:
            storage.delete(paths.heartbeat_name(writer, count - 1))
            put(storage, writer, count, of(host))

        return written

    return {look: beat(number) for number, look in enumerate(looks, 1)}


def watched(tmp_path: Path, *leaders: tuple[str, Sequence[int]], looks: int = 60) -> Watcher:
    at: dict[int, list[Callable[[], object]]] = {}
    storage = Clocked({}, looks)
    for writer, (host, when) in zip(WRITERS, leaders, strict=False):
        for look, beat in beating(storage, writer, host, when).items():
            at.setdefault(look, []).append(beat)
    storage._at = {look: lambda some=some: [beat() for beat in some] for look, some in at.items()}  # type: ignore[misc]
    (tmp_path / "job").mkdir(exist_ok=True)
    return Watcher(storage, tmp_path / "job" / paths.LOCK)


@pytest.mark.parametrize("silent", [0, 1])
def test_as_long_as_one_leader_shows_itself_nobody_takes_over(tmp_path: Path, silent: int) -> None:
    leaders = [("one", [1]), ("two", range(1, 41, 2))] if not silent else [("one", range(1, 41, 2)), ("two", [1])]

    found = watched(tmp_path, *leaders, looks=40)  # type: ignore[arg-type]

    assert not found.leads
    told = found.said[0].removeprefix("standby for ").split(" and ")
    assert sorted(told) == ["process 7 on one", "process 7 on two"]


def test_a_leader_is_gone_a_lease_after_its_last_sign_of_life(tmp_path: Path) -> None:
    """Its first sign counts for nothing then: it has changed meanwhile."""
    found = watched(tmp_path, ("one", [1, 3, 5]))

    assert found.leads
    assert found.said[-1] == "process 7 on one has ended: this supervisor takes over"
    assert found.storage.now >= 10 + LEASE


def test_what_was_seen_before_the_store_was_away_does_not_count(tmp_path: Path) -> None:
    storage = Clocked({})

    def away() -> None:
        raise OSError(errno.EIO, "away")

    storage._at = {1: lambda: put(storage, WRITERS[0], 1, of("one")), 5: away, 6: away}
    (tmp_path / "job").mkdir()

    found = Watcher(storage, tmp_path / "job" / paths.LOCK)

    assert found.leads
    assert [text.split(":")[0] for text in found.said] == [
        "standby for process 7 on one", "the checkpoint store cannot be read",
        "standby for process 7 on one", "process 7 on one has ended",
    ]  # fmt: skip
    assert storage.now >= 14 + LEASE


@pytest.mark.parametrize(("ended", "leads"), [("stopped", False), ("left", True)])
def test_how_a_leader_ends_while_somebody_stands_by_counts(tmp_path: Path, ended: LeaderExit, leads: bool) -> None:
    storage = Clocked({})
    storage._at = {
        1: lambda: put(storage, WRITERS[0], 1, of("one")),
        3: lambda: put(storage, WRITERS[0], 2, of("one", ended)),
    }
    (tmp_path / "job").mkdir()

    found = Watcher(storage, tmp_path / "job" / paths.LOCK)

    assert found.leads == leads
    assert storage.looked <= 5, "at once"
    assert leads or found.said[-1] == "the job was stopped; this standby never led it"


def test_a_job_that_was_stopped_before_is_led(tmp_path: Path) -> None:
    storage = Clocked({})
    for writer in WRITERS[:2]:
        put(storage, writer, 1, of(writer, "stopped"))
    (tmp_path / "job").mkdir()

    assert Watcher(storage, tmp_path / "job" / paths.LOCK).leads


@pytest.mark.parametrize("kind", [paths.claim_name, paths.base_name])
def test_one_without_heartbeats_is_gone_when_it_has_written_nothing_for_a_lease(tmp_path: Path, kind: object) -> None:

    storage = Clocked({})
    storage._at = {look: lambda look=look: storage.publish(kind(Term(look)), b"") for look in (1, 2, 4)}  # type: ignore[operator, misc]
    (tmp_path / "job").mkdir()

    found = Watcher(storage, tmp_path / "job" / paths.LOCK)

    assert found.leads
    assert storage.now >= 8 + LEASE
    assert found.said[0].startswith("standby: waiting to see whether the job runs")


def test_a_store_with_the_lock_in_it_tells_of_all_leaders(tmp_path: Path) -> None:
    """Nothing is waited for: a leader without heartbeats would hold the lock."""
    storage, said = LocalStorage(tmp_path / "job"), list[str]()
    storage.publish("terms/00000001.claim.json", b"")
    lock = tmp_path / "job" / paths.LOCK

    waiting = Standby(storage, lock, "orders", 3600.0, lambda event, **facts: said.append(event))
    with waiting.lead(threading.Event()) as pulse:
        assert pulse is not None
        pulse.stop("left")

    assert said == []


@pytest.mark.parametrize("beside", [0, 1, 2])
def test_a_frozen_holder_of_the_lock_is_killed_and_nobody_else(tmp_path: Path, beside: int) -> None:
    """Of several leaders the one that holds the lock is, though one of another machine has shown itself."""
    lock = tmp_path / "job" / paths.LOCK
    with held_by_another(lock, SLEEPS) as process:
        storage = Clocked({})
        frozen = LeaderHeartbeat("here", process.pid, heartbeats.lock_id(lock))
        elsewhere = LeaderHeartbeat("there", process.pid, "another lock")
        for number, writer in enumerate(WRITERS):
            put(storage, writer, 1, frozen if number == beside else elsewhere)

        found = Watcher(storage, lock)

        assert process.wait(30) == -9
    assert found.leads
    silent = f"process {process.pid} on here holds the job's lock but has sent no heartbeat for 10 s"
    assert f"{silent}: it was killed, and this supervisor takes over" in found.said
    assert storage.now >= LEASE


@pytest.mark.parametrize("beats", [True, False])
def test_a_holder_that_lives_is_not_killed(tmp_path: Path, beats: bool) -> None:
    """It gives heartbeats, or runs without them: then its lock is all that is known of it."""
    lock = tmp_path / "job" / paths.LOCK
    with held_by_another(lock, SLEEPS) as process:
        storage = Clocked({}, looks=20)
        alive = LeaderHeartbeat("here", process.pid, heartbeats.lock_id(lock))
        if beats:
            storage._at = {look: lambda: os.utime(lock) for look in range(1, 21)}
            put(storage, WRITERS[0], 1, alive)

        found = Watcher(storage, lock)

        assert process.poll() is None
    assert not found.leads
    waits = f"process {process.pid} on here" if beats else f"process {process.pid} of this machine, which runs without"
    assert found.said[0].startswith(f"standby for {waits}")
