"""Splits that are too far ahead are left out of an epoch on Spark: drift is bounded, and all is read."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_eos import Pipeline, monotonic
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.plan import Plan
from kafka_eos.runtime.epoch_reports import EpochContents
from kafka_eos.spark.epoch_job import EpochResult
from kafka_eos.spark.watermark_alignment import SparkWatermarkAlignment
from kafka_eos.testing import ListSource, MemorySink

SPLITS = st.lists(st.lists(st.integers(0, 200), max_size=20).map(sorted), min_size=1, max_size=5)


def plan(drift: int) -> Plan:
    pipeline = Pipeline("p")
    strategy = monotonic().with_alignment(max_drift=drift / 1000)
    timed = pipeline.source(ListSource([]), name="in").with_timestamps(watermarks=strategy, name="times")
    timed.sink(MemorySink(), name="out")
    return pipeline.plan()


def _result(acked: EpochContents, unread: frozenset[SplitId]) -> EpochResult:
    return EpochResult(
        acked,
        {"in": unread},
        records_in={},
        records_out={},
        lag=None,
        wake=None,
        seconds={},
        retried=False,
        operators={},
        spans=(),
    )


class Epochs:
    """What a driver knows of one source. A position is the number of rows read."""

    def __init__(self, splits: list[list[int]], drift: int) -> None:
        self.splits = {SplitId(f"in/{n}"): times for n, times in enumerate(splits)}
        self.at = dict.fromkeys(self.splits, 0)
        self.drift = SparkWatermarkAlignment(plan(drift).watermark_alignments)

    @property
    def left(self) -> list[SplitId]:
        return [split for split, times in self.splits.items() if self.at[split] < len(times)]

    def time(self, split: SplitId) -> int | None:
        return self.splits[split][self.at[split] - 1] - 1 if self.at[split] else None

    def waiting(self) -> set[SplitId]:
        return set(self.drift.find_paused_splits({"in": self._positions(self.at)}, {"in": self._ends()})["in"])

    def epoch(self, waiting: set[SplitId], most: dict[SplitId, int]) -> None:
        """One epoch, in which so many rows are read at most of the splits that do not wait."""
        ends = {split: end for split, end in self._ends().items() if split not in waiting}
        ends.update({split: at for split, at in self._positions(self.at).items() if split in waiting})
        before = {"in": self._positions(self.at)}
        for split, times in self.splits.items():
            if split not in waiting:
                self.at[split] = min(self.at[split] + most.get(split, len(times)), len(times))
        unread = frozenset(split for split in self.splits if self.at[split] != ends[split]["index"])
        times = {str(split): time for split in self.splits if (time := self.time(split)) is not None}
        acked = EpochContents({"in": self._positions(self.at)}, (), (), watermarks={"times": times})
        self.drift.record_epoch(before, _result(acked, unread), {"in": ends})

    def _ends(self) -> Positions:
        return {split: {"index": len(times), "begin": len(times)} for split, times in self.splits.items()}

    @staticmethod
    def _positions(at: dict[SplitId, int]) -> Positions:
        """As those of Kafka: one behind the last row is not the end that was told."""
        return {split: {"index": index, "begin": 0} for split, index in at.items()}


def test_the_first_epoch_of_a_term_reads_nothing_since_nobody_has_told_what_was_restored() -> None:
    epochs = Epochs([[0, 1], [1000]], 60)

    assert epochs.waiting() == {"in/0", "in/1"}


def test_a_split_that_is_too_far_ahead_waits_until_the_slow_one_has_nothing_more() -> None:
    epochs = Epochs([[0, 10, 20], [1000, 1001]], 60)
    epochs.epoch(epochs.waiting(), {})
    assert epochs.waiting() == set(), "of none of them anything is known"

    epochs.epoch(set(), {SplitId("in/0"): 1, SplitId("in/1"): 1})
    assert epochs.waiting() == {"in/1"}
    epochs.epoch({SplitId("in/1")}, {SplitId("in/0"): 1})
    assert epochs.waiting() == {"in/1"}
    epochs.epoch({SplitId("in/1")}, {})
    assert epochs.waiting() == set()


def test_a_split_of_which_more_has_come_is_waited_for_again() -> None:
    epochs = Epochs([[0], [1000, 1001]], 60)
    epochs.epoch(epochs.waiting(), {})
    epochs.epoch(epochs.waiting(), {SplitId("in/1"): 1})
    assert epochs.waiting() == set()

    epochs.splits[SplitId("in/0")].append(1)
    assert epochs.waiting() == {"in/1"}


def test_a_split_whose_rows_do_not_move_its_time_is_not_waited_for() -> None:
    """More of it has come at each look: it is never seen at its end, and each epoch reads all of it."""
    epochs = Epochs([[5], [1000, 1001, 1002]], 60)
    slow, fast = SplitId("in/0"), SplitId("in/1")
    epochs.epoch(epochs.waiting(), {})
    epochs.epoch(epochs.waiting(), {fast: 1})
    for more, waiting in (([6, 7, 7], {fast}), ([7], {fast}), ([7, 7], set()), ([7], set())):
        epochs.splits[slow].extend(more)
        assert epochs.waiting() == waiting
        assert epochs.drift.is_holding_back == bool(waiting)
        epochs.epoch(epochs.waiting(), {fast: 0})

    epochs.splits[slow].extend([7, 7, 7])
    epochs.epoch(epochs.waiting(), {fast: 0, slow: 1})
    assert epochs.waiting() == {fast}, "there is more of the slow one that may move its time"


def test_a_split_that_is_ahead_and_read_to_its_end_holds_nothing_back() -> None:
    epochs = Epochs([[0, 1, 2], [1000]], 60)
    epochs.epoch(epochs.waiting(), {})
    for _ in range(2):
        epochs.epoch(epochs.waiting(), {SplitId("in/0"): 1})
        assert epochs.waiting() == {"in/1"}
        assert not epochs.drift.is_holding_back

    epochs.splits[SplitId("in/1")].append(1001)
    assert epochs.waiting() == {"in/1"}
    assert epochs.drift.is_holding_back


@settings(deadline=None)
@given(SPLITS, st.integers(0, 50), st.integers(1, 5), st.randoms())
def test_all_is_read_and_none_is_ahead_by_more_than_it_may_and_what_an_epoch_reads(
    splits: list[list[int]], drift: int, most: int, chance: random.Random
) -> None:
    epochs = Epochs(splits, drift)
    epochs.epoch(epochs.waiting(), {})
    for _ in range(1000):
        if not epochs.left:
            break
        waiting = epochs.waiting()
        known = {split: epochs.time(split) for split in epochs.splits}
        slow = min((-(10**9) if (at := known[split]) is None else at for split in epochs.left), default=0)
        for split, time in known.items():
            assert split in waiting or time is None or split not in epochs.left or time <= slow + drift
        readable = [split for split in epochs.left if split not in waiting]
        assert readable, "nothing is read any more"
        reads = {split: chance.randrange(most + 1) for split in readable}
        reads[chance.choice(readable)] = 1
        epochs.epoch(waiting, reads)
    assert not epochs.left


def test_nobody_waits_for_a_source_that_is_read_later() -> None:
    """Else files would wait for a topic that waits for them."""
    epochs = Epochs([[10, 20, 30], []], drift=5)
    epochs.epoch(set(epochs.splits), {})
    epochs.epoch(set(), {SplitId("in/0"): 1})
    positions, ends = {"in": epochs._positions(epochs.at)}, {"in": epochs._ends() | {SplitId("in/1"): {"index": 9}}}

    assert epochs.drift.find_paused_splits(positions, ends)["in"] == ["in/0"]
    assert not epochs.drift.find_paused_splits(positions, ends, {"in"})["in"]
