"""The decision to commit, revoke or stop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.abc.committer import CommitStatus, Probe
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol.commit import CommitAuthorized, EpochRevoked, EpochStuck, authorize

E7 = EpochId(Epoch(7), Term(3))
PREPARED = Probe(CommitStatus.PREPARED, "t1")
COMMITTED = Probe(CommitStatus.COMMITTED, "t2")
LOST = Probe(CommitStatus.LOST, "t3")
UNKNOWN = Probe(CommitStatus.UNKNOWN, "t5")
URGENT = Probe(CommitStatus.PREPARED, "t4", expires_in=2.0)


def test_an_epoch_without_output_is_committed_at_once() -> None:
    decision = authorize(E7, [], margin=10)

    assert isinstance(decision, CommitAuthorized) and decision.order == ()


def test_what_expires_first_is_committed_first() -> None:
    decision = authorize(E7, [PREPARED, Probe(CommitStatus.PREPARED, "t", 60.0), COMMITTED], margin=10)

    assert isinstance(decision, CommitAuthorized) and decision.order == (1, 0, 2)


def test_one_lost_and_none_committed_goes_back() -> None:
    decision = authorize(E7, [PREPARED, LOST], margin=10)

    assert decision == EpochRevoked(E7, "t3")


def test_one_lost_and_one_committed_stops_and_names_both() -> None:
    decision = authorize(E7, [COMMITTED, LOST], margin=10)

    assert isinstance(decision, EpochStuck) and "t3" in decision.reason and "t2" in decision.reason


@pytest.mark.parametrize("siblings", [[], [PREPARED], [COMMITTED], [LOST], [PREPARED, COMMITTED, LOST]])
def test_one_that_nobody_can_tell_about_stops_whatever_its_siblings_are(siblings: list[Probe]) -> None:
    """To commit could lose its output, to go back could make it visible twice. The reason names all that is known."""
    decision = authorize(E7, [*siblings, UNKNOWN], margin=10)

    assert isinstance(decision, EpochStuck)
    assert decision.reason.startswith("unknown whether this was committed: t5")
    assert all(probe.detail in decision.reason for probe in siblings)


def test_one_that_may_expire_before_its_sibling_is_committed_goes_back() -> None:
    assert isinstance(authorize(E7, [PREPARED, URGENT], margin=10), EpochRevoked)


def test_what_has_time_enough_is_committed() -> None:
    """Less than the margin is too little. What is committed already cannot expire."""
    just = Probe(CommitStatus.PREPARED, "t6", expires_in=10.0)

    assert isinstance(authorize(E7, [PREPARED, just], margin=10), CommitAuthorized)
    assert isinstance(authorize(E7, [just, Probe(CommitStatus.PREPARED, "t7", 9.9)], margin=10), EpochRevoked)


def test_the_reason_to_go_back_names_what_may_expire_and_nothing_else() -> None:
    decision = authorize(E7, [PREPARED, URGENT], margin=10)

    assert decision == EpochRevoked(E7, "too close to the timeout: t4")


def test_the_reason_to_stop_names_each_standing_once() -> None:
    decision = authorize(E7, [PREPARED, UNKNOWN, COMMITTED], margin=10)

    assert decision == EpochStuck(E7, "unknown whether this was committed: t5; prepared: t1; committed: t2")


def test_one_that_may_expire_has_nothing_to_wait_for_when_it_is_alone() -> None:
    assert isinstance(authorize(E7, [URGENT], margin=10), CommitAuthorized)


def test_once_a_sibling_is_committed_the_urgent_one_is_committed_first() -> None:
    decision = authorize(E7, [COMMITTED, URGENT], margin=10)

    assert isinstance(decision, CommitAuthorized) and decision.order == (1, 0)


probes = st.lists(
    st.builds(Probe, st.sampled_from(CommitStatus), st.just("t"), st.sampled_from([0.5, 60.0, float("inf")])),
    max_size=5,
)


@given(probes)
def test_the_decision_never_loses_and_never_doubles(seen: list[Probe]) -> None:
    decision = authorize(E7, seen, margin=10)

    standings = {probe.status for probe in seen}
    if isinstance(decision, CommitAuthorized):
        assert not {CommitStatus.LOST, CommitStatus.UNKNOWN} & standings
        assert sorted(decision.order) == list(range(len(seen)))
    if isinstance(decision, EpochRevoked):
        assert not {CommitStatus.COMMITTED, CommitStatus.UNKNOWN} & standings
    if isinstance(decision, EpochStuck):
        assert CommitStatus.UNKNOWN in standings or {CommitStatus.LOST, CommitStatus.COMMITTED} <= standings
