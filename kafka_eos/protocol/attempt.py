"""One attempt to run a job, on any engine: when epochs begin, are decided or aborted, and when the attempt ends.

    INITIALIZING ─▶ RUNNING ─▶ DRAINING ─▶ CLEANING_UP ─▶ ENDED
         └─▶ ENDED     stopped before all subtasks were ready

    INITIALIZING  subtasks restore their state and wait for each other
    RUNNING       epochs are triggered by the clock and on request
    DRAINING      nothing is read any more; the final epoch is in flight
    CLEANING_UP   everything is committed; files that are no longer needed are deleted

Pure: ``handle`` takes an event and the time, and returns a new value and the actions to execute, in order. If the
engine fails to execute a ``DecideEpoch``, it must end the attempt: the actions after it assume that the epoch is
decided.
Rules:
- An epoch is decided only when the epoch before it is committed, and when its input was verified.
- After an abort, no epoch begins and no cleanup runs before every subtask has confirmed the abort.
- Nothing follows ``ReplaceAttempt``, ``EndWithInputLost`` or ``EndJob``.

If a subtask is lost, in any phase, the attempt ends (``ReplaceAttempt``). The recovery with which the next attempt
begins completes the epoch that was decided last. An epoch that was triggered and not decided has not happened.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import TypeAlias, assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from kafka_eos.core.errors import LossCause
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol import actions as do
from kafka_eos.protocol import events as facts
from kafka_eos.protocol.actions import AttemptAction
from kafka_eos.protocol.checkpoint_schedule import (
    Cadence,
    EpochKind,
    FailureCounter,
    PendingEpoch,
    PendingEpochs,
    choose_next_kind,
)
from kafka_eos.protocol.cleanup_schedule import CleanupSchedule
from kafka_eos.protocol.engine_policy import AttemptPolicy
from kafka_eos.protocol.events import AttemptEvent
from kafka_eos.protocol.input_loss import LossCheck, LossResponse, respond
from kafka_eos.protocol.liveness import Stall, SubtaskLiveness
from kafka_eos.protocol.quiescence import CountingRound, Quiescence


class Phase(enum.Enum):
    INITIALIZING = "preparing"
    RUNNING = "running"
    DRAINING = "ending"
    CLEANING_UP = "closing"
    ENDED = "over"


class Attempt(Struct, frozen=True):
    """The state of one attempt. ``Attempt.of`` creates the first one, ``handle`` each following one."""

    policy: AttemptPolicy
    term: Term
    next_epoch: Epoch
    pending_epochs: PendingEpochs
    failures: FailureCounter
    cleanup: CleanupSchedule
    triggered_at: float
    committed_at: float
    discovered_at: float
    bootstrapping: bool
    """True while streams wait for tables. See ``protocol.source_dependencies``."""
    phase: Phase = Phase.INITIALIZING
    unready: frozenset[int] = frozenset()
    """Subtasks that are not ready yet."""
    liveness: SubtaskLiveness = field(default_factory=SubtaskLiveness)
    at_end_of_input: frozenset[int] = frozenset()
    """Subtasks that have read all of their bounded input."""
    stopping: bool = False
    """True if a clean stop was requested that cannot be withdrawn."""
    requests: facts.PendingRequests = field(default_factory=facts.PendingRequests)
    last_request_failed: bool = False
    """True if the last requested epoch was aborted and no periodic epoch was triggered since."""
    verifying: EpochId | None = None
    """The epoch whose input is being verified, or was verified last."""
    verified: EpochId | None = None
    """The epoch whose input was verified last."""
    loss_check: LossCheck = LossCheck.NONE
    is_discovering: bool = False
    quiescence: Quiescence = field(default_factory=Quiescence)
    final_notification: do.NotifyCommit | None = None
    """The notification held back until cleanup has succeeded."""

    @classmethod
    def of(
        cls,
        policy: AttemptPolicy,
        first: EpochId,
        base: EpochId,
        cleanup: CleanupSchedule,
        now: float,
        filling: bool = False,
    ) -> Attempt:
        """Return an attempt that continues from ``base``; ``first`` is the id of its first epoch."""
        return cls(
            policy=policy,
            term=first.term,
            next_epoch=first.epoch,
            pending_epochs=PendingEpochs(base),
            failures=FailureCounter(policy.tolerated_failures),
            cleanup=cleanup,
            triggered_at=now,
            committed_at=now,
            discovered_at=now,
            unready=policy.subtasks,
            bootstrapping=filling,
        )

    def handle(self, fact: AttemptEvent, now: float) -> tuple[Attempt, tuple[AttemptAction, ...]]:
        """Handle an event; return the new attempt and the actions to execute, in order.

        ``now`` is read from a clock that never goes back.
        """
        if self.phase is Phase.ENDED:
            return self, ()
        attempt, taken = self._apply(fact, now)
        while (step := attempt._next_step(now)) is not None:
            attempt, actions = step
            taken += actions
        return attempt, taken

    @property
    def has_started(self) -> bool:
        """True once all subtasks were ready. From then on rows are processed, and a clean stop needs a final epoch."""
        return not self.unready

    @property
    def next_trigger_at(self) -> float:
        """Return the earliest time of the next periodic trigger."""
        if self.phase is not Phase.RUNNING or self.pending_epochs.is_full or self._holds:
            return float("inf")
        if self.loss_check is LossCheck.DUE:
            return self.triggered_at
        return self._cadence.next_trigger(self.triggered_at, self.committed_at)

    def stalled_subtasks(self, since: float) -> frozenset[int]:
        """Return the subtasks that have made no progress since the given time."""
        return self.liveness.stalled_since(since) if self.phase in (Phase.RUNNING, Phase.DRAINING) else frozenset()

    def stall_of(self, subtask: int, now: float) -> Stall:
        """Return what is known about a stalled subtask."""
        return self.liveness.stall_of(subtask, now, self.policy.heartbeat_timeout)

    # ------------------------------------------------------------ how events change the state

    def _apply(self, fact: AttemptEvent, now: float) -> Step:
        match fact:
            case facts.Tick():
                return self, ()
            case facts.MessageReceived(subtask):
                return replace(self, liveness=self.liveness.record_progress(subtask, now)), ()
            case facts.HeartbeatReceived(subtask, stalled_for, at):
                return replace(self, liveness=self.liveness.record_heartbeat(subtask, stalled_for, at, now)), ()
            case facts.ReceiverStalled(seconds):
                return replace(self, liveness=self.liveness.extend(seconds)), ()
            case facts.SubtaskReady(subtask):
                return replace(self, unready=self.unready - {subtask}), ()
            case facts.EpochAcked(epoch, subtask):
                return replace(self, pending_epochs=self.pending_epochs.ack(epoch, subtask)), ()
            case facts.EpochDeclined(epoch, subtask, why):
                return replace(self, pending_epochs=self.pending_epochs.decline(epoch, subtask, why)), ()
            case facts.AbortConfirmed(epoch, subtask):
                return replace(self, pending_epochs=self.pending_epochs.confirm_abort(epoch, subtask)), ()
            case facts.SubtaskLost(subtask, why):
                return self._over(do.ReplaceAttempt(why, frozenset({subtask})))
            case facts.EpochCommitted(epoch):
                return self._committed(epoch, now)
            case facts.CleanupFinished():
                return replace(self, cleanup=self.cleanup.finish(now)), ()
            case facts.DiscoveryFinished():
                return self._found(now)
            case facts.InputLossFound(cause, why):
                return self._lost(cause, why, now)
            case facts.InputVerified(epoch):
                return (replace(self, verified=epoch) if epoch == self.verifying else self), ()
            case facts.CountsReceived(number, subtask, counts):
                return self._counted(self.quiescence.add_counts(number, subtask, counts))
            case facts.EndOfInputReached(subtask):
                return replace(self, at_end_of_input=self.at_end_of_input | {subtask}), ()
            case facts.PendingRequests():
                return replace(self, requests=fact), ()
            case facts.BootstrapFinished():
                return replace(self, bootstrapping=False), ()
            case facts.StopSignalled():
                return replace(self, stopping=True), ()

    def _committed(self, epoch: EpochId, now: float) -> Step:
        done = self.pending_epochs.committing
        if done is None or done.id != epoch:
            return self, ()
        notify = do.NotifyCommit(epoch, now - done.triggered_at)
        after = replace(self, pending_epochs=self.pending_epochs.record_commit(epoch), committed_at=now)
        if done.kind is EpochKind.FINAL:
            return replace(after, phase=Phase.CLEANING_UP, final_notification=notify), ()
        return after, (notify,)

    def _found(self, now: float) -> Step:
        found = self.loss_check.on_all_found()
        return replace(self, is_discovering=False, discovered_at=now, loss_check=found), ()

    def _lost(self, cause: LossCause, why: str, now: float) -> Step:
        match respond(cause, read_since=self._may_have_read):
            case LossResponse.END_JOB:
                return self._over(do.EndWithInputLost(cause, why))
            case LossResponse.RESTART_ATTEMPT:
                return self._over(do.ReplaceAttempt(why, frozenset()))
            case LossResponse.TAKE_CHECKPOINT:
                return replace(self, is_discovering=False, discovered_at=now, loss_check=LossCheck.DUE), ()
            case never:
                assert_never(never)

    def _counted(self, quiescence: Quiescence) -> Step:
        asks = quiescence.round if quiescence != self.quiescence else None
        again = (do.RequestCounts(asks.number),) if asks is not None and not asks.answers else ()
        return replace(self, quiescence=quiescence), again

    # ------------------------------------------------------------ rules that produce actions

    def _next_step(self, now: float) -> Step | None:
        """Return the first step that is due now, with its actions, or None."""
        if self.phase is Phase.ENDED:
            return None
        for rule in _RULES:
            if (step := rule(self, now)) is not None:
                return step
        return None

    def _begin(self, now: float) -> Step | None:
        if self.phase is not Phase.INITIALIZING:
            return None
        if self.stopping and self.policy.can_stop_early:
            return self._over(do.EndJob(do.JobOutcome.NOT_STARTED))
        if self.unready:
            return None
        return replace(self, phase=Phase.RUNNING, liveness=SubtaskLiveness.of(self.policy.subtasks, now)), (
            do.StartProcessing(),
        )

    def _replace_stalled(self, now: float) -> Step | None:
        hung = self.stalled_subtasks(now - self.policy.stall_timeout)
        if not hung:
            return None
        why = f"no step for {self.policy.stall_timeout:g} s (worker_timeout): {self._how_all(hung, now)}"
        return self._over(do.ReplaceAttempt(why, hung))

    def _how_all(self, subtasks: Collection[int], now: float) -> str:
        return "; ".join(str(self.stall_of(subtask, now)) for subtask in sorted(subtasks))

    def _cancel(self, now: float) -> Step | None:
        if self.requests.cancel and self.phase in (Phase.RUNNING, Phase.DRAINING):
            return self._over(do.EndJob(do.JobOutcome.CANCELLED))
        return None

    def _verify_input(self, now: float) -> Step | None:
        epoch = self.pending_epochs.find_complete()
        if epoch is None or epoch == self.verifying or not self.policy.verifies_input:
            return None
        return replace(self, verifying=epoch), (do.VerifyInput(epoch),)

    def _decide(self, now: float) -> Step | None:
        epoch, pending = self.pending_epochs.find_complete(), self.pending_epochs.pending
        if epoch is None or pending is None or (self.policy.verifies_input and self.verified != epoch):
            return None
        decided = replace(
            self,
            pending_epochs=self.pending_epochs.record_decision(epoch),
            failures=self.failures.record_success(),
            last_request_failed=False,
            cleanup=self.cleanup.record_epoch(),
            loss_check=self.loss_check.on_decision(),
        )
        return decided, (
            do.DecideEpoch(epoch, self.pending_epochs.last_decided, now - pending.triggered_at),
            do.CommitEpoch(epoch),
        )

    def _abort_timed_out(self, now: float) -> Step | None:
        late = self.pending_epochs.find_expired(self._cadence, now)
        if late is None:
            return None
        what = (
            f"checkpoint {late.id} was not acknowledged in time (checkpoint_timeout) by subtask {sorted(late.missing)}"
        )
        # An epoch that drains may wait for many rows, and a subtask sends no message during a long batch of rows.
        since = late.triggered_at if late.kind.must_drain else now
        return self._replace_frozen(late.missing, since, what, now) or self._give_up(late, what, now, late=True)

    def _count_overdue_abort(self, now: float) -> Step | None:
        """Count an unconfirmed abort as one more failed checkpoint, because it blocks the next epoch."""
        overdue = self.pending_epochs.overdue(self._cadence, now)
        if overdue is None:
            return None
        missing = sorted(overdue.missing)
        what = (
            f"the abort of checkpoint {overdue.id} was not confirmed in time (checkpoint_timeout) by subtask {missing}"
        )
        if (replaced := self._replace_frozen(overdue.missing, now, what, now)) is not None:
            return replaced
        failures = self.failures.record_failure() if overdue.kind.counts_as_failure(late=True) else self.failures
        if failures.is_exceeded:
            return self._over(do.ReplaceAttempt(f"{what}; {failures.in_a_row} in a row", overdue.missing))
        return replace(self, pending_epochs=self.pending_epochs.wait_again(now), failures=failures), ()

    def _replace_frozen(self, missing: frozenset[int], since: float, what: str, now: float) -> Step | None:
        """Replace the subtasks among ``missing`` that have made no progress since the given time, if there are any."""
        frozen = missing & self.liveness.stalled_since(min(now - self.policy.heartbeat_timeout, since))
        return self._over(do.ReplaceAttempt(f"{what}; {self._how_all(frozen, now)}", frozen)) if frozen else None

    def _abort_declined(self, now: float) -> Step | None:
        hopeless = self.pending_epochs.find_declined()
        if hopeless is None:
            return None
        return self._give_up(hopeless, f"checkpoint {hopeless.id} was {hopeless.declined}", now, late=False)

    def _give_up(self, epoch: PendingEpoch, what: str, now: float, *, late: bool) -> Step:
        """Abort the epoch and continue, or replace the attempt if there were too many failures in a row."""
        failures = self.failures.record_failure() if epoch.kind.counts_as_failure(late=late) else self.failures
        if failures.is_exceeded:
            return self._over(do.ReplaceAttempt(f"{what}; {failures.in_a_row} in a row", frozenset()))
        asked = epoch.kind in (EpochKind.REQUESTED, EpochKind.SAVEPOINT)
        flights = self.pending_epochs.abort(epoch.id, now)
        without = replace(
            self,
            pending_epochs=flights,
            failures=failures,
            last_request_failed=self.last_request_failed or asked,
            loss_check=self.loss_check.on_abort(),
        )
        return without, (do.AbortEpoch(epoch.id, epoch.kind, what, late),)

    def _run_cleanup(self, now: float) -> Step | None:
        if not self.cleanup.is_due(now) or self.phase is Phase.INITIALIZING:
            return None
        if not self.pending_epochs.is_empty or self.pending_epochs.leftovers:
            return None
        begun, cleanup = self.cleanup.start(now)
        return replace(self, cleanup=begun), (cleanup,)

    def _end(self, now: float) -> Step | None:
        if self.phase is not Phase.CLEANING_UP or self.cleanup.running:
            return None
        over, end = self._over(do.EndJob(do.JobOutcome.DRAINED))
        return over, end if self.final_notification is None else (self.final_notification, *end)

    def _resume_sources(self, now: float) -> Step | None:
        """Resume the sources after the epoch that needed them paused."""
        wanted = not self.quiescence.is_used and self._next_kind(now) is not None
        if (
            self.phase is not Phase.RUNNING
            or not self.quiescence.is_reached
            or not self.pending_epochs.is_empty
            or wanted
        ):
            return None
        return replace(self, quiescence=Quiescence()), (do.ResumeSources(),)

    def _trigger(self, now: float) -> Step | None:
        kind = self._next_kind(now)
        if kind is None or self.pending_epochs.is_full or self._holds:
            return None
        halts = self.policy.pauses_sources or (
            kind is EpochKind.FINAL and self.policy.pauses_at_end and bool(self.at_end_of_input)
        )
        if halts and not self.quiescence.is_reached:
            return None if self.quiescence.is_started else self._halt()
        epoch = EpochId(self.next_epoch, self.term)
        begun = replace(
            self,
            next_epoch=self.next_epoch.next(),
            pending_epochs=self.pending_epochs.trigger(epoch, self.policy.subtasks, now, kind),
            triggered_at=now,
            phase=Phase.DRAINING if kind is EpochKind.FINAL else self.phase,
            requests=facts.PendingRequests() if kind.serves_requests else self.requests,
            stopping=self.stopping or self.requests.stop,
            last_request_failed=self.last_request_failed and kind not in (EpochKind.PERIODIC, EpochKind.BOOTSTRAP),
            loss_check=self.loss_check.on_trigger(),
            quiescence=replace(self.quiescence, is_used=self.quiescence.is_reached),
        )
        return begun, (do.TriggerEpoch(epoch, kind),)

    def _halt(self) -> Step:
        first = CountingRound(0, self.policy.subtasks)
        return replace(self, quiescence=Quiescence(round=first)), (do.PauseSources(), do.RequestCounts(first.number))

    def _discover(self, now: float) -> Step | None:
        if self.phase is not Phase.RUNNING or self.is_discovering or self.loss_check.blocks_discovery:
            return None
        if now - self.discovered_at < self.policy.discovery_interval and self.loss_check is not LossCheck.DECIDED:
            return None
        return replace(self, is_discovering=True, loss_check=self.loss_check.on_discovery()), (do.DiscoverSplits(),)

    # ------------------------------------------------------------ conditions of the rules

    @property
    def _cadence(self) -> Cadence:
        return self.policy.cadence

    @property
    def _holds(self) -> bool:
        """Return whether a cleanup must finish before the next epoch begins.

        After an abort it must not: that cleanup itself waits for the next decision.
        """
        keeping = self.cleanup
        return keeping.running is not None or (keeping.has_old_epochs and not self.pending_epochs.leftovers)

    @property
    def _ends(self) -> bool:
        """Return whether only the final epoch may still begin. A requested stop may still be withdrawn."""
        return self.stopping or self.requests.stop or self.at_end_of_input == self.policy.subtasks

    @property
    def _may_have_read(self) -> bool:
        """Return whether records may have been read since the positions that a search has verified."""
        return self.loss_check is not LossCheck.CONFIRMING

    def _next_kind(self, now: float) -> EpochKind | None:
        """Return the kind of epoch to trigger now, if any."""
        if self.phase is Phase.DRAINING:
            return EpochKind.FINAL if self.pending_epochs.is_empty else None  # the previous attempt at it was aborted
        if self.phase is not Phase.RUNNING:
            return None
        due = self.loss_check is LossCheck.DUE or now >= self._cadence.next_trigger(
            self.triggered_at, self.committed_at
        )
        asked, in_vain, filling = self.requests.checkpoint, self.last_request_failed, self.bootstrapping
        return choose_next_kind(ends=self._ends, asked=asked, due=due, in_vain=in_vain, filling=filling)

    def _over(self, action: AttemptAction) -> Step:
        return replace(self, phase=Phase.ENDED), (action,)


Step: TypeAlias = tuple[Attempt, tuple[AttemptAction, ...]]

_RULES = (
    Attempt._begin,
    Attempt._cancel,
    Attempt._replace_stalled,
    Attempt._verify_input,
    Attempt._decide,
    Attempt._abort_timed_out,
    Attempt._abort_declined,
    Attempt._count_overdue_abort,
    Attempt._run_cleanup,
    Attempt._end,
    Attempt._resume_sources,
    Attempt._trigger,
    Attempt._discover,
)
"""The rules, in order of priority: each time, the first that applies is used."""
