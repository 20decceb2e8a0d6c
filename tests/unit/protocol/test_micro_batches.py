"""Whose decision Spark's commit of a batch is: by table, and in every interleaving of drivers that take over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

import pytest

from kafka_eos.core.ids import Term
from kafka_eos.protocol.micro_batches import (
    BatchDecision,
    MicroBatchAttempt,
    MicroBatchStart,
    PreparedBatchFacts,
    StartDecision,
    decide_prepared_batch,
    decide_start,
    find_owner,
    may_be_decided,
)
from tests.marks import campaign

# ---------------------------------------------------------------- by table


@pytest.mark.parametrize(
    ("batch", "decided", "settled", "base", "answer"),
    [
        (0, False, (), None, StartDecision.PREPARE),
        (1, False, (), None, StartDecision.FENCED),  # batch 0 was decided unseen
        (5, False, (), 4, StartDecision.PREPARE),  # adopted
        (5, False, (3, 4), 4, StartDecision.PREPARE),
        (6, False, (3, 4), 4, StartDecision.FENCED),  # batch 5 was decided unseen: the loss that this rule prevents
        (5, True, (3, 4), 4, StartDecision.FENCED),
        (4, True, (3, 4), 4, StartDecision.FENCED),
        (4, False, (3, 4), 4, StartDecision.COMPARE),  # its decision was lost
        (4, False, (3, 4), 2, StartDecision.COMPARE),
        (3, False, (3, 4), 2, StartDecision.COMPARE),
        (2, False, (3, 4), 4, StartDecision.OUTDATED),
        (0, False, (3, 4), None, StartDecision.OUTDATED),  # Spark's part of the checkpoint is gone
        (5, False, (3, 4), None, StartDecision.PREPARE),  # … and the replay has caught up
        (4, False, (), 4, StartDecision.FENCED),
        (0, False, (), 4, StartDecision.FENCED),
    ],
)
def test_what_to_do_with_a_batch_that_begins(
    batch: int, decided: bool, settled: tuple[int, ...], base: int | None, answer: StartDecision
) -> None:
    assert decide_start(MicroBatchStart(batch, decided, settled, base)) is answer


def test_nothing_is_prepared_unless_the_batch_before_is_settled_or_adopted() -> None:
    subsets = [tuple(n for n in range(4) if bits >> n & 1) for bits in range(16)]
    for batch, decided, settled, base in product(range(5), (False, True), subsets, (None, 0, 1, 2, 3)):
        if decide_start(MicroBatchStart(batch, decided, settled, base)) is StartDecision.PREPARE:
            assert not decided
            assert batch - 1 in settled or batch - 1 == base or (batch == 0 and base is None)
            assert all(n < batch for n in settled)


def test_a_driver_commits_its_prepared_batch_only_after_its_own_decision() -> None:
    for decided, reported, over, rivals in product((False, True), repeat=4):
        found = decide_prepared_batch(PreparedBatchFacts(decided, reported, over, rivals))
        if found is BatchDecision.DECIDED_HERE:
            assert reported or (decided and not rivals)
        else:
            assert not reported
            assert found is (
                BatchDecision.WAIT if not over else BatchDecision.UNCLEAR if decided else BatchDecision.UNDECIDED
            )


@pytest.mark.parametrize("over", [False, True])
def test_a_decision_without_a_rival_is_ones_own_whether_or_not_spark_has_said_so(over: bool) -> None:
    assert (
        decide_prepared_batch(PreparedBatchFacts(decided=True, reported=False, spark_ended=over, has_rivals=False))
        is BatchDecision.DECIDED_HERE
    )


@pytest.mark.parametrize(
    ("attempts", "answer"),
    [
        ({1: False}, 1),
        ({1: True}, 1),
        ({1: False, 2: False}, None),
        ({1: True, 2: False}, 1),
        ({1: False, 2: True, 3: False}, 2),
        ({1: True, 2: True}, None),
    ],
)
def test_whose_a_decision_is(attempts: dict[int, bool], answer: int | None) -> None:
    found = find_owner([MicroBatchAttempt(Term(term), visible) for term, visible in attempts.items()])

    assert found == (None if answer is None else Term(answer))


@pytest.mark.parametrize(
    ("batch", "newest", "settled", "answer"),
    [
        (0, None, (), True),
        (5, 4, (4,), True),  # an earlier driver's Spark may decide it yet
        (5, 5, (4,), True),  # it has, and nobody has made it visible
        (5, 5, (5,), False),
        (5, 4, (4, 5), False),  # its decision was lost
        (4, 5, (), False),  # of a batch before one that was adopted
    ],
)
def test_a_batch_that_may_still_be_decided_stays_prepared(
    batch: int, newest: int | None, settled: tuple[int, ...], answer: bool
) -> None:
    assert may_be_decided(batch, newest, settled) is answer


# ---------------------------------------------------------------- every interleaving

NONE = -1
"""No batch."""


@dataclass(frozen=True, order=True)
class Driver:
    """``step``: what it does next; ``spark``: where its Spark is with the batch that was handed over."""

    step: str = "claim"
    term: int = 0
    batch: int = 0
    base: int = NONE
    watched: int = NONE
    target: tuple[int, int] = (0, 0)
    then: str = ""
    seen: frozenset[tuple[int, int]] = frozenset()
    receipts: frozenset[int] = frozenset()
    spark: str = "idle"
    """"deciding" from the return of foreachBatch until its Spark has "decided", or is "over" without a decision."""


@dataclass(frozen=True)
class World:
    """``commits``: batch to the term that really wrote it, which no driver can read."""

    drivers: tuple[Driver, ...]
    batches: int
    claimed: int = 0
    commits: tuple[int, ...] = ()
    published: frozenset[tuple[int, int]] = frozenset()
    prepared: frozenset[tuple[int, int]] = frozenset()
    visible: frozenset[tuple[int, int]] = frozenset()
    receipts: frozenset[int] = frozenset()

    def attempts(self, batch: int) -> list[MicroBatchAttempt]:
        return [MicroBatchAttempt(Term(t), (b, t) in self.visible) for b, t in sorted(self.published) if b == batch]


def moves(world: World, at: int) -> Iterator[World]:
    """What may happen next in one driver: a step of its own, a step of its Spark, or its end."""
    d = world.drivers[at]

    def to(driver: Driver, **changed: object) -> World:
        others = [*world.drivers[:at], *world.drivers[at + 1 :]]
        drivers = tuple(sorted([driver, *others], key=repr))  # who is who makes no difference
        return replace(world, drivers=drivers, **changed)  # type: ignore[arg-type]

    if d.spark == "deciding":
        if d.batch == len(world.commits):
            yield to(replace(d, spark="decided"), commits=(*world.commits, d.term))
        yield to(replace(d, spark="over"))  # the name is taken, or the query ends for another reason
    if d.step == "stopped":
        return
    yield to(replace(d, step="stopped"))  # killed; its JVM may live a little longer
    if d.step in ("begin", "prepare", "look again"):
        yield to(replace(d, step="leave"))  # its Spark ends and decides nothing any more: stopped, or a task has failed
    if (change := STEPS[d.step](world, d)) is not None:
        driver, changed = change
        yield to(driver, **changed)


Change: TypeAlias = tuple[Driver, dict[str, object]]
"""What a driver is after one step, and what that changes in its world."""


def _stops(d: Driver) -> Change:
    return replace(d, step="stopped"), {}


def _claim(world: World, d: Driver) -> Change:
    return replace(d, step="look", term=world.claimed + 1), {"claimed": world.claimed + 1}


def _look(world: World, d: Driver) -> Change:
    return replace(d, step="newest", seen=world.published, receipts=world.receipts), {}


def _newest(world: World, d: Driver) -> Change:
    newest = len(world.commits) - 1
    unsettled = newest != NONE and newest not in d.receipts
    return replace(d, base=newest, step="settle" if unsettled else "abort", then="abort"), {}


def _settle(world: World, d: Driver) -> Change:
    """The attempts are read anew; the names are those of the look."""
    batch = d.base if d.then == "abort" else d.watched
    chosen = find_owner([a for a in world.attempts(batch) if (batch, a.term.n) in d.seen])
    return _stops(d) if chosen is None else (replace(d, step="check", target=(batch, chosen.n)), {})


def _check(world: World, d: Driver) -> Change:
    return _stops(d) if world.claimed > d.term else (replace(d, step="commit"), {})


def _commit(world: World, d: Driver) -> Change:
    done = replace(d, step="receipt")
    if d.target in world.visible:
        return done, {}
    if d.target not in world.prepared:
        return _stops(d)  # CommittableLost
    return done, {"visible": world.visible | {d.target}, "prepared": world.prepared - {d.target}}


def _receipt(world: World, d: Driver) -> Change:
    done = {d.target[0]}
    settled = replace(d, step=d.then, receipts=d.receipts | done)
    changed: dict[str, object] = {"receipts": world.receipts | done}
    if d.then == "begin":
        settled = replace(settled, base=d.watched, watched=NONE)
        changed["prepared"] = _without_aborted(world, d, frozenset())
    return settled, changed


def _abort(world: World, d: Driver) -> Change:
    kept = _kept(world, d, d.base)
    left = {p for p in world.prepared if p[1] >= d.term or p in kept}
    watched = max((b for b, _ in kept), default=NONE)
    return replace(d, step="start", watched=watched), {"prepared": frozenset(left)}


def _kept(world: World, d: Driver, newest: int) -> frozenset[tuple[int, int]]:
    """Attempts that the driver leaves prepared: those whose records it has seen and that still exist."""
    last = None if newest == NONE else newest
    return frozenset(p for p in d.seen & world.published if may_be_decided(p[0], last, d.receipts))


def _without_aborted(world: World, d: Driver, kept: frozenset[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    """What is left when the driver aborts all others than those ``kept``. It leaves later terms alone."""
    return frozenset(p for p in world.prepared if p[1] > d.term or p in kept)


def _start(world: World, d: Driver) -> Change:
    """Spark reads its commits."""
    return replace(d, step="begin", batch=len(world.commits)), {}


def _begin(world: World, d: Driver) -> Change | None:
    if d.batch >= world.batches:
        return None
    if NONE < d.watched < len(world.commits):
        return replace(d, step="settle", then="begin"), {}
    facts = MicroBatchStart(d.batch, d.batch < len(world.commits), d.receipts, None if d.base == NONE else d.base)
    going = decide_start(facts) is StartDecision.PREPARE
    return replace(d, step="prepare" if going else "stopped", watched=NONE), {}


def _prepare(world: World, d: Driver) -> Change:
    return replace(d, step="look again"), {"prepared": world.prepared | {(d.batch, d.term)}}


def _look_again(world: World, d: Driver) -> Change:
    return _stops(d) if d.batch < len(world.commits) else (replace(d, step="publish"), {})


def _publish(world: World, d: Driver) -> Change:
    return replace(d, step="check published"), {"published": world.published | {(d.batch, d.term)}}


def _check_published(world: World, d: Driver) -> Change:
    if world.claimed > d.term:
        return _stops(d)[0], {"published": world.published - {(d.batch, d.term)}}
    return replace(d, step="wait", spark="deciding"), {}


def _wait(world: World, d: Driver) -> Change | None:
    rivals = any(b == d.batch and t != d.term for b, t in d.seen)
    decided = d.batch < len(world.commits)
    match decide_prepared_batch(PreparedBatchFacts(decided, d.spark == "decided", d.spark == "over", rivals)):
        case BatchDecision.DECIDED_HERE:
            return replace(d, step="check", target=(d.batch, d.term), then="abort others"), {}
        case BatchDecision.UNDECIDED:
            return replace(d, step="leave"), {"published": world.published - {(d.batch, d.term)}}
        case BatchDecision.UNCLEAR:
            return _stops(d)
    return None


def _abort_others(world: World, d: Driver) -> Change:
    return replace(d, step="next"), {"prepared": _without_aborted(world, d, frozenset({(d.batch, d.term)}))}


def _next(world: World, d: Driver) -> Change | None:
    """Spark goes on once it has decided."""
    return (replace(d, step="begin", batch=d.batch + 1, spark="idle"), {}) if d.spark == "decided" else None


def _leave(world: World, d: Driver) -> Change:
    """Its Spark has ended: it looks at its term, at the newest decision, and then aborts."""
    return _stops(d) if world.claimed > d.term else (replace(d, step="look before leaving"), {})


def _look_before_leaving(world: World, d: Driver) -> Change:
    return replace(d, step="abort and leave", base=len(world.commits) - 1), {}


def _abort_and_leave(world: World, d: Driver) -> Change:
    return _stops(d)[0], {"prepared": _without_aborted(world, d, _kept(world, d, d.base))}


STEPS: dict[str, Callable[[World, Driver], Change | None]] = {
    "claim": _claim,
    "look": _look,
    "newest": _newest,
    "settle": _settle,
    "check": _check,
    "commit": _commit,
    "receipt": _receipt,
    "abort": _abort,
    "start": _start,
    "begin": _begin,
    "prepare": _prepare,
    "look again": _look_again,
    "publish": _publish,
    "check published": _check_published,
    "wait": _wait,
    "abort others": _abort_others,
    "next": _next,
    "leave": _leave,
    "look before leaving": _look_before_leaving,
    "abort and leave": _abort_and_leave,
}
"""What a driver does at each step; None if there is nothing to do now."""


def invariant(world: World) -> None:
    for batch, term in world.visible:
        assert world.commits[batch] == term, "an attempt is visible that was not the one decided"
    for attempt in enumerate(world.commits):
        assert attempt in world.visible | world.prepared, f"output of batch {attempt[0]} is decided, and was aborted"
    for batch in range(len(world.commits) - 1):
        assert batch in world.receipts, f"batch {batch + 1} is decided, and batch {batch} is not visible"
    for batch in world.receipts:
        assert any(b == batch for b, _ in world.visible)


@pytest.mark.parametrize(("drivers", "batches"), [(1, 4), (2, 2), campaign(3, 1)])
def test_no_interleaving_loses_a_batch_or_shows_another_attempt_than_was_decided(drivers: int, batches: int) -> None:
    """Every driver may be killed or paused anywhere, and its Spark may decide after that."""
    first = World((Driver(),) * drivers, batches)
    seen, left, finished = {first}, [first], 0
    while left:
        world = left.pop()
        invariant(world)
        finished += len(world.receipts) == batches
        for at in range(drivers):
            for after in moves(world, at):
                if after not in seen:
                    seen.add(after)
                    left.append(after)

    assert finished, "no run came to its end: nothing was explored"
