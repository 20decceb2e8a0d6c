"""The pictures of a report: what is drawn where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.audit.report.chart_axes import Axis, round_step, up_to_a_round_number
from kafka_eos.audit.report.charts import HEIGHT, WIDTH, Bar, partition_bars, timeline

COMMITS = [
    {"event": "recovered", "at": 0, "epoch": 0, "term": 1},
    {"event": "committed", "at": 1_000, "epoch": 1, "term": 1, "records": {"out": 400}},
    {"event": "worker killed", "at": 1_500, "pid": 4},
    {"event": "recovered", "at": 1_600, "epoch": 1, "term": 2},
    {"event": "committed", "at": 2_000, "epoch": 2, "term": 2, "records": {"out": 600}},
]


@given(st.floats(min_value=1e-3, max_value=1e15), st.integers(1, 20))
def test_round_numbers_reach_the_end_and_are_no_finer_than_asked_for(most: float, wanted: int) -> None:
    axis = up_to_a_round_number(most, 100.0, wanted)
    places = [place for place, _ in axis.ticks(wanted)]

    assert axis.most >= most * (1 - 1e-9)
    assert places[0] == 0.0 and places == sorted(places)
    assert 2 <= len(places) <= wanted + 1


@pytest.mark.parametrize(
    ("most", "wanted", "step"), [(9, 10, 1), (38, 10, 5), (1000, 5, 200), (1001, 5, 500), (0.4, 4, 0.1), (0, 5, 1)]
)
def test_steps_are_1_2_or_5_times_a_power_of_ten(most: float, wanted: int, step: float) -> None:
    assert round_step(most, wanted) == pytest.approx(step)


def test_labels_have_as_many_places_as_their_step() -> None:
    assert [label for _, label in Axis(0.4, 10).ticks(4)] == ["0.0", "0.1", "0.2", "0.3", "0.4"]
    assert [label for _, label in Axis(4000, 10).ticks(2)] == ["0", "2\u202f000", "4\u202f000"]
    assert Axis(0, 10).ticks(5) == [(0.0, "0")]


def test_a_life_is_drawn_in_steps_from_commit_to_commit() -> None:
    picture = timeline(COMMITS)

    assert picture is not None
    assert picture.line == f"500.0,{HEIGHT * 0.6} {WIDTH},{HEIGHT * 0.6} {WIDTH},0.0"
    assert picture.commits == [500.0, 1000.0]
    assert [(word, places) for word, _, places in picture.marks] == [("kill", [750.0]), ("restart", [800.0])]
    assert picture.up[0] == (HEIGHT, "0") and picture.up[-1] == (0.0, "1\u202f000")
    assert picture.along[0] == (0.0, "0.0") and picture.along[-1] == (1000.0, "2.0")


def test_a_life_with_one_commit_has_no_picture() -> None:
    assert timeline(COMMITS[:3]) is None
    assert timeline([]) is None


def test_a_job_that_committed_nothing_visible_has_a_flat_line() -> None:
    picture = timeline([{**event, "records": {}} for event in COMMITS])

    assert picture is not None
    assert {point.split(",")[1] for point in picture.line.split()} == {f"{HEIGHT}"}


def test_what_is_aborted_stands_on_top_of_what_is_visible() -> None:
    picture = partition_bars(
        [
            {"role": "input", "partition": 3, "records": 50, "invisible": None},
            {"role": "output", "partition": 0, "records": 60, "invisible": 40},
        ]
    )

    assert picture is not None
    assert [label for _, label in picture.along] == ["3", "0"]
    below, above = HEIGHT * 0.6, HEIGHT * 0.4
    assert picture.bars == [
        Bar("input", 220.0, HEIGHT / 2, HEIGHT / 2),
        Bar("output", 720.0, HEIGHT - below, below),
        Bar("aborted", 720.0, HEIGHT - below - above, above),
    ]


def test_no_partitions_or_too_many_have_no_picture() -> None:
    assert partition_bars([]) is None
    assert partition_bars([{"role": "input", "partition": n, "records": 1} for n in range(65)]) is None


def test_empty_partitions_have_bars_of_no_height() -> None:
    picture = partition_bars([{"role": "input", "partition": 0, "records": 0}])

    assert picture is not None
    assert [bar.height for bar in picture.bars] == [0.0]
