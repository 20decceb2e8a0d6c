"""The contract of a sink, as checks that every implementation must pass.

    def test_my_sink(tmp_path):
        check_sink(lambda: SinkUnderTest("my_tests:make_sink", {"path": fresh(tmp_path)}, read_back))

Each check gets a fresh target and states its claim in its docstring. Rule: a check looks only through the sink's
own interface and ``read_back``, and compares everything that is visible, not just what it hopes to find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from kafka_eos.abc.committer import (
    CommitOutcome,
    CommitPermit,
    CommitStatus,
    Committable,
    Committer,
)
from kafka_eos.abc.services import Services
from kafka_eos.abc.sink import Writer
from kafka_eos.core.errors import CommittableLost, KafkaEosError
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity
from kafka_eos.testing.other_process import prepare_and_die
from kafka_eos.testing.sink_harness import (
    ContractBroken,
    SinkHarness,
    SinkUnderTest,
    calls,
    epoch_id,
    expect,
    name_violation,
    through_json,
)
from kafka_eos.testing.sink_run import run_seed, run_steps
from kafka_eos.testing.sink_schedules import (
    AbortStep,
    CommitAgainStep,
    CommitStep,
    NotifyStep,
    PrepareStep,
    RestartStep,
    SealStep,
    WakeStep,
    WriteStep,
)

__all__ = ["SINK_CHECKS", "ContractBroken", "SinkUnderTest", "check_sink"]


def check_sink(fresh: Callable[[], SinkUnderTest], *names: str, seeds: Iterable[int] = range(3)) -> None:
    """Run the named checks (default: all that fit), each on a new target from ``fresh``.

    ``seeds``: the check "schedules" draws one schedule from each. A failure names the seed that repeats it.

    Raises ContractBroken, which starts with the name and claim of the check that failed.
    """
    schedules = [*seeds]
    for name in names or SINK_CHECKS:
        check = SINK_CHECKS[name]
        for seed in schedules if name in _DRAWN else [0]:
            target = fresh()
            if names or _fits(name, target):
                with SinkHarness(target, seed=seed) as trial, name_violation(name, check):
                    check(trial)


def _fits(name: str, target: SinkUnderTest) -> bool:
    """Return whether a check applies to this sink."""
    if name in NEEDS_REMOVAL:
        return target.remove_visible is not None
    return not (target.single_process and name in TWO_PROCESSES)


# ---------------------------------------------------------------- one epoch


def _happy_path(trial: SinkHarness) -> None:
    """Committed rows are visible, once each and in the order of writing."""
    writer, epoch = trial.writer(), epoch_id(1)
    writer.write(trial.batch(0, 2))
    writer.write(trial.batch(2, 5))
    committables = through_json(writer.seal(epoch)())
    expect(sum(each.records for each in committables) == 5, f"committables must count 5 records: {committables}")
    trial.commit(epoch, committables)
    writer.notify_committed(epoch)
    trial.expect_visible(trial.rows[:5], "after the commit")


def _empty_epoch(trial: SinkHarness) -> None:
    """An epoch without rows has no committable, before and after epochs that have rows."""
    writer = trial.writer()
    for number in (1, 2):
        empty = writer.seal(epoch_id(number))()
        expect(not empty, f"an epoch without rows must give no committable, not {list(empty)}")
        writer.notify_committed(epoch_id(number))
    trial.commit(epoch_id(3), trial.prepare(writer, epoch_id(3), 0, 2))
    writer.notify_committed(epoch_id(3))
    empty = writer.seal(epoch_id(4))()
    expect(not empty, f"an epoch without rows must give no committable, not {list(empty)}")
    trial.expect_visible(trial.rows[:2], "after an epoch with rows between empty ones")


def _invisible(trial: SinkHarness) -> None:
    """Check that nothing is visible before the commit: not when written, not when sealed, not when prepared."""
    writer = trial.writer()
    writer.write(trial.batch(0, 3))
    trial.expect_visible((), "after write")
    prepare = writer.seal(epoch_id(1))
    trial.expect_visible((), "after seal")
    prepare()
    trial.expect_visible((), "after the pre-commit")


def _commit_again(trial: SinkHarness) -> None:
    """Check that a repeated commit duplicates nothing, and that a newer term sees that the commit was done."""
    # Within a term a server may answer a repeat like the first request, as Kafka's EndTxn does.
    epoch, committer = epoch_id(1), trial.committer()
    committables = trial.prepare(trial.writer(), epoch, 0, 3)
    permit = trial.permit(epoch, committer, committables)
    committer.commit_all(permit, committables)
    for again in (committer, trial.committer()):
        again.commit_all(permit, committables)
        trial.expect_visible(trial.rows[:3], "after a repeated commit")
    for outcome in trial.committer(term=2).commit_all(permit, committables):
        expect(
            outcome is CommitOutcome.ALREADY, f"a commit repeated by a newer term must return ALREADY, not {outcome}"
        )
    trial.expect_visible(trial.rows[:3], "after a commit repeated by a newer term")


def _probe(trial: SinkHarness) -> None:
    """A probe answers PREPARED before the commit and COMMITTED after it, and changes nothing."""
    epoch, committer = epoch_id(1), trial.committer()
    committables = trial.prepare(trial.writer(), epoch, 0, 3)
    _expect_standing(committer, committables, CommitStatus.PREPARED, "after the pre-commit")
    _expect_standing(trial.committer(term=2), committables, CommitStatus.PREPARED, "after a first probe")
    trial.expect_visible((), "after a probe")
    trial.commit(epoch, committables, committer)
    _expect_standing(committer, committables, CommitStatus.COMMITTED, "after the commit")
    _expect_standing(
        trial.committer(term=2), committables, CommitStatus.COMMITTED, "after the commit, for a newer term"
    )
    trial.expect_visible(trial.rows[:3], "after a probe of committed output")


def _discard(trial: SinkHarness) -> None:
    """A writer that is discarded undoes nothing that is prepared."""
    writer, epoch = trial.writer(), epoch_id(1)
    committables = trial.prepare(writer, epoch, 0, 3)
    writer.write(trial.batch(3, 5))
    writer.discard()
    trial.commit(epoch, committables)
    trial.expect_visible(trial.rows[:3], "after a commit that follows discard")


def _staged(trial: SinkHarness) -> None:
    """Check that ``list_staged`` lists this job's output that is neither visible nor aborted, and no other job's."""
    committer, epoch = trial.committer(), epoch_id(1)
    trial.expect_staged(committer, False, "before anything is written")
    committables = trial.prepare(trial.writer(), epoch, 0, 3)
    trial.expect_staged(committer, True, "after the pre-commit")
    expect(not committer.list_staged(trial.context(1, f"{trial.job}-2")), "staged lists another job's output")
    trial.commit(epoch, committables, committer)
    trial.expect_staged(trial.committer(2), False, "after the commit")
    trial.prepare(trial.writer(2, first=2), epoch_id(2, 2), 3, 5)
    trial.expect_staged(trial.committer(3), True, "after the pre-commit of a later term")
    trial.committer(3).abort_leftovers(trial.context(3))
    trial.expect_staged(trial.committer(3), False, "after abort_leftovers")


# ---------------------------------------------------------------- several epochs and writers


def _siblings(trial: SinkHarness) -> None:
    """Two operators and two subtasks write the same epoch; together they make each row visible once."""
    epoch, services = epoch_id(1), Services()
    writers = [
        trial.writer(operator="out", services=services),
        trial.writer(operator="out-2", services=services),
        trial.writer(operator="out", subtask=1),
    ]
    for n, writer in enumerate(writers):
        writer.write(trial.batch(2 * n, 2 * n + 2))
    parts = [writer.seal(epoch) for writer in writers]
    committables = through_json(each for part in parts for each in part())
    expect(sum(c.records for c in committables) == 6, f"committables must count 6 records: {committables}")
    trial.expect_visible((), "before the commit of three writers")
    trial.commit(epoch, committables)
    trial.expect_visible(trial.rows[:6], "after the commit of three writers", any_order=True)


def _late_notice(trial: SinkHarness) -> None:
    """A commit notice that comes late, or twice, frees nothing that later epochs use."""
    write, seal, prepare, abort, notify = WriteStep(), SealStep(), PrepareStep(), AbortStep(), NotifyStep()
    two_prepared = [write, seal, write, prepare, seal, prepare]
    one_aborted = [CommitStep(), write, seal, prepare, notify, abort]
    more_aborted = [write, seal, prepare, abort] * 3
    many_prepared = [write, seal, prepare, write, NotifyStep(again=True), CommitStep(), CommitStep(newest_first=True)]
    still_open = [notify, notify, seal, prepare, CommitStep()]
    run_steps(trial, [0], [*two_prepared, *one_aborted, *more_aborted, *many_prepared, *still_open])


def _aborted_epochs(trial: SinkHarness) -> None:
    """Output of aborted epochs is committed with the next one, in any order, and rows stay in the order of writing."""
    (w0, w1, w2), (s0, s1, s2) = [WriteStep(n) for n in range(3)], [SealStep(n) for n in range(3)]
    p0, p1, abort = PrepareStep(0), PrepareStep(1), AbortStep()
    late_writers, late_worker = [w0, s0, w1, w2, abort], [w1, w2, s2, s1, w2, s0, p1, abort]
    whole = [w0, w1, w2, s0, s1, s2, p0, p1, CommitStep(newest_first=True), NotifyStep()]
    run_steps(trial, [0, 0, 1], [*late_writers, *late_worker, *whole])


# ---------------------------------------------------------------- recovery


def _recovery(trial: SinkHarness) -> None:
    """A newer term commits all that the newest manifest names, wherever the older one died, and aborts the rest."""
    write, seal, prepare, abort = WriteStep(), SealStep(), PrepareStep(), AbortStep()
    committed_before = [write, seal, prepare, CommitStep(), NotifyStep()]
    aborted, decided = [write, seal, prepare, abort, write, seal, abort], [write, seal, prepare]
    ahead = [write, seal, prepare, abort, write, seal, write]
    died = [CommitStep(newest_first=True, dies_after=1), RestartStep(), WakeStep()]
    once_more = [write, seal, prepare, CommitStep(), CommitAgainStep(1), CommitAgainStep(2), RestartStep(killed=False)]
    run_steps(trial, [0], [*committed_before, *aborted, *decided, *ahead, *died, *once_more])


def _schedules(trial: SinkHarness) -> None:
    """Run random schedules: readers see the committed rows once and in order, whatever happens to epochs and terms."""
    run_seed(trial, trial.seed)


def _writer_killed(trial: SinkHarness) -> None:
    """Output of several epochs survives a SIGKILL of the process that prepared it; another process commits it."""
    aborted, decided, ahead = prepare_and_die(trial, 1, [(0, 2), (2, 5), (5, 7)])
    trial.expect_visible((), "after the writer's process was killed")
    committer = trial.committer(2)
    _expect_standing(committer, [*aborted, *decided], CommitStatus.PREPARED, "after the writer's process was killed")
    trial.commit(epoch_id(2), [*aborted, *decided], committer)
    committer.abort_leftovers(trial.context(2))
    trial.expect_visible(trial.rows[:5], "after a newer term committed what the killed process prepared")
    _expect_standing(committer, ahead, CommitStatus.LOST, "after abort_leftovers, of an epoch that was not decided")


def _leftovers(trial: SinkHarness) -> None:
    """abort_leftovers removes what older terms prepared or left open, and keeps what is committed."""
    writer, committer = trial.writer(), trial.committer()
    kept = trial.prepare(writer, epoch_id(1), 0, 2)
    trial.commit(epoch_id(1), kept)
    writer.notify_committed(epoch_id(1))
    leftovers = trial.prepare(writer, epoch_id(2), 2, 4)
    permit = trial.permit(epoch_id(2), committer, leftovers)
    writer.write(trial.batch(4, 6))
    names = trial.committer(2).abort_leftovers(trial.context(2))
    expect(bool(names), "abort_leftovers removed output of an older term and must return its name")
    _expect_gone(trial, permit, leftovers, (CommitStatus.LOST,), "after abort_leftovers")
    trial.committer(3).abort_leftovers(trial.context(3))
    _expect_standing(trial.committer(3), kept, CommitStatus.COMMITTED, "after abort_leftovers")
    trial.expect_visible(trial.rows[:2], "after abort_leftovers")


def _own_term(trial: SinkHarness) -> None:
    """abort_leftovers spares the term that calls it."""
    committables = trial.prepare(trial.writer(2), epoch_id(1, 2), 0, 2)
    trial.committer(2).abort_leftovers(trial.context(2))
    _expect_standing(trial.committer(2), committables, CommitStatus.PREPARED, "after abort_leftovers of the same term")
    trial.commit(epoch_id(1, 2), committables, trial.committer(2))
    trial.expect_visible(trial.rows[:2], "after abort_leftovers and a commit of the same term")


def _other_jobs(trial: SinkHarness) -> None:
    """Check that abort_leftovers spares other jobs, even one whose name begins with this job's name."""
    others = [f"{trial.job}-2", f"{trial.job}-1-1-0-out", f"{trial.job}2"]
    prepared = [trial.prepare(trial.writer(job=job), epoch_id(1), 2 * n, 2 * n + 2) for n, job in enumerate(others)]
    trial.prepare(trial.writer(), epoch_id(1), 6, 8)
    trial.committer(9).abort_leftovers(trial.context(9))
    for job, committables in zip(others, prepared, strict=True):
        _expect_owner(trial, committables, job, None)
        _expect_standing(
            trial.committer(job=job), committables, CommitStatus.PREPARED, f"abort_leftovers hit job {job}"
        )
        trial.commit(epoch_id(1), committables, trial.committer(job=job))
    trial.expect_visible(trial.rows[:6], "after the other jobs committed", any_order=True)


def _other_incarnations(trial: SinkHarness) -> None:
    """Check that ``abort_leftovers`` spares other incarnations of this job's name, started in other directories."""
    own, other = JobIdentity.new(), JobIdentity.new()
    kept = [trial.prepare(trial.writer(identity=of), epoch_id(1), n, n + 2) for n, of in ((0, other), (2, None))]
    trial.prepare(trial.writer(identity=own), epoch_id(1), 6, 8)
    trial.committer(9).abort_leftovers(trial.context(9, identity=own))
    for identity, committables in zip((other, None), kept, strict=True):
        _expect_owner(trial, committables, trial.job, identity)
        _expect_standing(
            trial.committer(), committables, CommitStatus.PREPARED, f"abort_leftovers affected incarnation {identity}"
        )
        trial.commit(epoch_id(1), committables)
    trial.expect_visible(trial.rows[:4], "after the other incarnations committed", any_order=True)


def _expect_owner(
    trial: SinkHarness, committables: Sequence[Committable], job: str, identity: JobIdentity | None
) -> None:
    """Check that a committer of any job reads the owner of a committable, unless it never does."""
    target = trial.sink().get_committable_target(trial.context(1))
    for owner in filter(None, map(trial.committer().read_owner, committables)):
        found, expected = (owner.job, owner.identity, owner.term.n), (job, identity, 1)
        expect(found == expected, f"read_owner must return job, identity and term of the writer, {expected}: {found}")
        expect(owner.epoch in (None, Epoch(1)), f"read_owner must return epoch 1 or None, not {owner.epoch}")
        expect(
            owner.target in (None, target), f"read_owner must return the target of the sink, {target}: {owner.target}"
        )


def _zombie(trial: SinkHarness) -> None:
    """A writer of an older term makes nothing visible after abort_leftovers, and does not disturb the new term."""
    zombie, known = trial.writer(1), epoch_id(1)
    old = trial.prepare(zombie, known, 0, 2)
    permit = trial.permit(known, trial.committer(), old)
    zombie.write(trial.batch(2, 4))
    trial.committer(2).abort_leftovers(trial.context(2))
    late = _carry_on(trial, zombie, epoch_id(2))
    writer, epoch = trial.writer(2, first=2), epoch_id(2, 2)
    trial.commit(epoch, trial.prepare(writer, epoch, 8, 10), trial.committer(2))
    # The newer term has committed: only a zombie still probes this, so a sink may have forgotten it.
    _expect_gone(trial, permit, old, (CommitStatus.LOST, CommitStatus.UNKNOWN), "for a zombie's output")
    probes = trial.committer(2).probe_all(late)
    expect(
        all(probe.status in (CommitStatus.LOST, CommitStatus.UNKNOWN) for probe in probes),
        f"output that was open when abort_leftovers ran must not be committable afterwards: {probes}",
    )
    trial.expect_visible(trial.rows[8:10], "after a zombie wrote more rows")


def _carry_on(trial: SinkHarness, zombie: Writer[Any], epoch: EpochId) -> Sequence[Committable]:
    """Let the zombie finish its epoch; the sink may fence it at any point."""
    try:
        zombie.write(trial.batch(4, 6))
        return through_json(zombie.seal(epoch)())
    except KafkaEosError:
        return ()


def _visible_output_removed(trial: SinkHarness) -> None:
    """Committed output that its readers took away is not lost: a probe says COMMITTED, or UNKNOWN if it cannot tell."""
    if trial.target.remove_visible is None:
        raise ContractBroken("this check needs SinkUnderTest.take_away, which removes output as a reader does")
    writer, epoch = trial.writer(), epoch_id(1)
    committables = trial.prepare(writer, epoch, 0, 3)
    permit = trial.permit(epoch, trial.committer(), committables)
    trial.committer().commit_all(permit, committables)
    trial.expect_visible(trial.rows[:3], "after the commit")
    trial.target.remove_visible()
    for moment in ("after it was taken away", "after abort_leftovers of a newer term"):
        _expect_not_lost(trial.committer(2), committables, moment)
        _commit_taken(trial, permit, committables, moment)
        trial.committer(2).abort_leftovers(trial.context(2))
    trial.expect_visible((), "after a commit was repeated for output that its readers took away")


def _commit_taken(trial: SinkHarness, permit: CommitPermit, committables: Sequence[Committable], when: str) -> None:
    """A repeated commit finds that it was done, or stops because it cannot tell."""
    for some in calls(trial.committer(2), committables):
        try:
            outcomes = trial.committer(2).commit_all(permit, some)
        except CommittableLost:
            continue
        for outcome in outcomes:
            expect(outcome is CommitOutcome.ALREADY, f"{when}: a repeated commit must return ALREADY, not {outcome}")


# ---------------------------------------------------------------- expectations


def _expect_standing(
    committer: Committer, committables: Sequence[Committable], expected: CommitStatus, when: str
) -> None:
    for probe in committer.probe_all(committables):
        expect(probe.status is expected, f"{when}: a probe must return {expected}, not {probe}")


def _expect_not_lost(committer: Committer, committables: Sequence[Committable], when: str) -> None:
    for probe in committer.probe_all(committables):
        expect(
            probe.status in (CommitStatus.COMMITTED, CommitStatus.UNKNOWN),
            f"{when}: a probe of committed output must return COMMITTED, or UNKNOWN if the outcome is "
            f"unknown, not {probe}",
        )


def _expect_gone(
    trial: SinkHarness,
    permit: CommitPermit,
    committables: Sequence[Committable],
    allowed: Sequence[CommitStatus],
    when: str,
) -> None:
    """Check that removed output is reported as gone, by the probe or by the commit, and never as committable."""
    names = " or ".join(str(status) for status in allowed)
    for probe in trial.committer(2).probe_all(committables):
        expect(probe.status in allowed, f"{when}: a probe must return {names}, not {probe}")
    for some in calls(trial.committer(2), committables):
        try:
            outcomes = trial.committer(2).commit_all(permit, some)
        except CommittableLost:
            continue
        raise ContractBroken(f"{when}: a commit of lost output must raise CommittableLost, but returned {outcomes}")


SINK_CHECKS: Mapping[str, Callable[[SinkHarness], None]] = MappingProxyType(
    {
        "happy-path": _happy_path,
        "empty-epoch": _empty_epoch,
        "invisible-before-commit": _invisible,
        "commit-again": _commit_again,
        "probe": _probe,
        "discard-keeps-prepared": _discard,
        "staged": _staged,
        "siblings": _siblings,
        "late-notice": _late_notice,
        "aborted-epochs": _aborted_epochs,
        "recovery": _recovery,
        "schedules": _schedules,
        "writer-killed": _writer_killed,
        "abort-leftovers": _leftovers,
        "abort-spares-own-term": _own_term,
        "abort-spares-other-jobs": _other_jobs,
        "abort-spares-other-incarnations": _other_incarnations,
        "zombie": _zombie,
        "visible-output-removed": _visible_output_removed,
    }
)
"""Every check by name; for ``pytest.mark.parametrize``."""

_DRAWN: Final = frozenset({"schedules"})
"""Checks that draw their steps from a seed."""

TWO_PROCESSES = frozenset({"writer-killed"})
"""Checks that an in-memory sink cannot pass."""

NEEDS_REMOVAL = frozenset({"visible-output-removed"})
"""Checks that need ``remove_visible``."""
