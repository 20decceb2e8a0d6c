"""The recompute's operators: the same outputs as the engine's, and right ones where the engine's are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from kafka_eos import Ttl, agg, monotonic
from kafka_eos.audit.tables.reference_operators import build_reference
from kafka_eos.core.records import Batch
from kafka_eos.plan import Node
from kafka_eos.runtime.operators import Operator, build_operator
from kafka_eos.runtime.operators.fold import FoldOperator
from kafka_eos.runtime.operators.stateless import FilterOperator, FlatMapOperator, KeyByOperator, MapOperator
from tests.unit.runtime.operators.conftest import Bench

Build = Callable[[Node], Operator]
TIMES = [1_000, 5_000, 2_000, 700_000, 3_000, 9_000, 710_000, 4_000]


def fussy(n: int) -> int:
    if n == 7:
        raise ValueError(n)
    return n


def several(n: int) -> Any:
    return "text is refused" if n == 6 else (fussy(n) for _ in range(n % 4))


def keyed(stream: Any) -> Any:
    return stream.key_by(lambda n: None if n == 5 else f"k{fussy(n) % 2}")


def timed(stream: Any) -> Any:
    return stream.with_timestamps(lambda n: TIMES[n % 8], watermarks=monotonic())


def add(total: int, n: int) -> int:
    return total + fussy(n)


PLANS: dict[str, Callable[[Any], Any]] = {
    "map": lambda s: s.map(fussy),
    "filter": lambda s: s.filter(lambda n: fussy(n) % 3),
    "flat_map": lambda s: s.flat_map(several),
    "key_by": lambda s: keyed(s).reduce(lambda _, n: n, name="last", state=int),
    "fold": lambda s: keyed(s).fold(name="sum", init=int, step=add),
    "fold, emit": lambda s: keyed(s).fold(name="sum", init=int, step=add, emit=lambda key, n: f"{key}={100 // n}"),
    "fold, expiring": lambda s: keyed(s).fold(name="sum", init=int, step=add, ttl=Ttl(5, clock="event")),
    "fold, unstorable": lambda s: keyed(s).fold(name="sum", init=int, step=lambda total, n: total + (n << 62)),
    "reduce": lambda s: keyed(s).reduce(add, name="last", state=int),
    "latest": lambda s: keyed(timed(s)).aggregate(agg.last(), name="latest").map(str),
    "all": lambda s: keyed(s.flat_map(several).map(fussy).filter(bool)).reduce(add, name="last", state=int).map(str),
}


def columns(batch: Batch[Any]) -> list[Any]:
    found = (batch.values, batch.origin_rows, batch.keys, batch.updates, batch.branch, batch.event_times)
    return [None if column is None else list(column) for column in found]


def run(plan: str, batches: list[list[int]], build: Build) -> tuple[list[Any], list[int]]:
    """Push batches through a plan; return the columns of its outputs, and the offsets of rejected rows."""
    with TemporaryDirectory() as scratch, ExitStack() as closing:
        bench = Bench(Path(scratch), closing, build=build)
        line = bench.line(PLANS[plan])
        made = [bench.push(line, values, [TIMES[n % 8] for n in values]) for values in batches]
        return [columns(batch) for batch in made], [offset for offset, _ in bench.refused]


@pytest.mark.parametrize("plan", PLANS)
def test_they_make_what_the_engine_makes(plan: str) -> None:
    """The input has rows that each function rejects, before, between and after others."""
    batches = [[7, 1, 2, 5, 8, 3, 6], [0, 9, 20, 7], [], [4, 11, 3, 2, 0, 1, 5]]
    (made, refused), (expected, engine) = (run(plan, batches, build) for build in (build_reference, build_operator))

    assert made == expected
    assert sorted(refused) == sorted(engine)
    assert engine


def losing(real: Any) -> Any:
    def process(self: Any, batch: Batch[Any]) -> Batch[Any]:
        out = real(self, batch)
        return out.take(range(len(out) - 1)) if len(out) > 1 else out

    return process


def repeating(real: Any) -> Any:
    def process(self: Any, batch: Batch[Any]) -> Batch[Any]:
        out = real(self, batch)
        return out.take([*range(len(out)), len(out) - 1]) if len(out) > 1 else out

    return process


def first_row_lost(real: Any) -> Any:
    def selected(self: Any, chosen: Any) -> Batch[Any]:
        return real(self, [0, *chosen[1:]])  # type: ignore[no-any-return]

    return selected


BUGS = [
    *((owner, "process", bug, plan)
      for bug in (losing, repeating)
      for owner, plan in ((MapOperator, "map"), (FilterOperator, "filter"), (FlatMapOperator, "flat_map"),
                          (KeyByOperator, "key_by"), (FoldOperator, "fold"), (FoldOperator, "reduce"))),
    (Batch, "filter", first_row_lost, "filter"),
    (Batch, "repeat", first_row_lost, "flat_map"),
]  # fmt: skip


@pytest.fixture(params=BUGS, ids=lambda bug: f"{bug[0].__name__}-{bug[2].__name__}-{bug[3]}")
def planted(request: Any) -> Iterator[tuple[str, Any]]:
    """The plan that shows a bug of the engine, and its right outputs; the bug is there while the test runs."""
    owner, name, bug, plan = request.param
    right = run(plan, [[1, 2, 3, 4]], build_operator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, bug(getattr(owner, name)))
        yield plan, right


def test_a_bug_of_the_engine_is_not_theirs(planted: tuple[str, Any]) -> None:
    plan, right = planted

    assert run(plan, [[1, 2, 3, 4]], build_operator) != right
    assert run(plan, [[1, 2, 3, 4]], build_reference) == right
