"""How far event time has come: the least of all that is waited for, and never less than before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.core.records import MIN_EVENT_TIME, Watermark
from kafka_eos.protocol.watermarks import STEP, InputWatermarks, SplitWatermarks

TIMES = st.integers(-100, 100)
WATERMARKS = st.builds(Watermark, st.one_of(st.just(MIN_EVENT_TIME), TIMES), st.booleans())


def test_inputs_stand_at_the_least_of_all() -> None:
    inputs = InputWatermarks.of("ab").update("a", Watermark(10))

    assert inputs.watermark == Watermark(MIN_EVENT_TIME)
    assert inputs.update("b", Watermark(7)).watermark == Watermark(7)


def test_an_idle_input_is_not_waited_for() -> None:
    inputs = InputWatermarks.of("ab").update("a", Watermark(10)).update("b", Watermark(MIN_EVENT_TIME, idle=True))

    assert inputs.watermark == Watermark(10)


def test_where_all_are_idle_none_waits_for_another_whichever_was_idle_first() -> None:
    inputs = InputWatermarks.of("ab").update("a", Watermark(10)).update("b", Watermark(3))
    idle = {"a": Watermark(10, idle=True), "b": Watermark(3, idle=True)}

    assert inputs.update("b", idle["b"]).watermark == Watermark(10)
    assert inputs.update("a", idle["a"]).watermark == Watermark(3)
    assert inputs.update("a", idle["a"]).update("b", idle["b"]).watermark == Watermark(10, idle=True)
    assert inputs.update("b", idle["b"]).update("a", idle["a"]).watermark == Watermark(10, idle=True)


def test_an_input_that_comes_back_from_idleness_does_not_take_time_back() -> None:
    inputs = (
        InputWatermarks.of("ab").update("b", Watermark(idle=True)).update("a", Watermark(10)).update("b", Watermark(2))
    )

    assert inputs.watermark == Watermark(10)
    assert inputs.update("a", Watermark(20)).watermark == Watermark(10)


def test_what_has_no_inputs_to_wait_for_is_idle() -> None:
    assert SplitWatermarks(0).advance_to(0.0).watermark == Watermark(MIN_EVENT_TIME, idle=True)


@given(st.lists(st.tuples(st.sampled_from("abc"), WATERMARKS)))
def test_time_behind_inputs_never_goes_back_nor_beyond_any_that_is_waited_for(
    heard: list[tuple[str, Watermark]],
) -> None:
    inputs = InputWatermarks.of("abc")
    highest = dict.fromkeys("abc", MIN_EVENT_TIME)
    for which, watermark in heard:
        before, inputs = inputs, inputs.update(which, watermark)
        highest[which] = max(highest[which], watermark.time)
        awake = [highest[each] for each in "abc" if not inputs.by_input[each].idle]

        assert inputs.time >= before.time
        assert inputs.time == before.time or inputs.time == (min(awake) if awake else max(highest.values()))
        assert inputs.watermark.idle == (not awake)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.just(MIN_EVENT_TIME), TIMES))))
def test_where_none_is_idle_the_order_of_watermarks_does_not_matter(heard: list[tuple[str, int]]) -> None:
    def after(order: list[tuple[str, int]]) -> Watermark:
        inputs = InputWatermarks.of("abc")
        for which, time in order:
            inputs = inputs.update(which, Watermark(time))
        return inputs.watermark

    assert after(heard) == after(sorted(heard)) == after(heard[::-1])


def test_a_split_that_has_brought_nothing_yet_holds_the_others_back() -> None:
    splits = SplitWatermarks(0).add_splits("ab").record_rows({"a": 50}).advance_to(0.0)

    assert splits.watermark == Watermark(MIN_EVENT_TIME)
    assert splits.record_rows({"b": 40}).advance_to(0.1).watermark == Watermark(39)


def test_rows_may_be_out_of_order_by_the_delay() -> None:
    assert SplitWatermarks(30).add_splits("a").record_rows({"a": 100}).advance_to(0.0).watermark == Watermark(69)


def test_an_older_row_changes_nothing() -> None:
    splits = SplitWatermarks(0).add_splits("a").record_rows({"a": 100})

    assert splits.record_rows({"a": 10}).highest == {"a": 100}


def test_a_silent_split_is_idle_after_a_while_and_is_waited_for_again_when_it_speaks() -> None:
    splits = SplitWatermarks(0, idle_after=1.5).add_splits("ab").record_rows({"a": 50, "b": 10}).advance_to(0.0)
    later = splits.record_rows({"a": 60}).advance_to(0.9).record_rows({"a": 70}).advance_to(1.8)

    assert splits.watermark == Watermark(9)
    assert later.watermark == Watermark(69)
    assert later.record_rows({"b": 20, "a": 90}).advance_to(1.9).watermark == Watermark(69)
    assert later.advance_to(2.7).advance_to(3.6).watermark == Watermark(69, idle=True)


def test_where_all_splits_are_silent_none_is_waited_for() -> None:
    """As after a restart, when all begin to be silent at the same moment."""
    splits = SplitWatermarks(5, idle_after=1.0).record_rows({"a": 50, "b": 10}).add_splits("abc").advance_to(0.0)

    assert splits.advance_to(0.5).watermark == Watermark(MIN_EVENT_TIME)
    assert splits.advance_to(1.0).watermark == Watermark(44, idle=True)


def test_a_split_is_idle_when_it_has_been_silent_for_as_long_as_was_said_and_not_before() -> None:
    splits = (
        SplitWatermarks(0, idle_after=0.75).add_splits("ab").advance_to(100.0).record_rows({"b": 50}).advance_to(100.5)
    )
    at_last = splits.record_rows({"b": 60}).advance_to(100.75)

    assert SplitWatermarks(0, idle_after=1.0).add_splits("a").advance_to(0.0).watermark == Watermark(MIN_EVENT_TIME)
    assert splits.watermark == Watermark(MIN_EVENT_TIME)
    assert at_last.watermark == Watermark(59)
    assert SplitWatermarks(0, idle_after=1.0).add_splits("a").advance_to(0.0).advance_to(1.0).watermark == Watermark(
        idle=True
    )


def test_of_a_long_time_between_two_looks_a_second_counts() -> None:
    once = SplitWatermarks(0, idle_after=1.5).add_splits("a").advance_to(0.0).advance_to(60.0)

    assert (once.watermark.idle, once.advance_to(120.0).watermark.idle) == (False, True)


def test_time_goes_on_with_the_clock_in_a_silent_split_from_its_newest_row_on() -> None:
    splits = SplitWatermarks(100, clock_after=2.0).add_splits("ab").record_rows({"a": 5000, "b": 9000}).advance_to(0.0)

    assert splits.advance_to(1.0).advance_to(1.9).watermark == Watermark(4899)
    silent = splits.advance_to(1.0).advance_to(2.0)
    assert silent.watermark == Watermark(6899)
    assert silent.by_split == {"a": 6899, "b": 10_899}
    assert silent.advance_to(3.0).watermark == Watermark(7899)
    assert silent.record_rows({"a": 5500}).advance_to(2.1).watermark == Watermark(6899)
    assert silent.record_rows({"a": 12_000}).advance_to(2.1).watermark == Watermark(10_999)


def test_the_silence_of_a_split_that_waits_begins_anew_when_it_goes_on() -> None:
    splits = (
        SplitWatermarks(0, idle_after=1.5)
        .add_splits("ab")
        .record_rows({"a": 50})
        .advance_to(0.0)
        .record_rows({"b": 9})
        .advance_to(1.0)
    )
    waits = splits.pause("a").record_rows({"b": 20}).advance_to(2.0).record_rows({"b": 49}).advance_to(3.0)
    goes_on = waits.pause("").record_rows({"b": 90}).advance_to(4.0)

    assert splits.pause("").silent_for == splits.silent_for, "for all others it goes on"
    assert waits.advance_to(4.0).advance_to(5.0).silent_for["a"] == 0
    assert (goes_on.watermark, goes_on.record_rows({"b": 90}).advance_to(5.0).watermark) == (
        Watermark(49),
        Watermark(89),
    )
    assert goes_on.pause("a").record_rows({"b": 90}).advance_to(5.0).watermark == Watermark(49)


def test_an_idle_split_that_must_wait_is_waited_for_until_it_is_idle_again() -> None:
    idle = (
        SplitWatermarks(0, idle_after=1.0)
        .add_splits("ab")
        .record_rows({"a": 50, "b": 9})
        .advance_to(0.0)
        .record_rows({"b": 9})
        .advance_to(1.0)
    )

    assert (idle.progress["a"].idle, idle.pause("a").progress["a"].idle) == (True, False)
    assert idle.pause("a").record_rows({"b": 90}).advance_to(1.1).watermark == Watermark(49)


def test_time_that_the_clock_has_taken_a_split_to_stands_while_it_waits_and_as_long_again() -> None:
    silent = (
        SplitWatermarks(0, clock_after=2.0)
        .add_splits("a")
        .record_rows({"a": 5000})
        .advance_to(0.0)
        .advance_to(1.0)
        .advance_to(2.0)
        .advance_to(3.0)
    )
    waits = silent.pause("a").advance_to(4.0).advance_to(5.0)
    goes_on = waits.pause("").advance_to(6.0)

    assert [each.by_split["a"] for each in (silent, waits, goes_on)] == [7999, 7999, 7999]
    assert goes_on.advance_to(7.0).by_split["a"] == 9999
    assert goes_on.record_rows({"a": 8500}).advance_to(7.0).by_split["a"] == 8499


def test_a_split_that_has_never_brought_a_row_is_not_waited_for_when_the_clock_counts() -> None:
    splits = (
        SplitWatermarks(0, clock_after=2.0).add_splits("ab").record_rows({"a": 5000}).advance_to(0.0).advance_to(1.0)
    )

    assert splits.watermark == Watermark()
    assert splits.advance_to(2.0).watermark == Watermark(6999)
    assert SplitWatermarks(0, clock_after=1.0).add_splits("a").advance_to(0.0).advance_to(1.0).watermark == Watermark(
        idle=True
    )


def test_time_in_which_nobody_reads_is_no_silence() -> None:
    splits = SplitWatermarks(0, clock_after=3 * STEP).add_splits("a").record_rows({"a": 5000}).advance_to(0.0)

    assert splits.advance_to(1000.0).advance_to(2000.0).watermark == Watermark(4999)
    assert splits.advance_to(1000.0).advance_to(2000.0).advance_to(3000.0).watermark == Watermark(
        5000 + 3000 * STEP - 1
    )


def test_time_in_which_nobody_reads_makes_nothing_idle() -> None:
    splits = (
        SplitWatermarks(0, idle_after=3 * STEP)
        .add_splits("ab")
        .record_rows({"a": 50})
        .advance_to(0.0)
        .record_rows({"a": 60})
    )

    assert splits.advance_to(1000 * STEP).watermark == Watermark(MIN_EVENT_TIME)


def test_without_idleness_a_silent_split_is_waited_for_for_ever() -> None:
    splits = SplitWatermarks(0).add_splits("ab").record_rows({"a": 50})
    for now in range(1000):
        splits = splits.advance_to(float(now))

    assert splits.watermark == Watermark(MIN_EVENT_TIME)


def test_a_split_that_is_over_holds_nobody_back() -> None:
    splits = SplitWatermarks(0).add_splits("ab").record_rows({"a": 50, "b": 90}).advance_to(0.0)

    assert splits.ignore("a").advance_to(1.0).watermark == Watermark(89)
    assert splits.ignore("ab").advance_to(1.0).watermark == Watermark(89, idle=True), "and where all are, none waits"


def test_a_split_whose_turn_has_not_come_is_waited_for_when_it_has() -> None:
    splits = SplitWatermarks(0, idle_after=1.0).add_splits("ab").ignore("b").record_rows({"a": 50}).advance_to(0.0)
    assert splits.watermark == Watermark(49)

    begun = splits.advance_to(5.0).advance_to(6.0).ignore("a").advance_to(6.5)

    assert begun.watermark == Watermark(49), "its silence begins with its turn"
    assert begun.record_rows({"b": 70}).advance_to(6.6).watermark == Watermark(69)


def test_a_split_that_is_found_later_does_not_take_time_back() -> None:
    splits = SplitWatermarks(0).add_splits("a").record_rows({"a": 50}).advance_to(0.0).add_splits("b").advance_to(0.1)

    assert splits.watermark == Watermark(49)


ROWS = st.lists(st.tuples(st.sampled_from("abc"), TIMES, st.floats(0, 2)))


SILENCE = st.sampled_from([None, 1.0])


@given(ROWS, st.sampled_from([0, 7]), SILENCE, SILENCE)
def test_time_at_a_source_never_goes_back(
    rows: list[tuple[str, int, float]], delay: int, idle: float | None, clock: float | None
) -> None:
    splits, now = SplitWatermarks(delay, idle, clock).add_splits("abc"), 0.0
    for split, time, passed in rows:
        before, now = splits.time, now + passed
        splits = splits.record_rows({split: time}).advance_to(now)

        assert splits.time >= before


@given(ROWS, st.sampled_from([0, 7]))
def test_no_row_within_the_delay_of_its_split_is_late(rows: list[tuple[str, int, float]], delay: int) -> None:
    splits, newest = SplitWatermarks(delay).add_splits("abc"), dict[str, int]()
    for split, time, _ in rows:
        in_order = time >= newest.get(split, time) - delay
        assert not in_order or time > splits.time
        newest[split] = max(newest.get(split, time), time)
        splits = splits.record_rows({split: time}).advance_to(0.0)


@given(ROWS)
def test_what_a_checkpoint_keeps_is_enough_to_go_on_from(rows: list[tuple[str, int, float]]) -> None:
    splits = SplitWatermarks(5).add_splits("abc")
    for split, time, _ in rows:
        splits = splits.record_rows({split: time}).advance_to(0.0)
    restored = SplitWatermarks(5).record_rows(splits.highest).add_splits("abc").advance_to(0.0)

    assert restored.watermark == splits.advance_to(0.0).watermark
