"""A batch selects its own rows: every column stays aligned, those too that a later version adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.connectors._shared.row_errors import BadRows, encode_or_reject
from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.stateless import flatten_outputs
from kafka_eos.testing.list_source import ListOrigin

SIZE = 12
OF_THE_BATCH = {"origin", "lane"}


class Wider(Batch[Any]):
    """A batch with one column more than today's."""

    added: list[str] | None = None


def _wide(empty: frozenset[str] = frozenset()) -> Wider:
    """Each cell says its column and row; ``empty`` columns are None."""
    batch = Wider([], [], ListOrigin("in", "topic", 0, 0, range(SIZE)), lane=3)
    for name in _columns():
        setattr(batch, name, None if name in empty else [(name, row) for row in range(SIZE)])
    return batch


def _columns() -> list[str]:
    return [name for name in Wider.__struct_fields__ if name not in OF_THE_BATCH]


def _expect(found: Batch[Any], rows: list[int], given: Batch[Any]) -> None:
    """Every column of ``found`` has exactly ``rows`` of ``given``, in that order."""
    assert (found.origin, found.lane) == (given.origin, given.lane)
    for name in _columns():
        before, after = getattr(given, name), getattr(found, name)
        assert after == (None if before is None else [before[row] for row in rows]), name


indices = st.lists(st.integers(0, SIZE - 1), max_size=2 * SIZE)
absent = st.sets(st.sampled_from(["keys", "updates", "branch", "added"])).map(frozenset)


@given(indices, absent)
def test_rows_are_taken_from_every_column(rows: list[int], empty: frozenset[str]) -> None:
    batch = _wide(empty)

    _expect(batch.take(rows), rows, batch)


@given(st.sets(st.integers(0, SIZE - 1)), absent)
def test_rows_are_left_out_of_every_column(gone: set[int], empty: frozenset[str]) -> None:
    batch = _wide(empty)

    _expect(batch.drop(gone), [row for row in range(SIZE) if row not in gone], batch)
    _expect(batch.filter([row not in gone for row in range(SIZE)]), [r for r in range(SIZE) if r not in gone], batch)


@given(st.lists(st.integers(0, 3), min_size=SIZE, max_size=SIZE), absent)
def test_rows_are_repeated_in_every_column(counts: list[int], empty: frozenset[str]) -> None:
    batch, rows = _wide(empty), [row for row, count in enumerate(counts) for _ in range(count)]
    made = [[("values", row)] * count for row, count in enumerate(counts)]

    _expect(batch.repeat(counts), rows, batch)
    _expect(flatten_outputs(batch, made), rows, batch)


@pytest.mark.parametrize("bad", [0, 5, SIZE - 1])
def test_a_writer_leaves_bad_rows_out_of_every_column(bad: int) -> None:
    batch = _wide()

    def encode(rows: Batch[Any]) -> list[Any]:
        found = [index for index, (_, row) in enumerate(rows.values) if row == bad]
        if found:
            raise BadRows({index: ValueError("bad") for index in found})
        return rows.values

    refused: list[tuple[int, str, str]] = []
    take: Callable[..., None] = lambda rows, index, operator, error: refused.append((index, operator, str(error)))  # noqa: E731
    kept, _ = encode_or_reject(encode, batch, "out", take)

    assert refused == [(bad, "out", "bad")]
    _expect(kept, [row for row in range(SIZE) if row != bad], batch)
