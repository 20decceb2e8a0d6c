"""Mistakes in the protocol, made on purpose: what the simulation must find, and within how many seeds.

Rule: a bug is one small change of one decision, in the machine that decides it or in the step that obeys it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
from msgspec import structs

from kafka_eos.abc.committer import CommitPermit
from kafka_eos.connectors.kafka.rpc.transaction_status import KafkaCommittable
from kafka_eos.core.ids import Epoch, EpochId
from kafka_eos.protocol import attempt as attempts
from kafka_eos.protocol import commit, recovery, retention
from kafka_eos.protocol.actions import AttemptAction, DecideEpoch, EndJob, JobOutcome
from kafka_eos.protocol.attempt import Attempt, Phase, Step
from kafka_eos.protocol.barrier_alignment import Channel, CheckpointMode, InputGate
from kafka_eos.protocol.barrier_alignment import GateAction as GateAction
from kafka_eos.protocol.checkpoint_schedule import EpochKind, PendingEpoch, PendingEpochs
from kafka_eos.protocol.events import AttemptEvent
from tests.simulation import durable
from tests.simulation.coordinator import Coordinator, Program
from tests.simulation.durable import Manifest, Refused, State
from tests.simulation.scenario import Scenario
from tests.simulation.worker import Answer, Capture, Copy, Segment, Worker

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """``within``: the first seed that finds it is smaller, and not below ``since``.

    ``narrowed``: of a scenario, one in which the mistake can do harm, where few others can.
    """

    name: str
    plant: Plant
    within: int
    since: int = 0
    narrowed: Callable[[Scenario], Scenario] = lambda scenario: scenario


def _stalled_loops(scenario: Scenario) -> Scenario:
    """Workers that stall while an epoch of a loop is on its way, which overtakes after a while."""
    stalls = tuple(replace(fault, kind="stall worker") for fault in scenario.faults)
    return replace(
        scenario,
        parallelism=(3,),
        exchanges=2,
        loop=(2, 1),
        shortcut=None,
        mode=CheckpointMode.UNALIGNED,
        aligned_timeout=150.0,
        saves=0.0,
        slow=0.0,
        pace=1.0,
        faults=stalls,
    )


def _many_given_up(scenario: Scenario) -> Scenario:
    """Many epochs are given up."""
    kinds = ("abort epoch", "stall worker")
    faults = tuple(replace(fault, kind=kinds[n % 2]) for n, fault in enumerate(scenario.faults))
    return replace(scenario, interval=20, faults=faults)


def _saved_after_many_given_up(scenario: Scenario) -> Scenario:
    """Barriers of epochs that were given up come when one is on its way that must leave nothing under way."""
    many = _many_given_up(scenario)
    return replace(many, mode=CheckpointMode.UNALIGNED, aligned_timeout=0.0, saves=0.4, slow=0.3)


def _often_saved(scenario: Scenario) -> Scenario:
    """Savepoints are made all the time, of epochs that are soon dropped."""
    return replace(scenario, saves=0.4, retained=1, interval=20)


def _often_revoked(scenario: Scenario) -> Scenario:
    """Decided epochs are revoked, and the next start fails before it has decided another one."""
    kinds = ("crash in commit", "expire output", "crash coordinator")
    faults = tuple(replace(fault, kind=kinds[n % 3]) for n, fault in enumerate(scenario.faults))
    return replace(scenario, interval=120, parallelism=(1,), exchanges=1, loop=None, shortcut=None, faults=faults)


def _often_crashed_in_commits(scenario: Scenario) -> Scenario:
    """Return the scenario with many crashes during commits, so that the next start must find out what was committed."""
    faults = tuple(replace(fault, kind="crash in commit") for fault in scenario.faults)
    return replace(scenario, interval=30, exchanges=1, loop=None, shortcut=None, faults=faults)


def _often_renamed(scenario: Scenario) -> Scenario:
    """Return the scenario with unfinished epochs that the next start knows by another name."""
    return replace(_often_crashed_in_commits(scenario), renamed=True)


# ---------------------------------------------------------------- barriers


def _no_blocking(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InputGate, "blocked_channels", property(lambda gate: frozenset()))


def _no_logging(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InputGate, "epochs_logging", lambda gate, channel: None)


def _early_back_edge_runs_on(patch: pytest.MonkeyPatch) -> None:
    blocked = InputGate.blocked_channels.fget  # type: ignore[attr-defined]
    patch.setattr(InputGate, "blocked_channels", property(lambda gate: blocked(gate) - gate.feedback))


def _first_barrier_captures(patch: pytest.MonkeyPatch) -> None:
    due = InputGate._due
    patch.setattr(InputGate, "_due", lambda gate, a, now: gate.mode is CheckpointMode.ALIGNED or due(gate, a, now))
    patch.setattr(InputGate, "epochs_logging", lambda gate, channel: None)


def _aborted_epoch_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InputGate, "on_abort", lambda gate, epoch: (gate, ()))


def _late_barrier_counts(patch: pytest.MonkeyPatch) -> None:
    """A barrier of an aborted epoch counts for the epoch that is pending."""
    barrier = InputGate.on_barrier

    def lenient(
        gate: InputGate, channel: Channel, epoch: int, now: float, aligned: bool
    ) -> tuple[InputGate, tuple[GateAction, ...]]:
        counted = epoch if gate.pending is None else gate.pending.epoch
        return barrier(gate, channel, counted, now, aligned)

    patch.setattr(InputGate, "on_barrier", lenient)


def _late_barrier_decides_how(patch: pytest.MonkeyPatch) -> None:
    """Whether an epoch may leave rows under way is asked of the barrier that came last, whatever its epoch."""
    barrier = InputGate.on_barrier

    def fickle(
        gate: InputGate, channel: Channel, epoch: int, now: float, aligned: bool
    ) -> tuple[InputGate, tuple[GateAction, ...]]:
        pending = gate.pending
        if pending is not None and not pending.captured:
            gate = structs.replace(gate, pending=structs.replace(pending, aligned=aligned))
        return barrier(gate, channel, epoch, now, aligned)

    patch.setattr(InputGate, "on_barrier", fickle)


# ---------------------------------------------------------------- snapshots


def _overtaken_rows_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    forward = Worker._forward

    def forgetful(worker: Worker, *args: object) -> list[Copy]:
        forward(worker, *args)  # type: ignore[arg-type]
        return []

    patch.setattr(Worker, "_forward", forgetful)


def _nothing_is_replayed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Worker, "replay", lambda worker, copies: None)


def _loops_are_not_replayed(patch: pytest.MonkeyPatch) -> None:
    replay = Worker.replay

    def without_loops(worker: Worker, copies: Sequence[Copy]) -> None:
        straight = [(row, at) for row, at in copies if (path := worker._scenario.path(row))[at] > path[at - 1]]
        replay(worker, straight)

    patch.setattr(Worker, "replay", without_loops)


def _forwarded_rows_are_replayed_elsewhere(patch: pytest.MonkeyPatch) -> None:
    replay = Worker.replay

    def elsewhere(worker: Worker, copies: Sequence[Copy]) -> None:
        moved = [
            (replace(row, keys=(0, *(key + 1 for key in row.keys[1:]))) if row.stays else row, at) for row, at in copies
        ]
        replay(worker, moved)

    patch.setattr(Worker, "replay", elsewhere)


def _offsets_of_the_answer(patch: pytest.MonkeyPatch) -> None:
    answer = Worker._answer

    def late(worker: Worker, epoch: EpochId, captures: dict[int, Capture]) -> Answer:
        return replace(answer(worker, epoch, captures), offsets=dict(worker._offsets))

    patch.setattr(Worker, "_answer", late)


def _state_of_the_answer(patch: pytest.MonkeyPatch) -> None:
    answer = Worker._answer

    def late(worker: Worker, epoch: EpochId, captures: dict[int, Capture]) -> Answer:
        state: State = {place: list(v) for segment in worker.segments for place, v in segment.state.items()}
        return replace(answer(worker, epoch, captures), state=state)

    patch.setattr(Worker, "_answer", late)


def _sealed_when_complete(patch: pytest.MonkeyPatch) -> None:
    """The writer goes on until the epoch is complete, not until its snapshot."""
    seal, complete = Worker._seal, Worker._complete

    def late(worker: Worker, segment: Segment, epoch: int) -> None:
        if segment.index == worker._scenario.segments - 1:
            seal(worker, EpochId(Epoch(epoch), worker.term))
        complete(worker, segment, epoch)

    patch.setattr(Worker, "_seal", lambda worker, epoch: None)
    patch.setattr(Worker, "_complete", late)


# ---------------------------------------------------------------- decisions


def _late_answer_counts(patch: pytest.MonkeyPatch) -> None:
    answered = Coordinator._answered

    def lenient(coordinator: Coordinator, epoch: EpochId, worker: int, answer: Answer) -> AttemptEvent:
        pending = coordinator._attempt.pending_epochs.pending
        return answered(coordinator, epoch if pending is None else pending.id, worker, answer)

    patch.setattr(Coordinator, "_answered", lenient)


def _repeated_answer_counts(patch: pytest.MonkeyPatch) -> None:
    def counted(pending: PendingEpoch, epoch: EpochId, subtask: int) -> PendingEpoch:
        if epoch != pending.id:
            return pending
        free = sorted(pending.expected - pending.acked)
        return structs.replace(pending, acked=pending.acked | set(free[:1]))

    patch.setattr(PendingEpoch, "ack", counted)


def _output_of_aborted_epochs_is_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DecideEpoch, "includes", lambda decision, sealed: sealed == decision.epoch)


def _committed_before_the_manifest(patch: pytest.MonkeyPatch) -> None:
    def hasty(coordinator: Coordinator, decision: DecideEpoch) -> Manifest:
        manifest = coordinator._manifest(decision)
        with suppress(Refused):
            for transaction in manifest.committables:
                coordinator._sink.commit(CommitPermit(decision.epoch), transaction)
        return manifest

    finish = Coordinator._finish

    def then_published(coordinator: Coordinator, manifest: Manifest) -> Program:
        coordinator._job.publish(manifest)
        yield from finish(coordinator, manifest)

    patch.setattr(Coordinator, "_decide", hasty)
    patch.setattr(Coordinator, "_finish", then_published)


def _no_fencing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Coordinator, "_check", lambda coordinator: None)


def _every_manifest_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "lineage", lambda manifests, bases: tuple(sorted(manifests)) if bases else ())


def _unfinished_epoch_is_skipped(patch: pytest.MonkeyPatch) -> None:
    def skipped(coordinator: Coordinator, unfinished: recovery.NewestUncommitted, base: list[Manifest]) -> Program:
        coordinator._base(unfinished.newest)
        base.append(coordinator._job.manifests[unfinished.newest])
        yield

    patch.setattr(Coordinator, "_unfinished", skipped)


def _what_can_be_committed_is(patch: pytest.MonkeyPatch) -> None:
    """An epoch of which something is lost is committed as far as possible, and revoked then."""

    def partial(coordinator: Coordinator, manifest: Manifest, decision: commit.CommitAuthorized) -> Program:
        for index in decision.order[:1]:
            with suppress(Refused):
                coordinator._sink.commit(decision.permit, manifest.committables[index])
        yield
        coordinator._job.receipt(manifest.id)
        yield

    patch.setattr(Coordinator, "_commit", partial)


# ---------------------------------------------------------------- the status of output


def _replaced_broker_is_believed(patch: pytest.MonkeyPatch) -> None:
    """Treat a transaction that a broker does not know as lost, even if the broker is not current."""
    derive = durable.derive_status

    def believing(ours: KafkaCommittable, seen: Any, marker: str | None, age: float, current: bool) -> Any:
        return derive(ours, seen, marker, age, True)

    patch.setattr(durable, "derive_status", believing)


def _marker_is_not_read(patch: pytest.MonkeyPatch) -> None:
    """Treat a transaction as lost if the coordinator does not know it, without reading the marker."""
    patch.setattr(durable, "needs_marker", lambda ours, seen: False)


def _first_cluster_is_believed(patch: pytest.MonkeyPatch) -> None:
    """Output under another name is sought with one connection, which may lead to another cluster."""
    patch.setattr(durable, "LOOKS", 1)


def _cleanup_takes_any_term(patch: pytest.MonkeyPatch) -> None:
    """A process that has failed takes a term above all others, also that of its successor, and fences it."""
    patch.setattr(Coordinator, "_claim_next", lambda coordinator, mine: coordinator._job.claim())


# ---------------------------------------------------------------- the attempt


def _number_is_used_again(patch: pytest.MonkeyPatch) -> None:
    """The epoch after one that was given up has its number."""
    give_up = Attempt._give_up

    def again(attempt: Attempt, epoch: PendingEpoch, what: str, now: float, *, late: bool) -> Step:
        after, actions = give_up(attempt, epoch, what, now, late=late)
        return structs.replace(after, next_epoch=min(after.next_epoch, epoch.id.epoch)), actions

    patch.setattr(Attempt, "_give_up", again)


def _last_epoch_is_like_any_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EpochKind, "must_drain", property(lambda kind: kind is EpochKind.SAVEPOINT))


def _over_when_decided(patch: pytest.MonkeyPatch) -> None:
    """The attempt ends when its last epoch is decided."""
    decide = Attempt._decide

    def hasty(attempt: Attempt, now: float) -> Step | None:
        step = decide(attempt, now)
        if step is None or attempt.phase is not Phase.DRAINING:
            return step
        after, actions = step
        over, end = after._over(EndJob(JobOutcome.DRAINED))
        return over, (*actions, *end)

    _rule(patch, decide, hasty)


def _input_is_not_verified(patch: pytest.MonkeyPatch) -> None:
    """An epoch is decided as soon as it is complete."""
    decide = Attempt._decide

    def hasty(attempt: Attempt, now: float) -> Step | None:
        return decide(structs.replace(attempt, verified=attempt.verifying), now)

    _rule(patch, decide, hasty)


def _last_epoch_is_not_tried_again(patch: pytest.MonkeyPatch) -> None:
    wanted = Attempt._next_kind

    def once(attempt: Attempt, now: float) -> EpochKind | None:
        return None if attempt.phase is Phase.DRAINING else wanted(attempt, now)

    patch.setattr(Attempt, "_next_kind", once)


def _abort_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """The next epoch may begin while subtasks still work on one that was aborted."""
    abort = PendingEpochs.abort
    patch.setattr(
        PendingEpochs, "abort", lambda flights, epoch, now: structs.replace(abort(flights, epoch, now), current=None)
    )


def _swept_after_an_abort(patch: pytest.MonkeyPatch) -> None:
    """Files that an aborted epoch has stored are dropped, and the next epoch names them."""
    abort = PendingEpochs.abort
    patch.setattr(
        PendingEpochs, "abort", lambda flights, epoch, now: structs.replace(abort(flights, epoch, now), leftovers=False)
    )


def _swept_meanwhile(patch: pytest.MonkeyPatch) -> None:
    """Old epochs are dropped while others are on their way."""
    sweep = Attempt._run_cleanup

    def any_time(attempt: Attempt, now: float) -> Step | None:
        idle = structs.replace(attempt.pending_epochs, current=None, committing=None, leftovers=False)
        step = sweep(structs.replace(attempt, pending_epochs=idle), now)
        return None if step is None else (structs.replace(step[0], pending_epochs=attempt.pending_epochs), step[1])

    _rule(patch, sweep, any_time)


def _begun_while_swept(patch: pytest.MonkeyPatch) -> None:
    """An epoch begins while old ones are dropped."""
    patch.setattr(Attempt, "_holds", property(lambda attempt: False))


def _committed_first(patch: pytest.MonkeyPatch) -> None:
    """What follows from a fact is carried out in the wrong order."""
    on = Attempt.handle

    def reversed_(attempt: Attempt, fact: AttemptEvent, now: float) -> tuple[Attempt, tuple[AttemptAction, ...]]:
        after, actions = on(attempt, fact, now)
        return after, tuple(reversed(actions))

    patch.setattr(Attempt, "handle", reversed_)


def _rule(patch: pytest.MonkeyPatch, rule: object, instead: object) -> None:
    patch.setattr(attempts, "_RULES", tuple(instead if each is rule else each for each in attempts._RULES))


# ---------------------------------------------------------------- what is dropped


def _files_go_first(patch: pytest.MonkeyPatch) -> None:
    plan = retention.plan_deletions
    patch.setattr(retention, "plan_deletions", lambda found, keep: plan(found, keep)[::-1])


def _files_go_with_the_first_manifest(patch: pytest.MonkeyPatch) -> None:
    """A file goes with a manifest that names it, though others name it too."""
    plan = retention.plan_deletions

    def careless(found: retention.Inventory, keep: int) -> tuple[retention.Deletion, ...]:
        objects = plan(found, keep)
        named = [found.manifests[each.epoch] for each in objects if isinstance(each, retention.DeleteManifest)]
        more = map(retention.DeleteFile, sorted(frozenset[str]().union(*named)))
        return tuple(dict.fromkeys([*objects, *more]))

    patch.setattr(retention, "plan_deletions", careless)


def _one_epoch_too_few_stays(patch: pytest.MonkeyPatch) -> None:
    plan = retention.plan_deletions
    patch.setattr(retention, "plan_deletions", lambda found, keep: plan(found, max(keep - 1, 1)))


def _files_of_savepoints_go(patch: pytest.MonkeyPatch) -> None:
    plan = retention.plan_deletions
    change = structs.replace
    patch.setattr(retention, "plan_deletions", lambda found, keep: plan(change(found, pinned=frozenset()), keep))


def _newest_claim_goes(patch: pytest.MonkeyPatch) -> None:
    """Claims go with the epochs of their terms, that of the newest term too."""
    plan = retention.plan_deletions

    def all_claims(found: retention.Inventory, keep: int) -> tuple[retention.Deletion, ...]:
        objects = plan(found, keep)
        more = (
            retention.DeleteClaim(each.epoch.term) for each in objects if isinstance(each, retention.DeleteManifest)
        )
        return tuple(dict.fromkeys([*objects, *more]))

    patch.setattr(retention, "plan_deletions", all_claims)


def _needed_bases_go(patch: pytest.MonkeyPatch) -> None:
    """Of the bases only the newest stays."""
    plan = retention.plan_deletions

    def newest_only(found: retention.Inventory, keep: int) -> tuple[retention.Deletion, ...]:
        more = (retention.DeleteBase(term) for term in sorted(found.bases)[:-1])
        return tuple(dict.fromkeys([*plan(found, keep), *more]))

    patch.setattr(retention, "plan_deletions", newest_only)


def _highest_number_goes(patch: pytest.MonkeyPatch) -> None:
    """A manifest that does not count goes, though the number of no other is higher."""
    plan = retention.plan_deletions

    def forgotten(found: retention.Inventory, keep: int) -> tuple[retention.Deletion, ...]:
        newest = max(retention.lineage(found.manifests, found.bases), default=None)
        more = (retention.DeleteManifest(m) for m in found.manifests if newest and m.epoch > newest.epoch)
        return (*plan(found, keep), *more)

    patch.setattr(retention, "plan_deletions", forgotten)


BUGS = [
    PlantedBug("channels do not wait for the last barrier", _no_blocking, 50),
    PlantedBug("rows before a late barrier are not logged", _no_logging, 50),
    PlantedBug("the first barrier takes an aligned snapshot", _first_barrier_captures, 50),
    PlantedBug("a back-edge runs on behind its early barrier", _early_back_edge_runs_on, 50, narrowed=_stalled_loops),
    PlantedBug("an aborted epoch goes on in the workers", _aborted_epoch_goes_on, 400),
    PlantedBug("a barrier of an aborted epoch counts for the next", _late_barrier_counts, 400),
    PlantedBug(
        "a late barrier decides how an epoch is taken",
        _late_barrier_decides_how,
        400,
        narrowed=_saved_after_many_given_up,
    ),
    PlantedBug("overtaken rows are not stored", _overtaken_rows_are_not_stored, 50),
    PlantedBug("rows in flight are not replayed", _nothing_is_replayed, 400),
    PlantedBug("the log of a loop is not replayed", _loops_are_not_replayed, 400),
    PlantedBug("forwarded rows are replayed elsewhere", _forwarded_rows_are_replayed_elsewhere, 400),
    PlantedBug("offsets are those of the answer", _offsets_of_the_answer, 50),
    PlantedBug("state is that of the answer", _state_of_the_answer, 50),
    PlantedBug("the writer is sealed when the epoch is complete", _sealed_when_complete, 50),
    PlantedBug(
        "a late answer counts for the next epoch", _late_answer_counts, 1050, since=1000, narrowed=_many_given_up
    ),
    PlantedBug("a repeated answer counts twice", _repeated_answer_counts, 50),
    PlantedBug("output of aborted epochs is dropped", _output_of_aborted_epochs_is_dropped, 400),
    PlantedBug("output is committed before the manifest", _committed_before_the_manifest, 50),
    PlantedBug("a replaced coordinator goes on", _no_fencing, 400),
    PlantedBug("manifests of replaced terms count", _every_manifest_counts, 700, since=550),
    PlantedBug("an unfinished epoch is skipped", _unfinished_epoch_is_skipped, 400),
    PlantedBug("an epoch is committed in part", _what_can_be_committed_is, 50),
    PlantedBug(
        "a broker that was replaced is believed", _replaced_broker_is_believed, 50, narrowed=_often_crashed_in_commits
    ),
    PlantedBug("the marker of a commit is not read", _marker_is_not_read, 50, narrowed=_often_crashed_in_commits),
    PlantedBug(
        "the first cluster that is reached is believed", _first_cluster_is_believed, 50, narrowed=_often_renamed
    ),
    PlantedBug("a failed job takes a term from its successor", _cleanup_takes_any_term, 400),
    PlantedBug("the number of an epoch is used again", _number_is_used_again, 400, since=60),
    PlantedBug("the last epoch leaves rows under way", _last_epoch_is_like_any_other, 400, since=60),
    PlantedBug("a job ends before its last epoch is committed", _over_when_decided, 400),
    PlantedBug("an epoch is decided before its input is verified", _input_is_not_verified, 50),
    PlantedBug("a last epoch is not tried again", _last_epoch_is_not_tried_again, 400, since=60),
    PlantedBug("an abort is not waited for", _abort_is_not_waited_for, 400, narrowed=_many_given_up),
    PlantedBug("old epochs are dropped after an abort", _swept_after_an_abort, 400, narrowed=_many_given_up),
    PlantedBug("old epochs are dropped while others are on their way", _swept_meanwhile, 50),
    PlantedBug("an epoch begins while old ones are dropped", _begun_while_swept, 400, since=230),
    PlantedBug("a decision is committed before it is published", _committed_first, 50),
    PlantedBug("files go before the manifests that name them", _files_go_first, 50),
    PlantedBug("a file goes with the first manifest that names it", _files_go_with_the_first_manifest, 50),
    PlantedBug("one epoch too few stays", _one_epoch_too_few_stays, 50),
    PlantedBug("files go of which a savepoint is being made", _files_of_savepoints_go, 400, narrowed=_often_saved),
    PlantedBug("the newest claim goes", _newest_claim_goes, 50),
    PlantedBug("bases go that history needs", _needed_bases_go, 400),
    PlantedBug("the highest number goes", _highest_number_goes, 400, narrowed=_often_revoked),
]
