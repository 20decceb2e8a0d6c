"""The parts that need no Spark: levels of a plan, rows between tasks, what fits together, files kept on an executor."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from kafka_eos import Pipeline, WatermarkStrategy, monotonic
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.storage import FileRef
from kafka_eos.coordination import terms
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History
from kafka_eos.core.errors import (
    ConfigError,
    CorruptCheckpoint,
    EnvironmentFailed,
    Fatal,
    InputLost,
    LossCause,
    PlanError,
    RestartFromCheckpoint,
)
from kafka_eos.core.failure_causes import RemoteUserError
from kafka_eos.core.ids import SplitId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Watermark
from kafka_eos.plan import Plan
from kafka_eos.protocol.checkpoint_schedule import Cadence
from kafka_eos.runtime.epoch_reports import EpochContents
from kafka_eos.runtime.exchange import wire_format as wire
from kafka_eos.runtime.program import CodeFingerprint
from kafka_eos.spark import epoch_inputs as inputs
from kafka_eos.spark import epoch_task as tasks
from kafka_eos.spark.epoch_inputs import EpochInputs
from kafka_eos.spark.epoch_job import EpochResult, check_attempts
from kafka_eos.spark.messages import ReadLimit, StageSpec, TaskFailure, TaskReport, decode_report, decode_watermark
from kafka_eos.spark.row_frames import FRAME, WATERMARK, ShuffleReader, ShuffleWriter
from kafka_eos.spark.stage_task import encode_in_frames
from kafka_eos.spark.stages import find_reading_stages, split_into_stages
from kafka_eos.spark.state_file_cache import CachedStorage, attempt_directory, own_directory
from kafka_eos.storage import job_records as manifest
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.storage.storage_factory import open_claimed_storage
from kafka_eos.testing import ListSource, MemorySink
from tests.unit.runtime.operators.test_event_time import rows


def counted(stream: Any, name: str) -> Any:
    return stream.key_by(lambda value: value, name=f"by-{name}", values=int).fold(
        name=name, init=lambda: 0, step=lambda n, _: n + 1, emit=lambda key, n: n
    )


def test_a_plan_without_exchanges_is_one_level() -> None:
    pipeline = Pipeline("p")
    pipeline.source(ListSource([1]), name="in").sink(MemorySink(), name="out")

    (level,) = split_into_stages(pipeline.plan())

    assert level.sources == ("in",)
    assert level.nodes == {"in", "out"}


def test_an_exchange_leads_to_the_deepest_level_that_its_reader_needs() -> None:
    pipeline = Pipeline("p")
    source = pipeline.source(ListSource([1]), name="in")
    deep = counted(counted(source, "one"), "two")
    deep.union(
        source.rebalance(name="spread", values=int), pipeline.source(ListSource([2]), name="late"), name="all"
    ).sink(MemorySink(), name="out")

    found = split_into_stages(pipeline.plan())

    assert [sorted(level.heads) for level in found] == [[], ["by-one"], ["by-two", "spread"]]
    assert [level.sources for level in found] == [("in",), (), ("late",)]
    assert find_reading_stages(found) == {"by-one": 1, "by-two": 2, "spread": 2}


def test_rows_that_are_fed_back_are_refused() -> None:
    pipeline = Pipeline("p")
    source = pipeline.source(ListSource([1]), name="in")
    source.iterate(lambda values: (values.filter(lambda n: n < 3), values), name="round", values=int).sink(
        MemorySink(), name="out"
    )

    with pytest.raises(PlanError, match="embedded engine"):
        split_into_stages(pipeline.plan())


@pytest.mark.parametrize("strategy", [monotonic().with_idleness(5), monotonic().with_clock(after=5)])
def test_silence_is_not_told_on_spark(strategy: WatermarkStrategy) -> None:
    pipeline = Pipeline("idle")
    source = pipeline.source(ListSource([]), name="numbers")
    source.with_timestamps(watermarks=strategy).sink(MemorySink(), name="out")

    with pytest.raises(
        PlanError, match=r"needs idleness detection, which Spark cannot do between epochs.*Leave .with_idleness"
    ):
        split_into_stages(pipeline.plan())


@pytest.mark.parametrize("watermark", [Watermark(), Watermark(-5), Watermark(2**62, idle=True)])
def test_a_watermark_passes_between_tasks(watermark: Watermark) -> None:
    outbox = ShuffleWriter(0, 1, 2, attempt=7)
    outbox.watermark(0, 2, "by-key", watermark)
    (batch,) = outbox.flush()
    ((target, level, kind, origin, _, exchange, frame),) = zip(*(c.to_pylist() for c in batch.columns), strict=True)

    assert (target, level, kind, origin, exchange) == (0, 2, WATERMARK, 1, "by-key")
    assert decode_watermark(frame) == watermark


# ---------------------------------------------------------------- what an epoch reads


def test_a_split_that_is_discovered_late_is_read_though_nothing_else_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is known before: somebody adds a partition, and writes to it, between two looks for new ones."""
    source = ListSource([1, 2], name="in")
    pipeline = Pipeline("p")
    pipeline.source(source, name="in").sink(MemorySink(), name="out")
    storage = LocalStorage(tmp_path / "p")
    coordinator = Coordinator(pipeline.plan(), storage, History(storage, print), Retrier(Event(), print), {}, 3)
    positions = coordinator.recovery.restore().positions
    found = EpochInputs(
        coordinator.sources, positions, Cadence(0.0, 0.0, 60.0), None, (), {}, (), lambda event, **facts: None
    )
    source.splits[SplitId("in/1")] = [3]

    ends = found.ends(timers=True)
    assert ends == {"in": {"in/0": {"index": 2}}}
    found.record_epoch(result(ends), ends)
    assert found.ends(timers=True) is None
    monkeypatch.setattr(inputs, "DISCOVERY_INTERVAL", 0.0)

    assert found.ends(timers=True) == {"in": {"in/0": {"index": 2}, "in/1": {"index": 1}}}


@pytest.mark.parametrize("bounded_run", [False, True])
def test_an_epoch_in_which_splits_wait_for_slower_ones_is_followed_at_the_interval(
    tmp_path: Path, bounded_run: bool
) -> None:
    """A slow split may never be done. But the first one of a term reads nothing, and a bounded run has an end."""
    source = ListSource([], splits=2, name="in")
    slow, fast = source.splits.values()
    slow += [0, 1]
    fast += [1000, 1001]
    pipeline = Pipeline("p")
    strategy = monotonic().with_alignment(max_drift=0.06)
    timed = pipeline.source(source, name="in").with_timestamps(watermarks=strategy, name="times")
    timed.sink(MemorySink(), name="out")
    storage, plan = LocalStorage(tmp_path / "p"), pipeline.plan()
    coordinator = Coordinator(plan, storage, History(storage, print), Retrier(Event(), print), {}, 3)
    positions = coordinator.recovery.restore().positions
    goal = {"in": source.get_end_positions(JobContext("p", Term(1), {}))} if bounded_run else None
    cadence = Cadence(3600.0, 0.0, 60.0)
    found = EpochInputs(
        coordinator.sources, positions, cadence, goal, plan.watermark_alignments, {}, (), lambda event, **facts: None
    )

    assert found.ends(timers=True) == positions
    found.record_epoch(result(positions), positions)
    assert (found.holding, found.is_due(at_once=False)) == (True, True)

    found.positions = {"in": {SplitId("in/0"): {"index": 1}, SplitId("in/1"): {"index": 1}}}
    found.record_epoch(result(found.positions, {"times": {"in/0": 0, "in/1": 999}}), found.positions)
    ends = found.ends(timers=True)
    assert ends == {"in": {"in/0": {"index": 2}, "in/1": {"index": 1}}}
    found.record_epoch(result(ends, {"times": {"in/0": 1, "in/1": 999}}), ends)

    assert found.holding
    assert (found.is_due(at_once=False), found.has_reached_goal) == (bounded_run, False)
    assert found.is_due(at_once=True)
    assert found.ends(timers=True) == {"in": {"in/0": {"index": 2}, "in/1": {"index": 2}}}
    assert not found.holding


def result(
    positions: Mapping[str, Positions], watermarks: Mapping[str, Mapping[str, int]] | None = None
) -> EpochResult:
    """Of an epoch that read up to there."""
    read = {name: dict(splits) for name, splits in positions.items()}
    epoch = EpochContents(positions=read, states=(), committables=(), watermarks=watermarks or {})
    return EpochResult(epoch, {}, {}, {}, None, None, {}, False, {}, ())


# ---------------------------------------------------------------- where the storage is


def spec_of(claim: bytes) -> StageSpec:
    return StageSpec(
        app="", pipeline=None, shipped=False, code=CodeFingerprint("", {}), settings="", identity="0" * 12,
        term=1, claim=claim,
        epoch=1, finished=0, generation=0, parallelism=1, level=0, last=True,
        positions={}, ends={}, quota=ReadLimit(1, None), states=(),
    )  # fmt: skip


def test_a_task_that_would_load_other_code_than_the_driver_says_so(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text(
        "from kafka_eos import Pipeline\nfrom kafka_eos.testing import ListSource, MemorySink\n"
        "pipeline = Pipeline('p')\npipeline.source(ListSource([1]), name='in').sink(MemorySink(), name='out')\n"
    )
    spec = msgspec.structs.replace(spec_of(b""), app=str(app), code=CodeFingerprint("", {"app.py": "of before"}))

    (rows,) = tasks._run(spec, [], 0, 0)

    report = decode_report(rows.to_pylist()[0]["frame"])
    assert report.failure is not None
    assert (report.failure.kind, report.failure.error) == ("fatal", "Fatal")
    assert f"app.py in {tmp_path} changed since the job was started" in report.failure.reason
    with pytest.raises(Fatal) as raised:
        check_attempts([report], 1, 1)
    assert str(raised.value) == report.failure.reason


def test_a_task_works_where_it_reads_the_drivers_claim(tmp_path: Path) -> None:
    claim = paths.claim_name(terms.claim(LocalStorage(tmp_path), "job", Term(0)))

    storage = open_claimed_storage(tmp_path, Term(1), LocalStorage(tmp_path).read(claim))

    assert storage.list(paths.TERMS) == [claim]


def test_a_directory_of_one_name_on_another_machine_is_not_the_drivers(tmp_path: Path) -> None:
    """It may be absent, and stays so; or hold the same term of an earlier run, which that machine drove."""
    here, elsewhere = LocalStorage(tmp_path / "here"), LocalStorage(tmp_path / "elsewhere")
    claim = paths.claim_name(terms.claim(here, "job", Term(0)))
    manifest.publish(elsewhere, manifest.TermClaim(job="job", term=1, host="elsewhere", pid=1, at=1))

    for place in ("absent", "elsewhere"):
        with pytest.raises(ConfigError, match="not the same location on every machine: .* the claim of term 1"):
            open_claimed_storage(tmp_path / place, Term(1), here.read(claim))

    assert not (tmp_path / "absent").exists()


# ---------------------------------------------------------------- rows


def sent(subtask: int, attempt: int, frames: int) -> list[pa.RecordBatch]:
    outbox = ShuffleWriter(0, subtask, 2, attempt)
    for number in range(frames):
        outbox.frame(number % 2, 1, "by", b"frame")
    outbox.report(b"report")
    outbox.send_end()
    return list(outbox.flush())


def to(target: int, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return [batch.filter(pa.array([value == target for value in batch["target"].to_pylist()])) for batch in batches]


@pytest.mark.limits(spark_frame_bytes=1000)
@pytest.mark.parametrize("sizes", [[10], [5000], [400] * 20, [10] * 500, [1, 5000, 1, 1, 3000, 3000, 1], [5000] * 3])
def test_a_frame_is_bounded_by_its_bytes_and_no_row_is_lost_or_moved(sizes: list[int]) -> None:
    """But a value that is larger has a frame of its own."""
    plan = texts(lambda source: source.rebalance(values=str, name="by"))
    node, sent = plan.node("by"), rows([f"{n}".rjust(size) for n, size in enumerate(sizes)], [0] * len(sizes))

    frames = list(encode_in_frames(node, sent))

    assert all(len(each.values) <= 1000 or len(each.batch) == 1 for each in frames)
    assert len(frames) <= 2 * sum(sizes) / 1000 + len([size for size in sizes if size > 1000]) + 3
    assert node.exchange_codec is not None
    arrived = [wire.decode(wire.build_frame(plan, node, [each]), node.exchange_codec) for each in frames]
    assert [value for batch in arrived for value in batch.values] == sent.values
    found = [batch.origin.raw(row).offset for batch in arrived for row in batch.origin_rows]
    assert found == list(range(len(sizes)))


@pytest.mark.limits(spark_frame_bytes=1000)
def test_values_of_one_row_stay_together_on_their_way_to_where_that_matters() -> None:
    plan = texts(lambda source: source.forward(name="stays", values=str))

    (frame,) = encode_in_frames(plan.node("stays"), rows(["x" * 400] * 20, [0] * 20))

    assert len(frame.batch) == 20


def texts(through: Callable[[Any], Any]) -> Plan:
    pipeline = Pipeline("texts")
    through(pipeline.source(ListSource([""]), name="in")).sink(MemorySink(), name="out")
    return pipeline.plan()


def test_an_inbox_gives_every_row_and_knows_who_sent_them() -> None:
    inbox = ShuffleReader(to(0, sent(0, 70, 3) + sent(1, 71, 4)), 2)

    frames = [row for row in inbox if row[2] == FRAME]

    assert [row[3] for row in frames] == [0, 0, 1, 1]
    assert inbox.inputs == {0: 70, 1: 71}


@pytest.mark.parametrize(
    "arrived",
    [
        lambda: sent(0, 70, 3),
        lambda: sent(0, 70, 3) + sent(0, 72, 3) + sent(1, 71, 3),
        lambda: [batch.slice(1) for batch in to(0, sent(0, 70, 3))] + sent(1, 71, 3),
    ],
    ids=["a sender is missing", "a sender came twice", "a row is missing"],
)
def test_an_inbox_that_is_not_whole_fails(arrived: Callable[[], list[pa.RecordBatch]]) -> None:
    with pytest.raises(RestartFromCheckpoint):
        list(ShuffleReader(to(0, arrived()), 2))


def report(level: int, subtask: int, attempt: int, inputs: dict[int, int] | None = None, **more: Any) -> TaskReport:
    return TaskReport(level=level, subtask=subtask, attempt=attempt, inputs=inputs or {}, **more)


@pytest.mark.parametrize("cause", LossCause)
def test_a_task_without_its_input_ends_the_job_only_if_a_restart_could_hide_that(cause: LossCause) -> None:
    failed = tasks._failure(InputLost("gone", cause))
    lost = TaskReport(level=0, subtask=0, attempt=1, failure=failed)

    with pytest.raises(RemoteUserError if cause is LossCause.ALTERED else RestartFromCheckpoint, match="gone"):
        check_attempts([lost], 1, 1)


def test_reports_of_one_run_of_each_task_fit() -> None:
    read = {0: 10, 1: 11}
    check_attempts([report(0, 0, 10), report(0, 1, 11), report(1, 0, 12, read), report(1, 1, 13, read)], 2, 2)


@pytest.mark.parametrize(
    "reports",
    [
        [report(0, 0, 10), report(0, 1, 11), report(1, 0, 12, {0: 10, 1: 11})],
        [report(0, 0, 10), report(0, 1, 11), report(1, 0, 12, {0: 10, 1: 11}), report(1, 1, 13, {0: 14, 1: 11})],
        [report(0, 0, 10), report(0, 0, 11), report(1, 0, 12, {0: 10, 1: 11}), report(1, 1, 13, {0: 10, 1: 11})],
    ],
    ids=["one is missing", "another attempt was read", "a task reports twice"],
)
def test_reports_of_different_runs_are_thrown_away(reports: list[TaskReport]) -> None:
    with pytest.raises(RestartFromCheckpoint):
        check_attempts(reports, 2, 2)


def test_what_no_retry_can_change_comes_out_as_it_was() -> None:
    with pytest.raises(RemoteUserError, match="bad"):
        check_attempts([report(0, 0, 1, failure=TaskFailure("user", "PoisonRecord", "bad", "trace"))], 1, 1)
    with pytest.raises(CorruptCheckpoint, match="gone"):
        check_attempts([report(0, 0, 1, failure=TaskFailure("fatal", "CorruptCheckpoint", "gone", "trace"))], 1, 1)
    with pytest.raises(EnvironmentFailed, match="down"):
        check_attempts(
            [report(0, 0, 1, failure=TaskFailure("environment", "EnvironmentFailed", "down", "trace"))], 1, 1
        )


# ---------------------------------------------------------------- files


def test_a_file_that_was_uploaded_here_is_not_fetched_again(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "job")
    kept = CachedStorage(storage, tmp_path / "local")
    (tmp_path / "a.sst").write_bytes(b"rows")
    ref = kept.upload(tmp_path / "a.sst", "a.sst")
    (tmp_path / "job" / "shared" / ref.sha256).unlink()

    kept.fetch(ref, tmp_path / "back.sst")

    assert (tmp_path / "back.sst").read_bytes() == b"rows"


def test_files_that_rocksdb_writes_again_are_not_kept(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "job")
    kept = CachedStorage(storage, tmp_path / "local")
    (tmp_path / "CURRENT").write_bytes(b"MANIFEST-1")
    ref = kept.upload(tmp_path / "CURRENT", "CURRENT")

    kept.fetch(ref, tmp_path / "back")
    (tmp_path / "back").write_bytes(b"MANIFEST-2")

    assert storage.read(f"shared/{ref.sha256}") == b"MANIFEST-1"
    assert list((tmp_path / "local" / "cache").iterdir()) == []


def test_a_file_of_another_size_is_fetched(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "job")
    kept = CachedStorage(storage, tmp_path / "local")
    (tmp_path / "a.sst").write_bytes(b"rows")
    ref = storage.upload(tmp_path / "a.sst", "a.sst")
    (tmp_path / "local" / "cache" / ref.sha256).write_bytes(b"ro")

    kept.fetch(FileRef("a.sst", ref.sha256, ref.size), tmp_path / "back.sst")

    assert (tmp_path / "back.sst").read_bytes() == b"rows"


def kept_by_term_1(tmp_path: Path) -> tuple[LocalStorage, FileRef]:
    """A job's storage, and a file that a task of term 1 has uploaded."""
    storage = LocalStorage(tmp_path / "job")
    (tmp_path / "a.sst").write_bytes(b"rows")
    return storage, CachedStorage(storage, own_directory(tmp_path / "spark", 1)).upload(tmp_path / "a.sst", "a.sst")


def test_a_new_term_uses_what_the_last_one_has_kept(tmp_path: Path) -> None:
    storage, ref = kept_by_term_1(tmp_path)
    (tmp_path / "job" / "shared" / ref.sha256).unlink()
    own_directory(tmp_path / "spark", 2)  # a term in which it was not needed
    kept = CachedStorage(storage, own_directory(tmp_path / "spark", 3))

    kept.fetch(ref, tmp_path / "back.sst")

    assert (tmp_path / "back.sst").read_bytes() == b"rows"
    assert [path.name for path in (tmp_path / "spark").iterdir()] == ["3"]
    kept.prepare_run({ref.sha256})
    assert (tmp_path / "spark" / "3" / "inherited" / ref.sha256).exists()
    kept.prepare_run(())
    assert list((tmp_path / "spark" / "3" / "inherited").iterdir()) == []


def test_what_an_earlier_term_has_kept_is_not_believed(tmp_path: Path) -> None:
    """The machine may have lost power before the file was on its disk."""
    storage, ref = kept_by_term_1(tmp_path)
    for name in (tmp_path / "spark" / "1" / "cache" / ref.sha256, tmp_path / "job" / "shared" / ref.sha256):
        name.unlink()  # one file under two names
    (tmp_path / "job" / "shared" / ref.sha256).write_bytes(b"rows")
    (tmp_path / "spark" / "1" / "cache" / ref.sha256).write_bytes(b"\0\0\0\0")

    CachedStorage(storage, own_directory(tmp_path / "spark", 2)).fetch(ref, tmp_path / "back.sst")

    assert (tmp_path / "back.sst").read_bytes() == b"rows"


@pytest.mark.parametrize("content", [b"rowz", b"row", None])
def test_a_task_names_a_stored_file_that_is_not_what_was_stored(tmp_path: Path, content: bytes | None) -> None:
    storage, ref = kept_by_term_1(tmp_path)
    (tmp_path / "job" / "shared" / ref.sha256).unlink()
    if content is not None:
        (tmp_path / "job" / "shared" / ref.sha256).write_bytes(content)

    with pytest.raises(CorruptCheckpoint, match=rf"shared/{ref.sha256} \(a\.sst\)"):
        CachedStorage(storage, tmp_path / "another-machine").fetch(ref, tmp_path / "back.sst")


def test_a_new_term_removes_what_older_ones_left_and_nothing_newer(tmp_path: Path) -> None:
    own_directory(tmp_path, 3)
    own_directory(tmp_path, 5)

    own_directory(tmp_path, 4)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5"]


def test_an_attempt_removes_what_killed_ones_left_and_nothing_of_those_at_work(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from kafka_eos.spark.state_file_cache import attempt_directory
with attempt_directory(Path({str(tmp_path)!r}), 1) as directory:
    (directory / "rows").write_bytes(b"rows")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert list(left.iterdir())
    elsewhere = tmp_path / "attempt-another.host-1-1"
    elsewhere.mkdir()

    with attempt_directory(tmp_path, 2) as at_work:
        assert not left.exists()
        with attempt_directory(tmp_path, 3) as other:
            assert at_work.exists() and other != at_work
        assert not other.exists() and at_work.exists()

    assert list(tmp_path.iterdir()) == [elsewhere]
