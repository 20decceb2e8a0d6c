"""Which splits wait for slower ones: those that are too far ahead of the slowest, and never all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.core.records import MIN_EVENT_TIME
from kafka_eos.protocol.watermark_alignment import (
    NO_SPLIT,
    ROUND,
    AlignmentRounds,
    SlowestSplits,
    SplitProgress,
    find_slowest,
    find_splits_ahead,
)

STANDINGS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.builds(SplitProgress, st.one_of(st.just(MIN_EVENT_TIME), st.integers(-50, 50)), st.booleans()),
)


def awake(**times: int) -> dict[str, SplitProgress]:
    return {split: SplitProgress(time, False) for split, time in times.items()}


def test_a_split_waits_that_is_further_ahead_than_it_may_be_and_not_one_that_is_as_far() -> None:
    splits = awake(slow=100, near=160, far=161)

    assert find_slowest(splits, ()) == 100
    assert find_splits_ahead(splits, 100, 60) == {"far"}


def test_nobody_waits_for_a_split_that_is_idle_or_has_nothing_more() -> None:
    splits = {**awake(done=5, far=161), "idle": SplitProgress(10, True)}

    assert find_slowest(splits, {"done"}) == 161
    assert find_splits_ahead(splits, find_slowest(splits, {"done"}), 60) == set()
    assert find_slowest(splits, ("done", "far")) == NO_SPLIT
    assert find_splits_ahead(splits, NO_SPLIT, 60) == set()


def test_while_one_that_is_waited_for_has_told_no_time_only_those_are_read_that_have_told_none() -> None:
    splits = awake(new=MIN_EVENT_TIME, other=MIN_EVENT_TIME, known=-(10**17))

    assert find_slowest(splits, ()) == MIN_EVENT_TIME
    assert find_splits_ahead(splits, MIN_EVENT_TIME, 10**18) == {"known"}


@given(STANDINGS, st.sets(st.sampled_from("abcdef")), st.integers(0, 60))
def test_of_splits_that_are_waited_for_one_can_be_read(
    standings: dict[str, SplitProgress], done: set[str], drift: int
) -> None:
    waited_for = {split for split, each in standings.items() if not each.idle and split not in done}

    assert not waited_for or waited_for - find_splits_ahead(standings, find_slowest(standings, done), drift)


@given(STANDINGS, st.integers(0, 60))
def test_one_that_is_read_is_ahead_of_none_by_more_than_it_may(standings: dict[str, SplitProgress], drift: int) -> None:
    least = find_slowest(standings, ())
    read = standings.keys() - find_splits_ahead(standings, least, drift)

    assert all(standings[split].time <= max(least, MIN_EVENT_TIME) + drift for split in read)


def test_a_subtask_hears_of_the_slowest_of_all_others_when_all_of_them_have_spoken() -> None:
    said = SlowestSplits.of(range(3)).update(0, {"a": 5, "b": 1})
    assert said.of_others() == {}

    said = said.update(1, {"a": 7, "b": NO_SPLIT})
    assert said.of_others() == {2: {"a": 5, "b": 1}}

    said = said.update(2, {"a": 6, "b": 2}).update(0, {"a": 9, "b": 1})
    assert said.of_others() == {0: {"a": 6, "b": 2}, 1: {"a": 6, "b": 1}, 2: {"a": 7, "b": 1}}


def test_who_is_alone_hears_nothing() -> None:
    assert SlowestSplits.of([0]).update(0, {"a": 5}).of_others() == {}


@given(st.lists(st.fixed_dictionaries({"a": st.integers(0, 3), "b": st.integers(0, 3)}), min_size=2, max_size=5))
def test_what_each_hears_is_the_least_of_all_others(heard: list[dict[str, int]]) -> None:
    said = SlowestSplits.of(range(len(heard)))
    for subtask, each in enumerate(heard):
        said = said.update(subtask, each)

    assert said.of_others() == {
        subtask: {group: min(each[group] for n, each in enumerate(heard) if n != subtask) for group in "ab"}
        for subtask in range(len(heard))
    }


class Heard(dict[str, int]):
    """What was said, and how often somebody looked at it."""

    looks = 0

    def __getitem__(self, group: str) -> int:
        Heard.looks += 1
        return super().__getitem__(group)


def test_a_round_looks_once_at_what_each_has_said() -> None:
    Heard.looks = 0
    rounds = AlignmentRounds(SlowestSplits.of(range(64)))
    for subtask in range(64):
        rounds = rounds.on(subtask, Heard(a=subtask), 10.0)
    _, words = rounds.take_updates(10.0)

    assert (len(words), words[0], words[63]) == (64, {"a": 1}, {"a": 0})
    assert Heard.looks == 64


def test_there_is_one_round_for_all_that_was_said_since_the_last_and_it_is_at_once_after_silence() -> None:
    rounds = AlignmentRounds(SlowestSplits.of(range(2)))
    assert rounds.take_updates(9.0) == (rounds, {})
    rounds, words = rounds.on(0, {"a": 1}, 10.0).on(1, {"a": 2}, 10.0).take_updates(10.0)
    assert words == {0: {"a": 2}, 1: {"a": 1}}
    assert rounds.due == float("inf")

    rounds = rounds.on(0, {"a": 3}, 10.0).on(0, {"a": 4}, 10.01)
    assert rounds.due == 10.0 + ROUND
    assert rounds.take_updates(10.01)[1] == {}
    rounds, words = rounds.take_updates(10.0 + ROUND)
    assert words == {1: {"a": 4}}, "of the other one nothing is new"

    assert rounds.on(1, {"a": 5}, 20.0).take_updates(20.0)[1] == {0: {"a": 5}}
