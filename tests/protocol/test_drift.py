"""Which splits wait for slower ones: those that are too far ahead of the slowest, and never all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.protocol.drift import NOBODY, Slowest, Standing, ahead, slowest
from kafka_eos.records import BEGINNING

STANDINGS = st.dictionaries(
    st.sampled_from("abcdef"), st.builds(Standing, st.one_of(st.just(BEGINNING), st.integers(-50, 50)), st.booleans())
)


def awake(**times: int) -> dict[str, Standing]:
    return {split: Standing(time, False) for split, time in times.items()}


def test_a_split_waits_that_is_further_ahead_than_it_may_be_and_not_one_that_is_as_far() -> None:
    splits = awake(slow=100, near=160, far=161)

    assert slowest(splits, ()) == 100
    assert ahead(splits, 100, 60) == {"far"}


def test_nobody_waits_for_a_split_that_is_idle_or_has_nothing_more() -> None:
    splits = {**awake(done=5, far=161), "idle": Standing(10, True)}

    assert slowest(splits, {"done"}) == 161
    assert ahead(splits, slowest(splits, {"done"}), 60) == set()
    assert slowest(splits, ("done", "far")) == NOBODY
    assert ahead(splits, NOBODY, 60) == set()


def test_while_one_that_is_waited_for_has_told_no_time_only_those_are_read_that_have_told_none() -> None:
    splits = awake(new=BEGINNING, other=BEGINNING, known=-(10**17))

    assert slowest(splits, ()) == BEGINNING
    assert ahead(splits, BEGINNING, 10**18) == {"known"}


@given(STANDINGS, st.sets(st.sampled_from("abcdef")), st.integers(0, 60))
def test_of_splits_that_are_waited_for_one_can_be_read(
    standings: dict[str, Standing], done: set[str], drift: int
) -> None:
    waited_for = {split for split, each in standings.items() if not each.idle and split not in done}

    assert not waited_for or waited_for - ahead(standings, slowest(standings, done), drift)


@given(STANDINGS, st.integers(0, 60))
def test_one_that_is_read_is_ahead_of_none_by_more_than_it_may(standings: dict[str, Standing], drift: int) -> None:
    least = slowest(standings, ())
    read = standings.keys() - ahead(standings, least, drift)

    assert all(standings[split].time <= max(least, BEGINNING) + drift for split in read)


def test_a_subtask_hears_of_the_slowest_of_all_others_when_all_of_them_have_spoken() -> None:
    said = Slowest.of(range(3)).on(0, {"a": 5, "b": 1})
    assert (said.elsewhere(0), said.elsewhere(1), said.elsewhere(2)) == (None, None, None)

    said = said.on(1, {"a": 7, "b": NOBODY})
    assert said.elsewhere(2) == {"a": 5, "b": 1}
    assert said.elsewhere(0) is None

    said = said.on(2, {"a": 6, "b": 2}).on(0, {"a": 9, "b": 1})
    assert said.elsewhere(0) == {"a": 6, "b": 2}
    assert said.elsewhere(1) == {"a": 6, "b": 1}
    assert said.elsewhere(2) == {"a": 7, "b": 1}
