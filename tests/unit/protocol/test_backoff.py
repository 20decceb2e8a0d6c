"""Failures that come soon one after the other wait longer and longer, up to a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.protocol.backoff import Backoff

USUAL = Backoff(initial=1, longest=60, reset=600)


def after(failures: int, backoff: Backoff = USUAL) -> Backoff:
    for _ in range(failures):
        backoff = backoff.record_failure()
    return backoff


def test_the_first_failure_is_answered_at_once_and_then_the_pause_doubles() -> None:
    assert [after(n).pause(0) for n in range(1, 10)] == [0, 1, 2, 4, 8, 16, 32, 60, 60]


def test_chance_takes_a_tenth_away_at_most() -> None:
    assert [after(3).pause(chance) for chance in (0, 0.5, 1)] == [2, 1.9, 1.8]


def test_epochs_of_an_attempt_that_soon_fails_shorten_no_pause() -> None:
    assert after(5).record_commit(599).pause(0) == 8


def test_an_attempt_that_has_run_long_enough_begins_the_count_again() -> None:
    assert after(5).record_commit(600).pause(0) == 0
    assert after(2, after(5).record_commit(600)).pause(0) == 1


def test_without_a_threshold_each_committed_epoch_begins_it_again() -> None:
    assert after(5, Backoff(1, 60, 0)).record_commit(0).record_failure().pause(0) == 0


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_a_job_that_fails_for_days_waits_no_longer_than_the_limit(failures: int, chance: float) -> None:
    assert 0 <= after(0, Backoff(0.05, 60, 600, failures)).pause(chance) <= 60
