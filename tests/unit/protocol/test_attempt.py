"""One attempt, fact by fact: when epochs begin, are decided and given up, and when it ends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol import actions as do
from kafka_eos.protocol import events as facts
from kafka_eos.protocol.actions import Action, Ending
from kafka_eos.protocol.attempt import Attempt, Phase
from kafka_eos.protocol.checkpoint_schedule import Cadence, Kind
from kafka_eos.protocol.cleanup_schedule import Housekeeping
from kafka_eos.protocol.engine_policy import Policy
from kafka_eos.protocol.events import Fact
from kafka_eos.protocol.quiescence import Counts

STREAM = Policy(frozenset({0, 1}), Cadence(10.0, 2.0, 30.0), tolerated=1, search_every=1000.0)
BATCHES = Policy(frozenset({0}), Cadence(10.0, 0.0, 30.0), tolerated=0, search_every=0.1, batches=True)
ASKED = facts.Asked(Kind.ASKED)


def epoch(n: int) -> EpochId:
    return EpochId(Epoch(n), Term(3))


class Run:
    """An attempt with a clock. Begins at 0 s with epoch 5, on epoch 4 of term 2."""

    def __init__(
        self,
        policy: Policy,
        *,
        under_way: bool = False,
        filling: bool = False,
        every: int = 1,
        look_every: float = 1e9,
    ) -> None:
        base = EpochId(Epoch(4), Term(2))
        keeping = Housekeeping(every, 0.0, look_every)
        self.now = 0.0
        self.attempt = Attempt.of(policy, epoch(5), base, keeping, 0.0, under_way, filling)

    def on(self, *learned: Fact, at: float | None = None) -> list[Action]:
        self.now = self.now if at is None else at
        taken: list[Action] = []
        for fact in learned:
            self.attempt, actions = self.attempt.on(fact, self.now)
            taken += actions
        return taken


def acks(n: int, subtasks: Iterable[int] = (0, 1)) -> list[Fact]:
    return [facts.Acked(epoch(n), subtask) for subtask in subtasks]


def confirms(n: int, subtasks: Iterable[int] = (0, 1)) -> list[Fact]:
    return [facts.AbortConfirmed(epoch(n), subtask) for subtask in subtasks]


def running(policy: Policy = STREAM) -> Run:
    run = Run(policy)
    assert run.on(facts.Ready(0), facts.Ready(1)) == [do.Begin()]
    return run


def committed(run: Run, n: int) -> list[Action]:
    return run.on(*acks(n), facts.Committed(epoch(n)), facts.Swept())


# ---------------------------------------------------------------- preparing


def test_nobody_begins_before_all_are_ready() -> None:
    run = Run(STREAM)

    assert run.on(facts.Ready(0), facts.Tick(), at=100.0) == []
    assert not run.attempt.ran
    assert run.on(facts.Ready(1))[0] == do.Begin()
    assert run.attempt.ran


def test_a_stop_before_all_are_ready_ends_it_if_nothing_was_processed_in_this_run() -> None:
    assert Run(replace(STREAM, may_leave=True)).on(facts.Stop()) == [do.End(Ending.LEFT)]

    later = Run(STREAM)
    assert later.on(facts.Stop(), facts.Ready(0)) == []
    assert later.on(facts.Ready(1)) == [do.Begin(), do.Trigger(epoch(5), Kind.LAST)]


def test_who_may_leave_stays_until_that_is_asked() -> None:
    run = Run(replace(STREAM, may_leave=True))

    assert run.on(facts.Tick(), at=1.0) == []
    assert run.on(facts.Ready(0), facts.Ready(1)) == [do.Begin()]


def test_nothing_is_dropped_before_all_are_ready() -> None:
    run = Run(STREAM, look_every=1.0)

    assert run.on(facts.Littered(), facts.Tick(), at=100.0) == []
    assert do.Sweep(thorough=True, fence=True) in run.on(facts.Ready(0), facts.Ready(1))


# ---------------------------------------------------------------- one epoch after another


def test_while_streams_wait_for_tables_epochs_leave_nothing_under_way() -> None:
    run = Run(STREAM, filling=True)
    run.on(facts.Ready(0), facts.Ready(1))

    assert run.on(facts.Tick(), at=10.0) == [do.Trigger(epoch(5), Kind.FILLING)]
    committed(run, 5)
    assert run.on(ASKED) == [do.Trigger(epoch(6), Kind.SAVEPOINT)]
    committed(run, 6)
    assert run.on(facts.Filled(), facts.Tick(), at=40.0) == [do.Trigger(epoch(7), Kind.CLOCK)]


def test_one_that_is_due_while_streams_wait_goes_before_what_was_asked_for_in_vain() -> None:
    run = Run(replace(STREAM, tolerated=5), filling=True)
    run.on(facts.Ready(0), facts.Ready(1), ASKED)
    run.on(facts.Declined(epoch(5), 0, "full"), *confirms(5))

    assert run.on(ASKED, at=10.0) == [do.Trigger(epoch(6), Kind.FILLING)]
    assert committed(run, 6)[-1] == do.Trigger(epoch(7), Kind.SAVEPOINT)


def test_an_epoch_is_triggered_decided_committed_and_swept_before_the_next() -> None:
    run = running()

    assert run.on(facts.Tick(), at=9.9) == []
    assert run.on(facts.Tick(), at=10.0) == [do.Trigger(epoch(5), Kind.CLOCK)]
    assert run.on(facts.Acked(epoch(5), 0), at=10.5) == []
    base = EpochId(Epoch(4), Term(2))
    assert run.on(facts.Acked(epoch(5), 1), at=11.0) == [do.Decide(epoch(5), base, 1.0), do.Commit(epoch(5))]
    assert run.on(facts.Tick(), at=25.0) == []
    assert run.on(facts.Committed(epoch(5))) == [do.Notify(epoch(5), 15.0), do.Sweep(thorough=True)]
    assert run.on(facts.Tick(), at=40.0) == []
    assert run.on(facts.Swept()) == [do.Trigger(epoch(6), Kind.CLOCK)]


def test_the_pause_counts_from_the_commit() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)
    run.on(*acks(5), facts.Committed(epoch(5)), facts.Swept(), at=19.0)

    assert run.attempt.due_at == 21.0
    assert run.on(facts.Tick(), at=20.9) == []
    assert run.on(facts.Tick(), at=21.0) == [do.Trigger(epoch(6), Kind.CLOCK)]


def test_who_waits_for_the_clock_is_told_until_when() -> None:
    """And to wait for something else while no epoch may begin, not to look again and again."""
    never, run = float("inf"), Run(STREAM)
    assert run.attempt.due_at == never
    run.on(facts.Ready(0), facts.Ready(1))
    assert run.attempt.due_at == 10.0
    run.on(facts.Tick(), at=10.0)
    assert run.attempt.due_at == never, "one is on its way"
    run.on(*acks(5), facts.Committed(epoch(5)))
    assert run.attempt.due_at == never, "old ones are being dropped"
    run.on(facts.Swept())
    assert run.attempt.due_at == 20.0


def test_while_the_last_epoch_is_given_up_and_tried_again_no_clock_is_waited_for() -> None:
    run = running()
    run.on(facts.Stop())

    assert run.attempt.phase is Phase.ENDING
    assert run.attempt.due_at == float("inf")
    assert isinstance(run.on(facts.Declined(epoch(5), 0, "full"))[0], do.Abort)
    assert run.attempt.due_at == float("inf")


def test_what_is_late_or_foreign_changes_nothing() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)
    before = run.attempt

    assert run.on(facts.Acked(epoch(4), 0), facts.Acked(EpochId(Epoch(5), Term(2)), 1)) == []
    assert run.on(facts.Acked(epoch(5), 7), facts.Committed(epoch(5)), facts.Counted(0, 0, Counts(True, 0, 0))) == []
    assert run.attempt == before


def test_a_commit_of_another_epoch_is_not_that_of_the_decided_one() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)
    run.on(*acks(5))
    before = run.attempt

    assert run.on(facts.Committed(epoch(4)), facts.Committed(EpochId(Epoch(5), Term(2)))) == []
    assert run.attempt == before


# ---------------------------------------------------------------- given up


def test_a_late_epoch_is_given_up_and_the_next_has_another_number() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)
    run.on(facts.Heard(0), facts.Heard(1), at=39.0)
    aborted, triggered = run.on(facts.Tick(), *confirms(5), at=40.1)

    assert aborted == do.Abort(epoch(5), Kind.CLOCK, aborted.why, late=True)  # type: ignore[union-attr]
    assert triggered == do.Trigger(epoch(6), Kind.CLOCK)
    assert "[0, 1]" in aborted.why  # type: ignore[union-attr]


def test_one_too_many_in_a_row_replaces_the_attempt() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)
    run.on(facts.Declined(epoch(5), 0, "disk full"), *confirms(5))
    run.on(facts.Tick(), at=20.0)
    (over,) = run.on(facts.Declined(epoch(6), 1, "disk full"))

    assert isinstance(over, do.Replace)
    assert "disk full; 2 in a row" in over.why
    assert run.on(facts.Tick(), *acks(6), at=99.0) == []


def test_the_next_epoch_waits_until_every_subtask_has_confirmed_the_abort() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)
    run.on(facts.Declined(epoch(5), 0, "disk full"))

    assert run.on(facts.Tick(), *acks(5), *confirms(5, [1]), *confirms(4), at=30.0) == []
    assert run.attempt.due_at == float("inf")
    assert run.on(*confirms(5, [0])) == [do.Trigger(epoch(6), Kind.CLOCK)]


def test_nothing_is_dropped_between_an_abort_and_the_next_decision() -> None:
    """What the aborted epoch has stored may be named by the next one."""
    run = running()
    run.attempt = replace(run.attempt, housekeeping=replace(run.attempt.housekeeping, look_every=15.0))
    run.on(facts.Tick(), at=10.0)
    aborted, *nothing = run.on(facts.Declined(epoch(5), 0, "disk full"), *confirms(5), facts.Littered(), at=16.0)

    assert (type(aborted), nothing) == (do.Abort, [])
    assert run.on(facts.Tick(), at=20.0) == [do.Trigger(epoch(6), Kind.CLOCK)], "it does not wait for the sweep"
    assert run.on(*acks(6), facts.Committed(epoch(6)))[-1] == do.Sweep(thorough=True, fence=True)


def test_an_abort_that_is_not_confirmed_counts_as_a_failure_once_a_timeout() -> None:
    run = running(replace(STREAM, tolerated=2))
    run.on(facts.Tick(), at=10.0)
    run.on(facts.Declined(epoch(5), 0, "disk full"), *confirms(5, [1]))

    assert run.on(facts.Heard(0), facts.Heard(1), facts.Tick(), at=40.0) == []
    assert run.attempt.failures.seen == 1
    assert run.on(facts.Heard(0), facts.Heard(1), facts.Tick(), at=41.0) == []
    assert run.attempt.failures.seen == 2
    (over,) = run.on(facts.Heard(0), facts.Heard(1), facts.Tick(), at=72.0)
    assert isinstance(over, do.Replace)
    assert "the abort of checkpoint 5/3 was not confirmed" in over.why
    assert "3 in a row" in over.why
    assert over.suspects == {0}


def test_a_subtask_that_is_frozen_while_its_abort_is_waited_for_is_replaced() -> None:
    run = running(replace(STREAM, tolerated=9))
    run.on(facts.Tick(), at=10.0)
    run.on(facts.Declined(epoch(5), 0, "disk full"), *confirms(5, [1]))
    (over,) = run.on(facts.Heard(1), facts.Tick(), at=41.0)

    assert isinstance(over, do.Replace)
    assert over.suspects == {0}


def test_after_the_end_nothing_follows() -> None:
    run = running()
    run.attempt = replace(run.attempt, housekeeping=replace(run.attempt.housekeeping, look_every=50.0))

    assert run.on(facts.Died(0, "killed"), at=100.0) == [do.Replace("killed", frozenset({0}))]
    assert run.on(facts.Died(1, "killed"), facts.Tick(), facts.Stop(), at=200.0) == []


def test_a_last_epoch_that_is_declined_is_a_failure_and_one_that_is_late_is_none() -> None:
    strict = replace(STREAM, tolerated=0)
    late, declined = running(strict), running(strict)
    for run in (late, declined):
        assert run.on(facts.Stop()) == [do.Trigger(epoch(5), Kind.LAST)]

    aborted, _ = late.on(facts.Heard(0), facts.Heard(1), facts.Tick(), *confirms(5), at=30.1)
    (over,) = declined.on(facts.Declined(epoch(5), 1, "disk full"))

    assert (type(aborted), type(over)) == (do.Abort, do.Replace)


def test_who_declines_is_not_late() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)

    (aborted,) = run.on(facts.Declined(epoch(5), 1, "disk full"))

    assert aborted == do.Abort(epoch(5), Kind.CLOCK, aborted.why, late=False)  # type: ignore[union-attr]
    assert "declined by subtask 1: disk full" in aborted.why  # type: ignore[union-attr]


def test_a_decided_epoch_forgives_those_before_it() -> None:
    run = running()
    for n in (5, 7, 9):
        run.on(facts.Tick(), at=run.now + 10.0)
        assert isinstance(run.on(facts.Declined(epoch(n), 0, "disk full"), *confirms(n))[0], do.Abort)
        run.on(facts.Tick(), at=run.now + 10.0)
        committed(run, n + 1)


def test_a_late_worker_that_says_nothing_is_suspected() -> None:
    run = running()
    run.on(facts.Heard(0), facts.Heard(1), facts.Tick(), at=10.0)
    (over,) = run.on(facts.Heard(1), facts.Tick(), at=40.1)

    assert over == do.Replace(over.why, frozenset({0}))  # type: ignore[union-attr]


def test_a_late_worker_is_suspected_only_after_more_than_the_silence() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)
    run.on(facts.Heard(0), at=36.0)
    run.on(facts.Heard(1), at=40.0)

    assert isinstance(run.on(facts.Tick(), at=41.0)[0], do.Abort), "5 s are not more than 5 s"


def test_before_an_epoch_that_drains_silence_counts_from_its_trigger() -> None:
    """A worker with a long batch at hand says nothing."""
    run = running()
    run.on(facts.Heard(0), facts.Heard(1), at=1.0)
    run.on(facts.Asked(Kind.SAVEPOINT), at=2.0)
    run.on(facts.Heard(0), facts.Heard(1), at=2.5)

    assert isinstance(run.on(facts.Tick(), at=32.1)[0], do.Abort)


PATIENT = replace(STREAM, cadence=Cadence(1000.0, 2.0, 3000.0), patience=20.0)


def test_a_worker_that_says_nothing_while_it_should_process_is_replaced() -> None:
    run = running(PATIENT)
    run.on(facts.Heard(0), facts.Heard(1), at=1.0)
    run.on(facts.Heard(0), at=20.0)

    assert run.attempt.still(since=5.0) == {1}
    assert run.on(facts.Tick(), at=21.0) == [], "20 s are not more than 20 s"
    (over,) = run.on(facts.Tick(), at=21.1)
    why = "no step for 20 s (worker_timeout): subtask 1 gives no sign of life: its whole process stands still"
    assert over == do.Replace(why, frozenset({1}))


def test_a_process_that_lives_does_not_hide_a_thread_that_takes_no_step() -> None:
    run = running(PATIENT)
    run.on(facts.Heard(0), facts.Heard(1), at=1.0)
    run.on(facts.Pulse(0, 0.1, ""), facts.Pulse(1, 20.0, "operator f, record in/0/7"), at=21.0)
    assert run.attempt.still(since=5.0) == {1}
    (over,) = run.on(facts.Pulse(0, 0.1, ""), facts.Pulse(1, 20.5, "operator f, record in/0/7"), at=21.5)

    why = (
        "no step for 20 s (worker_timeout): subtask 1 lives, and the thread that processes its rows does not come on, "
        "in operator f, record in/0/7"
    )
    assert over == do.Replace(why, frozenset({1}))


def test_a_pulse_tells_when_the_last_step_was_and_takes_back_none() -> None:
    """What came of the thread itself is newer than what a pulse knew."""
    run = running(PATIENT)
    run.on(facts.Heard(0), facts.Heard(1), at=10.0)
    run.on(facts.Pulse(0, 8.0, ""), facts.Pulse(1, 0.5, ""), at=11.0)

    assert run.attempt.vitals.stepped == {0: 10.0, 1: 10.5}
    assert [run.attempt.how(subtask, now).alive for subtask in (0, 1) for now in (16.0, 16.1)] == [True, False] * 2


def test_how_long_a_subtask_stands_still_counts_from_its_step_and_whether_it_lives_from_its_pulse() -> None:
    """Time in which nobody has listened counts for neither."""
    run = running(PATIENT)
    run.on(facts.Pulse(0, 3.0, ""), at=4.0)
    run.on(facts.Deaf(10.0), at=14.0)

    found = run.attempt.how(0, now=16.0)
    assert (found.seconds, found.alive) == (5.0, True)
    assert not run.attempt.how(0, now=19.1).alive


def test_between_two_operators_a_thread_is_in_none() -> None:
    run = running(PATIENT)
    run.on(facts.Pulse(0, 0.0, "operator f"), at=1.0)
    run.on(facts.Heard(0), at=1.1)

    assert str(run.attempt.how(0, now=2.0)).endswith("does not come on")


def test_a_late_worker_whose_process_lives_and_takes_no_step_is_suspected_and_told_of_as_such() -> None:
    run = running()
    run.on(facts.Heard(0), facts.Heard(1), facts.Tick(), at=10.0)
    run.on(facts.Heard(1), facts.Pulse(0, 29.0, "operator f"), at=39.0)
    (over,) = run.on(facts.Tick(), at=40.1)

    assert isinstance(over, do.Replace)
    assert over.suspects == {0}
    assert over.why.endswith("subtask 0 lives, and the thread that processes its rows does not come on, in operator f")


def test_silence_counts_from_the_first_row_and_not_while_others_restore() -> None:
    run = Run(PATIENT)
    run.on(facts.Heard(0), facts.Ready(0), at=1.0)
    assert run.on(facts.Tick(), at=500.0) == []
    assert run.attempt.still(since=499.0) == frozenset()
    assert run.on(facts.Heard(1), facts.Ready(1), at=501.0) == [do.Begin()]

    assert run.on(facts.Tick(), at=521.0) == []
    assert isinstance(run.on(facts.Tick(), at=521.1)[0], do.Replace)


def test_whoever_did_not_listen_calls_nobody_silent() -> None:
    run = running(PATIENT)
    run.on(facts.Heard(0), facts.Heard(1), at=1.0)

    assert run.on(facts.Deaf(90.0), at=100.0) == []
    assert run.on(facts.Tick(), at=111.0) == []
    assert isinstance(run.on(facts.Tick(), at=111.1)[0], do.Replace)


def test_a_worker_that_died_replaces_the_attempt() -> None:
    assert running().on(facts.Died(1, "killed")) == [do.Replace("killed", frozenset({1}))]


# ---------------------------------------------------------------- what others ask


def test_who_asks_is_served_at_once_and_only_once() -> None:
    run = running()

    assert run.on(ASKED, at=1.0) == [do.Trigger(epoch(5), Kind.ASKED)]
    assert run.on(facts.Asked(), *acks(5), facts.Committed(epoch(5)), facts.Swept(), at=2.0)[-1] != do.Trigger(
        epoch(6), Kind.ASKED
    )


def test_after_an_asked_one_that_was_given_up_the_clock_goes_first_once() -> None:
    run = running(replace(STREAM, tolerated=0))
    assert run.on(ASKED) == [do.Trigger(epoch(5), Kind.ASKED)]
    assert isinstance(run.on(facts.Declined(epoch(5), 0, "disk full"), *confirms(5))[0], do.Abort)

    assert run.on(ASKED, at=10.0) == [do.Trigger(epoch(6), Kind.CLOCK)]
    assert committed(run, 6)[-1] == do.Trigger(epoch(7), Kind.ASKED)


def given_up_in_vain(kind: Kind, policy: Policy = STREAM) -> Run:
    """An epoch that somebody asked for was given up, at 1 s."""
    run = running(policy)
    assert run.on(facts.Asked(kind), at=1.0) == [do.Trigger(epoch(5), kind)]
    assert isinstance(run.on(facts.Declined(epoch(5), 0, "disk full"), *confirms(5))[0], do.Abort)
    return run


def test_who_asks_when_one_is_due_is_served_by_that_one() -> None:
    assert running().on(ASKED, at=10.0) == [do.Trigger(epoch(5), Kind.ASKED)]


def test_after_a_savepoint_that_was_given_up_the_clock_goes_first_too() -> None:
    assert given_up_in_vain(Kind.SAVEPOINT).on(ASKED, at=11.0) == [do.Trigger(epoch(6), Kind.CLOCK)]


def test_the_clock_goes_first_only_if_it_is_due() -> None:
    assert given_up_in_vain(Kind.ASKED).on(ASKED, at=2.0) == [do.Trigger(epoch(6), Kind.ASKED)]


def test_the_clock_goes_first_once_also_if_its_own_is_given_up() -> None:
    run = given_up_in_vain(Kind.ASKED)
    assert run.on(ASKED, at=11.0) == [do.Trigger(epoch(6), Kind.CLOCK)]

    assert run.on(facts.Declined(epoch(6), 0, "disk full"), *confirms(6), at=22.0)[-1] == do.Trigger(
        epoch(7), Kind.ASKED
    )


def test_a_decided_one_is_not_in_vain_any_more() -> None:
    run = given_up_in_vain(Kind.ASKED)
    assert run.on(ASKED, at=2.0) == [do.Trigger(epoch(6), Kind.ASKED)]
    committed(run, 6)

    assert run.on(ASKED, at=12.0) == [do.Trigger(epoch(7), Kind.ASKED)]


def test_a_withdrawn_request_is_forgotten() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)
    run.on(ASKED, facts.Asked(), at=11.0)

    assert do.Trigger(epoch(6), Kind.ASKED) not in committed(run, 5)


def test_a_savepoint_waits_for_the_epoch_on_its_way() -> None:
    run = running()
    run.on(facts.Tick(), at=10.0)

    assert run.on(facts.Asked(Kind.SAVEPOINT), at=11.0) == []
    assert run.on(*acks(5), facts.Committed(epoch(5)), facts.Swept())[-1] == do.Trigger(epoch(6), Kind.SAVEPOINT)
    assert run.on(facts.Tick(), at=30.0) == []


def test_a_stop_takes_a_last_epoch_and_is_answered_when_that_is_committed_and_old_ones_are_dropped() -> None:
    """What fails after the answer would be taken up by an attempt that does not know of the stop."""
    run = running()

    assert run.on(facts.Stop()) == [do.Trigger(epoch(5), Kind.LAST)]
    decided, commit, sweep = run.on(*acks(5), facts.Committed(epoch(5)))
    assert (type(decided), commit, sweep) == (do.Decide, do.Commit(epoch(5)), do.Sweep(thorough=True))
    assert run.on(facts.Tick(), at=100.0) == []
    assert run.on(facts.Swept()) == [do.Notify(epoch(5), 0.0), do.End(Ending.DRAINED)]
    assert run.attempt.phase is Phase.OVER


def test_a_last_epoch_that_is_given_up_is_tried_again_and_nothing_is_read_in_between() -> None:
    run = running()
    run.on(facts.Asked(Kind.SAVEPOINT, stop=True))
    run.on(facts.Heard(0), facts.Heard(1), at=25.0)
    aborted, again = run.on(facts.Heard(0), facts.Heard(1), facts.Tick(), *confirms(5), at=30.1)

    assert isinstance(aborted, do.Abort)
    assert aborted.kind is Kind.LAST
    assert again == do.Trigger(epoch(6), Kind.LAST)
    assert run.attempt.phase is Phase.ENDING


def test_bounded_input_ends_when_all_have_reached_its_end() -> None:
    run = running()

    assert run.on(facts.Reached(0)) == []
    assert run.on(facts.Reached(1)) == [do.Trigger(epoch(5), Kind.LAST)]


def test_an_end_without_a_last_epoch() -> None:
    assert running().on(facts.Asked(Kind.ASKED, end=True)) == [do.End(Ending.AS_IT_IS)]


def test_an_end_without_a_last_epoch_waits_until_all_are_ready_and_does_not_break_off_a_drained_one() -> None:
    early = Run(STREAM)
    assert early.on(facts.Asked(Kind.ASKED, end=True), facts.Ready(0)) == []
    assert early.on(facts.Ready(1)) == [do.Begin(), do.End(Ending.AS_IT_IS)]

    ending = running()
    ending.on(facts.Stop())
    assert ending.on(facts.Asked(Kind.ASKED, end=True)) == [do.End(Ending.AS_IT_IS)]

    closing = running()
    closing.on(facts.Stop(), *acks(5), facts.Committed(epoch(5)))
    assert closing.on(facts.Asked(Kind.ASKED, end=True)) == []
    assert closing.on(facts.Swept())[-1] == do.End(Ending.DRAINED)


def test_a_last_epoch_is_followed_by_none_while_it_is_committed() -> None:
    run = running()
    run.attempt = replace(run.attempt, housekeeping=replace(run.attempt.housekeeping, every=8))
    assert run.on(facts.Stop()) == [do.Trigger(epoch(5), Kind.LAST)]

    assert [type(action) for action in run.on(*acks(5))] == [do.Decide, do.Commit]
    assert run.on(facts.Tick(), at=100.0) == []


def test_old_epochs_are_dropped_at_the_end_even_if_that_is_not_due() -> None:
    run = running()
    run.attempt = replace(run.attempt, housekeeping=replace(run.attempt.housekeeping, every=8))
    run.on(facts.Tick(), at=10.0)
    assert run.on(*acks(5), facts.Committed(epoch(5)))[-1] == do.Notify(epoch(5), 0.0), "eight are not decided yet"

    run.on(facts.Stop())
    assert run.on(*acks(6), facts.Committed(epoch(6)))[-1] == do.Sweep(thorough=False)
    assert run.on(facts.Swept())[-1] == do.End(Ending.DRAINED)


def test_rows_under_way_of_a_stream_are_no_reason_to_put_off_its_last_epoch() -> None:
    run = Run(STREAM, under_way=True)
    run.on(facts.Ready(0), facts.Ready(1))

    assert run.on(facts.Asked(Kind.SAVEPOINT, stop=True)) == [do.Trigger(epoch(5), Kind.LAST)]


# ---------------------------------------------------------------- splits


def test_a_stream_looks_for_splits_from_time_to_time_one_look_at_a_time() -> None:
    run = running(replace(STREAM, search_every=3.0))

    assert run.on(facts.Tick(), at=2.9) == []
    assert run.on(facts.Tick(), at=3.0) == [do.Discover(at_once=False)]
    assert run.on(facts.Tick(), at=9.0) == []
    assert run.on(facts.Found(), facts.Tick(), at=9.5) == []
    assert run.on(facts.Tick(), at=10.0) == [do.Trigger(epoch(5), Kind.CLOCK)]
    assert run.on(facts.Tick(), at=12.5) == [do.Discover(at_once=False)], "whatever is on its way"
    run.on(facts.Found())
    assert run.on(*acks(5), facts.Committed(epoch(5)))[-1] == do.Sweep(thorough=True)


def test_a_stream_that_ends_looks_for_no_splits() -> None:
    run = running(replace(STREAM, search_every=3.0))
    run.on(facts.Stop())

    assert run.on(facts.Tick(), at=5.0) == []


def test_a_look_that_finds_no_splits_is_no_answer_to_who_asks_a_stream() -> None:
    run = running(replace(STREAM, search_every=3.0))
    run.on(ASKED, at=1.0)
    run.on(ASKED, at=2.0)
    assert run.on(facts.Tick(), at=3.0) == [do.Discover(at_once=True)]

    assert run.on(facts.Found(), *acks(5), facts.Committed(epoch(5)), facts.Swept())[-1] == do.Trigger(
        epoch(6), Kind.ASKED
    )


def test_a_look_that_finds_no_splits_is_no_reason_to_drop_old_epochs() -> None:
    run = running(replace(STREAM, search_every=3.0))
    run.attempt = replace(run.attempt, housekeeping=replace(run.attempt.housekeeping, every=8))
    run.on(facts.Tick(), facts.Found(), at=3.0)
    run.on(facts.Tick(), at=10.0)

    assert run.on(facts.Found(), *acks(5), facts.Committed(epoch(5)))[-1] == do.Notify(epoch(5), 0.0)


# ---------------------------------------------------------------- the job at a halt


def quiet(run: Run) -> list[Action]:
    """Two rounds of equal counts."""
    first = run.on(*(facts.Counted(0, subtask, Counts(True, 5, 5)) for subtask in (0, 1)))
    assert first == [do.Count(1)]
    return run.on(*(facts.Counted(1, subtask, Counts(True, 5, 5)) for subtask in (0, 1)))


def test_where_every_epoch_halts_the_job_it_begins_when_nothing_is_under_way() -> None:
    run = running(replace(STREAM, halts=True))

    assert run.on(facts.Tick(), at=10.0) == [do.Halt(), do.Count(0)]
    assert run.on(facts.Tick(), at=11.0) == []
    assert quiet(run) == [do.Trigger(epoch(5), Kind.CLOCK)]
    done = run.on(*acks(5), facts.Committed(epoch(5)))
    assert done[-2:] == [do.Sweep(thorough=True), do.GoOn()]


def test_a_halted_job_goes_on_between_two_epochs_also_if_the_next_is_due() -> None:
    run = running(replace(STREAM, halts=True))
    run.on(facts.Tick(), at=10.0)
    quiet(run)

    assert run.on(*acks(5), facts.Committed(epoch(5)), at=25.0)[-2:] == [do.Sweep(thorough=True), do.GoOn()]
    assert run.on(facts.Swept(), facts.Tick(), at=27.0) == [do.Halt(), do.Count(0)]


def test_a_halted_job_goes_on_between_two_epochs_also_if_somebody_waits_for_the_next() -> None:
    """Or rows would never move while one after the other asks."""
    run = running(replace(STREAM, halts=True))
    run.on(facts.Tick(), at=10.0)
    quiet(run)
    run.on(ASKED)

    assert run.on(*acks(5), facts.Committed(epoch(5)))[-2:] == [do.Sweep(thorough=True), do.GoOn()]
    assert run.on(facts.Swept()) == [do.Halt(), do.Count(0)]


def test_a_job_that_ends_at_a_halt_does_not_go_on() -> None:
    run = running(replace(STREAM, halts=True))
    assert run.on(facts.Stop()) == [do.Halt(), do.Count(0)]
    assert quiet(run) == [do.Trigger(epoch(5), Kind.LAST)]

    assert run.on(*acks(5), facts.Committed(epoch(5)))[-1] == do.Sweep(thorough=True)
    assert run.on(facts.Swept()) == [do.Notify(epoch(5), 0.0), do.End(Ending.DRAINED)]


def test_a_last_epoch_at_a_halt_that_is_given_up_is_tried_again_at_the_same_halt() -> None:
    run = running(replace(STREAM, halts=True, tolerated=9))
    run.on(facts.Stop())
    quiet(run)

    aborted, again = run.on(facts.Declined(epoch(5), 0, "disk full"), *confirms(5))
    assert (type(aborted), again) == (do.Abort, do.Trigger(epoch(6), Kind.LAST))


def test_who_is_still_busy_is_asked_again() -> None:
    run = running(replace(STREAM, halts=True))
    run.on(facts.Tick(), at=10.0)

    assert run.on(facts.Counted(0, 0, Counts(False, 5, 4)), facts.Counted(0, 1, Counts(True, 5, 5))) == [do.Count(1)]
    assert run.on(facts.Counted(0, 0, Counts(True, 5, 5))) == []


def test_a_job_that_was_halted_for_a_withdrawn_request_goes_on() -> None:
    run = running(replace(STREAM, halts=True))
    assert run.on(facts.Asked(Kind.SAVEPOINT), at=1.0) == [do.Halt(), do.Count(0)]
    run.on(facts.Asked())

    assert quiet(run) == [do.GoOn()]


def test_with_loops_the_last_epoch_of_bounded_input_finds_the_job_at_a_halt() -> None:
    run = running(replace(STREAM, halts_at_end=True))

    assert run.on(facts.Tick(), at=10.0) == [do.Trigger(epoch(5), Kind.CLOCK)]
    committed(run, 5)
    assert run.on(facts.Reached(0), facts.Reached(1)) == [do.Halt(), do.Count(0)]
    assert quiet(run) == [do.Trigger(epoch(6), Kind.LAST)]


def test_with_loops_no_other_epoch_does() -> None:
    run = running(replace(STREAM, halts_at_end=True))
    run.on(facts.Reached(0))
    assert run.on(facts.Tick(), at=10.0) == [do.Trigger(epoch(5), Kind.CLOCK)]

    stopped = running(replace(STREAM, halts_at_end=True))
    assert stopped.on(facts.Stop()) == [do.Trigger(epoch(5), Kind.LAST)], "nobody has reached an end"


# ---------------------------------------------------------------- batches


def batch_run(*, under_way: bool = False, look_every: float = 1e9) -> Run:
    run = Run(BATCHES, under_way=under_way, every=8, look_every=look_every)
    assert run.on(facts.Ready(0)) == [do.Begin()]
    assert run.on(facts.Tick(), at=0.1) == [do.Discover(at_once=False)]
    return run


def test_a_batch_begins_when_there_is_something_to_read() -> None:
    run = batch_run()

    assert run.on(facts.Found(False), facts.Tick(), at=0.15) == []
    assert run.on(facts.Tick(), at=0.3) == [do.Discover(at_once=False)]
    assert run.on(facts.Found(True)) == [do.Trigger(epoch(5), Kind.BATCH)]


def test_the_next_batch_begins_while_the_one_before_it_is_committed_and_is_decided_after() -> None:
    run = batch_run()
    run.on(facts.Found(True))
    decided = run.on(*acks(5, [0]), at=1.0)

    assert decided[-1] == do.Discover(at_once=False)
    assert run.on(facts.Found(True)) == [do.Trigger(epoch(6), Kind.BATCH)]
    assert run.on(*acks(6, [0]), facts.Tick(), at=2.0) == []
    assert run.on(facts.Committed(epoch(5)))[:2] == [do.Notify(epoch(5), 1.9), do.Decide(epoch(6), epoch(5), 1.0)]


def test_a_batch_that_takes_too_long_replaces_the_attempt() -> None:
    run = batch_run()
    run.on(facts.Found(True))

    assert isinstance(run.on(facts.Tick(), at=30.2)[0], do.Replace)


def test_who_asks_while_nothing_has_come_is_served_by_the_newest_epoch() -> None:
    run = batch_run()
    run.on(facts.Found(False))

    assert run.on(ASKED, at=1.0) == [do.Discover(at_once=True)]
    assert run.on(facts.Found(False)) == [do.Answer()]
    assert run.on(ASKED, at=2.0) == [do.Discover(at_once=True)]
    assert run.on(facts.Found(True)) == [do.Trigger(epoch(5), Kind.BATCH)]


def test_a_search_that_began_before_somebody_asked_is_no_answer() -> None:
    """What has come since it looked would be missing."""
    run = batch_run()

    assert run.on(ASKED, facts.Found(False)) == []
    assert run.on(facts.Tick(), at=0.3) == [do.Discover(at_once=True)]
    assert run.on(facts.Found(False)) == [do.Answer()]


def searched_while_dropping() -> Run:
    """Somebody asks while a batch is on its way; nothing has come after it, and old epochs are being dropped."""
    run = batch_run()
    run.on(facts.Found(True))
    run.on(ASKED, at=1.0)
    assert run.on(*acks(5, [0]))[-1] == do.Discover(at_once=True)
    assert run.on(facts.Found(False)) == [], "its commit is on its way"
    assert run.on(facts.Committed(epoch(5))) == [do.Notify(epoch(5), 0.9), do.Sweep(thorough=False)]
    return run


def test_who_asks_is_answered_when_all_is_committed_and_dropped() -> None:
    assert searched_while_dropping().on(facts.Swept()) == [do.Answer()]


def test_who_asks_the_same_again_is_answered_by_the_same_search() -> None:
    assert searched_while_dropping().on(ASKED, facts.Swept()) == [do.Answer()]


def test_who_asks_after_another_withdrew_is_answered_by_a_search_of_its_own() -> None:
    run = searched_while_dropping()

    assert run.on(facts.Asked(), ASKED, facts.Swept()) == []
    assert run.on(facts.Tick(), at=1.1) == [do.Discover(at_once=True)]


def test_old_epochs_of_batches_wait_until_there_is_nothing_to_read() -> None:
    run = batch_run()
    run.on(facts.Found(True))
    assert run.on(*acks(5, [0]), at=1.0)[-1] == do.Discover(at_once=False)
    assert run.on(facts.Committed(epoch(5))) == [do.Notify(epoch(5), 0.9)]

    assert run.on(facts.Found(False)) == [do.Sweep(thorough=False)]


def test_nothing_is_searched_for_twice_at_a_time_nor_while_a_batch_is_on_its_way() -> None:
    run = batch_run()
    assert run.on(facts.Tick(), at=5.0) == []
    assert run.on(facts.Found(True)) == [do.Trigger(epoch(5), Kind.BATCH)]

    assert run.on(facts.Tick(), at=9.0) == []


def test_old_epochs_go_before_the_answer_which_may_be_the_last_thing() -> None:
    run = batch_run()
    run.on(facts.Found(True))
    run.on(*acks(5, [0]), at=1.0)
    run.on(ASKED, facts.Found(False), facts.Committed(epoch(5)), facts.Swept())

    assert run.on(ASKED, at=2.0) == [do.Discover(at_once=True)]
    assert run.on(facts.Found(False)) == [do.Answer()]


def test_a_stop_of_batches_needs_no_last_epoch() -> None:
    run = batch_run()
    run.on(facts.Found(True))
    assert run.on(facts.Asked(Kind.SAVEPOINT, stop=True)) == []
    assert run.on(*acks(5, [0]))[-1] == do.Commit(epoch(5))

    assert run.on(facts.Committed(epoch(5)))[-1] == do.Sweep(thorough=True)
    assert run.on(facts.Swept()) == [do.Answer(), do.End(Ending.DRAINED)]


def test_a_stop_of_batches_is_not_withdrawn_by_a_search_and_begins_no_batch() -> None:
    for found in (facts.Found(False), facts.Found(True)):
        run = batch_run()
        run.on(facts.Found(True))
        assert run.on(*acks(5, [0]), at=1.0)[-1] == do.Discover(at_once=False)

        assert run.on(facts.Stop(), found) == []
        assert run.on(facts.Committed(epoch(5)))[-1] == do.Sweep(thorough=True)
        assert run.on(facts.Swept()) == [do.End(Ending.DRAINED)]


def test_who_asks_a_job_that_ends_is_answered_at_its_end() -> None:
    run = batch_run()
    run.on(facts.Found(True))
    run.on(facts.Stop(), ASKED)

    assert run.on(*acks(5, [0]), facts.Committed(epoch(5)))[-1] == do.Sweep(thorough=True)
    assert run.on(facts.Swept()) == [do.Answer(), do.End(Ending.DRAINED)]


def test_a_request_to_stop_may_be_withdrawn_until_it_is_served() -> None:
    run = batch_run()
    run.on(facts.Found(True))
    run.on(facts.Asked(Kind.ASKED, stop=True))
    run.on(*acks(5, [0]), at=1.0)

    assert run.on(facts.Asked(), at=1.1) == [do.Discover(at_once=False)]


def test_rows_under_way_of_another_engine_go_before_a_stop_is_granted() -> None:
    run = batch_run(under_way=True)

    assert run.on(facts.Asked(Kind.SAVEPOINT, stop=True), facts.Found(True)) == [do.Trigger(epoch(5), Kind.BATCH)]
    assert run.on(*acks(5, [0]))[-1] == do.Commit(epoch(5))
    assert run.on(facts.Committed(epoch(5)))[-1] == do.Sweep(thorough=True)
    assert run.on(facts.Swept()) == [do.End(Ending.DRAINED)]


def test_a_stop_that_is_answered_ends_the_job() -> None:
    """The next attempt would not know of it. Here nothing has come that could take up the rows under way."""
    run = batch_run(under_way=True)
    run.on(facts.Found(False))
    assert run.on(facts.Asked(Kind.SAVEPOINT, stop=True), at=1.0) == [do.Discover(at_once=True)]

    assert run.on(facts.Found(False)) == [do.Answer(), do.Sweep(thorough=True)]
    assert run.on(facts.Swept()) == [do.End(Ending.DRAINED)]


def test_rows_that_were_under_way_are_none_any_more_once_a_batch_has_taken_them_up() -> None:
    run = batch_run(under_way=True)
    run.on(facts.Found(True))
    run.on(*acks(5, [0]), facts.Committed(epoch(5)))

    assert run.on(facts.Asked(Kind.SAVEPOINT, stop=True), facts.Found(True)) == [do.Sweep(thorough=True)]
    assert run.on(facts.Swept()) == [do.Answer(), do.End(Ending.DRAINED)]


def test_bounded_batches_end_at_their_end() -> None:
    run = batch_run()

    assert run.on(facts.Found(False, at_end=True)) == [do.Sweep(thorough=True)]
    assert run.on(facts.Swept()) == [do.End(Ending.DRAINED)]


def test_what_lost_attempts_may_have_left_is_looked_for_before_the_next_batch() -> None:
    run = batch_run()
    run.on(facts.Found(True))
    run.on(*acks(5, [0]), facts.Littered(), at=0.11)

    assert run.on(facts.Tick(), at=5.0) == []
    assert run.on(facts.Committed(epoch(5)))[-1] == do.Sweep(thorough=True, fence=True)
    assert run.on(facts.Swept()) == [do.Discover(at_once=False)]


def test_a_look_is_due_from_time_to_time_and_no_batch_waits_for_it() -> None:
    run = batch_run(look_every=10.0)
    run.on(facts.Found(True))
    assert run.on(*acks(5, [0]), at=20.0)[-1] == do.Discover(at_once=False)
    assert run.on(facts.Found(True)) == [do.Trigger(epoch(6), Kind.BATCH)]
    run.on(facts.Committed(epoch(5)), *acks(6, [0]), at=21.0)
    run.on(facts.Found(False))

    assert run.on(facts.Committed(epoch(6)))[-1] == do.Sweep(thorough=True)


# ---------------------------------------------------------------- whatever happens

_EPOCHS = st.builds(epoch, st.integers(4, 9))
_SUBTASKS = st.integers(0, 2)
_FACTS = st.one_of(
    st.builds(facts.Tick),
    st.builds(facts.Ready, _SUBTASKS),
    st.builds(facts.Acked, _EPOCHS, _SUBTASKS),
    st.builds(facts.Declined, _EPOCHS, _SUBTASKS, st.just("full")),
    st.builds(facts.AbortConfirmed, _EPOCHS, _SUBTASKS),
    st.builds(facts.Committed, _EPOCHS),
    st.builds(facts.Swept),
    st.builds(facts.Littered),
    st.builds(facts.Found, st.booleans(), st.booleans()),
    st.builds(facts.Counted, st.integers(0, 2), _SUBTASKS, st.just(Counts(True, 1, 1))),
    st.builds(facts.Reached, _SUBTASKS),
    st.builds(facts.Asked, st.sampled_from([None, Kind.ASKED, Kind.SAVEPOINT]), st.booleans()),
)
_POLICIES = st.sampled_from([STREAM, BATCHES, replace(STREAM, halts=True), replace(STREAM, halts_at_end=True)])


@given(_POLICIES, st.lists(st.tuples(_FACTS, st.floats(0.0, 15.0)), max_size=60))
def test_in_any_order_of_facts_epochs_are_decided_in_order_each_after_the_commit_before(
    policy: Policy, learned: list[tuple[Fact, float]]
) -> None:
    run, triggered, decided, open_ = Run(policy, every=2), [epoch(4)], [epoch(4)], False
    over = False
    for fact, later in [(facts.Ready(n), 0.0) for n in policy.subtasks] + learned:
        if isinstance(fact, facts.Committed) and decided[-1] == fact.epoch:
            open_ = False
        for action in run.on(fact, at=run.now + later):
            assert not over
            match action:
                case do.Trigger(new):
                    assert new > triggered[-1]
                    triggered.append(new)
                case do.Decide(ready):
                    assert ready in triggered
                    assert ready > decided[-1]
                    assert not open_
                    decided.append(ready)
                    open_ = True
                case do.Sweep():
                    assert run.attempt.flights.none or not run.attempt.housekeeping.sweeping
                case do.End(Ending.DRAINED):
                    over = True
                    assert not open_
                case do.Replace():
                    over = True
