"""What lost input means to a running job: every cause, at every step."""

from __future__ import annotations

import pytest

from kafka_eos.core.errors import LossCause
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol import actions as do
from kafka_eos.protocol import events as facts
from kafka_eos.protocol.actions import AttemptAction
from kafka_eos.protocol.attempt import Attempt
from kafka_eos.protocol.checkpoint_schedule import Cadence, EpochKind
from kafka_eos.protocol.cleanup_schedule import CleanupSchedule
from kafka_eos.protocol.engine_policy import AttemptPolicy
from kafka_eos.protocol.events import AttemptEvent
from kafka_eos.protocol.input_loss import LossCheck, LossResponse, respond

STREAM = AttemptPolicy(
    frozenset({0}), Cadence(60.0, 0.0, 600.0), tolerated_failures=1, discovery_interval=5.0, verifies_input=True
)
EXPIRED = facts.InputLossFound(LossCause.EXPIRED, "gone")
SEARCH = do.DiscoverSplits()
RESTART = do.ReplaceAttempt("gone", frozenset())


@pytest.mark.parametrize("read_since", [False, True])
@pytest.mark.parametrize("cause", LossCause)
def test_every_cause_has_a_response(cause: LossCause, read_since: bool) -> None:
    wanted = {
        (LossCause.EXPIRED, False): LossResponse.RESTART_ATTEMPT,
        (LossCause.EXPIRED, True): LossResponse.TAKE_CHECKPOINT,
        (LossCause.MISSING, False): LossResponse.RESTART_ATTEMPT,
        (LossCause.MISSING, True): LossResponse.RESTART_ATTEMPT,
        (LossCause.REPLACED, False): LossResponse.RESTART_ATTEMPT,
        (LossCause.REPLACED, True): LossResponse.RESTART_ATTEMPT,
        (LossCause.ALTERED, False): LossResponse.END_JOB,
        (LossCause.ALTERED, True): LossResponse.END_JOB,
    }

    assert respond(cause, read_since=read_since) is wanted[cause, read_since]


@pytest.mark.parametrize("check", LossCheck)
def test_a_loss_check_moves_only_along_its_diagram(check: LossCheck) -> None:
    moves = (check.on_trigger(), check.on_abort(), check.on_decision(), check.on_discovery(), check.on_all_found())

    assert {to for to in moves if to is not check} == {
        LossCheck.NONE: set[LossCheck](),
        LossCheck.DUE: {LossCheck.PENDING},
        LossCheck.PENDING: {LossCheck.DUE, LossCheck.DECIDED},
        LossCheck.DECIDED: {LossCheck.CONFIRMING},
        LossCheck.CONFIRMING: {LossCheck.NONE},
    }[check]
    assert check.blocks_discovery == (check in (LossCheck.DUE, LossCheck.PENDING))


# ---------------------------------------------------------------- an attempt


def epoch(n: int) -> EpochId:
    return EpochId(Epoch(n), Term(3))


class Run:
    """A running attempt that is about to trigger epoch 5."""

    def __init__(self, policy: AttemptPolicy) -> None:
        base = EpochId(Epoch(4), Term(2))
        self.attempt = Attempt.of(policy, epoch(5), base, CleanupSchedule(0.0, 1e9), 0.0)
        self.on(facts.SubtaskReady(0))

    def on(self, *learned: AttemptEvent, at: float = 0.0) -> list[AttemptAction]:
        """The actions, but for cleanups, which are done at once."""
        taken: list[AttemptAction] = []
        for fact in learned:
            self.attempt, actions = self.attempt.handle(fact, at)
            if do.RunCleanup(find_leftovers=False) in actions:
                self.attempt, more = self.attempt.handle(facts.CleanupFinished(), at)
                actions = tuple(each for each in actions if not isinstance(each, do.RunCleanup)) + more
            taken += actions
        return taken

    def decided(self, n: int, at: float) -> list[AttemptAction]:
        return self.on(facts.EpochAcked(epoch(n), 0), facts.InputVerified(epoch(n)), at=at)


def searching(policy: AttemptPolicy = STREAM) -> Run:
    run = Run(policy)
    assert run.on(facts.Tick(), at=5.0) == [SEARCH]
    return run


def test_expired_records_are_followed_by_a_checkpoint_at_once_and_a_search_after_it() -> None:
    run = searching()

    assert run.on(EXPIRED, at=6.0) == [do.TriggerEpoch(epoch(5), EpochKind.PERIODIC)]
    assert run.on(facts.Tick(), at=20.0) == [], "a search now would use the old positions"
    assert run.decided(5, 21.0)[-3:] == [
        do.DecideEpoch(epoch(5), EpochId(Epoch(4), Term(2)), 15.0),
        do.CommitEpoch(epoch(5)),
        SEARCH,
    ]
    assert run.on(facts.DiscoveryFinished(), facts.EpochCommitted(epoch(5)), at=22.0) == [
        do.NotifyCommit(epoch(5), 16.0)
    ]
    assert run.attempt.loss_check is LossCheck.NONE
    assert run.on(facts.Tick(), at=27.0) == [SEARCH]


def test_an_attempt_is_waked_for_that_checkpoint() -> None:
    run = searching()
    run.on(facts.PendingRequests(EpochKind.REQUESTED), at=5.0)
    run.on(EXPIRED, at=6.0)
    run.decided(5, 7.0)

    assert run.attempt.loss_check is LossCheck.DUE
    assert run.attempt.next_trigger_at == float("inf"), "the epoch before it is being committed"
    triggered = run.on(facts.EpochCommitted(epoch(5)), at=8.0)
    assert triggered[-1] == do.TriggerEpoch(epoch(6), EpochKind.PERIODIC), (
        "epoch 5 was triggered before the loss was found"
    )


def test_records_that_are_still_missing_after_the_checkpoint_restart_the_attempt() -> None:
    """Recovery says whether they are lost."""
    run = searching()
    run.on(EXPIRED, at=6.0)
    run.decided(5, 7.0)

    assert run.on(EXPIRED, at=8.0) == [RESTART]


def test_a_checkpoint_that_is_aborted_is_taken_again() -> None:
    run = searching()
    run.on(EXPIRED, at=6.0)

    run.on(facts.EpochDeclined(epoch(5), 0, "no disk"), at=7.0)
    again = run.on(facts.AbortConfirmed(epoch(5), 0), at=8.0)

    assert again == [do.TriggerEpoch(epoch(6), EpochKind.PERIODIC)]


@pytest.mark.parametrize("cause", [LossCause.MISSING, LossCause.REPLACED])
def test_a_missing_or_replaced_input_restarts_the_attempt(cause: LossCause) -> None:
    assert searching().on(facts.InputLossFound(cause, "gone"), at=6.0) == [RESTART]


def test_altered_input_ends_the_job() -> None:
    run = searching()

    assert run.on(facts.InputLossFound(LossCause.ALTERED, "cut"), at=6.0) == [
        do.EndWithInputLost(LossCause.ALTERED, "cut")
    ]
    assert run.on(facts.Tick(), at=900.0) == []


# ---------------------------------------------------------------- before a decision


def test_an_epoch_is_decided_when_its_input_is_verified() -> None:
    run = Run(STREAM)
    run.on(facts.Tick(), at=60.0)

    assert run.on(facts.EpochAcked(epoch(5), 0), at=61.0) == [do.VerifyInput(epoch(5))]
    assert run.on(facts.Tick(), facts.InputVerified(epoch(4)), at=62.0) == []
    assert run.on(facts.InputVerified(epoch(5)), at=63.0)[0] == do.DecideEpoch(
        epoch(5), EpochId(Epoch(4), Term(2)), 3.0
    )


def test_an_epoch_waits_for_its_input_to_be_verified_however_long_that_takes() -> None:
    """The cluster of the source may be away. As for a commit, nothing else can be done."""
    run = Run(STREAM)
    run.on(facts.Tick(), at=60.0)
    run.on(facts.EpochAcked(epoch(5), 0), facts.DiscoveryFinished(), at=61.0)

    assert [action for action in run.on(facts.Tick(), at=9_000.0) if action != SEARCH] == []
    assert run.attempt.pending_epochs.pending is not None


def test_each_epoch_is_verified_for_itself() -> None:
    run = Run(STREAM)
    run.on(facts.Tick(), at=60.0)
    run.decided(5, 61.0)
    run.on(facts.EpochCommitted(epoch(5)), at=62.0)
    run.on(facts.Tick(), at=130.0)

    assert run.on(facts.InputVerified(epoch(5)), facts.EpochAcked(epoch(6), 0), at=131.0) == [do.VerifyInput(epoch(6))]


@pytest.mark.parametrize("cause", [LossCause.MISSING, LossCause.REPLACED])
def test_an_epoch_whose_input_was_replaced_is_not_decided(cause: LossCause) -> None:
    run = Run(STREAM)
    run.on(facts.Tick(), at=60.0)
    run.on(facts.EpochAcked(epoch(5), 0), at=61.0)

    assert run.on(facts.InputLossFound(cause, "gone"), at=62.0) == [RESTART]
    assert run.on(facts.InputVerified(epoch(5)), at=63.0) == []
