"""The grammar of provenance: what is formatted can be parsed, and nothing else can."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import (
    Provenance,
    extend_branches,
    find_input_record,
    format_provenance,
    number_outputs,
    parse_provenance,
    prefix,
)
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin

numbers = st.integers(min_value=0, max_value=2**63)
jobs = st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,79}", fullmatch=True)
topics = st.from_regex(r"[a-zA-Z0-9._-]{1,40}", fullmatch=True)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
"""Of files and tables: what a topic cannot be called, these can."""
provenances = st.builds(
    Provenance,
    jobs,
    st.builds(Term, numbers),
    st.builds(Epoch, numbers),
    topics,
    topics | names,
    numbers,
    numbers,
    numbers,
    st.lists(numbers, min_size=1, max_size=3).map(lambda path: "-".join(map(str, path))),
    st.none() | numbers,
)


ORIGIN = ListOrigin("in", "topic", 0, 0, range(10))


@given(provenances)
def test_parse_reads_what_str_wrote(provenance: Provenance) -> None:
    assert parse_provenance(str(provenance)) == provenance


@given(names)
def test_a_text_is_ascii_that_a_header_a_line_of_json_and_a_cell_of_csv_hold_as_it_is(name: str) -> None:
    (text,) = format_provenance(Batch("a", [0], ListOrigin("in", name, 0, 0, "a")), "job", Term(1), Epoch(1))

    assert text.encode("ascii")
    assert not {*text} & {*'",;\\ \t\r\n'}
    assert parse_provenance(text).topic == name


@given(provenances, jobs, numbers, numbers)
def test_identity_does_not_depend_on_the_attempt(provenance: Provenance, job: str, term: int, epoch: int) -> None:
    again = parse_provenance(f"{job}.{term}.{epoch}/{provenance.identity}")

    assert again.identity == provenance.identity
    assert (again.job, again.term, again.epoch) == (job, Term(term), Epoch(epoch))


@given(st.lists(st.integers(0, 5)).map(sorted))
def test_ordinals_count_within_each_row(rows: list[int]) -> None:
    expected = [rows[:i].count(row) for i, row in enumerate(rows)]

    assert number_outputs(Batch(rows, rows, ORIGIN)) == expected


@given(st.lists(st.integers(0, 3)).map(sorted))
def test_a_branch_names_outputs_that_stay_together_as_it_names_those_that_part(rows: list[int]) -> None:
    batch = extend_branches(Batch(rows, rows, ORIGIN), 0)
    twice = [index for index in range(len(rows)) for _ in range(2)]
    together = format_provenance(batch.take(twice), "job", Term(1), Epoch(1))
    parts = [batch.take([i for i in twice if i % 2 == owner]) for owner in range(2)]
    apart = [text for part in parts for text in format_provenance(part, "job", Term(1), Epoch(1))]

    assert sorted(together) == sorted(apart)
    assert len(set(together)) == len(together)


def test_column_names_every_value() -> None:
    batch = Batch(list("abc"), [0, 2, 2], ListOrigin("in", "my.topic_1", 4, 100, "xyz"), lane=5)

    assert format_provenance(batch, "job", Term(3), Epoch(9)) == [
        "job.3.9/in/my.topic_1/4/100/5.0",
        "job.3.9/in/my.topic_1/4/102/5.0",
        "job.3.9/in/my.topic_1/4/102/5.1",
    ]


def test_prefix_is_what_rows_of_a_partition_share() -> None:
    text = "job.1.2/in/topic/3/4/0.0/7"

    assert text.startswith(prefix("job", Term(1), Epoch(2), "in", "topic", 3))
    assert parse_provenance(text) == Provenance("job", Term(1), Epoch(2), "in", "topic", 3, 4, 0, "0", 7)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "job.1/in/t/0/0/0.0",
        "job.1.1/in/t/0/0/0",
        "job.1.1/in/t/0/0/0.0/",
        "job.1.1/in/t/0/-1/0.0",
        "job.1.1/in/a/b/0/0/0.0",
        "job.1.1/in/t/0/0/0.0\n",
        "job.1.1/in/июнь/0/0/0.0",
        'job.1.1/in/"t"/0/0/0.0',
        "job.1.1/in/a%2fb/0/0/0.0",
        "job.1.1/in/%41/0/0/0.0",
        "job.1.1/in/%FF/0/0/0.0",
        "job.1.1/in/50%/0/0/0.0",
        "job.\u0661.1/in/t/0/0/0.0",
        "1.1/in/t/0/0/0.0",
        ".1.1/in/t/0/0/0.0",
        "a.b.1.1/in/t/0/0/0.0",
        "jöb.1.1/in/t/0/0/0.0",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a provenance"):
        parse_provenance(text)


@given(provenances)
def test_the_input_record_of_an_output_is_found_in_a_sentence_about_it(output: Provenance) -> None:
    found = find_input_record(f"totals/0/3: the recompute does not produce {output.identity}: 17.5/3")

    assert found == (
        None
        if output.topic in ("timers", "processing-timers")
        else f"{output.topic}/{output.partition}/{output.offset}"
    )


def test_a_sentence_may_name_no_input_record() -> None:
    assert find_input_record("epoch 3 has 4 outputs, but 5 are visible in totals/0/3") is None
    firing = "windows/timers/93/1700000000099/0.4711-815-0"
    assert find_input_record(firing) is None
    assert find_input_record(f"{firing}, orders/orders/0/17/0.0/4") == "orders/0/17"
