"""Rows under way of the other engine, taken up by the tasks of an epoch; no Spark needed: who gets which, in order."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos.abc.context import TaskContext
from kafka_eos.abc.services import Resources
from kafka_eos.abc.state import InFlightRows
from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import Batch
from kafka_eos.plan import Plan
from kafka_eos.runtime.exchange import in_flight_rows as in_flight
from kafka_eos.runtime.exchange import wire_format as wire
from kafka_eos.runtime.program import CodeFingerprint
from kafka_eos.spark.messages import ReadLimit, StageSpec
from kafka_eos.spark.row_frames import ShuffleWriter
from kafka_eos.spark.stage_task import SparkTaskEnvironment, StageTask
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin, ListReader
from tests.unit.runtime.operators.test_due_work import amid

TASKS = 3


def plan() -> Plan:
    pipeline = Pipeline("replay")
    stream = pipeline.source(ListSource([]), name="in").flat_map(lambda n: [n, n], name="twice")
    over = stream.key_by(lambda n: n, name="by", values=int).reduce(lambda _, n: n, name="last", state=int)
    over.union(stream.forward(name="stays", values=int), name="both").sink(MemorySink(), name="out")
    return pipeline.plan()


def under_way(
    storage: MemoryStorage, path: Path, exchange: str, batches: list[Batch[Any]], overtaken: bool
) -> InFlightRows:
    node = plan().node(exchange)
    assert node.exchange_codec is not None
    log = in_flight.InFlightLog(path / "scratch")
    for batch in batches:
        log.add(wire.encode_at(plan(), node, [batch]))
    stored = log.store(storage, exchange, node.exchange_codec, overtaken)
    log.drop()
    return stored


def taken_up(
    storage: MemoryStorage, path: Path, kept: tuple[InFlightRows, ...]
) -> dict[tuple[str, int], list[Batch[Any]]]:
    """By exchange and task of the next level: what it gets, in the order in which the shuffle brings it."""
    settings = Settings.resolve(code={"parallelism": TASKS})
    rows = []
    for subtask in range(TASKS):
        spec = StageSpec(
            app="", pipeline=None, shipped=False, code=CodeFingerprint("", {}), settings=json.dumps(settings.as_json()),
            identity="0" * 12, term=1, claim=b"", epoch=1, finished=0, generation=0, parallelism=TASKS,
            level=0, last=False, positions={"in": {SplitId("list/0"): {"index": 0}}},
            ends={"in": {}}, quota=1, states=(), in_flight=kept,
        )  # fmt: skip
        outbox = ShuffleWriter(0, subtask, TASKS, subtask)
        (path / f"local-{subtask}").mkdir()
        stage = StageTask(
            spec,
            SparkTaskEnvironment(
                plan(), settings, storage, path / f"local-{subtask}", subtask, subtask, Resources(), {}
            ),
            outbox,
        )
        stage.replay()
        stage.close()
        rows += [row for batch in outbox.flush() for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)]
    found: dict[tuple[str, int], list[Batch[Any]]] = defaultdict(list)
    for target, _, _, _, _, exchange, frame in sorted(rows, key=lambda row: (row[3], row[4])):
        codec = plan().node(exchange).exchange_codec
        assert codec is not None
        found[exchange, target].append(wire.decode(frame, codec))
    return found


class Counting(ListSource):
    """Knows what it was asked to read."""

    def reader(self, ctx: TaskContext, positions: Positions) -> ListReader:
        self.asked = set(positions)
        return super().reader(ctx, positions)


def test_a_task_reads_nothing_of_splits_that_wait_and_hands_their_positions_on(tmp_path: Path) -> None:
    """What is not fetched has no lag that anybody knows; so the others' is known."""
    source = Counting([0, 10, 1, 11], splits=2)
    pipeline = Pipeline("waits")
    pipeline.source(source, name="in").sink(MemorySink(), name="out")
    waits, read = SplitId("list/0"), SplitId("list/1")
    settings = Settings.resolve(code={"parallelism": 1})
    spec = StageSpec(
        app="", pipeline=None, shipped=False, code=CodeFingerprint("", {}), settings=json.dumps(settings.as_json()),
        identity="0" * 12, term=1, claim=b"", epoch=1, finished=0, generation=0, parallelism=1,
        level=0, last=True, positions={"in": {waits: {"index": 1}, read: {"index": 0}}},
        ends={"in": {waits: {"index": 1}, read: {"index": 2}}}, quota=ReadLimit(10, None), states=(), in_flight=(),
    )  # fmt: skip
    around = SparkTaskEnvironment(pipeline.plan(), settings, MemoryStorage(), tmp_path, 0, 0, Resources(), {})
    task = StageTask(spec, around, ShuffleWriter(0, 0, 1, 0))
    for _ in task.read():
        pass
    report = task.finish()
    task.close()

    assert source.asked == {read}
    assert report.positions == {"in": {waits: {"index": 1}, read: {"index": 2}}}
    assert (report.unread, report.lag, report.records_in) == ({"in": []}, 0, {"in": 2})


def of_partition(partition: int, start: int, rows: list[int]) -> Batch[int]:
    values = [start + row for row in rows]
    return Batch(values, rows, ListOrigin("in", "list", partition, start, range(max(rows) + 1)), keys=values)


def test_forwarded_rows_go_where_their_split_is_read(tmp_path: Path) -> None:
    """And values of one record stay together: they are told apart by their number only."""
    storage = MemoryStorage()
    frames = [of_partition(n % 5, 10 * n, [0, 0, 1, 1]) for n in range(10)]
    kept = under_way(storage, tmp_path, "stays", frames, overtaken=False)

    found = taken_up(storage, tmp_path, (kept,))

    for task in range(TASKS):
        mine = [batch for n, batch in enumerate(frames) if n % 5 % TASKS == task]
        assert [batch.values for batch in found["stays", task]] == [batch.values for batch in mine]
        assert all(list(batch.origin_rows) == [0, 0, 2, 2] for batch in found["stays", task])


@pytest.mark.parametrize("overtaken_first", [True, False])
def test_what_the_receivers_had_goes_before_what_the_senders_had(tmp_path: Path, overtaken_first: bool) -> None:
    """Answers of workers stand in the manifest in the order of their subtasks, whoever sent to whom."""
    storage = MemoryStorage()
    received = under_way(storage, tmp_path, "by", [Batch([1], [0], ListOrigin("in", "list", 0, 0, [1]), ["k"])], False)
    overtaken = under_way(storage, tmp_path, "by", [Batch([2], [0], ListOrigin("in", "list", 0, 1, [2]), ["k"])], True)
    kept = (overtaken, received) if overtaken_first else (received, overtaken)

    ((_, batches),) = taken_up(storage, tmp_path, kept).items()

    assert [value for batch in batches for value in batch.values] == [1, 2]


def test_what_a_snapshot_has_left_of_a_time_is_done_before_the_rows_of_an_epoch(tmp_path: Path) -> None:
    """The other engine takes some between two timers of a time. No watermark comes here that would do it."""
    storage, settings = MemoryStorage(), Settings.resolve(code={"parallelism": 1})
    with ExitStack() as closing:
        before, handles = amid("timers", tmp_path / "before", closing, storage)
    spec = StageSpec(
        app="", pipeline=None, shipped=False, code=CodeFingerprint("", {}), settings=json.dumps(settings.as_json()),
        identity="0" * 12, term=1, claim=b"", epoch=2, finished=0, generation=0, parallelism=1,
        level=1, last=False, positions={}, ends={}, quota=ReadLimit(10, None), states=tuple(handles), in_flight=(),
    )  # fmt: skip
    task = StageTask(
        spec,
        SparkTaskEnvironment(before, settings, storage, tmp_path, 0, 0, Resources(), {}),
        ShuffleWriter(0, 0, 1, 1),
    )
    report = task.finish()
    task.close()

    assert report.timers["first"] == 1, "all but that of a later time"
