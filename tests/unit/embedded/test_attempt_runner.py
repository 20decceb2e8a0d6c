"""An attempt on the embedded engine: what its workers are told, and which event ends it. Workers in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kafka_eos._util.retry import RetryInterrupted
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.job_requests import StopJob, TakeCheckpoint
from kafka_eos.core.errors import (
    ConfigError,
    EnvironmentFailed,
    Fatal,
    InputLost,
    LossCause,
    RestartFromCheckpoint,
    Retryable,
)
from kafka_eos.core.failure_causes import RemoteUserError
from kafka_eos.core.ids import SplitId, Term
from kafka_eos.core.json_values import Position, Positions
from kafka_eos.embedded.attempt_runner import make_session_error
from kafka_eos.embedded.supervisor_events import (
    BackgroundDone,
    BackgroundFailed,
    SplitsDiscovered,
    StopRequested,
    StopTimedOut,
    WorkerExited,
    WorkerMessage,
)
from kafka_eos.embedded.worker_pool import WorkerDied
from kafka_eos.protocol import events as facts
from kafka_eos.protocol.checkpoint_schedule import Cadence
from kafka_eos.protocol.source_dependencies import first_positions, mark_complete
from kafka_eos.runtime.state.restore_progress import RestoreProgress
from kafka_eos.runtime.worker import control_messages as control
from kafka_eos.runtime.worker.task_stats import NOTHING
from kafka_eos.testing import ListSource
from tests.unit.coordination.noted_job import split
from tests.unit.embedded.memory_workers import FIRST, MemoryAttempt

Made = Callable[..., MemoryAttempt]
SELDOM = Cadence(10_000.0, 0.0, 30.0)
"""No epoch but those that are asked for."""


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    def made(workers: int = 3, **policy: Any) -> MemoryAttempt:
        created = MemoryAttempt(tmp_path, workers, **policy)
        monkeypatch.setattr("kafka_eos.embedded.attempt_runner.time", created.clock)
        return created

    return made


def begun(one: MemoryAttempt) -> Callable[[], object]:
    return one.until("running")


# ---------------------------------------------------------------- from the start to the end


def test_workers_are_told_each_step_of_an_attempt_in_order(attempt: Made) -> None:
    one = attempt()
    runner = one.run(one.until("committed"))

    first, last, session = one.epoch(), one.epoch(1), one.session
    for worker in one.workers:
        assert worker.sent == [
            control.BeginProcessing(session=session),
            control.TriggerCheckpoint(session=session, epoch=first, last=False, aligned=False),
            control.NotifyCheckpointCommitted(session=session, epoch=first),
            control.TriggerCheckpoint(session=session, epoch=last, last=True, aligned=True),
            control.NotifyCheckpointCommitted(session=session, epoch=last),
        ]
    epoch = ["triggered", "phases", "decided", "committed"]
    assert [event for event, _ in one.told if event not in ("restoring", "progress")] == ["running", *epoch, *epoch]
    assert one.of("restoring")[-1]["ready"] == 2
    assert one.of("running") == [{"term": session, "base": 0, "workers": [4010, 4011, 4012], "parallelism": 3}]
    assert [each["epoch"] for each in one.of("committed")] == [1, 2]
    assert runner.ran
    assert one.job.noted()[-1] == "receipt 2/1"
    assert not one.job.stop.is_set(), "it ended by itself"


def test_a_session_starts_with_the_part_of_each_worker(attempt: Made) -> None:
    one = attempt(workers=2)
    one.ends = {name: {split(name, n): {"index": 4} for n in range(2)} for name in ("n", "m")}
    states = one.job.state("a")
    one.resumed = replace(one.resumed, states=states)
    one.run(begun(one))

    for subtask, worker in enumerate(one.workers):
        (start,) = worker.started
        assert start == control.StartSession(
            session=one.session,
            identity=one.resumed.identity.text,
            term=one.session,
            first_epoch=1,
            subtask=subtask,
            parallelism=2,
            peers=(1 - subtask,),
            positions={name: {split(name, subtask): {"index": 0}} for name in ("n", "m")},
            states=states,
            in_flight=(),
            ends={name: {split(name, subtask): {"index": 4}} for name in ("n", "m")},
            waiting_sources=frozenset(),
            excluded_sources=frozenset(),
        )


def test_the_positions_of_all_workers_are_decided(attempt: Made) -> None:
    one = attempt(workers=2)
    for subtask, worker in enumerate(one.workers):
        worker.ack = {"positions": {name: {split(name, subtask): {"index": 2}} for name in ("n", "m")}}
    one.run(one.until("committed"))

    again = one.job.coordinator().recovery.restore()
    assert again.positions == {name: {split(name, n): {"index": 2} for n in range(2)} for name in ("n", "m")}
    assert again.base == one.epoch(1)


def test_a_stop_before_all_are_ready_ends_the_attempt_without_an_epoch(attempt: Made) -> None:
    one = attempt(can_stop_early=True)
    one.workers[2].mute = [control.StartSession]
    runner = one.run()

    assert not runner.ran
    assert [worker.sent for worker in one.workers] == [[], [], []]
    assert one.of("decided") == []


# ---------------------------------------------------------------- requests


def test_a_request_is_answered_with_the_epoch_that_serves_it(attempt: Made) -> None:
    one = attempt(cadence=SELDOM)
    one.run(begun(one), one.submits(TakeCheckpoint()), one.until("committed"))

    assert requests.wait(one.requests, one.tokens[0], 1.0).epoch == 1
    assert [each["epoch"] for each in one.of("committed")] == [1, 2]


def test_a_periodic_epoch_answers_no_request(attempt: Made) -> None:
    """A request that comes too late for it has an epoch of its own."""
    one = attempt()
    one.workers[1].mute = [control.TriggerCheckpoint]
    ack = lambda: one.workers[1].says(one.workers[1].acknowledgement(one.session, one.epoch()))  # noqa: E731
    listens = lambda: setattr(one.workers[1], "mute", ())  # noqa: E731
    one.run(one.until("triggered"), one.submits(TakeCheckpoint()), listens, ack, one.until("committed", 2))

    assert requests.wait(one.requests, one.tokens[0], 1.0).epoch == 2


def test_a_request_is_not_answered_before_all_workers_were_told(attempt: Made) -> None:
    one = attempt(cadence=SELDOM)
    one.workers[2].dies_of = control.NotifyCheckpointCommitted
    with pytest.raises(WorkerDied):
        one.run(begun(one), one.submits(TakeCheckpoint()), one.until("committed", 2))

    assert [token for token, _, _ in requests.list_pending(one.requests)] == one.tokens
    assert len(one.of("committed")) == 1, "the failures before it are over"


def test_a_job_that_is_cancelled_ends_at_once_and_says_so(attempt: Made) -> None:
    one = attempt(cadence=SELDOM)
    with pytest.raises(RetryInterrupted, match="without a last checkpoint"):
        one.run(begun(one), one.submits(StopJob(drain=False)), one.until("never"))

    assert requests.wait(one.requests, one.tokens[0], 1.0).epoch is None
    assert one.of("triggered") == []
    assert one.job.stop.is_set(), "a commit that waits for a server is interrupted"


def test_a_stop_that_takes_too_long_ends_the_attempt(attempt: Made) -> None:
    one = attempt()
    one.workers[0].mute = [control.TriggerCheckpoint]
    with pytest.raises(RetryInterrupted, match="before the last checkpoint was committed"):
        one.run(begun(one), one.puts(StopRequested()), one.puts(StopTimedOut()), one.until("never"))


# ---------------------------------------------------------------- aborted epochs


def test_what_a_declined_epoch_has_prepared_is_committed_with_the_next(attempt: Made) -> None:
    one = attempt(cadence=SELDOM)
    declines = control.DeclineCheckpoint(session=one.session, epoch=one.epoch(), reason="disk full")
    one.workers[1].mute = [control.TriggerCheckpoint]

    def sealed() -> None:
        prepared = one.job.prepared(one.coordinator, one.epoch(), "kept")
        one.workers[1].sealed = (control.SealedOutput(one.epoch().epoch, prepared),)
        one.workers[1].mute = ()

    one.run(
        begun(one),
        one.submits(TakeCheckpoint()),
        one.until("triggered"),
        one.says(1, declines),
        one.until("aborted"),
        sealed,
        # A late answer to an epoch that is over
        lambda: one.workers[0].says(one.workers[0].acknowledgement(one.session, one.epoch())),
    )

    assert one.of("aborted") == [{"epoch": 1, "term": one.session}]
    assert one.of("notice")[0]["text"].endswith("its output will be committed with the next epoch")
    aborted = control.NotifyCheckpointAborted(session=one.session, epoch=one.epoch())
    assert one.got(control.NotifyCheckpointAborted) == [[aborted]] * 3
    with pytest.raises(Exception, match="disk full"):
        requests.wait(one.requests, one.tokens[0], 1.0)
    assert [each["epoch"] for each in one.of("decided")] == [2]
    assert one.job.output == (["kept-0", "kept-1"], ["kept-0", "kept-1"])


def test_a_request_is_kept_for_the_next_attempt_if_the_attempt_ends_with_the_abort_of_its_epoch(attempt: Made) -> None:
    one = attempt(cadence=SELDOM)
    declines = control.DeclineCheckpoint(session=one.session, epoch=one.epoch(), reason="disk full")
    one.workers[1].mute = [control.TriggerCheckpoint]
    one.workers[2].dies_of = control.NotifyCheckpointAborted

    with pytest.raises(WorkerDied):
        one.run(begun(one), one.submits(TakeCheckpoint()), one.until("triggered"), one.says(1, declines))
    assert [token for token, _, _ in requests.list_pending(one.requests)] == one.tokens


def test_no_epoch_begins_before_all_have_confirmed_an_abort(attempt: Made) -> None:
    one = attempt()
    one.workers[0].mute = [control.TriggerCheckpoint]
    one.workers[2].mute = [control.NotifyCheckpointAborted]
    declines = control.DeclineCheckpoint(session=one.session, epoch=one.epoch(), reason="disk full")
    confirms = control.ConfirmAbort(session=one.session, epoch=one.epoch())
    listens = lambda: setattr(one.workers[0], "mute", ())  # noqa: E731
    before: list[int] = []
    one.run(
        one.until("triggered"),
        one.says(0, declines),
        listens,
        one.until_clock(25),
        lambda: before.append(len(one.of("triggered"))),
        one.says(2, confirms),
        one.until("committed"),
    )

    assert before == [1]
    assert one.of("committed")[0]["epoch"] == 2


# ---------------------------------------------------------------- workers that fail


@pytest.mark.parametrize("subtask", range(3))
def test_the_end_of_a_worker_ends_the_attempt(attempt: Made, subtask: int) -> None:
    one = attempt()
    with pytest.raises(WorkerDied, match=f"worker {4010 + subtask} was killed") as failed:
        one.run(begun(one), one.puts(WorkerExited(FIRST + subtask, "was killed")), one.until("never"))

    assert failed.value.workers == {FIRST + subtask}
    assert one.job.stop.is_set(), "a commit that waits for a server is interrupted"


def failure(session: int, kind: Any = "restart", error: str = "OSError") -> control.SessionFailed:
    return control.SessionFailed(
        session=session, kind=kind, error=error, reason="why", details="trace", operator="map", where="n/0 at 3"
    )


def test_what_others_say_is_ignored(attempt: Made) -> None:
    """Workers of earlier attempts, earlier sessions of these workers, background work of earlier terms."""
    one = attempt()
    earlier = one.session + 7
    of_another = one.workers[0].acknowledgement(earlier, one.epoch())
    one.workers[0].mute = [control.TriggerCheckpoint]
    decided: list[object] = []
    one.run(
        begun(one),
        one.puts(WorkerExited(3, "was killed")),
        one.puts(WorkerMessage(failure(one.session), 3)),
        one.says(1, failure(earlier)),
        one.puts(BackgroundFailed(earlier, OSError("gone"))),
        one.puts(BackgroundDone(earlier, facts.InputLossFound(LossCause.ALTERED, "gone"))),
        one.puts(SplitsDiscovered(earlier, {"n": {split("n", 5): {"index": 0}}})),
        one.until("triggered"),
        lambda: one.workers[0].says(of_another),
        lambda: decided.extend(one.of("decided")),
        lambda: one.workers[0].says(one.workers[0].acknowledgement(one.session, one.epoch())),
        lambda: setattr(one.workers[0], "mute", ()),
        one.until("committed"),
    )

    assert decided == []
    assert one.got(control.AssignSplits) == [[], [], []]


@pytest.mark.parametrize("session", ["none yet", "own"])
def test_a_failed_session_ends_the_attempt(attempt: Made, session: str) -> None:
    one = attempt()
    number = 0 if session == "none yet" else one.session
    with pytest.raises(RestartFromCheckpoint, match="OSError: why"):
        one.run(begun(one), one.says(1, failure(number)), one.until("never"))


def test_a_failed_session_says_what_the_job_must_do() -> None:
    user = make_session_error(failure(1, "user", "ValueError"))
    assert isinstance(user, RemoteUserError)
    assert (user.error, str(user), user.operator, user.where) == ("ValueError", "why", "map", "n/0 at 3")
    others = [failure(1, "fatal", "Fatal"), failure(1, "fatal", "KeyError"), failure(1, "environment"), failure(1)]
    assert [(type(error), str(error)) for error in map(make_session_error, others)] == [
        (Fatal, "why"),
        (Fatal, "KeyError: why\ntrace"),
        (EnvironmentFailed, "why"),
        (RestartFromCheckpoint, "OSError: why"),
    ]


@pytest.mark.parametrize(
    ("error", "raised"),
    [(OSError("gone"), OSError), (SystemExit(3), RuntimeError), (KeyboardInterrupt(), RuntimeError)],
)
def test_what_fails_in_the_background_ends_the_attempt(
    attempt: Made, error: BaseException, raised: type[Exception]
) -> None:
    one = attempt()
    with pytest.raises(raised) as failed:
        one.run(begun(one), one.puts(BackgroundFailed(one.session, error)), one.until("never"))
    assert failed.value is error or failed.value.__cause__ is error


@pytest.mark.parametrize(
    ("cause", "raised"), [(LossCause.ALTERED, InputLost), (LossCause.REPLACED, RestartFromCheckpoint)]
)
def test_lost_input_ends_the_attempt(attempt: Made, cause: LossCause, raised: type[Exception]) -> None:
    one = attempt()
    lost = BackgroundDone(one.session, facts.InputLossFound(cause, "n/0 is gone"))
    with pytest.raises(raised, match="n/0 is gone") as failed:
        one.run(begun(one), one.puts(lost), one.until("never"))
    assert getattr(failed.value, "cause", cause) is cause


# ---------------------------------------------------------------- workers that make no progress


DONE = RestoreProgress("total-left", 1, 2, 500, 1000, 0)


def test_workers_that_make_no_progress_at_all_are_replaced(attempt: Made) -> None:
    one = attempt(cadence=SELDOM)
    lives = control.WorkerProgress(session=one.session, figures=NOTHING)
    with pytest.raises(WorkerDied, match="no step for 60 s") as failed:
        one.run(
            one.until_clock(20),
            lambda: setattr(one.workers[1], "lives", False),
            one.until_clock(40),
            one.says(0, lives),
            one.until("never"),
        )

    assert failed.value.workers == {FIRST + 1, FIRST + 2}
    reports = [facts["worker"] for event, facts in one.told if event in ("hung", "unresponsive")]
    assert reports == [0, 1, 2, 2], "a worker that is gone has no stacks"
    assert 1060 < one.clock.now < 1062


def test_silence_while_the_supervisor_itself_was_stalled_proves_nothing(attempt: Made) -> None:
    one = attempt(cadence=SELDOM)

    def stall() -> None:
        one.clock.now += 100.0

    with pytest.raises(WorkerDied, match="no step for 60 s"):
        one.run(one.until_clock(5), stall, one.until("never"))

    assert 1160 < one.clock.now < 1163, "what it has seen before counts, and only the stall does not"


def test_a_restore_that_makes_no_progress_ends_the_attempt(attempt: Made) -> None:
    one = attempt()
    for worker in one.workers[1:]:
        worker.mute = [control.StartSession]
    report = control.RestoreReport(session=one.session, restored=DONE)
    with pytest.raises(WorkerDied, match="restore stuck: no progress for 60 s") as failed:
        one.run(
            one.until_clock(20),
            one.says(1, report),
            one.until_clock(40),
            one.says(2, control.SessionReady(session=one.session)),
            one.until("never"),
        )

    assert failed.value.workers == {FIRST + 1}
    assert str(failed.value).endswith(f"worker 1 (process 4011), at {DONE}")
    assert 1080 < one.clock.now < 1081
    last = one.of("restoring")[-1]
    assert last["ready"] == 2
    assert last["workers"] == [{"worker": 1, "process": 4011, **asdict(DONE)}]


def asdict(done: RestoreProgress) -> Mapping[str, object]:
    return {name: getattr(done, name) for name in ("operator", "files", "of_files", "bytes", "of_bytes", "rows")}


# ---------------------------------------------------------------- what is read


class Asked(ListSource):
    """Keeps the positions that are known when it is asked for new splits."""

    asked: list[Positions]

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        self.asked.append(dict(known or {}))
        return super().discover(ctx, None)


def test_new_splits_are_assigned_once_to_the_workers_that_read_them(attempt: Made) -> None:
    one = attempt(cadence=SELDOM)
    at: Position = {"index": 0}
    found: dict[str, Positions] = {
        "n": {split("n", 0): at, split("n", 3): at, split("n", 4): at, split("n", 7): at},
        "m": {split("m", 1): at, split("m", 5): {"index": 2}},
    }
    one.run(begun(one), *[one.puts(SplitsDiscovered(one.session, found))] * 2, one.until("splits"))

    assert one.of("splits") == [
        {"source": "n", "count": 3, "splits": [split("n", 3), split("n", 4), split("n", 7)]},
        {"source": "m", "count": 1, "splits": [split("m", 5)]},
    ]

    def assigned(source: str, positions: Positions) -> control.AssignSplits:
        return control.AssignSplits(session=one.session, source=source, positions=positions)

    assert one.got(control.AssignSplits) == [
        [assigned("n", {split("n", 3): at})],
        [assigned("n", {split("n", 4): at, split("n", 7): at})],
        [assigned("m", {split("m", 5): {"index": 2}})],
    ]


def test_a_search_for_splits_begins_at_the_positions_that_are_decided(attempt: Made) -> None:
    one = attempt(workers=2, discovery_interval=6.0)
    source = Asked(range(4), splits=2, name="list-n")
    source.asked = []
    one.job.sources["n"] = source
    one.coordinator = one.job.coordinator()
    one.resumed = one.coordinator.recovery.restore()
    one.session = one.resumed.term.n
    source.asked.clear()
    for subtask, worker in enumerate(one.workers):
        worker.ack = {"positions": {"n": {split("n", subtask): {"index": 2}}, "m": {split("m", subtask): {"index": 1}}}}
    one.run(one.until("committed"), lambda: len(source.asked) > 1)

    begin = {split("n", n): {"index": 0} for n in range(2)}
    assert source.asked[0] == begin
    assert source.asked[-1] == {split("n", n): {"index": 2} for n in range(2)}


def table(one: MemoryAttempt) -> Positions:
    return first_positions(one.resumed.positions["n"], {split("n", n): {"index": 4} for n in range(2)}, ["join"])


def reads_whole(one: MemoryAttempt, subtask: int) -> Callable[[], None]:
    def whole() -> None:
        worker, name = one.workers[subtask], SplitId(f"list-n/{subtask}")
        worker.positions = {**worker.positions, "n": {name: mark_complete(worker.positions["n"][name])}}

    return whole


@pytest.mark.parametrize("following", [False, True], ids=["of a join", "after another one"])
def test_a_source_waits_until_all_of_another_one_is_decided(attempt: Made, following: bool) -> None:
    one = attempt(workers=2)
    one.start_from({**one.resumed.positions, "n": table(one)})
    one.meets, one.following = {"m": ["n"]}, ["m"] if following else []
    one.run(
        one.until("committed"),
        reads_whole(one, 1),
        one.until("committed", 2),
        reads_whole(one, 0),
        one.until("committed", 5),
    )

    none, held = frozenset[str](), frozenset(["m"])
    waits = (held, held if following else none)
    assert [(w.started[0].waiting_sources, w.started[0].excluded_sources) for w in one.workers] == [waits] * 2

    def told(sources: frozenset[str]) -> control.SetWaitingSources:
        return control.SetWaitingSources(session=one.session, sources=sources, excluded_sources=none)

    assert one.got(control.SetWaitingSources) == [[told(held), told(none)] if following else [told(none)]] * 2
    assert one.of("tables")[0] == {"waiting": {"m": ["n"]}}
    assert one.of("tables")[-1] == {"waiting": {"m": []}}
    drains = [message.aligned for message in one.workers[0].got(control.TriggerCheckpoint)]
    assert drains[:4] == [True, True, True, following]
    assert drains[4] is False


def test_the_slowest_splits_of_the_others_are_told_to_each(attempt: Made) -> None:
    one = attempt(cadence=SELDOM)

    def slowest(subtask: int, time: int) -> Callable[[], object]:
        return one.says(subtask, control.LocalSlowest(session=one.session, slowest={"clicks": time}))

    one.run(begun(one), slowest(0, 5), slowest(1, 3), slowest(2, 9), one.until_clock(3))

    assert [[message.slowest for message in got] for got in one.got(control.RemoteSlowest)] == [
        [{"clicks": 3}],
        [{"clicks": 5}],
        [{"clicks": 3}],
    ]
    assert {message.session for got in one.got(control.RemoteSlowest) for message in got} == {one.session}


def test_sources_pause_until_no_row_is_on_its_way(attempt: Made) -> None:
    one = attempt(workers=2, pauses_sources=True)
    one.workers[0].frames, one.workers[1].frames = (3, 1), (1, 3)
    one.run(one.until("committed"))

    for worker in one.workers:
        kinds = [type(message) for message in worker.sent]
        assert kinds[:3] == [control.BeginProcessing, control.PauseReading, control.CountFrames]
        counting = kinds.index(control.TriggerCheckpoint)
        assert {*kinds[2:counting]} == {control.CountFrames}
        rounds = [message.round for message in worker.got(control.CountFrames)[: counting - 2]]
        assert rounds == [*range(len(rounds))]
        assert kinds[counting:][:3] == [
            control.TriggerCheckpoint,
            control.NotifyCheckpointCommitted,
            control.ResumeReading,
        ]
    assert one.of("triggered")[0]["epoch"] == 1


def test_a_job_whose_workers_have_all_read_their_input_ends(attempt: Made) -> None:
    one = attempt(cadence=SELDOM)
    ends = [one.says(n, control.SessionReachedEnds(session=one.session)) for n in range(3)]
    before: list[int] = []
    one.run(begun(one), *ends[:2], lambda: before.append(len(one.of("triggered"))), ends[2], one.until("committed"))

    assert before == [0]
    assert [message.last for message in one.workers[0].got(control.TriggerCheckpoint)] == [True]


def test_the_figures_of_all_workers_are_told_together(attempt: Made) -> None:
    one = attempt(cadence=SELDOM)

    def wrote(subtask: int, rows: int) -> Callable[[], object]:
        figures = replace(NOTHING, written={"left": rows})
        return one.says(subtask, control.WorkerProgress(session=one.session, figures=figures))

    one.run(begun(one), wrote(0, 1), wrote(1, 20), wrote(2, 300), wrote(0, 2))

    assert [each["records_out"] for each in one.of("progress")] == [0, 1, 21, 321, 322]


# ---------------------------------------------------------------- output of earlier terms


def opens(one: MemoryAttempt, term: int) -> None:
    """A worker of an earlier term opens output after recovery."""
    job = replace(one.coordinator.ownership.load_identity(), term=Term(term))
    one.job.left.unfence()
    one.job.left.begin(TaskContext(job, 0, 1, "left"))


def test_an_idle_job_aborts_what_old_workers_open(attempt: Made) -> None:
    one = attempt(cadence=SELDOM)
    left = list[int]()

    one.run(
        begun(one),
        lambda: opens(one, 0),
        one.until_clock(25.0),
        lambda: left.append(len(one.coordinator.list_staged())),
    )

    assert left == [0]
    assert one.of("committed") != [], "it goes on"


def test_each_source_that_cannot_show_its_offsets_is_reported_and_the_job_continues(
    attempt: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = attempt(cadence=SELDOM)

    def refused(*_: object) -> None:
        raise ConfigError("no permission")

    for source in one.job.sources.values():
        monkeypatch.setattr(source, "notify_committed", refused)

    one.run(begun(one))

    assert [told["text"] for told in one.of("notice")] == [
        f"offsets of {name!r} in epoch 1 are not shown: no permission" for name in ("n", "m")
    ]
    assert one.of("committed") != []


def test_a_sink_that_does_not_respond_to_that_search_is_asked_again(
    attempt: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = attempt(cadence=SELDOM)

    list_staged = one.job.left.list_staged

    def away(job: str) -> object:
        monkeypatch.setattr(one.job.left, "list_staged", list_staged)
        raise Retryable("away")

    def opened() -> None:
        opens(one, 0)
        monkeypatch.setattr(one.job.left, "list_staged", away)

    one.run(begun(one), opened, one.until("notice"), lambda: one.coordinator.list_staged() == [])

    assert [told["text"] for told in one.of("notice")] == ["could not look for left-over output: away"]
