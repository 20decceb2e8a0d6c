"""The benchmarks start, their jobs process every record, and tables and pictures can be made of what they measure.

How fast anything is, is no claim of a test.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import pkgutil
import time
from collections import Counter as Counts
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import benchmarks
from benchmarks import (
    abs_paper,
    alignment,
    backpressure,
    checkpoint_cost,
    completing,
    exchange,
    fault_tolerance,
    joins,
    metrics,
    plots,
    schemas,
    serializers,
    sinks,
    skew,
    spark,
    state_sizes,
    timers,
)
from benchmarks.apps.generated import Counter, CountingSink, GeneratedSource, latencies
from benchmarks.command import Benchmark, write_page
from benchmarks.jobs import Unusable, measure, started
from benchmarks.trial import WrongOutput
from benchmarks.workloads import WINDOW_MS, Expected, difference, late_payments, window_totals
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.core.ids import Epoch, EpochId, SplitId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin

pytestmark = pytest.mark.limits("usual")

JOB = JobContext("bench", Term(1), {})
COUNT = 4000

Row = dict[str, Any]


def source(directory: Path, **options: Any) -> GeneratedSource:
    return GeneratedSource(int, lambda split: range(10 * split, 10 * split + 10), directory, splits=2, **options)


def read(generated: GeneratedSource, positions: Positions, batches: int) -> list[Batch[Any]]:
    reader = generated.reader(TaskContext(JOB, 0, 1, "in"), positions)
    return [batch for _ in range(batches) if (batch := reader.poll(7, 0.0)) is not None]


# ---------------------------------------------------------------- source and sink


def test_every_benchmark_can_be_started() -> None:
    """Nothing else imports some of them, so a name that moved would be noticed by whoever measures."""
    for module in pkgutil.iter_modules(benchmarks.__path__, "benchmarks."):
        importlib.import_module(module.name)


def test_the_source_goes_on_where_a_position_says_and_repeats_its_ring(tmp_path: Path) -> None:
    split = SplitId("generated/1")

    batches = read(source(tmp_path), {split: {"index": 8}}, 3)

    assert [value for batch in batches for value in batch.values] == [18, 19, *range(10, 17), 17, 18, 19]
    assert [offset for batch in batches for offset in batch.origin.offsets] == list(range(8, 20))
    assert Counter.total(tmp_path, "in") == 12


def test_the_source_ends_when_all_is_read(tmp_path: Path) -> None:
    generated = source(tmp_path, count=24)
    reader = generated.reader(TaskContext(JOB, 0, 1, "in"), generated.discover(JOB, None))

    rows = sum(len(batch) for batch in iter(lambda: reader.poll(5, 0.0), None))

    assert rows == 24
    assert reader.has_reached(generated.get_end_positions(JOB))


def test_a_source_with_a_rate_stamps_records_with_the_time_at_which_they_were_due(tmp_path: Path) -> None:
    generated = source(tmp_path, rate=2000.0, stamp=lambda value, at: at)
    reader = generated.reader(TaskContext(JOB, 0, 1, "in"), {SplitId("generated/0"): {"index": 0}})
    due: list[float] = []

    while len(due) < 20:
        batch = reader.poll(7, 0.01)
        due += batch.values if batch is not None else []

    assert due[-1] <= time.monotonic()
    assert [later - earlier for earlier, later in itertools.pairwise(due)] == pytest.approx([0.001] * (len(due) - 1))


def test_the_sink_prepares_the_number_of_its_rows_and_ages_those_from_elsewhere(tmp_path: Path) -> None:
    class Aged:
        at = time.monotonic() - 1.0

    writer = CountingSink(tmp_path, latency=True).writer(TaskContext(JOB, 1, 2, "out"))
    for partition in (0, 1):
        writer.write(Batch([Aged()] * 3, range(3), ListOrigin("in", "generated", partition, 0, [None] * 3)))
    prepared = writer.seal(EpochId(Epoch(1), Term(1)))()

    assert [committable.records for committable in prepared] == [6]
    assert writer.seal(EpochId(Epoch(2), Term(1)))() == ()
    assert [age >= 1.0 for age in latencies(tmp_path, 0.0, time.monotonic())] == [True]
    assert Counter.total(tmp_path, "out") == 6


# ---------------------------------------------------------------- jobs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("app", "settings"),
    [
        ("shuffles", {"parallelism": 2, "checkpoint_mode": "unaligned"}),
        ("shuffles", {"parallelism": 2, "BENCH_STOP_THE_WORLD": 1}),
        ("hops", {"parallelism": 2, "BENCH_HOPS": "three"}),
        ("hops", {"parallelism": 2, "BENCH_HOPS": "local"}),
        ("skewed", {"parallelism": 2, "BENCH_HOT": 0.5, "BENCH_MERGE": "shuffle"}),
        *(("joins", {"parallelism": 2, "BENCH_OPERATION": operation}) for operation in ("plain", "asked", "kept")),
    ],
)
def test_every_record_comes_through(app: str, settings: Mapping[str, object], tmp_path: Path) -> None:
    with started(app, tmp_path, {**settings, "BENCH_COUNT": COUNT}, "--until-caught-up") as job:
        assert job.process.wait(timeout=120) == 0
        rows = sum(sum(event["records"].values()) for event in job.events("committed"))

        assert (Counter.total(job.counters, "in"), Counter.total(job.counters, "out"), rows) == (COUNT,) * 3


@pytest.mark.slow
@pytest.mark.parametrize("merge", ["late-local", "late-global"])
def test_late_merges_put_out_fewer_rows(merge: str, tmp_path: Path) -> None:
    settings = {"parallelism": 2, "BENCH_HOT": 0.5, "BENCH_MERGE": merge, "BENCH_COUNT": COUNT, "BENCH_KEYS": 50}
    with started("skewed", tmp_path, settings, "--until-caught-up") as job:
        assert job.process.wait(timeout=120) == 0

        assert Counter.total(job.counters, "in") == COUNT
        assert 50 <= Counter.total(job.counters, "out") < COUNT


@pytest.mark.slow
def test_a_window_has_rates_and_checkpoints(tmp_path: Path) -> None:
    settings = {"parallelism": 1, "checkpoint_interval": 0.1, "BENCH_HOPS": "none"}

    window = measure("hops", tmp_path, settings, seconds=0.2, warm_up=0.0, epochs=True)

    assert window.rate_in > 0
    assert window.rate_out > 0
    assert window.median("blocked_ms") is not None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_job_that_ends_gives_no_figures(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="not a duration"):
        measure("hops", tmp_path, {"checkpoint_interval": "soon", "BENCH_HOPS": "none"}, seconds=0.1, warm_up=0.0)


# ---------------------------------------------------------------- tables and pictures

POINTS: Mapping[str, tuple[Benchmark, list[Row]]] = {
    "abs_paper": (
        abs_paper.BENCHMARK,
        [
            {"turn": 0, "mode": mode, "interval": interval, "rate": rate, "cpu": 9.0, "load": 0.1}
            for mode in abs_paper.MODES
            for interval, rate in ((None, 100.0), (10.0, 98.0), (1.0, 90.0))
        ],
    ),
    "checkpoint_cost": (
        checkpoint_cost.BENCHMARK,
        [
            {"mode": mode, "interval": 1.0, "pair": pair, "rate_with": 96.0 - pair, "rate_without": 100.0}
            for mode in abs_paper.MODES
            for pair in range(3)
        ],
    ),
    "alignment": (
        alignment.BENCHMARK,
        [
            {"spill": spill, "rate": 1e6, "checkpoint": 1.5, "cpu": 1.0, "memory": 200.0, "load": 0.1}
            for spill in alignment.SPILLS
        ],
    ),
    "backpressure": (
        backpressure.BENCHMARK,
        [
            {"part": "free", "rate": 1e6, "memory": 200.0},
            *(
                {"part": "slow", "mode": mode, "at": at, "in": 900 * at, "out": 800 * at, "memory": 200.0}
                | {"checkpoints": at}
                for mode in backpressure.MODES
                for at in (1, 2, 3)
            ),
        ],
    ),
    "fault_tolerance": (
        fault_tolerance.BENCHMARK,
        [
            {"family": design.family, "design": design.name, "rate": 1e3, "cpu": 9.0, "p50_ms": 5.0, "p99_ms": 20.0}
            | {"doubled": 1, "lost": 0, "written": 900, "outage": 2.5}
            for design in fault_tolerance.designs()
        ],
    ),
    "skew": (
        skew.BENCHMARK,
        [
            {"workers": workers, "input": name, "merge": merge, "rate": 1e5, "rate_out": 1e4, "cpu": 3.0, "load": 0.1}
            for workers in (1, 2)
            for name in skew.INPUTS
            for merge in skew.MERGES
        ],
    ),
    "state_sizes": (
        state_sizes.BENCHMARK,
        [
            *(
                {"part": "checkpoint", "backend": backend, "keys": 1000, "share": share, "blocked_ms": 1.0}
                | {"total_ms": 2.0, "new_bytes": 1000, "state_bytes": 9000, "load": 0.1}
                for backend in state_sizes.BACKENDS
                for share in state_sizes.SHARES
            ),
            *(
                {"part": "recovery", "line": "kill", "keys": keys, "total_ms": 900.0, "detect_ms": 100.0, "load": 0.1}
                for keys in (1000, 10_000)
            ),
        ],
    ),
    "exchange": (
        exchange.BENCHMARK,
        [
            *({"part": "hops", "what": what, "rate": 1e6, "cpu": 1.0, "load": 0.1} for what, _, _ in exchange.HOPS),
            *(
                {"part": "timeout", "timeout_ms": timeout, "load_name": name, "rate": 1e3, "cpu": 1.0, "load": 0.1}
                | ({} if name == "full" else {"due": 1000, "p50_ms": 1.5, "p99_ms": 9.0})
                for timeout in (0, 100)
                for name in ("low", "high", "full")
            ),
        ],
    ),
    "metrics": (
        metrics.BENCHMARK,
        [
            {"workload": workload, "pair": pair, "watched": watched, "rate": 1e5, "cpu": 2.0, "own": 0.1, "load": 0.1}
            for workload in metrics.WORKLOADS
            for pair in (1, 2)
            for watched in (False, True)
        ],
    ),
    "spark": (
        spark.BENCHMARK,
        [
            {"workload": each.workload, "who": each.name, "guarantee": each.guarantee, "output": each.output}
            | {"rate": 2e3 if each.few else 1e5, "cpu": 500.0 if each.few else 10.0, "memory": 900.0}
            | {"records": 1000, "batches": 3, "load": 0.1}
            for each in spark.contenders()
        ],
    ),
}


def test_a_sink_and_its_loader_write_the_same_rows(tmp_path: Path) -> None:
    rows = [sinks.Account(n, f"owner {n}", n / 7, n % 3 == 0) for n in range(7000)]

    assert min(sinks.parquet(tmp_path, rows)) > 0
    (bare,), (part,) = tmp_path.glob("*/bare"), tmp_path.glob("*/part-*")
    assert pq.read_table(bare).to_pylist() == pq.read_table(part).to_pylist()


@pytest.mark.parametrize("name", POINTS)
def test_tables_and_pictures_of_points(name: str, tmp_path: Path) -> None:
    benchmark, rows = POINTS[name]

    text = benchmark.tables(rows)

    assert all(line.count("|") == text.splitlines()[0].count("|") for line in text.split("\n\n")[0].splitlines())
    assert plots.draw(name, rows, tmp_path).stat().st_size > 1000


def test_each_operation_has_its_figures_for_each_number_of_workers() -> None:
    facts = {"rate": 123_456.0, "cpu": 9.0, "memory": 200.0, "state": 1e6, "blocked_ms": 2.0, "load": 0.1}
    rows = [
        {"workers": workers, "operation": operation, **facts}
        for workers in joins.WORKERS
        for operation in joins.OPERATIONS
    ]

    _, _, *lines = joins.BENCHMARK.tables(rows).splitlines()

    names = [f"{operation}, {workers}" for operation in joins.OPERATIONS for workers in joins.WORKERS]
    assert lines == [f"| {name} | 123 | 9.00 | 200 | 1.0 | 2 | 0.1 |" for name in names]


def test_the_loss_is_against_all_runs_without_checkpoints() -> None:
    rows = [
        {"turn": 0, "mode": mode, "interval": interval, "rate": rate}
        for mode, interval, rate in (("aligned", None, 110.0), ("synchronous", None, 90.0), ("aligned", 1.0, 85.0))
    ]

    assert abs_paper.loss(rows, "aligned", 1.0) == pytest.approx(15.0)
    assert abs_paper.loss(rows, "unaligned", 1.0) is None


def test_the_cost_of_checkpoints_is_a_mean_of_pairs() -> None:
    losses = [checkpoint_cost.loss({"rate_with": rate, "rate_without": 100.0}) for rate in (99.0, 97.0, 95.0)]

    assert checkpoint_cost.mean(losses) == pytest.approx((3.0, 2 * 2.0 / 3**0.5))


def test_the_cost_of_metrics_is_the_middle_of_pairs() -> None:
    rates = {(1, False): 100.0, (1, True): 99.0, (2, False): 50.0, (2, True): 48.0, (3, False): 80.0, (3, True): 80.8}
    rows = [{"pair": pair, "watched": watched, "rate": rate} for (pair, watched), rate in rates.items()]

    slower = [1 - on["rate"] / off["rate"] for off, on in metrics.pairs(rows)]
    assert metrics.told(slower) == "+1.0% (-1.0% … +4.0%)"


@pytest.mark.slow
def test_a_small_run_of_checkpoint_cost(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"

    assert checkpoint_cost.BENCHMARK.main(["--quick", "--directory", str(tmp_path), "--out", str(out)]) == 0

    rows = json.loads(out.read_text())["rows"]
    assert Counts(row["mode"] for row in rows) == dict.fromkeys(abs_paper.MODES, 2)
    assert all(row["checkpoints"] for row in rows)


@pytest.mark.slow
def test_a_small_run_of_backpressure(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"

    assert backpressure.BENCHMARK.main(["--quick", "--directory", str(tmp_path), "--out", str(out)]) == 0

    rows = json.loads(out.read_text())["rows"]
    assert {row.get("mode") for row in rows} == {None, *backpressure.MODES}
    assert all(row["in"] - row["out"] < 1_000_000 for row in rows if row["part"] == "slow")


@pytest.mark.slow
def test_a_small_run_of_alignment(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"

    assert alignment.BENCHMARK.main(["--quick", "--directory", str(tmp_path), "--out", str(out)]) == 0

    assert [row["spill"] for row in json.loads(out.read_text())["rows"]] == list(alignment.SPILLS)


@pytest.mark.slow
def test_a_small_run_of_state_sizes(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    sizes = ["--keys", "2000", "--small", "500", "--no-kafka", "--directory", str(tmp_path), "--out", str(out)]

    assert state_sizes.BENCHMARK.main(["--quick", *sizes]) == 0

    parts = Counts(row["part"] for row in json.loads(out.read_text())["rows"])
    assert parts == {"checkpoint": 2 * len(state_sizes.SHARES), "restore": 4}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_a_small_run_on_spark(tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    sizes = ["--records", "300000", "--interval", "0.5", "--few", "300", "--only", "fold"]

    assert spark.BENCHMARK.main(["--quick", *sizes, "--directory", str(tmp_path), "--out", str(out)]) == 0

    (row,) = json.loads(out.read_text())["rows"]
    assert (row["workload"], row["who"], row["records"]) == ("W2", spark.MERGED, 300_000)
    assert row["batches"] >= 2
    assert row["rate"] > 0
    assert row["cpu"] > 0


def test_figures_are_those_after_the_first_batch() -> None:
    done = [spark.Done(10.0, 500, 500), spark.Done(12.0, 1000, 1000), spark.Done(14.0, 1000, 1000)]
    looks = [spark.Look(at, cpu, memory) for at, cpu, memory in ((9.0, 3.0, 1), (11.0, 5.0, 10**6), (13.0, 9.0, 1))]

    assert spark.figures(done, looks) == {"rate": 500.0, "cpu": pytest.approx(2500.0), "memory": 1.0}
    with pytest.raises(WrongOutput, match="too few"):
        spark.figures(done[:1], looks)


def test_an_output_of_batches_must_have_as_many_rows_as_they_told() -> None:
    merged = next(each for each in spark.contenders() if each.name == spark.MERGED)
    wanted = Expected(3, 0, {"a": 5})
    values = [b'{"account":"a","total":2}', b'{"account":"a","total":5}']

    spark.check(merged, wanted, [spark.Done(1.0, 2, 1), spark.Done(2.0, 1, 1)], values)

    with pytest.raises(WrongOutput, match="2 records instead of 3"):
        spark.check(merged, wanted, [spark.Done(1.0, 3, 3)], values)
    with pytest.raises(WrongOutput, match="last total"):
        spark.check(merged, wanted, [spark.Done(1.0, 3, 2)], values[::-1])


def test_the_totals_of_windows_are_all_that_are_over() -> None:
    inputs = list(late_payments(700_000, keys=3))
    wanted = window_totals(inputs)
    right = [
        json.dumps({"account": account, "start": start, "total": total}).encode()
        for (account, start), total in wanted.windows.items()
    ]

    assert sum(wanted.windows.values()) == sum(amount for _, _, amount, _ in inputs)
    assert {start for _, start in wanted.windows} == {
        at // WINDOW_MS * WINDOW_MS for a, at, _, _ in inputs if a[0] == "a"
    }
    assert difference(wanted, right) is None
    assert "records instead of" in str(difference(wanted, right[1:]))
    assert "1 windows are wrong" in str(difference(wanted, [right[0], *right[:-1]]))


@pytest.mark.slow
def test_a_small_run_of_serializers_into_the_docs(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    page.write_text("<!-- serializers: begin -->\nold\n<!-- serializers: end -->\n")

    assert serializers.BENCHMARK.main(["--quick", "--keys", "300", "--write-docs", str(tmp_path)]) == 0

    figures = json.loads((tmp_path / "pictures" / "serializers.json").read_text())
    assert len(figures["rows"]) == len(serializers.CODECS)
    assert (tmp_path / "pictures" / "serializers.png").stat().st_size > 1000
    assert "| custom codec |" in page.read_text()


def test_a_page_gets_its_text_between_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- skew: begin -->\nold\n<!-- skew: end -->\nafter\n")

    write_page("skew", "new", page)

    assert page.read_text() == "before\n<!-- skew: begin -->\nnew\n<!-- skew: end -->\nafter\n"
    with pytest.raises(ValueError, match="lost the marks"):
        write_page("exchange", "new", page)


def test_the_page_has_the_marks_of_every_benchmark() -> None:
    page = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text(encoding="utf-8")

    assert [name for name in plots.NAMES if f"<!-- {name}: begin -->" not in page] == []


def test_epochs_are_compared_turn_by_turn() -> None:
    """The median of the ratios of pairs, not the ratio of medians."""
    times = {
        1: [(100.0, 40.0), (400.0, 90.0), (300.0, 80.0)],
        completing.MAX_CONCURRENT: [(50.0, 0.0), (100.0, 30.0), (60.0, 40.0)],
    }
    found = {(0.0, at_once): [completing.Completion(*each) for each in pairs] for at_once, pairs in times.items()}

    assert completing.table(found).splitlines()[2:] == [
        "| on this machine | 1 | 300 | 400 | 80 | 90 |",
        "| on this machine | 16 | 60 | 100 | 30 | 40 |",
        "| on this machine | 1 / 16, pair by pair | 4.0 | – | 3.0 | – |",
    ]


def test_each_pending_timer_fires(tmp_path: Path) -> None:
    rows = timers.measure_all(argparse.Namespace(turns=1, timers=2_000), tmp_path)

    assert [row["timers"] for row in rows] == [2_000]
    assert timers.tables(rows).splitlines()[-1].startswith("| 2,000 | ")


def test_the_formats_of_a_registry_are_measured() -> None:
    found = schemas.measure(batches=1, turns=1)

    usual = {f"{kind} {what}" for kind in ("avro", "json", "protobuf") for what in ("encode", "decode")}
    assert set(found) == {*usual, "json encode, unchecked"}
