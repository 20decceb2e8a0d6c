"""One attempt to run a job, on any engine: when epochs begin, are decided and given up, and when the attempt ends.

    PREPARING ─▶ RUNNING ─▶ ENDING ─▶ CLOSING ─▶ OVER
        │           │                    ▲
        │           └────────────────────┘ an engine of batches needs no last epoch
        └─▶ OVER      asked to stop before all subtasks were ready

    PREPARING  subtasks restore, and wait for each other
    RUNNING    epochs by the clock and on demand, or batch after batch
    ENDING     nothing is read any more, the last epoch is on its way
    CLOSING    all is committed; what is no longer needed goes

Pure: a fact goes in with the time, a new value and the actions to carry out come out, in order. What carries out a
``Decide`` and fails must end the attempt: the actions behind it were for a decision that is not there.

Rule: an epoch is decided only when the one before it is committed. After an abort nothing begins, and nothing is
cleaned up, before every subtask has confirmed it. After ``Replace`` or ``End`` nothing follows.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol import actions as do
from kafka_eos.protocol import events as facts
from kafka_eos.protocol.actions import Action
from kafka_eos.protocol.checkpoint_schedule import Cadence, Failures, Flights, Kind, Pending, kind_of_next
from kafka_eos.protocol.cleanup_schedule import Housekeeping
from kafka_eos.protocol.engine_policy import Policy
from kafka_eos.protocol.events import Fact
from kafka_eos.protocol.liveness import Still, Vitals
from kafka_eos.protocol.quiescence import Round, Standstill


class Phase(enum.Enum):
    PREPARING = "preparing"
    RUNNING = "running"
    ENDING = "ending"
    CLOSING = "closing"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class Attempt:
    """The state of one attempt. ``Attempt.of`` makes the first one, ``on`` the next."""

    policy: Policy
    term: Term
    next: Epoch
    flights: Flights
    failures: Failures
    housekeeping: Housekeeping
    triggered_at: float
    committed_at: float
    searched_at: float
    filling: bool
    """Do streams wait for tables? See ``bootstrap``."""
    under_way: bool
    """Did the last decided epoch leave rows under way? A batch must take them up before a stop is granted."""
    phase: Phase = Phase.PREPARING
    preparing: frozenset[int] = frozenset()
    """Who is not ready."""
    vitals: Vitals = field(default_factory=Vitals)
    reached: frozenset[int] = frozenset()
    """Who has read all of a bounded input."""
    stopping: bool = False
    """A clean end was asked for, and cannot be withdrawn."""
    asked: facts.Asked = field(default_factory=facts.Asked)
    in_vain: bool = False
    """Was the epoch that somebody asked for last given up, with none of the job's own since?"""
    searching: do.Discover | None = None
    found: bool | None = None
    """Has the last search found something to read? None before the first, and once a batch has begun on it."""
    settled: facts.Asked | None = None
    """What was asked for when the last search found that nothing has come after the newest epoch."""
    standstill: Standstill = field(default_factory=Standstill)
    notify_last: do.Notify | None = None
    """What is said at the very end: a stop that was answered before the housekeeping failed would be lost."""

    @classmethod
    def of(
        cls,
        policy: Policy,
        first: EpochId,
        base: EpochId,
        housekeeping: Housekeeping,
        now: float,
        under_way: bool,
        filling: bool = False,
    ) -> Attempt:
        """An attempt that goes on from ``base``; ``first`` is the id of its first epoch."""
        return cls(
            policy=policy,
            term=first.term,
            next=first.epoch,
            flights=Flights(policy.batches, base),
            failures=Failures(policy.tolerated),
            housekeeping=housekeeping,
            triggered_at=now,
            committed_at=now,
            searched_at=now,
            preparing=policy.subtasks,
            filling=filling,
            under_way=under_way,
        )

    def on(self, fact: Fact, now: float) -> tuple[Attempt, tuple[Action, ...]]:
        """What the attempt is after ``fact``, and what to do. ``now`` is of a clock that never goes back."""
        if self.phase is Phase.OVER:
            return self, ()
        attempt, taken = self._learn(fact, now)
        while (step := attempt._next_step(now)) is not None:
            attempt, actions = step
            taken += actions
        return attempt, taken

    @property
    def ran(self) -> bool:
        """Were all subtasks ready at some time? Then rows were processed, and a clean end needs a last epoch."""
        return not self.preparing

    @property
    def due_at(self) -> float:
        """When the next epoch may be triggered by the clock; infinite while none may be."""
        if self.phase is not Phase.RUNNING or self.flights.full or self._holds:
            return float("inf")
        return self._cadence.next_trigger(self.triggered_at, self.committed_at)

    def still(self, since: float) -> frozenset[int]:
        """Subtasks that are to process rows and have taken no step since that time."""
        return self.vitals.still(since) if self.phase in (Phase.RUNNING, Phase.ENDING) else frozenset()

    def how(self, subtask: int, now: float) -> Still:
        """What is known of a subtask that stands still."""
        return self.vitals.of_still(subtask, now, self.policy.silence)

    # ------------------------------------------------------------ what a fact changes

    def _learn(self, fact: Fact, now: float) -> Step:
        match fact:
            case facts.Tick():
                return self, ()
            case facts.Heard(subtask):
                return replace(self, vitals=self.vitals.word(subtask, now)), ()
            case facts.Pulse(subtask, standing, at):
                return replace(self, vitals=self.vitals.pulse(subtask, standing, at, now)), ()
            case facts.Deaf(seconds):
                return replace(self, vitals=self.vitals.deaf(seconds)), ()
            case facts.Ready(subtask):
                return replace(self, preparing=self.preparing - {subtask}), ()
            case facts.Acked(epoch, subtask):
                return replace(self, flights=self.flights.ack(epoch, subtask)), ()
            case facts.Declined(epoch, subtask, why):
                return replace(self, flights=self.flights.decline(epoch, subtask, why)), ()
            case facts.AbortConfirmed(epoch, subtask):
                return replace(self, flights=self.flights.confirm_abort(epoch, subtask)), ()
            case facts.Died(subtask, why):
                return self._over(do.Replace(why, frozenset({subtask})))
            case facts.Committed(epoch):
                return self._committed(epoch, now)
            case facts.Swept():
                return replace(self, housekeeping=self.housekeeping.swept(now)), ()
            case facts.Littered():
                return replace(self, housekeeping=replace(self.housekeeping, littered=True)), ()
            case facts.Found(input_, at_end):
                return self._found(input_, at_end, now)
            case facts.Counted(number, subtask, counts):
                return self._counted(self.standstill.counted(number, subtask, counts))
            case facts.Reached(subtask):
                return replace(self, reached=self.reached | {subtask}), ()
            case facts.Asked():
                return replace(self, asked=fact, settled=self.settled if fact == self.asked else None), ()
            case facts.Filled():
                return replace(self, filling=False), ()
            case facts.Stop():
                return replace(self, stopping=True), ()

    def _committed(self, epoch: EpochId, now: float) -> Step:
        done = self.flights.committing
        if done is None or done.id != epoch:
            return self, ()
        notify = do.Notify(epoch, now - done.triggered_at)
        after = replace(self, flights=self.flights.committed(epoch), committed_at=now)
        if done.kind is Kind.LAST:
            return replace(after, phase=Phase.CLOSING, notify_last=notify), ()
        return after, (notify,)

    def _found(self, something: bool, at_end: bool, now: float) -> Step:
        at_once = self.searching is not None and self.searching.at_once
        found = replace(
            self,
            searching=None,
            searched_at=now,
            found=something,
            settled=self.asked if at_once and not something else None,
            stopping=self.stopping or at_end,
        )
        return found, ()

    def _counted(self, standstill: Standstill) -> Step:
        asks = standstill.round if standstill != self.standstill else None
        again = (do.Count(asks.number),) if asks is not None and not asks.answers else ()
        return replace(self, standstill=standstill), again

    # ------------------------------------------------------------ what follows from it

    def _next_step(self, now: float) -> Step | None:
        """The first of all that is to be done now, with its consequences; None if there is nothing."""
        if self.phase is Phase.OVER:
            return None
        for rule in _RULES:
            if (step := rule(self, now)) is not None:
                return step
        return None

    def _begin(self, now: float) -> Step | None:
        if self.phase is not Phase.PREPARING:
            return None
        if self.stopping and self.policy.may_leave:
            return self._over(do.End(do.Ending.LEFT))
        if self.preparing:
            return None
        return replace(self, phase=Phase.RUNNING, vitals=Vitals.of(self.policy.subtasks, now)), (do.Begin(),)

    def _replace_hung(self, now: float) -> Step | None:
        hung = self.still(now - self.policy.patience)
        if not hung:
            return None
        why = f"no step for {self.policy.patience:g} s (worker_timeout): {self._how_all(hung, now)}"
        return self._over(do.Replace(why, hung))

    def _how_all(self, subtasks: Collection[int], now: float) -> str:
        return "; ".join(str(self.how(subtask, now)) for subtask in sorted(subtasks))

    def _end_as_it_is(self, now: float) -> Step | None:
        if self.asked.end and self.phase in (Phase.RUNNING, Phase.ENDING):
            return self._over(do.End(do.Ending.AS_IT_IS))
        return None

    def _decide(self, now: float) -> Step | None:
        epoch, pending = self.flights.ready(), self.flights.pending
        if epoch is None or pending is None:
            return None
        decided = replace(
            self,
            flights=self.flights.decided(epoch),
            failures=self.failures.succeeded(),
            in_vain=False,
            under_way=False,
            housekeeping=self.housekeeping.decided(),
        )
        return decided, (do.Decide(epoch, self.flights.last, now - pending.triggered_at), do.Commit(epoch))

    def _give_up_late(self, now: float) -> Step | None:
        late = self.flights.expired(self._cadence, now)
        if late is None:
            return None
        what = (
            f"checkpoint {late.id} was not acknowledged in time (checkpoint_timeout) by subtask {sorted(late.missing)}"
        )
        # Before one that drains there may be many rows, and no word comes out of a long batch of them.
        since = late.triggered_at if late.kind.drains else now
        return self._replace_frozen(late.missing, since, what, now) or self._give_up(late, what, now, late=True)

    def _count_overdue_abort(self, now: float) -> Step | None:
        """A subtask that does not confirm an abort keeps the job from its next epoch: one more failed checkpoint."""
        overdue = self.flights.overdue(self._cadence, now)
        if overdue is None:
            return None
        missing = sorted(overdue.missing)
        what = (
            f"the abort of checkpoint {overdue.id} was not confirmed in time (checkpoint_timeout) by subtask {missing}"
        )
        if (replaced := self._replace_frozen(overdue.missing, now, what, now)) is not None:
            return replaced
        failures = self.failures.failed() if overdue.kind.counts(late=True) else self.failures
        if failures.too_many:
            return self._over(do.Replace(f"{what}; {failures.seen} in a row", overdue.missing))
        return replace(self, flights=self.flights.wait_again(now), failures=failures), ()

    def _replace_frozen(self, missing: frozenset[int], since: float, what: str, now: float) -> Step | None:
        """Replace the subtasks that are waited for and have taken no step since then, if there are any."""
        frozen = missing & self.vitals.still(min(now - self.policy.silence, since))
        return self._over(do.Replace(f"{what}; {self._how_all(frozen, now)}", frozen)) if frozen else None

    def _give_up_declined(self, now: float) -> Step | None:
        hopeless = self.flights.hopeless()
        if hopeless is None:
            return None
        return self._give_up(hopeless, f"checkpoint {hopeless.id} was {hopeless.declined}", now, late=False)

    def _give_up(self, epoch: Pending, what: str, now: float, *, late: bool) -> Step:
        """The job goes on without this epoch, unless that was one too many."""
        failures = self.failures.failed() if epoch.kind.counts(late=late) else self.failures
        if failures.too_many:
            return self._over(do.Replace(f"{what}; {failures.seen} in a row", frozenset()))
        asked = epoch.kind in (Kind.ASKED, Kind.SAVEPOINT)
        flights = self.flights.abort(epoch.id, now)
        without = replace(self, flights=flights, failures=failures, in_vain=self.in_vain or asked)
        return without, (do.Abort(epoch.id, epoch.kind, what, late),)

    def _close(self, now: float) -> Step | None:
        if self._ends and self.policy.batches and self.phase is Phase.RUNNING and self.flights.none:
            return replace(self, phase=Phase.CLOSING, housekeeping=self.housekeeping.looks_once_more()), ()
        return None

    def _sweep(self, now: float) -> Step | None:
        keeping, idle = self.housekeeping, self.phase is Phase.CLOSING or (self.policy.batches and self.found is False)
        if not keeping.due(now) and not (idle and keeping.unswept):
            return None
        if keeping.sweeping or self.phase is Phase.PREPARING:
            return None
        if not self.flights.none or self.flights.leftovers:
            return None
        begun, sweep = keeping.begun(now)
        return replace(self, housekeeping=begun), (sweep,)

    def _answer(self, now: float) -> Step | None:
        """After the housekeeping, which may end the attempt: the next one would not know of a stop that is answered."""
        if self.asked.wants is None or self.housekeeping.sweeping or not self.flights.none or not self.policy.batches:
            return None
        if self.settled != self.asked and self.phase is not Phase.CLOSING:
            return None
        stopping = self.stopping or self.asked.stop
        return replace(self, asked=facts.Asked(), stopping=stopping), (do.Answer(),)

    def _end(self, now: float) -> Step | None:
        if self.phase is not Phase.CLOSING or self.housekeeping.sweeping:
            return None
        over, end = self._over(do.End(do.Ending.DRAINED))
        return over, end if self.notify_last is None else (self.notify_last, *end)

    def _go_on(self, now: float) -> Step | None:
        """After the epoch for which the job was halted, or if nobody wants one any more."""
        wanted = not self.standstill.served and self._wanted(now) is not None
        if self.phase is not Phase.RUNNING or not self.standstill.quiet or not self.flights.none or wanted:
            return None
        return replace(self, standstill=Standstill()), (do.GoOn(),)

    def _trigger(self, now: float) -> Step | None:
        kind = self._wanted(now)
        if kind is None or self.flights.full or self._holds:
            return None
        halts = self.policy.halts or (kind is Kind.LAST and self.policy.halts_at_end and bool(self.reached))
        if halts and not self.standstill.quiet:
            return None if self.standstill.begun else self._halt()
        epoch = EpochId(self.next, self.term)
        begun = replace(
            self,
            next=self.next.next(),
            flights=self.flights.trigger(epoch, self.policy.subtasks, now, kind),
            triggered_at=now,
            phase=Phase.ENDING if kind is Kind.LAST else self.phase,
            asked=facts.Asked() if kind.serves else self.asked,
            stopping=self.stopping or self.asked.stop,
            in_vain=self.in_vain and kind not in (Kind.CLOCK, Kind.FILLING),
            found=None,
            standstill=replace(self.standstill, served=self.standstill.quiet),
        )
        return begun, (do.Trigger(epoch, kind),)

    def _halt(self) -> Step:
        first = Round(0, self.policy.subtasks)
        return replace(self, standstill=Standstill(round=first)), (do.Halt(), do.Count(first.number))

    def _discover(self, now: float) -> Step | None:
        if self.phase is not Phase.RUNNING or self.searching or now - self.searched_at < self.policy.search_every:
            return None
        if self.policy.batches and (self._ends or self.flights.full or self._holds):
            return None
        search = do.Discover(at_once=self.asked.wants is not None)
        return replace(self, searching=search), (search,)

    # ------------------------------------------------------------ what the rules ask

    @property
    def _cadence(self) -> Cadence:
        return self.policy.cadence

    @property
    def _holds(self) -> bool:
        """May no epoch begin before old ones are dropped? After an abort that itself waits for the next decision."""
        keeping = self.housekeeping
        return keeping.sweeping is not None or (keeping.holds and not self.flights.leftovers)

    @property
    def _ends(self) -> bool:
        """Is no other epoch to begin but the last? A request to stop may still be withdrawn."""
        caught_up = self.reached == self.policy.subtasks
        # Rows under way, of an engine without batches, must not be left by the last epoch: they go first.
        granted = self.asked.stop and not (self.policy.batches and self.under_way)
        return self.stopping or caught_up or granted

    def _wanted(self, now: float) -> Kind | None:
        """What to trigger now, room provided."""
        if self.phase is Phase.ENDING:
            return Kind.LAST if self.flights.none else None  # the one before was given up
        if self.phase is not Phase.RUNNING:
            return None
        if self.policy.batches:
            return Kind.BATCH if self.found and not self._ends else None
        due = now >= self._cadence.next_trigger(self.triggered_at, self.committed_at)
        asked, in_vain, filling = self.asked.wants, self.in_vain, self.filling
        return kind_of_next(ends=self._ends, asked=asked, due=due, in_vain=in_vain, filling=filling)

    def _over(self, action: Action) -> Step:
        return replace(self, phase=Phase.OVER), (action,)


Step: TypeAlias = tuple[Attempt, tuple[Action, ...]]

_RULES = (
    Attempt._begin,
    Attempt._end_as_it_is,
    Attempt._replace_hung,
    Attempt._decide,
    Attempt._give_up_late,
    Attempt._give_up_declined,
    Attempt._count_overdue_abort,
    Attempt._close,
    Attempt._sweep,
    Attempt._answer,
    Attempt._end,
    Attempt._go_on,
    Attempt._trigger,
    Attempt._discover,
)
"""What can follow from a fact, in this order: each time the first that applies."""
