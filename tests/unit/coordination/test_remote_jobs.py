"""What a checkpoint store tells of a job that another machine leads."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kafka_eos.coordination.heartbeats import LeaderHeartbeat
from kafka_eos.coordination.job_status import JobStatus, is_leader, read_remote_status
from kafka_eos.protocol.standby import LeaderExit
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Receipt, TermClaim
from kafka_eos.storage.job_storage import LocalStorage
from tests.unit.storage.checkpoint_samples import JOB, MANIFEST

HOST, PID = "one", 7


class Look:
    """A store, and a clock that only its own sleep moves; ``meanwhile`` happens at the first sleep."""

    def __init__(self, root: Path, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.storage, self.now, self._meanwhile = LocalStorage(root), 0.0, meanwhile

    def beat(self, count: int, ended: LeaderExit | None = None) -> None:
        beat = LeaderHeartbeat(HOST, PID, "lock", ended, 3.0)
        self.storage.publish(paths.heartbeat_name("ab" * 8, count), msgspec.json.encode(beat))

    def claim(self, term: int = 1, host: str = HOST) -> None:
        records.publish(self.storage, TermClaim(job=JOB, term=term, host=host, pid=PID, at=0))

    def sleep(self, seconds: float) -> None:
        if not self.now:
            self._meanwhile()
        self.now += seconds

    def told(self) -> JobStatus | None:
        return read_remote_status(self.storage, JOB, self.sleep, lambda: self.now)


def test_of_a_job_that_nobody_led_nothing_is_told(tmp_path: Path) -> None:
    assert Look(tmp_path).told() is None


def test_a_heartbeat_that_comes_while_somebody_looks_is_a_leader_at_work(tmp_path: Path) -> None:
    look = Look(tmp_path, lambda: look.beat(2))
    look.claim()
    look.beat(1)
    found = look.told()

    assert found is not None
    assert (found.state, found.host, found.pid, found.reason, found.is_fault) == ("running", HOST, PID, None, False)
    assert look.now < 1


def test_one_that_does_not_come_in_its_time_is_silence(tmp_path: Path) -> None:
    look = Look(tmp_path)
    look.claim()
    look.beat(1)
    found = look.told()

    assert found is not None
    assert (found.state, found.is_fault) == ("unresponsive", True)
    assert found.reason == "it has sent no heartbeat for 4.5 s, but should every 3 s"
    assert 4.5 <= look.now < 5


@pytest.mark.parametrize(("ended", "why"), [("stopped", None), ("left", "no other supervisor has taken over yet")])
def test_the_last_heartbeat_says_how_the_leader_ended(tmp_path: Path, ended: LeaderExit, why: str | None) -> None:
    look = Look(tmp_path)
    look.claim()
    look.beat(1, ended)
    found = look.told()

    assert found is not None
    assert (found.state, look.now) == ("stopped", 0.0)
    assert (found.reason is None) if why is None else (why in (found.reason or ""))


@pytest.mark.parametrize("alive", [True, False])
def test_of_one_without_heartbeats_its_terms_and_checkpoints_tell(tmp_path: Path, alive: bool) -> None:
    look = Look(tmp_path, (lambda: look.claim(2, "two")) if alive else (lambda: None))
    look.claim()
    found = look.told()

    assert found is not None
    assert (found.state, found.host) == (("running", "two") if alive else ("unresponsive", HOST))
    assert alive or (found.reason or "").endswith("if the job runs, it runs without --standby")


def test_what_is_committed_is_told_with_the_size_of_its_state(tmp_path: Path) -> None:
    look = Look(tmp_path)
    look.claim()
    look.beat(1, "stopped")
    for epoch in (3, 4, 5):
        records.publish(look.storage, msgspec.structs.replace(MANIFEST, epoch=epoch))
        if epoch < 5:
            records.publish(look.storage, Receipt(job=JOB, epoch=epoch, term=MANIFEST.term, created_at=0, outcomes=()))
    found = look.told()

    assert found is not None
    assert (found.epoch, found.workers, found.state_bytes) == (4, 1, {"total": 1089})
    assert found.seconds_since_commit is not None and found.seconds_since_commit > 1e9


def test_whether_this_machine_led_last_is_told_by_the_newest_term(tmp_path: Path) -> None:
    look = Look(tmp_path)
    assert not is_leader(look.storage, JOB, HOST, PID)
    look.claim()
    assert is_leader(look.storage, JOB, HOST, PID)
    look.claim(2, "two")

    assert not is_leader(look.storage, JOB, HOST, PID)


@pytest.mark.parametrize("kind", ["beat", "claim", "manifest"])
def test_any_record_that_is_new_is_a_sign_of_life(tmp_path: Path, kind: str) -> None:
    """Also if it takes the place of another, so that there are as many as before."""

    def meanwhile() -> None:
        if kind == "manifest":
            records.publish(look.storage, msgspec.structs.replace(MANIFEST, epoch=4))
            look.storage.delete(paths.manifest_name(msgspec.structs.replace(MANIFEST, epoch=3).id))
        elif kind == "beat":
            look.beat(2)
            look.storage.delete(paths.heartbeat_name("ab" * 8, 1))
        else:
            look.claim(2)

    look = Look(tmp_path, meanwhile)
    look.claim()
    look.beat(1)
    records.publish(look.storage, msgspec.structs.replace(MANIFEST, epoch=3))
    found = look.told()

    assert found is not None and found.state == "running"
    assert look.now < 1


def test_a_leader_at_work_counts_beside_those_that_have_ended(tmp_path: Path) -> None:
    look = Look(tmp_path)
    look.claim()
    for number, (host, ended) in enumerate([("one", "left"), ("two", None), ("three", "stopped")]):
        beat = LeaderHeartbeat(host, PID, "lock", ended, 3.0)  # type: ignore[arg-type]
        look.storage.publish(paths.heartbeat_name(f"{number}" * 16, 1), msgspec.json.encode(beat))
    found = look.told()

    assert found is not None and (found.state, found.host) == ("unresponsive", "two")


def test_how_long_ago_the_newest_epoch_was_committed_is_told_by_its_receipt(tmp_path: Path) -> None:
    look = Look(tmp_path)
    look.claim()
    look.beat(1, "stopped")
    now = time.time_ns() // 1_000_000
    for epoch, at in ((3, 0), (4, now - 500_000)):
        records.publish(look.storage, msgspec.structs.replace(MANIFEST, epoch=epoch))
        records.publish(look.storage, Receipt(job=JOB, epoch=epoch, term=MANIFEST.term, created_at=at, outcomes=()))
    found = look.told()

    assert found is not None and found.seconds_since_commit is not None
    assert 499 < found.seconds_since_commit < 4000


def test_a_job_whose_newest_term_another_process_of_this_machine_took_is_not_led_by_this_one(tmp_path: Path) -> None:
    look = Look(tmp_path)
    look.claim()

    assert not is_leader(look.storage, JOB, HOST, PID + 1)
