"""Stateless operators keep the origin of every row, whatever the user's function does."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos import EnvironmentFailed, PlanError, Retryable
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.operator import OperatorContext
from kafka_eos.runtime.operators.stateless import FilterOperator, FlatMapOperator, MapBatchesOperator, MapOperator
from kafka_eos.testing.list_source import ListOrigin


def test_map_changes_values_and_nothing_else(bench: Any) -> None:
    out = bench.run(lambda s: s.map(lambda n: n * 10), [1, 2, 3])

    assert (out.values, list(out.origin_rows)) == ([10, 20, 30], [0, 1, 2])


def test_filter_keeps_the_rows_of_what_it_keeps(bench: Any) -> None:
    out = bench.run(lambda s: s.filter(lambda n: n % 2), [1, 2, 3])

    assert (out.values, out.origin_rows) == ([1, 3], [0, 2])


def test_flat_map_repeats_the_row_for_each_output(bench: Any) -> None:
    out = bench.run(lambda s: s.flat_map(lambda n: range(n)), [2, 0, 1])

    assert (out.values, out.origin_rows) == ([0, 1, 0], [0, 0, 2])


def test_key_by_sets_the_key_column(bench: Any) -> None:
    out = bench.run(lambda s: s.key_by(lambda n: f"k{n % 2}").reduce(lambda a, b: b, name="last", state=int), [1, 2, 3])

    assert out.keys == ["k1", "k0", "k1"]


def test_the_batch_that_came_in_is_not_changed(bench: Any) -> None:
    def rude(values: list[int]) -> list[int]:
        values.sort(reverse=True)
        return values

    line = bench.line(lambda s: s.map_batches(rude))
    batch = Batch([1, 2, 3], range(3), ListOrigin("s", "t", 0, 0, [1, 2, 3]))
    line[0].process(batch)

    assert batch.values == [1, 2, 3]


@pytest.mark.parametrize("verb", ["map", "filter", "flat_map", "key_by"])
def test_a_row_that_fails_is_left_out_and_the_rest_goes_on(bench: Any, verb: str) -> None:
    def fussy(n: int) -> Any:
        if n in (0, 2):
            raise KeyError(n)
        return [n] if verb == "flat_map" else n

    def verbs(stream: Any) -> Any:
        out = getattr(stream, verb)(fussy)
        return out.reduce(lambda a, b: b, name="last") if verb == "key_by" else out

    out = bench.run(verbs, [0, 1, 2, 3])

    assert (out.values, list(out.origin_rows)) == ([1, 3], [1, 3])
    assert bench.refused == [(0, "KeyError: 0"), (2, "KeyError: 2")]


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_stop_iteration_that_escapes_loses_only_its_own_row(bench: Any, at: int) -> None:
    def first(n: int) -> int:
        return next(iter([] if n == at else [n]))

    out = bench.run(lambda s: s.map(first), [0, 1, 2, 3])

    assert out.values == [n for n in range(4) if n != at]
    assert [offset for offset, _ in bench.refused] == [at]


def test_a_generator_that_fails_half_way_gives_nothing(bench: Any) -> None:
    def half(n: int) -> Iterator[int]:
        yield n
        if n == 1:
            raise ValueError("half")
        yield n

    out = bench.run(lambda s: s.flat_map(half), [0, 1, 2])

    assert (out.values, out.origin_rows) == ([0, 0, 2, 2], [0, 0, 2, 2])


def test_an_error_about_the_job_is_not_blamed_on_the_record(bench: Any) -> None:
    def unreachable(n: int) -> int:
        raise Retryable("service is away")

    with pytest.raises(EnvironmentFailed, match="service is away"):
        bench.run(lambda s: s.map(unreachable), [1])
    assert bench.refused == []


def test_map_batches_isolates_the_rows_at_fault(bench: Any) -> None:
    def reciprocals(values: list[int]) -> list[float]:
        return [1 / n for n in values]

    out = bench.run(lambda s: s.map_batches(reciprocals), [1, 0, 2, 4, 0])

    assert (out.values, list(out.origin_rows)) == ([1.0, 0.5, 0.25], [0, 2, 3])
    assert [offset for offset, _ in bench.refused] == [1, 4]


def test_map_batches_must_return_one_value_for_each(bench: Any) -> None:
    with pytest.raises(PlanError, match="got 2 values but returned 1"):
        bench.run(lambda s: s.map_batches(lambda values: values[1:]), [1, 2])


@pytest.mark.parametrize(
    "key", [None, 1.0, True, ["a"], ("a", 1.5), 2**64, "\ud800", ("a", "\ud800"), {"a": 1}, object()]
)
def test_a_key_that_could_not_be_stored_is_refused_where_its_record_is_known(bench: Any, key: Any) -> None:
    out = bench.run(
        lambda s: s.key_by(lambda n: key if n == 1 else "ok").reduce(lambda a, b: b, name="last", state=int), [0, 1, 2]
    )

    assert out.values == [0, 2]
    assert [offset for offset, _ in bench.refused] == [1]


@pytest.mark.parametrize("key", ["é", b"\xff", -(2**63), 2**64 - 1, ("a", (1, b"x")), ""])
def test_str_int_bytes_and_tuples_are_keys(bench: Any, key: Any) -> None:
    out = bench.run(lambda s: s.key_by(lambda n: key).reduce(lambda a, b: b, name="last", state=int), [1, 2])

    assert (out.keys, bench.refused) == ([key, key], [])


@given(values=st.lists(st.integers(0, 5)), poison=st.sets(st.integers(0, 5)))
def test_operators_do_what_a_plain_loop_does(values: list[int], poison: set[int]) -> None:
    def checked(n: int) -> int:
        if n in poison:
            raise ValueError(n)
        return n

    refused: list[int] = []
    ctx = OperatorContext("op", lambda _: None, lambda batch, index, error: refused.append(batch.origin_rows[index]))  # type: ignore[arg-type,return-value]
    batch = Batch(values, range(len(values)), ListOrigin("s", "t", 0, 0, values), updates=list(range(len(values))))
    good = [(n, row) for row, n in enumerate(values) if n not in poison]
    bad = [row for row, n in enumerate(values) if n in poison]
    cases: list[tuple[Any, list[tuple[int, int]]]] = [
        (MapOperator(checked), good),
        (MapBatchesOperator(lambda many: [checked(n) for n in many]), good),
        (FilterOperator(lambda n: checked(n) % 2), [(n, row) for n, row in good if n % 2]),
        (FlatMapOperator(lambda n: [checked(n)] * n), [(n, row) for n, row in good for _ in range(n)]),
    ]
    for operator, expected in cases:
        refused.clear()
        operator.open(ctx)
        out = operator.process(batch)

        assert list(zip(out.values, out.origin_rows, strict=True)) == expected
        assert out.updates == list(out.origin_rows)
        assert refused == bad
