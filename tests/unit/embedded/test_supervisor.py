"""Attempts of the supervisor one after the other: what becomes of workers, sessions and output. Workers in memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from kafka_eos._util.retry import RetryInterrupted
from kafka_eos.config.settings import Settings
from kafka_eos.coordination import job_requests as requests
from kafka_eos.core.errors import ConfigError, EnvironmentFailed, Fatal
from kafka_eos.core.ids import AppRef, SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.embedded.supervisor import Supervisor
from kafka_eos.embedded.supervisor_events import BackgroundFailed, WorkerExited
from kafka_eos.runtime.worker import control_messages as control
from kafka_eos.testing import ListSource
from tests.unit.coordination.noted_job import JOB, NotedJob, split
from tests.unit.embedded.memory_workers import FIRST, Clock, Events, MemoryPool, MemoryWorker, Step

APP = AppRef(Path("app.py"), "main")


class Bounded(ListSource):
    def bounds(self, known: Positions) -> Positions:
        return {name: {"index": len(values)} for name, values in self.splits.items()}


class SupervisedRun:
    """A run of a job with three workers. Each step is taken when nothing goes on, until its answer is not False.

    Workers beat all the time, so that only what a test holds back takes too long.
    """

    def __init__(self, directory: Path, *, until_caught_up: bool = False, **settings: Any) -> None:
        self.job, self.clock = NotedJob(directory), Clock()
        self.told: list[tuple[str, Mapping[str, Any]]] = []
        self.pool = MemoryPool(Events(self.clock, self._idle), 3)
        self.pool.steps = self.job.steps
        self.first = self.pool.workers
        self._directory, self._until_caught_up = directory, until_caught_up
        given = {"restart_backoff_initial": 0.0, "parallelism": 3, "checkpoint_interval": 10.0, "worker_timeout": 60.0}
        self._settings = {**given, **settings}
        self._steps: list[Step] = []
        self._beaten = self.clock.now

    def run(self, *steps: Step) -> None:
        self._steps = [*steps]
        given = {"checkpoint_dir": self._directory / "jobs", **self._settings}
        Supervisor(
            self.job.pipeline().plan(),
            APP,
            Settings.resolve(code=given),
            self.pool,
            (lambda event, facts: self.told.append((event, facts)),),
            self._until_caught_up,
        ).run()

    def until(self, event: str, times: int = 1) -> Step:
        return lambda: [told for told, _ in self.told].count(event) >= times

    def puts(self, event: Any) -> Step:
        return lambda: self.pool.events.put(event)

    def stops(self) -> None:
        """A signal, as an operator sends it."""
        assert signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGTERM)

    def fails(self) -> None:
        """Something ends the attempt, and no worker with it."""
        self.pool.events.put(BackgroundFailed(self.pool.workers[0].session, EnvironmentFailed("away")))

    def of(self, event: str) -> list[Mapping[str, Any]]:
        return [facts for told, facts in self.told if told == event]

    def _idle(self) -> None:
        assert self.clock.now < 2000, "the run waits for what never happens"
        if self.clock.now > self._beaten + 0.3:
            self._beaten = self.clock.now
            for worker in self.pool.workers:
                worker.says(control.WorkerHeartbeat(session=worker.session, seconds_since_step=0.0, at=""))
        if self._steps and self._steps[0]() is not False:
            del self._steps[0]


Made = Callable[..., SupervisedRun]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    def made(**options: Any) -> SupervisedRun:
        created = SupervisedRun(tmp_path, **options)
        for module in ("attempt_runner", "supervisor"):
            monkeypatch.setattr(f"kafka_eos.embedded.{module}.time", created.clock)
        return created

    return made


def of_workers(one: SupervisedRun) -> list[str]:
    """What was done to all workers, and what the first sink was asked to abort, in order."""
    return [step for step in one.job.steps if step in ("start", "drop state", "kill", "abort left")]


def test_a_run_that_is_stopped_ends_its_sessions_then_its_workers_and_aborts_what_they_left(run: Made) -> None:
    one = run()
    one.run(one.until("committed"), one.stops)

    assert [each["epoch"] for each in one.of("committed")] == [1, 2], "a last epoch"
    assert [worker.sent[-1] for worker in one.first] == [control.EndSession(session=1)] * 3
    assert not any(worker.lives for worker in one.first)
    steps = of_workers(one)
    assert steps[steps.index("start") :] == ["start", "drop state", "kill", "abort left", "kill"]
    assert [event for event, _ in one.told if event in ("restarting", "failed")] == []


def test_workers_that_live_are_kept_for_the_next_attempt(run: Made) -> None:
    """The end of one of them replaces it, though it may still run, and ends the sessions of the others."""
    one = run()
    one.run(
        one.until("committed"),
        one.puts(WorkerExited(FIRST + 1, "closed its connection")),
        one.until("running", 2),
        one.until("committed", 2),
        one.stops,
    )

    _, gone, last = one.first
    ended = control.EndSession(session=1)
    assert [ended in worker.sent for worker in one.first] == [True, False, True]
    assert [worker.number for worker in one.pool.workers] == [FIRST, FIRST + 3, FIRST + 2]
    assert [start.session for start in last.started] == [1, 2]
    assert [start.session for start in one.pool.workers[1].started] == [2]
    assert not gone.lives
    (told,) = one.of("restarting")
    assert told["what"] == "worker ended"
    assert [each["workers"] for each in one.of("running")] == [[4010, 4011, 4012], [4010, 4013, 4012]]
    assert one.job.steps.count("kill") == 2, "at the end only"


def test_a_worker_that_does_not_end_its_session_is_killed_before_the_next_attempt(run: Made) -> None:
    one = run(worker_timeout=1.0, checkpoint_interval=0.5)
    slow, quick, ended = one.first
    slow.mute, quick.mute, ended.mute = [control.EndSession], (), [control.EndSession]
    waited: list[float] = []

    def fails() -> None:
        waited.append(one.clock.now)
        one.fails()

    one.run(
        one.until("committed"),
        fails,
        # Ends of other sessions, and of a worker that was asked
        lambda: one.clock.now > waited[0] + 0.3,
        lambda: quick.says(control.SessionEnded(session=7)),
        lambda: slow.says(control.SessionEnded(session=7)),
        one.puts(WorkerExited(ended.number, "was killed")),
        lambda: ended.kill(),
        one.until("running", 2),
        one.stops,
    )

    assert [worker.number for worker in one.pool.workers] == [FIRST + 3, quick.number, FIRST + 4]
    assert not slow.lives
    begun = one.pool.workers[0].started[0]
    assert begun.session == 2


@pytest.mark.parametrize("error", [ConfigError("wrong"), Fatal("worse"), KeyError("a defect")])
def test_an_error_that_ends_the_job_kills_all_workers_at_once(run: Made, error: Exception) -> None:
    one = run()
    with pytest.raises(type(error)):
        one.run(one.until("committed"), lambda: one.pool.events.put(BackgroundFailed(1, error)))

    assert one.job.steps.count("start") == 1
    assert [worker.got(control.EndSession) for worker in one.first] == [[], [], []]
    assert not any(worker.lives for worker in one.first)


def test_a_request_is_kept_for_the_next_attempt_and_not_for_the_next_run(run: Made, tmp_path: Path) -> None:
    one = run()
    home = tmp_path / "jobs" / JOB
    home.mkdir(parents=True)
    earlier = requests.submit(home, requests.StopJob(drain=False))
    tokens: list[str] = []
    one.run(
        one.until("running"),
        one.fails,
        lambda: tokens.append(requests.submit(home, requests.TakeCheckpoint())),
        one.until("committed"),
        one.stops,
    )

    assert requests.wait(home, tokens[0], 1.0).epoch is not None
    with pytest.raises(requests.RequestUnanswered):
        requests.wait(home, earlier, 0.01)


# ---------------------------------------------------------------- where it ends


def ends(worker: MemoryWorker) -> list[Mapping[str, Positions] | None]:
    return [start.ends for start in worker.started]


def read_to_the_end(one: SupervisedRun) -> None:
    for worker in one.pool.workers:
        worker.says(control.SessionReachedEnds(session=worker.session))


def test_what_is_read_until_a_run_has_caught_up_is_what_was_there_at_its_start(run: Made) -> None:
    one = run(until_caught_up=True)

    def grows() -> None:
        for source in one.job.sources.values():
            source.splits[SplitId(f"{source.name}/1")].append(9)

    one.run(one.until("running"), grows, one.fails, one.until("running", 2), lambda: read_to_the_end(one))

    both = {name: {split(name, 1): {"index": 2}} for name in ("n", "m")}
    assert ends(one.first[1]) == [both, both]


@pytest.mark.parametrize("bounded", ["nm", "n"])
def test_a_job_ends_by_itself_if_all_of_its_sources_have_an_end(run: Made, bounded: str) -> None:
    one = run()
    for name in bounded:
        one.job.sources[name] = Bounded(range(4), splits=2, name=f"list-{name}")
    last = (lambda: read_to_the_end(one)) if bounded == "nm" else one.stops
    one.run(one.until("running"), last)

    both = {name: {split(name, 1): {"index": 2}} for name in ("n", "m")}
    assert ends(one.first[1]) == [both if bounded == "nm" else None]


# ---------------------------------------------------------------- workers that connect


def test_a_session_begins_when_all_workers_have_connected(run: Made) -> None:
    one = run()
    for worker in one.first[1:]:
        worker.connected = False
    connects = [lambda worker=worker: setattr(worker, "connected", True) for worker in one.first[1:]]
    one.run(
        connects[0],
        one.puts(WorkerExited(3, "a worker of an earlier attempt")),
        lambda: one.first[0].says(failure(5)),
        connects[1],
        one.until("running"),
        one.stops,
    )

    assert [len(worker.started) for worker in one.first] == [1, 1, 1]
    assert one.of("restarting") == []


def test_workers_that_do_not_connect_are_replaced(run: Made) -> None:
    one = run(worker_timeout=1.0, checkpoint_interval=0.5)
    for worker in one.first[1:]:
        worker.connected = False
    one.run(one.until("running"), one.stops)

    (told,) = one.of("restarting")
    assert told["reason"] == "worker 1, 2 did not connect within 1 s (worker_timeout)"
    assert [worker.number for worker in one.pool.workers] == [FIRST, FIRST + 3, FIRST + 4]
    assert one.first[0].got(control.EndSession)[0] == control.EndSession(session=1)
    assert 1001 < one.clock.now < 1003


def test_workers_without_a_place_to_run_are_left_out_and_join_after_a_checkpoint_that_is_not_waited_for(
    run: Made,
) -> None:
    one = run(checkpoint_interval=600.0)
    last = one.first[2]
    last.connected = last.placed = False
    one.run(one.until("running"), lambda: setattr(last, "connected", True), one.until("running", 2), one.stops)

    assert [told["parallelism"] for told in one.of("running")] == [2, 3]
    assert [worker.got(control.EndSession)[0].session for worker in one.first] == [1, 1, 2]
    events = [event for event, _ in one.told if event in ("triggered", "committed", "running", "restarting")]
    assert events == ["running", "triggered", "committed", "running", "triggered", "committed"]
    texts = [str(told["text"]) for told in one.of("notice")]
    assert "2 of 3 workers run; the others have no free core yet" in texts
    assert 1003 < one.clock.now < 1100, "it waits for them first"


def test_a_job_waits_for_a_first_place_however_long_it_takes(run: Made) -> None:
    one = run(worker_timeout=1.0, checkpoint_interval=0.5)
    for worker in one.first:
        worker.connected = worker.placed = False

    def connect() -> bool:
        for worker in one.first:
            worker.connected = one.clock.now > 1010
        return one.clock.now > 1010

    one.run(connect, one.until("running"), one.stops)

    assert one.of("restarting") == []
    assert one.of("restoring")[0]["text"] == "no worker has a free core yet"


def failure(session: int, kind: Any = "fatal") -> control.SessionFailed:
    return control.SessionFailed(
        session=session, kind=kind, error="Fatal", reason="why", details="", operator="", where=""
    )


def test_a_worker_that_ends_before_all_have_connected_is_replaced_and_one_that_cannot_begin_ends_the_job(
    run: Made,
) -> None:
    one = run()
    one.first[2].connected = False
    with pytest.raises(Fatal, match="why"):
        one.run(
            one.puts(WorkerExited(FIRST + 2, "exited with code 3")),
            one.until("running"),
            lambda: setattr(one.pool.workers[0], "connected", False),
            one.fails,
            lambda: one.pool.workers[1].says(failure(0)),
        )

    assert [told["reason"] for told in one.of("restarting")] == ["worker 2 exited with code 3", "away"]
    assert one.pool.workers[2].number == FIRST + 3


def test_a_stop_before_all_have_connected_ends_the_run(run: Made) -> None:
    one = run()
    one.first[2].connected = False
    one.run(one.stops)

    assert [worker.started for worker in one.first] == [[], [], []]
    steps = of_workers(one)
    assert steps[-3:] == ["kill", "abort left", "kill"]


# ---------------------------------------------------------------- a stop


def test_a_run_that_has_read_rows_is_not_stopped_without_a_last_epoch(run: Made) -> None:
    """Also in an attempt that does not know of the signal, and whose workers are not ready."""
    one = run()

    def slow() -> None:
        one.pool.workers[0].mute = [control.StartSession, control.TriggerCheckpoint]

    def resumes() -> None:
        worker = one.pool.workers[0]
        worker.mute = ()
        worker.says(control.SessionReady(session=worker.session))

    one.run(
        one.until("committed"),
        slow,
        one.stops,
        one.until("triggered", 2),
        one.fails,
        lambda: len(one.pool.workers[0].started) > 1,
        resumes,
    )

    assert [each["term"] for each in one.of("running")] == [1, 2]
    assert [message.last for message in one.pool.workers[1].got(control.TriggerCheckpoint)] == [False, True, True]
    assert len(one.of("committed")) == 2


def test_a_run_that_has_read_nothing_is_stopped_at_once(run: Made) -> None:
    one = run()
    one.first[0].mute = [control.StartSession]
    one.run(lambda: bool(one.of("restoring")), one.stops)

    assert one.of("triggered") == []


def test_a_run_whose_time_to_stop_is_over_waits_for_no_worker(run: Made) -> None:
    one = run(stop_timeout=3600.0)
    for worker in one.first:
        worker.mute = [control.TriggerCheckpoint, control.EndSession]
    with pytest.raises(RetryInterrupted, match="before the last checkpoint was committed"):
        one.run(one.until("running"), one.stops, one.until("triggered"), one.stops)

    assert not any(worker.lives for worker in one.first)
    assert one.clock.now < 1005
