"""How a job ends that is told to stop, and what it leaves to those that stand by."""

from __future__ import annotations

import errno
import signal
import threading
from pathlib import Path

import pytest

from kafka_eos._util.retry import RetryInterrupted
from kafka_eos.abc.incarnation import IncarnationSign
from kafka_eos.coordination import heartbeats
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_lock import is_held
from kafka_eos.core.errors import Fatal, ProcessLost, Retryable
from kafka_eos.storage import object_names as paths
from kafka_eos.testing import MemorySink
from tests.unit.coordination.runs import JOB, Run, fails, signalled
from tests.waiting import eventually


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_a_job_and_the_handlers_are_put_back(tmp_path: Path, number: int) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    run = Run(tmp_path, lambda _: signalled(run, number), stop_timeout=3600.0)

    run.master.run()

    eventually(lambda: run.woken, "the engine is woken")
    assert not run.master.stop_timed_out.is_set()
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_second_signal_ends_all_waiting(tmp_path: Path) -> None:
    def attempt(coordinator: Coordinator) -> None:
        signalled(run, signal.SIGTERM, signal.SIGINT)
        raise OSError(errno.EIO, "away")

    run = Run(tmp_path, attempt, *fails(Fatal("another attempt")), stop_timeout=3600.0)
    with pytest.raises(Fatal, match="another attempt"):
        run.master.run()

    assert run.master.stop_requested.is_set()
    eventually(lambda: run.woken == 2, "the engine is woken twice")


class Away(MemorySink):
    """Nobody can tell which incarnations it knows."""

    def list_signs(self, job: str) -> list[IncarnationSign]:
        raise Retryable("away")


def test_the_time_for_a_clean_end_is_over_after_so_many_seconds(tmp_path: Path) -> None:
    """Whoever waits for a server then waits no longer."""

    def attempt(coordinator: Coordinator) -> None:
        signalled(run, signal.SIGTERM)
        coordinator.recovery.restore()

    run = Run(tmp_path, attempt, sink=Away(), stop_timeout=0.2)
    with pytest.raises(
        RetryInterrupted, match="stopped while waiting to list the incarnations of the job's name: away"
    ):
        run.master.run()

    assert run.master.stop_timed_out.is_set()


def test_an_attempt_that_begins_when_the_time_is_over_waits_for_nobody(tmp_path: Path) -> None:
    def attempt(coordinator: Coordinator) -> None:
        signalled(run, signal.SIGTERM, signal.SIGTERM)
        raise ProcessLost("SIGKILL")

    run = Run(tmp_path, attempt, lambda coordinator: coordinator.recovery.restore(), sink=Away(), stop_timeout=3600.0)
    with pytest.raises(RetryInterrupted, match="away"):
        run.master.run()


def test_who_is_told_to_stop_waits_for_no_other_attempt(tmp_path: Path) -> None:
    def attempt(coordinator: Coordinator) -> None:
        signalled(run, signal.SIGTERM)
        raise ProcessLost("SIGKILL")

    pause = {"restart_backoff_initial": 3600.0, "restart_backoff_max": 3600.0}
    run = Run(tmp_path, *fails(ProcessLost("SIGKILL")), attempt, **pause)
    run.master.run()

    assert [facts["seconds"] for facts in run.of("backing-off")]


# ---------------------------------------------------------------- with others that stand by


def _ends(run: Run) -> list[str | None]:
    return [beat.ended for _, beat in heartbeats.read_heartbeats(run.storage).values()]


def test_a_leader_says_whether_the_job_is_stopped_or_left_to_another(tmp_path: Path) -> None:
    """A job that ends by itself is stopped for its standby too; one that is told to by a signal is led by that."""

    def leads(coordinator: Coordinator) -> None:
        assert is_held(tmp_path / JOB / paths.LOCK)
        assert _ends(run) == [None]

    run = Run(tmp_path, leads, standby=True)
    run.master.run()
    assert _ends(run) == ["stopped"]

    asked = Run(tmp_path / "b", lambda _: signalled(asked, signal.SIGTERM), standby=True, stop_timeout=3600.0)
    asked.master.run()
    assert _ends(asked) == ["left"]


@pytest.mark.parametrize(
    ("error", "asked", "ended"),
    [
        (RetryInterrupted("on request"), False, "stopped"),
        (RetryInterrupted("signal"), True, "left"),
        (Fatal("x"), False, "left"),
    ],
)
def test_a_leader_that_fails_leaves_the_job_and_one_that_is_stopped_does_not(
    tmp_path: Path, error: Exception, asked: bool, ended: str
) -> None:
    def attempt(coordinator: Coordinator) -> None:
        if asked:
            signalled(run, signal.SIGTERM)
        raise error

    run = Run(tmp_path, attempt, standby=True, stop_timeout=3600.0)
    with pytest.raises(type(error)):
        run.master.run()

    assert _ends(run) == [ended]
    assert not is_held(tmp_path / JOB / paths.LOCK)


def test_a_standby_of_a_job_that_is_stopped_leads_nothing(tmp_path: Path) -> None:
    """It sees the leader end while it stands by."""
    leading, over = threading.Event(), threading.Event()

    def leads(coordinator: Coordinator) -> None:
        leading.set()
        assert over.wait(30)

    first = Run(tmp_path, leads, standby=True)
    thread = threading.Thread(target=first.master.run)
    thread.start()
    assert leading.wait(30)
    second = Run(tmp_path, *fails(Fatal("it leads")), standby=True)
    other = threading.Thread(target=second.master.run)
    other.start()
    eventually(lambda: second.of("standby"), "it stands by")
    over.set()
    thread.join(30)
    other.join(30)

    assert not other.is_alive()
    assert [facts["text"] for facts in second.of("standby-ended")] == ["the job was stopped; this standby never led it"]
    assert second.of("started") == []
