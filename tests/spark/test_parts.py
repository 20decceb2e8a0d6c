"""The parts that need no Spark: levels of a plan, rows between tasks, what fits together, files kept on an executor."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafka_eos import Pipeline
from kafka_eos.checkpoints import manifest, paths
from kafka_eos.checkpoints.storage import LocalStorage
from kafka_eos.coordinator import term as terms
from kafka_eos.coordinator.supervision import Refused
from kafka_eos.errors import ConfigError, Fatal, PlanError, RestartFromCheckpoint
from kafka_eos.ids import Term
from kafka_eos.interfaces import FileRef
from kafka_eos.spark.cache import CachedStorage, attempt_directory, own_directory
from kafka_eos.spark.epochs import fitting
from kafka_eos.spark.levels import destinations, levels
from kafka_eos.spark.messages import Failure, Quota, Report, Spec
from kafka_eos.spark.rows import FRAME, Inbox, Outbox
from kafka_eos.spark.tasks import drivers_storage
from kafka_eos.testing import ListSource, MemorySink


def counted(stream: Any, name: str) -> Any:
    return stream.key_by(lambda value: value, f"by-{name}", values=int).fold(
        name, init=lambda: 0, step=lambda n, _: n + 1, emit=lambda key, n: n
    )


def test_a_plan_without_exchanges_is_one_level() -> None:
    pipeline = Pipeline("p")
    pipeline.source("in", ListSource([1])).sink("out", MemorySink())

    (level,) = levels(pipeline.plan())

    assert level.sources == ("in",)
    assert level.nodes == {"in", "out"}


def test_an_exchange_leads_to_the_deepest_level_that_its_reader_needs() -> None:
    pipeline = Pipeline("p")
    source = pipeline.source("in", ListSource([1]))
    deep = counted(counted(source, "one"), "two")
    deep.union(source.rebalance("spread", values=int), pipeline.source("late", ListSource([2])), name="all").sink(
        "out", MemorySink()
    )

    found = levels(pipeline.plan())

    assert [sorted(level.heads) for level in found] == [[], ["by-one"], ["by-two", "spread"]]
    assert [level.sources for level in found] == [("in",), (), ("late",)]
    assert destinations(found) == {"by-one": 1, "by-two": 2, "spread": 2}


def test_rows_that_are_fed_back_are_refused() -> None:
    pipeline = Pipeline("p")
    source = pipeline.source("in", ListSource([1]))
    source.iterate("round", lambda values: (values.filter(lambda n: n < 3), values), values=int).sink(
        "out", MemorySink()
    )

    with pytest.raises(PlanError, match="embedded engine"):
        levels(pipeline.plan())


# ---------------------------------------------------------------- where the storage is


def spec_of(claim: bytes) -> Spec:
    return Spec(
        app="", pipeline=None, shipped=False, settings="", term=1, claim=claim, epoch=1, finished=0, generation=0,
        parallelism=1, level=0, last=True, positions={}, ends={}, quota=Quota(1, None), states=(),
    )  # fmt: skip


def test_a_task_works_where_it_reads_the_drivers_claim(tmp_path: Path) -> None:
    claim = paths.claim_name(terms.claim(LocalStorage(tmp_path), "job", Term(0)))

    storage = drivers_storage(tmp_path, spec_of(LocalStorage(tmp_path).read(claim)))

    assert storage.list(paths.TERMS) == [claim]


def test_a_directory_of_one_name_on_another_machine_is_not_the_drivers(tmp_path: Path) -> None:
    """It may be absent, and stays so; or hold the same term of an earlier run, which that machine drove."""
    here, elsewhere = LocalStorage(tmp_path / "here"), LocalStorage(tmp_path / "elsewhere")
    claim = paths.claim_name(terms.claim(here, "job", Term(0)))
    manifest.publish(elsewhere, manifest.Claim(job="job", term=1, host="elsewhere", pid=1, at=1))

    for place in ("absent", "elsewhere"):
        with pytest.raises(ConfigError, match="not the same place on every machine: .* the claim of term 1"):
            drivers_storage(tmp_path / place, spec_of(here.read(claim)))

    assert not (tmp_path / "absent").exists()


# ---------------------------------------------------------------- rows


def sent(subtask: int, attempt: int, frames: int) -> list[pa.RecordBatch]:
    outbox = Outbox(0, subtask, 2, attempt)
    for number in range(frames):
        outbox.frame(number % 2, 1, "by", b"frame")
    outbox.report(b"report")
    outbox.ends()
    return list(outbox.rest())


def to(target: int, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return [batch.filter(pa.array([value == target for value in batch["target"].to_pylist()])) for batch in batches]


def test_an_inbox_gives_every_row_and_knows_who_sent_them() -> None:
    inbox = Inbox(to(0, sent(0, 70, 3) + sent(1, 71, 4)), 2)

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
        list(Inbox(to(0, arrived()), 2))


def report(level: int, subtask: int, attempt: int, inputs: dict[int, int] | None = None, **more: Any) -> Report:
    return Report(level=level, subtask=subtask, attempt=attempt, inputs=inputs or {}, **more)


def test_reports_of_one_run_of_each_task_fit() -> None:
    read = {0: 10, 1: 11}
    fitting([report(0, 0, 10), report(0, 1, 11), report(1, 0, 12, read), report(1, 1, 13, read)], 2, 2)


@pytest.mark.parametrize(
    "reports",
    [
        [report(0, 0, 10), report(0, 1, 11), report(1, 0, 12, {0: 10, 1: 11})],
        [report(0, 0, 10), report(0, 1, 11), report(1, 0, 12, {0: 10, 1: 11}), report(1, 1, 13, {0: 14, 1: 11})],
        [report(0, 0, 10), report(0, 0, 11), report(1, 0, 12, {0: 10, 1: 11}), report(1, 1, 13, {0: 10, 1: 11})],
    ],
    ids=["one is missing", "another attempt was read", "a task reports twice"],
)
def test_reports_of_different_runs_are_thrown_away(reports: list[Report]) -> None:
    with pytest.raises(RestartFromCheckpoint):
        fitting(reports, 2, 2)


def test_what_no_retry_can_change_comes_out_as_it_was() -> None:
    with pytest.raises(Refused, match="bad"):
        fitting([report(0, 0, 1, failure=Failure("user", "PoisonRecord", "bad", "trace"))], 1, 1)
    with pytest.raises(Fatal, match="gone"):
        fitting([report(0, 0, 1, failure=Failure("fatal", "CorruptCheckpoint", "gone", "trace"))], 1, 1)


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


def test_a_new_term_removes_what_older_ones_left_and_nothing_newer(tmp_path: Path) -> None:
    own_directory(tmp_path, 3)
    own_directory(tmp_path, 5)

    own_directory(tmp_path, 4)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5"]


def test_an_attempt_removes_what_killed_ones_left_and_nothing_of_those_at_work(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from kafka_eos.spark.cache import attempt_directory
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
