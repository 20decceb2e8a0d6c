"""One attempt, fact by fact: when epochs begin, are decided and given up, and when it ends."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol import actions as do
from kafka_eos.protocol import events as facts
from kafka_eos.protocol.actions import AttemptAction, JobOutcome
from kafka_eos.protocol.attempt import Attempt, Phase
from kafka_eos.protocol.checkpoint_schedule import Cadence, EpochKind
from kafka_eos.protocol.cleanup_schedule import CleanupSchedule
from kafka_eos.protocol.engine_policy import AttemptPolicy
from kafka_eos.protocol.events import AttemptEvent
from kafka_eos.protocol.quiescence import FrameCounts

STREAM = AttemptPolicy(frozenset({0, 1}), Cadence(10.0, 2.0, 30.0), tolerated_failures=1, discovery_interval=1000.0)
ASKED = facts.PendingRequests(EpochKind.REQUESTED)


def epoch(n: int) -> EpochId:
    return EpochId(Epoch(n), Term(3))


class Run:
    """An attempt with a clock. Begins at 0 s with epoch 5, on epoch 4 of term 2."""

    def __init__(self, policy: AttemptPolicy, *, filling: bool = False, search_interval: float = 1e9) -> None:
        base = EpochId(Epoch(4), Term(2))
        keeping = CleanupSchedule(0.0, search_interval)
        self.now = 0.0
        self.attempt = Attempt.of(policy, epoch(5), base, keeping, 0.0, filling)

    def on(self, *learned: AttemptEvent, at: float | None = None) -> list[AttemptAction]:
        self.now = self.now if at is None else at
        taken: list[AttemptAction] = []
        for fact in learned:
            self.attempt, actions = self.attempt.handle(fact, self.now)
            taken += actions
        return taken


def acks(n: int, subtasks: Iterable[int] = (0, 1)) -> list[AttemptEvent]:
    return [facts.EpochAcked(epoch(n), subtask) for subtask in subtasks]


def confirms(n: int, subtasks: Iterable[int] = (0, 1)) -> list[AttemptEvent]:
    return [facts.AbortConfirmed(epoch(n), subtask) for subtask in subtasks]


def running(policy: AttemptPolicy = STREAM) -> Run:
    run = Run(policy)
    assert run.on(facts.SubtaskReady(0), facts.SubtaskReady(1)) == [do.StartProcessing()]
    return run


def committed(run: Run, n: int) -> list[AttemptAction]:
    return run.on(*acks(n), facts.EpochCommitted(epoch(n)), facts.CleanupFinished())


# ---------------------------------------------------------------- preparing


def test_nobody_begins_before_all_are_ready() -> None:
    run = Run(STREAM)

    assert run.on(facts.SubtaskReady(0), facts.Tick(), at=100.0) == []
    assert not run.attempt.has_started
    assert run.on(facts.SubtaskReady(1))[0] == do.StartProcessing()
    assert run.attempt.has_started


def test_a_stop_before_all_are_ready_ends_it_if_nothing_was_processed_in_this_run() -> None:
    assert Run(replace(STREAM, can_stop_early=True)).on(facts.StopSignalled()) == [do.EndJob(JobOutcome.NOT_STARTED)]

    later = Run(STREAM)
    assert later.on(facts.StopSignalled(), facts.SubtaskReady(0)) == []
    assert later.on(facts.SubtaskReady(1)) == [do.StartProcessing(), do.TriggerEpoch(epoch(5), EpochKind.FINAL)]


def test_who_may_leave_stays_until_that_is_asked() -> None:
    run = Run(replace(STREAM, can_stop_early=True))

    assert run.on(facts.Tick(), at=1.0) == []
    assert run.on(facts.SubtaskReady(0), facts.SubtaskReady(1)) == [do.StartProcessing()]


def test_nothing_is_dropped_before_all_are_ready() -> None:
    run = Run(STREAM, search_interval=1.0)

    assert run.on(facts.Tick(), at=100.0) == []
    assert do.RunCleanup(find_leftovers=True) in run.on(facts.SubtaskReady(0), facts.SubtaskReady(1))


# ---------------------------------------------------------------- one epoch after another


def test_while_streams_wait_for_tables_epochs_leave_nothing_under_way() -> None:
    run = Run(STREAM, filling=True)
    run.on(facts.SubtaskReady(0), facts.SubtaskReady(1))

    assert run.on(facts.Tick(), at=10.0) == [do.TriggerEpoch(epoch(5), EpochKind.BOOTSTRAP)]
    committed(run, 5)
    assert run.on(ASKED) == [do.TriggerEpoch(epoch(6), EpochKind.SAVEPOINT)]
    committed(run, 6)
    assert run.on(facts.BootstrapFinished(), facts.Tick(), at=40.0) == [do.TriggerEpoch(epoch(7), EpochKind.PERIODIC)]


def test_one_that_is_due_while_streams_wait_goes_before_what_was_asked_for_in_vain() -> None:
    run = Run(replace(STREAM, tolerated_failures=5), filling=True)
    run.on(facts.SubtaskReady(0), facts.SubtaskReady(1), ASKED)
    run.on(facts.EpochDeclined(epoch(5), 0, "full"), *confirms(5))

    assert run.on(ASKED, at=10.0) == [do.TriggerEpoch(epoch(6), EpochKind.BOOTSTRAP)]
    assert committed(run, 6)[-1] == do.TriggerEpoch(epoch(7), EpochKind.SAVEPOINT)


def test_an_epoch_is_triggered_decided_committed_and_swept_before_the_next() -> None:
    run = running()

    assert run.on(facts.Tick(), at=9.9) == []
    assert run.on(facts.Tick(), at=10.0) == [do.TriggerEpoch(epoch(5), EpochKind.PERIODIC)]
    assert run.on(facts.EpochAcked(epoch(5), 0), at=10.5) == []
    base = EpochId(Epoch(4), Term(2))
    assert run.on(facts.EpochAcked(epoch(5), 1), at=11.0) == [
        do.DecideEpoch(epoch(5), base, 1.0),
        do.CommitEpoch(epoch(5)),
    ]
    assert run.on(facts.Tick(), at=25.0) == []
    assert run.on(facts.EpochCommitted(epoch(5))) == [
        do.NotifyCommit(epoch(5), 15.0),
        do.RunCleanup(find_leftovers=False),
    ]
    assert run.on(facts.Tick(), at=40.0) == []
    assert run.on(facts.CleanupFinished()) == [do.TriggerEpoch(epoch(6), EpochKind.PERIODIC)]


def test_the_pause_counts_from_the_commit() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)
    run.on(*acks(5), facts.EpochCommitted(epoch(5)), facts.CleanupFinished(), at=19.0)

    assert run.attempt.next_trigger_at == 21.0
    assert run.on(facts.Tick(), at=20.9) == []
    assert run.on(facts.Tick(), at=21.0) == [do.TriggerEpoch(epoch(6), EpochKind.PERIODIC)]


def test_who_waits_for_the_clock_is_told_until_when() -> None:
    """And to wait for something else while no epoch may begin, not to look again and again."""
    never, run = float("inf"), Run(STREAM)
    assert run.attempt.next_trigger_at == never
    run.on(facts.SubtaskReady(0), facts.SubtaskReady(1))
    assert run.attempt.next_trigger_at == 10.0
    run.on(facts.Tick(), at=10.0)
    assert run.attempt.next_trigger_at == never, "one is on its way"
    run.on(*acks(5), facts.EpochCommitted(epoch(5)))
    assert run.attempt.next_trigger_at == never, "old ones are being dropped"
    run.on(facts.CleanupFinished())
    assert run.attempt.next_trigger_at == 20.0


def test_while_the_last_epoch_is_given_up_and_tried_again_no_clock_is_waited_for() -> None:
    run = running()
    run.on(facts.StopSignalled())

    assert run.attempt.phase is Phase.DRAINING
    assert run.attempt.next_trigger_at == float("inf")
    assert isinstance(run.on(facts.EpochDeclined(epoch(5), 0, "full"))[0], do.AbortEpoch)
    assert run.attempt.next_trigger_at == float("inf")


def test_what_is_late_or_foreign_changes_nothing() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)
    before = run.attempt

    assert run.on(facts.EpochAcked(epoch(4), 0), facts.EpochAcked(EpochId(Epoch(5), Term(2)), 1)) == []
    assert (
        run.on(
            facts.EpochAcked(epoch(5), 7),
            facts.EpochCommitted(epoch(5)),
            facts.CountsReceived(0, 0, FrameCounts(True, 0, 0)),
        )
        == []
    )
    assert run.attempt == before


def test_a_commit_of_another_epoch_is_not_that_of_the_decided_one() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)
    run.on(*acks(5))
    before = run.attempt

    assert run.on(facts.EpochCommitted(epoch(4)), facts.EpochCommitted(EpochId(Epoch(5), Term(2)))) == []
    assert run.attempt == before


# ---------------------------------------------------------------- given up


def test_a_late_epoch_is_given_up_and_the_next_has_another_number() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)
    run.on(facts.MessageReceived(0), facts.MessageReceived(1), at=39.0)
    aborted, triggered = run.on(facts.Tick(), *confirms(5), at=40.1)

    assert aborted == do.AbortEpoch(epoch(5), EpochKind.PERIODIC, aborted.reason, timed_out=True)  # type: ignore[union-attr]
    assert triggered == do.TriggerEpoch(epoch(6), EpochKind.PERIODIC)
    assert "[0, 1]" in aborted.reason  # type: ignore[union-attr]


def test_one_too_many_in_a_row_replaces_the_attempt() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)
    run.on(facts.EpochDeclined(epoch(5), 0, "disk full"), *confirms(5))
    run.on(facts.Tick(), at=20.0)
    (over,) = run.on(facts.EpochDeclined(epoch(6), 1, "disk full"))

    assert isinstance(over, do.ReplaceAttempt)
    assert "disk full; 2 in a row" in over.why
    assert run.on(facts.Tick(), *acks(6), at=99.0) == []


def test_the_next_epoch_waits_until_every_subtask_has_confirmed_the_abort() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)
    run.on(facts.EpochDeclined(epoch(5), 0, "disk full"))

    assert run.on(facts.Tick(), *acks(5), *confirms(5, [1]), *confirms(4), at=30.0) == []
    assert run.attempt.next_trigger_at == float("inf")
    assert run.on(*confirms(5, [0])) == [do.TriggerEpoch(epoch(6), EpochKind.PERIODIC)]


def test_nothing_is_dropped_between_an_abort_and_the_next_decision() -> None:
    """What the aborted epoch has stored may be named by the next one."""
    run = running()
    run.attempt = replace(run.attempt, cleanup=replace(run.attempt.cleanup, search_interval=15.0))
    run.on(facts.Tick(), at=10.0)
    aborted, *nothing = run.on(facts.EpochDeclined(epoch(5), 0, "disk full"), *confirms(5), at=16.0)

    assert (type(aborted), nothing) == (do.AbortEpoch, [])
    assert run.on(facts.Tick(), at=20.0) == [do.TriggerEpoch(epoch(6), EpochKind.PERIODIC)], (
        "it does not wait for the sweep"
    )
    assert run.on(*acks(6), facts.EpochCommitted(epoch(6)))[-1] == do.RunCleanup(find_leftovers=True)


def test_an_abort_that_is_not_confirmed_counts_as_a_failure_once_a_timeout() -> None:
    run = running(replace(STREAM, tolerated_failures=2))
    run.on(facts.Tick(), at=10.0)
    run.on(facts.EpochDeclined(epoch(5), 0, "disk full"), *confirms(5, [1]))

    assert run.on(facts.MessageReceived(0), facts.MessageReceived(1), facts.Tick(), at=40.0) == []
    assert run.attempt.failures.in_a_row == 1
    assert run.on(facts.MessageReceived(0), facts.MessageReceived(1), facts.Tick(), at=41.0) == []
    assert run.attempt.failures.in_a_row == 2
    (over,) = run.on(facts.MessageReceived(0), facts.MessageReceived(1), facts.Tick(), at=72.0)
    assert isinstance(over, do.ReplaceAttempt)
    assert "the abort of checkpoint 5/3 was not confirmed" in over.why
    assert "3 in a row" in over.why
    assert over.suspects == {0}


def test_a_subtask_that_is_frozen_while_its_abort_is_waited_for_is_replaced() -> None:
    run = running(replace(STREAM, tolerated_failures=9))
    run.on(facts.Tick(), at=10.0)
    run.on(facts.EpochDeclined(epoch(5), 0, "disk full"), *confirms(5, [1]))
    (over,) = run.on(facts.MessageReceived(1), facts.Tick(), at=41.0)

    assert isinstance(over, do.ReplaceAttempt)
    assert over.suspects == {0}


def test_after_the_end_nothing_follows() -> None:
    run = running()
    run.attempt = replace(run.attempt, cleanup=replace(run.attempt.cleanup, search_interval=50.0))

    assert run.on(facts.SubtaskLost(0, "killed"), at=100.0) == [do.ReplaceAttempt("killed", frozenset({0}))]
    assert run.on(facts.SubtaskLost(1, "killed"), facts.Tick(), facts.StopSignalled(), at=200.0) == []


def test_a_last_epoch_that_is_declined_is_a_failure_and_one_that_is_late_is_none() -> None:
    strict = replace(STREAM, tolerated_failures=0)
    late, declined = running(strict), running(strict)
    for run in (late, declined):
        assert run.on(facts.StopSignalled()) == [do.TriggerEpoch(epoch(5), EpochKind.FINAL)]

    aborted, _ = late.on(facts.MessageReceived(0), facts.MessageReceived(1), facts.Tick(), *confirms(5), at=30.1)
    (over,) = declined.on(facts.EpochDeclined(epoch(5), 1, "disk full"))

    assert (type(aborted), type(over)) == (do.AbortEpoch, do.ReplaceAttempt)


def test_who_declines_is_not_late() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)

    (aborted,) = run.on(facts.EpochDeclined(epoch(5), 1, "disk full"))

    assert aborted == do.AbortEpoch(epoch(5), EpochKind.PERIODIC, aborted.reason, timed_out=False)  # type: ignore[union-attr]
    assert "declined by subtask 1: disk full" in aborted.reason  # type: ignore[union-attr]


def test_a_decided_epoch_forgives_those_before_it() -> None:
    run = running()
    for n in (5, 7, 9):
        run.on(facts.Tick(), at=run.now + 10.0)
        assert isinstance(run.on(facts.EpochDeclined(epoch(n), 0, "disk full"), *confirms(n))[0], do.AbortEpoch)
        run.on(facts.Tick(), at=run.now + 10.0)
        committed(run, n + 1)


def test_a_late_worker_that_says_nothing_is_suspected() -> None:
    run = running()
    run.on(facts.MessageReceived(0), facts.MessageReceived(1), facts.Tick(), at=10.0)
    (over,) = run.on(facts.MessageReceived(1), facts.Tick(), at=40.1)

    assert over == do.ReplaceAttempt(over.why, frozenset({0}))  # type: ignore[union-attr]


def test_a_late_worker_is_suspected_only_after_more_than_the_silence() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)
    run.on(facts.MessageReceived(0), at=36.0)
    run.on(facts.MessageReceived(1), at=40.0)

    assert isinstance(run.on(facts.Tick(), at=41.0)[0], do.AbortEpoch), "5 s are not more than 5 s"


def test_before_an_epoch_that_drains_silence_counts_from_its_trigger() -> None:
    """A worker with a long batch at hand says nothing."""
    run = running()
    run.on(facts.MessageReceived(0), facts.MessageReceived(1), at=1.0)
    run.on(facts.PendingRequests(EpochKind.SAVEPOINT), at=2.0)
    run.on(facts.MessageReceived(0), facts.MessageReceived(1), at=2.5)

    assert isinstance(run.on(facts.Tick(), at=32.1)[0], do.AbortEpoch)


PATIENT = replace(STREAM, cadence=Cadence(1000.0, 2.0, 3000.0), stall_timeout=20.0)


def test_a_worker_that_says_nothing_while_it_should_process_is_replaced() -> None:
    run = running(PATIENT)
    run.on(facts.MessageReceived(0), facts.MessageReceived(1), at=1.0)
    run.on(facts.MessageReceived(0), at=20.0)

    assert run.attempt.stalled_subtasks(since=5.0) == {1}
    assert run.on(facts.Tick(), at=21.0) == [], "20 s are not more than 20 s"
    (over,) = run.on(facts.Tick(), at=21.1)
    why = "no step for 20 s (worker_timeout): subtask 1 sends no heartbeats: its process is frozen"
    assert over == do.ReplaceAttempt(why, frozenset({1}))


def test_a_process_that_lives_does_not_hide_a_thread_that_takes_no_step() -> None:
    run = running(PATIENT)
    run.on(facts.MessageReceived(0), facts.MessageReceived(1), at=1.0)
    run.on(facts.HeartbeatReceived(0, 0.1, ""), facts.HeartbeatReceived(1, 20.0, "operator f, record in/0/7"), at=21.0)
    assert run.attempt.stalled_subtasks(since=5.0) == {1}
    (over,) = run.on(
        facts.HeartbeatReceived(0, 0.1, ""), facts.HeartbeatReceived(1, 20.5, "operator f, record in/0/7"), at=21.5
    )

    why = (
        "no step for 20 s (worker_timeout): subtask 1 is alive, but the thread that processes its "
        "rows makes no progress, "
        "in operator f, record in/0/7"
    )
    assert over == do.ReplaceAttempt(why, frozenset({1}))


def test_a_pulse_tells_when_the_last_step_was_and_takes_back_none() -> None:
    """What came of the thread itself is newer than what a pulse knew."""
    run = running(PATIENT)
    run.on(facts.MessageReceived(0), facts.MessageReceived(1), at=10.0)
    run.on(facts.HeartbeatReceived(0, 8.0, ""), facts.HeartbeatReceived(1, 0.5, ""), at=11.0)

    assert run.attempt.liveness.progress_at == {0: 10.0, 1: 10.5}
    assert [run.attempt.stall_of(subtask, now).alive for subtask in (0, 1) for now in (16.0, 16.1)] == [True, False] * 2


def test_how_long_a_subtask_stands_still_counts_from_its_step_and_whether_it_lives_from_its_pulse() -> None:
    """Time in which nobody has listened counts for neither."""
    run = running(PATIENT)
    run.on(facts.HeartbeatReceived(0, 3.0, ""), at=4.0)
    run.on(facts.ReceiverStalled(10.0), at=14.0)

    found = run.attempt.stall_of(0, now=16.0)
    assert (found.seconds, found.alive) == (5.0, True)
    assert not run.attempt.stall_of(0, now=19.1).alive


def test_between_two_operators_a_thread_is_in_none() -> None:
    run = running(PATIENT)
    run.on(facts.HeartbeatReceived(0, 0.0, "operator f"), at=1.0)
    run.on(facts.MessageReceived(0), at=1.1)

    assert str(run.attempt.stall_of(0, now=2.0)).endswith("makes no progress")


def test_a_late_worker_whose_process_lives_and_takes_no_step_is_suspected_and_told_of_as_such() -> None:
    run = running()
    run.on(facts.MessageReceived(0), facts.MessageReceived(1), facts.Tick(), at=10.0)
    run.on(facts.MessageReceived(1), facts.HeartbeatReceived(0, 29.0, "operator f"), at=39.0)
    (over,) = run.on(facts.Tick(), at=40.1)

    assert isinstance(over, do.ReplaceAttempt)
    assert over.suspects == {0}
    assert over.why.endswith(
        "subtask 0 is alive, but the thread that processes its rows makes no progress, in operator f"
    )


def test_silence_counts_from_the_first_row_and_not_while_others_restore() -> None:
    run = Run(PATIENT)
    run.on(facts.MessageReceived(0), facts.SubtaskReady(0), at=1.0)
    assert run.on(facts.Tick(), at=500.0) == []
    assert run.attempt.stalled_subtasks(since=499.0) == frozenset()
    assert run.on(facts.MessageReceived(1), facts.SubtaskReady(1), at=501.0) == [do.StartProcessing()]

    assert run.on(facts.Tick(), at=521.0) == []
    assert isinstance(run.on(facts.Tick(), at=521.1)[0], do.ReplaceAttempt)


def test_whoever_did_not_listen_calls_nobody_silent() -> None:
    run = running(PATIENT)
    run.on(facts.MessageReceived(0), facts.MessageReceived(1), at=1.0)

    assert run.on(facts.ReceiverStalled(90.0), at=100.0) == []
    assert run.on(facts.Tick(), at=111.0) == []
    assert isinstance(run.on(facts.Tick(), at=111.1)[0], do.ReplaceAttempt)


def test_a_worker_that_died_replaces_the_attempt() -> None:
    assert running().on(facts.SubtaskLost(1, "killed")) == [do.ReplaceAttempt("killed", frozenset({1}))]


# ---------------------------------------------------------------- what others ask


def test_who_asks_is_served_at_once_and_only_once() -> None:
    run = running()

    assert run.on(ASKED, at=1.0) == [do.TriggerEpoch(epoch(5), EpochKind.REQUESTED)]
    assert run.on(facts.PendingRequests(), *acks(5), facts.EpochCommitted(epoch(5)), facts.CleanupFinished(), at=2.0)[
        -1
    ] != do.TriggerEpoch(epoch(6), EpochKind.REQUESTED)


def test_after_an_asked_one_that_was_given_up_the_clock_goes_first_once() -> None:
    run = running(replace(STREAM, tolerated_failures=0))
    assert run.on(ASKED) == [do.TriggerEpoch(epoch(5), EpochKind.REQUESTED)]
    assert isinstance(run.on(facts.EpochDeclined(epoch(5), 0, "disk full"), *confirms(5))[0], do.AbortEpoch)

    assert run.on(ASKED, at=10.0) == [do.TriggerEpoch(epoch(6), EpochKind.PERIODIC)]
    assert committed(run, 6)[-1] == do.TriggerEpoch(epoch(7), EpochKind.REQUESTED)


def given_up_in_vain(kind: EpochKind, policy: AttemptPolicy = STREAM) -> Run:
    """An epoch that somebody asked for was given up, at 1 s."""
    run = running(policy)
    assert run.on(facts.PendingRequests(kind), at=1.0) == [do.TriggerEpoch(epoch(5), kind)]
    assert isinstance(run.on(facts.EpochDeclined(epoch(5), 0, "disk full"), *confirms(5))[0], do.AbortEpoch)
    return run


def test_who_asks_when_one_is_due_is_served_by_that_one() -> None:
    assert running().on(ASKED, at=10.0) == [do.TriggerEpoch(epoch(5), EpochKind.REQUESTED)]


def test_after_a_savepoint_that_was_given_up_the_clock_goes_first_too() -> None:
    assert given_up_in_vain(EpochKind.SAVEPOINT).on(ASKED, at=11.0) == [do.TriggerEpoch(epoch(6), EpochKind.PERIODIC)]


def test_the_clock_goes_first_only_if_it_is_due() -> None:
    assert given_up_in_vain(EpochKind.REQUESTED).on(ASKED, at=2.0) == [do.TriggerEpoch(epoch(6), EpochKind.REQUESTED)]


def test_the_clock_goes_first_once_also_if_its_own_is_given_up() -> None:
    run = given_up_in_vain(EpochKind.REQUESTED)
    assert run.on(ASKED, at=11.0) == [do.TriggerEpoch(epoch(6), EpochKind.PERIODIC)]

    assert run.on(facts.EpochDeclined(epoch(6), 0, "disk full"), *confirms(6), at=22.0)[-1] == do.TriggerEpoch(
        epoch(7), EpochKind.REQUESTED
    )


def test_a_decided_one_is_not_in_vain_any_more() -> None:
    run = given_up_in_vain(EpochKind.REQUESTED)
    assert run.on(ASKED, at=2.0) == [do.TriggerEpoch(epoch(6), EpochKind.REQUESTED)]
    committed(run, 6)

    assert run.on(ASKED, at=12.0) == [do.TriggerEpoch(epoch(7), EpochKind.REQUESTED)]


def test_a_withdrawn_request_is_forgotten() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)
    run.on(ASKED, facts.PendingRequests(), at=11.0)

    assert do.TriggerEpoch(epoch(6), EpochKind.REQUESTED) not in committed(run, 5)


def test_a_savepoint_waits_for_the_epoch_on_its_way() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)

    assert run.on(facts.PendingRequests(EpochKind.SAVEPOINT), at=11.0) == []
    assert run.on(*acks(5), facts.EpochCommitted(epoch(5)), facts.CleanupFinished())[-1] == do.TriggerEpoch(
        epoch(6), EpochKind.SAVEPOINT
    )
    assert run.on(facts.Tick(), at=30.0) == []


def test_a_stop_takes_a_last_epoch_and_is_answered_when_that_is_committed_and_old_ones_are_dropped() -> None:
    """What fails after the answer would be taken up by an attempt that does not know of the stop."""
    run = running()

    assert run.on(facts.StopSignalled()) == [do.TriggerEpoch(epoch(5), EpochKind.FINAL)]
    decided, commit, sweep = run.on(*acks(5), facts.EpochCommitted(epoch(5)))
    assert (type(decided), commit, sweep) == (
        do.DecideEpoch,
        do.CommitEpoch(epoch(5)),
        do.RunCleanup(find_leftovers=False),
    )
    assert run.on(facts.Tick(), at=100.0) == []
    assert run.on(facts.CleanupFinished()) == [do.NotifyCommit(epoch(5), 0.0), do.EndJob(JobOutcome.DRAINED)]
    assert run.attempt.phase is Phase.ENDED


def test_a_last_epoch_that_is_given_up_is_tried_again_and_nothing_is_read_in_between() -> None:
    run = running()
    run.on(facts.PendingRequests(EpochKind.SAVEPOINT, stop=True))
    run.on(facts.MessageReceived(0), facts.MessageReceived(1), at=25.0)
    aborted, again = run.on(facts.MessageReceived(0), facts.MessageReceived(1), facts.Tick(), *confirms(5), at=30.1)

    assert isinstance(aborted, do.AbortEpoch)
    assert aborted.kind is EpochKind.FINAL
    assert again == do.TriggerEpoch(epoch(6), EpochKind.FINAL)
    assert run.attempt.phase is Phase.DRAINING


def test_bounded_input_ends_when_all_have_reached_its_end() -> None:
    run = running()

    assert run.on(facts.EndOfInputReached(0)) == []
    assert run.on(facts.EndOfInputReached(1)) == [do.TriggerEpoch(epoch(5), EpochKind.FINAL)]


def test_an_end_without_a_last_epoch() -> None:
    assert running().on(facts.PendingRequests(EpochKind.REQUESTED, cancel=True)) == [do.EndJob(JobOutcome.CANCELLED)]


def test_an_end_without_a_last_epoch_waits_until_all_are_ready_and_does_not_break_off_a_drained_one() -> None:
    early = Run(STREAM)
    assert early.on(facts.PendingRequests(EpochKind.REQUESTED, cancel=True), facts.SubtaskReady(0)) == []
    assert early.on(facts.SubtaskReady(1)) == [do.StartProcessing(), do.EndJob(JobOutcome.CANCELLED)]

    ending = running()
    ending.on(facts.StopSignalled())
    assert ending.on(facts.PendingRequests(EpochKind.REQUESTED, cancel=True)) == [do.EndJob(JobOutcome.CANCELLED)]

    closing = running()
    closing.on(facts.StopSignalled(), *acks(5), facts.EpochCommitted(epoch(5)))
    assert closing.on(facts.PendingRequests(EpochKind.REQUESTED, cancel=True)) == []
    assert closing.on(facts.CleanupFinished())[-1] == do.EndJob(JobOutcome.DRAINED)


def test_a_last_epoch_is_followed_by_none_while_it_is_committed() -> None:
    run = running()
    assert run.on(facts.StopSignalled()) == [do.TriggerEpoch(epoch(5), EpochKind.FINAL)]

    assert [type(action) for action in run.on(*acks(5))] == [do.DecideEpoch, do.CommitEpoch]
    assert run.on(facts.Tick(), at=100.0) == []


# ---------------------------------------------------------------- splits


def test_a_stream_looks_for_splits_from_time_to_time_one_look_at_a_time() -> None:
    run = running(replace(STREAM, discovery_interval=3.0))

    assert run.on(facts.Tick(), at=2.9) == []
    assert run.on(facts.Tick(), at=3.0) == [do.DiscoverSplits()]
    assert run.on(facts.Tick(), at=9.0) == []
    assert run.on(facts.DiscoveryFinished(), facts.Tick(), at=9.5) == []
    assert run.on(facts.Tick(), at=10.0) == [do.TriggerEpoch(epoch(5), EpochKind.PERIODIC)]
    assert run.on(facts.Tick(), at=12.5) == [do.DiscoverSplits()], "whatever is on its way"
    run.on(facts.DiscoveryFinished())
    assert run.on(*acks(5), facts.EpochCommitted(epoch(5)))[-1] == do.RunCleanup(find_leftovers=False)


def test_a_stream_that_ends_looks_for_no_splits() -> None:
    run = running(replace(STREAM, discovery_interval=3.0))
    run.on(facts.StopSignalled())

    assert run.on(facts.Tick(), at=5.0) == []


# ---------------------------------------------------------------- the job at a halt


def quiet(run: Run) -> list[AttemptAction]:
    """Two rounds of equal counts."""
    first = run.on(*(facts.CountsReceived(0, subtask, FrameCounts(True, 5, 5)) for subtask in (0, 1)))
    assert first == [do.RequestCounts(1)]
    return run.on(*(facts.CountsReceived(1, subtask, FrameCounts(True, 5, 5)) for subtask in (0, 1)))


def test_where_every_epoch_halts_the_job_it_begins_when_nothing_is_under_way() -> None:
    run = running(replace(STREAM, pauses_sources=True))

    assert run.on(facts.Tick(), at=10.0) == [do.PauseSources(), do.RequestCounts(0)]
    assert run.on(facts.Tick(), at=11.0) == []
    assert quiet(run) == [do.TriggerEpoch(epoch(5), EpochKind.PERIODIC)]
    done = run.on(*acks(5), facts.EpochCommitted(epoch(5)))
    assert done[-2:] == [do.RunCleanup(find_leftovers=False), do.ResumeSources()]


def test_a_halted_job_goes_on_between_two_epochs_also_if_the_next_is_due() -> None:
    run = running(replace(STREAM, pauses_sources=True))
    run.on(facts.Tick(), at=10.0)
    quiet(run)

    assert run.on(*acks(5), facts.EpochCommitted(epoch(5)), at=25.0)[-2:] == [
        do.RunCleanup(find_leftovers=False),
        do.ResumeSources(),
    ]
    assert run.on(facts.CleanupFinished(), facts.Tick(), at=27.0) == [do.PauseSources(), do.RequestCounts(0)]


def test_a_halted_job_goes_on_between_two_epochs_also_if_somebody_waits_for_the_next() -> None:
    """Or rows would never move while one after the other asks."""
    run = running(replace(STREAM, pauses_sources=True))
    run.on(facts.Tick(), at=10.0)
    quiet(run)
    run.on(ASKED)

    assert run.on(*acks(5), facts.EpochCommitted(epoch(5)))[-2:] == [
        do.RunCleanup(find_leftovers=False),
        do.ResumeSources(),
    ]
    assert run.on(facts.CleanupFinished()) == [do.PauseSources(), do.RequestCounts(0)]


def test_a_job_that_ends_at_a_halt_does_not_go_on() -> None:
    run = running(replace(STREAM, pauses_sources=True))
    assert run.on(facts.StopSignalled()) == [do.PauseSources(), do.RequestCounts(0)]
    assert quiet(run) == [do.TriggerEpoch(epoch(5), EpochKind.FINAL)]

    assert run.on(*acks(5), facts.EpochCommitted(epoch(5)))[-1] == do.RunCleanup(find_leftovers=False)
    assert run.on(facts.CleanupFinished()) == [do.NotifyCommit(epoch(5), 0.0), do.EndJob(JobOutcome.DRAINED)]


def test_a_last_epoch_at_a_halt_that_is_given_up_is_tried_again_at_the_same_halt() -> None:
    run = running(replace(STREAM, pauses_sources=True, tolerated_failures=9))
    run.on(facts.StopSignalled())
    quiet(run)

    aborted, again = run.on(facts.EpochDeclined(epoch(5), 0, "disk full"), *confirms(5))
    assert (type(aborted), again) == (do.AbortEpoch, do.TriggerEpoch(epoch(6), EpochKind.FINAL))


def test_who_is_still_busy_is_asked_again() -> None:
    run = running(replace(STREAM, pauses_sources=True))
    run.on(facts.Tick(), at=10.0)

    assert run.on(
        facts.CountsReceived(0, 0, FrameCounts(False, 5, 4)), facts.CountsReceived(0, 1, FrameCounts(True, 5, 5))
    ) == [do.RequestCounts(1)]
    assert run.on(facts.CountsReceived(0, 0, FrameCounts(True, 5, 5))) == []


def test_a_job_that_was_halted_for_a_withdrawn_request_goes_on() -> None:
    run = running(replace(STREAM, pauses_sources=True))
    assert run.on(facts.PendingRequests(EpochKind.SAVEPOINT), at=1.0) == [do.PauseSources(), do.RequestCounts(0)]
    run.on(facts.PendingRequests())

    assert quiet(run) == [do.ResumeSources()]


def test_with_loops_the_last_epoch_of_bounded_input_finds_the_job_at_a_halt() -> None:
    run = running(replace(STREAM, pauses_at_end=True))

    assert run.on(facts.Tick(), at=10.0) == [do.TriggerEpoch(epoch(5), EpochKind.PERIODIC)]
    committed(run, 5)
    assert run.on(facts.EndOfInputReached(0), facts.EndOfInputReached(1)) == [do.PauseSources(), do.RequestCounts(0)]
    assert quiet(run) == [do.TriggerEpoch(epoch(6), EpochKind.FINAL)]


def test_with_loops_no_other_epoch_does() -> None:
    run = running(replace(STREAM, pauses_at_end=True))
    run.on(facts.EndOfInputReached(0))
    assert run.on(facts.Tick(), at=10.0) == [do.TriggerEpoch(epoch(5), EpochKind.PERIODIC)]

    stopped = running(replace(STREAM, pauses_at_end=True))
    assert stopped.on(facts.StopSignalled()) == [do.TriggerEpoch(epoch(5), EpochKind.FINAL)], (
        "nobody has reached an end"
    )


# ---------------------------------------------------------------- output of earlier terms


def test_output_of_earlier_terms_is_searched_for_from_time_to_time_also_if_nothing_is_decided() -> None:
    run = Run(replace(STREAM, cadence=Cadence(1000.0, 0.0, 30.0)), search_interval=10.0)
    run.on(facts.SubtaskReady(0), facts.SubtaskReady(1))

    assert run.on(facts.Tick(), at=9.0) == []
    assert run.on(facts.Tick(), at=10.0) == [do.RunCleanup(find_leftovers=True)]
    assert run.on(facts.Tick(), at=20.0) == [], "one search at a time"
    assert run.on(facts.CleanupFinished(), facts.Tick(), at=29.0) == []
    assert run.on(facts.Tick(), at=39.0) == [do.RunCleanup(find_leftovers=True)]


def test_an_epoch_on_its_way_does_not_wait_for_a_search_and_the_search_follows_its_commit() -> None:
    run = Run(STREAM, search_interval=15.0)
    run.on(facts.SubtaskReady(0), facts.SubtaskReady(1))
    run.on(facts.Tick(), at=10.0)

    assert run.on(facts.Tick(), at=16.0) == []
    assert run.on(*acks(5), facts.EpochCommitted(epoch(5)))[-1] == do.RunCleanup(find_leftovers=True)


# ---------------------------------------------------------------- whatever happens

_EPOCHS = st.builds(epoch, st.integers(4, 9))
_SUBTASKS = st.integers(0, 2)
_FACTS = st.one_of(
    st.builds(facts.Tick),
    st.builds(facts.SubtaskReady, _SUBTASKS),
    st.builds(facts.EpochAcked, _EPOCHS, _SUBTASKS),
    st.builds(facts.EpochDeclined, _EPOCHS, _SUBTASKS, st.just("full")),
    st.builds(facts.AbortConfirmed, _EPOCHS, _SUBTASKS),
    st.builds(facts.EpochCommitted, _EPOCHS),
    st.builds(facts.CleanupFinished),
    st.builds(facts.DiscoveryFinished),
    st.builds(facts.CountsReceived, st.integers(0, 2), _SUBTASKS, st.just(FrameCounts(True, 1, 1))),
    st.builds(facts.EndOfInputReached, _SUBTASKS),
    st.builds(facts.PendingRequests, st.sampled_from([None, EpochKind.REQUESTED, EpochKind.SAVEPOINT]), st.booleans()),
)
_POLICIES = st.sampled_from([STREAM, replace(STREAM, pauses_sources=True), replace(STREAM, pauses_at_end=True)])


@given(_POLICIES, st.lists(st.tuples(_FACTS, st.floats(0.0, 15.0)), max_size=60))
def test_in_any_order_of_facts_epochs_are_decided_in_order_each_after_the_commit_before(
    policy: AttemptPolicy, learned: list[tuple[AttemptEvent, float]]
) -> None:
    run, triggered, decided, open_ = Run(policy, search_interval=20.0), [epoch(4)], [epoch(4)], False
    over = False
    for fact, later in [(facts.SubtaskReady(n), 0.0) for n in policy.subtasks] + learned:
        if isinstance(fact, facts.EpochCommitted) and decided[-1] == fact.epoch:
            open_ = False
        for action in run.on(fact, at=run.now + later):
            assert not over
            match action:
                case do.TriggerEpoch(new):
                    assert new > triggered[-1]
                    triggered.append(new)
                case do.DecideEpoch(ready):
                    assert ready in triggered
                    assert ready > decided[-1]
                    assert not open_
                    decided.append(ready)
                    open_ = True
                case do.RunCleanup():
                    assert run.attempt.pending_epochs.is_empty or not run.attempt.cleanup.running
                case do.EndJob(JobOutcome.DRAINED):
                    over = True
                    assert not open_
                case do.ReplaceAttempt():
                    over = True
