"""How many files a writer makes of many partitions, and what it holds in memory meanwhile."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kafka_eos.abc.committer import Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.services import Services
from kafka_eos.connectors.files import Avro, Csv, FileSink, FileSource, Parquet, Roll
from kafka_eos.connectors.files.file_names import PartId, partition
from kafka_eos.connectors.files.sink import open_files
from kafka_eos.connectors.files.sink.writer import FileWriter
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin
from tests.limits import set_limits

pytestmark = pytest.mark.limits("usual")

FIRST = EpochId(Epoch(1), Term(1))


class Row(msgspec.Struct):
    id: int
    text: str = ""


def staged(sink: FileSink, batches: Sequence[Sequence[Row]], services: Services = Services()) -> list[Committable]:
    writer = sink.writer(TaskContext(JobContext("orders", Term(1), {}), 0, 1, "out", services))
    for values in batches:
        writer.write(Batch(list(values), range(len(values)), ListOrigin("in", "list", 0, 0, list(values))))
    return list(writer.seal(FIRST)())


def ids(directory: Path, committables: Sequence[Committable]) -> list[int]:
    paths = [directory / str(each.payload["staged"]) for each in committables]
    return sorted(n for path in paths for n in pq.ParquetFile(path).read().column("id").to_pylist())


def batches(partitions: int, count: int = 5) -> list[list[Row]]:
    return [[Row(n) for n in range(begin * partitions, (begin + 1) * partitions)] for begin in range(count)]


@pytest.mark.parametrize("partitions", [64, 65, 300])
def test_each_partition_has_one_file_however_many_there_are(tmp_path: Path, partitions: int) -> None:
    sink = FileSink(tmp_path, value=Row, format="parquet", partition_by=lambda row: {"p": row.id % partitions})
    committables = staged(sink, batches(partitions))

    assert len({each.payload["staged"] for each in committables}) == len(committables) == partitions
    assert [each.records for each in committables] == [5] * partitions
    assert ids(tmp_path, committables) == list(range(5 * partitions))


@pytest.mark.limits(open_files=2, open_file_bytes=300000)
@pytest.mark.parametrize("form", ["jsonl", "avro", "parquet"])
def test_what_is_too_much_for_memory_is_written_the_largest_first(tmp_path: Path, form: str) -> None:
    rows = [Row(n, "x" * 20_000 if n % 20 == 19 else "") for n in range(600)]
    sink = FileSink(tmp_path, value=Row, format=form, partition_by=lambda row: {"p": row.id % 20})
    committables = staged(sink, [rows[begin : begin + 20] for begin in range(0, 600, 20)])

    assert sum(each.records for each in committables) == 600
    assert 22 <= len(committables) < 60, "the large one again and again, the small ones seldom"


@pytest.mark.limits(open_file_bytes=200000)
def test_rows_of_open_files_are_written_when_all_together_are_too_many(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, value=Row, format="parquet", partition_by=lambda row: {"p": row.id % 3})
    committables = staged(sink, [[Row(n, str(n) * 3000)] for n in range(90)])
    groups = [pq.ParquetFile(tmp_path / str(each.payload["staged"])).num_row_groups for each in committables]

    assert len(committables) == 3 and min(groups) > 1
    assert ids(tmp_path, committables) == list(range(90))


def test_many_small_blocks_of_parquet_take_little_more_than_their_rows() -> None:
    layout = Parquet().layout(Row, False)
    body = layout.body(io.BytesIO())
    before = pa.total_allocated_bytes()
    for n in range(5000):
        body.write(layout.block([Row(n, "text")], None))

    assert body.buffered_bytes < body.memory < 4_000_000
    assert pa.total_allocated_bytes() - before < 4_000_000, "a table of one row takes some hundred bytes a column"


@pytest.mark.limits(open_files=1)
def test_files_that_wait_end_where_the_sink_says(tmp_path: Path) -> None:
    sink = FileSink(tmp_path, value=Row, roll=Roll(rows=2), partition_by=lambda row: {"p": row.id % 2})
    committables = staged(sink, [[Row(n) for n in range(7)]] * 1)

    assert ids_by_file(tmp_path, committables) == [[0, 2], [1, 3], [4, 6], [5]]


def ids_by_file(directory: Path, committables: Sequence[Committable]) -> list[list[int]]:
    paths = [directory / str(each.payload["staged"]) for each in committables]
    return sorted([json.loads(line)["id"] for line in path.open()] for path in paths)


def timed(sink: FileSink, given: Sequence[tuple[float, Sequence[int]]], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Committables of rows that come at these times."""
    clock = {"now": given[0][0] - 10_000.0}
    monkeypatch.setattr(open_files, "monotonic", lambda: clock["now"])
    writer = sink.writer(TaskContext(JobContext("orders", Term(1), {}), 0, 1, "out"))
    for clock["now"], numbers in given:
        rows = [Row(n) for n in numbers]
        writer.write(Batch(rows, range(len(rows)), ListOrigin("in", "list", 0, 0, rows)))
    return list(writer.seal(FIRST)())


@pytest.mark.parametrize("at_once", [1, 2], ids=["one waits", "both are open"])
def test_a_row_that_comes_after_the_time_of_a_file_begins_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    sink = FileSink(tmp_path, value=Row, roll=Roll(seconds=60), partition_by=lambda row: {"p": row.id % 2})
    given = [(1000.0, (0, 1)), (1059.9, (2, 3)), (1060.0, (4, 5)), (1100.0, (6,)), (1119.0, (7,))]

    with set_limits(open_files=at_once):
        assert ids_by_file(tmp_path, timed(sink, given, monkeypatch)) == [[0, 2], [1, 3], [4, 6], [5, 7]]


@pytest.mark.limits(open_files=1)
def test_the_time_of_rows_that_waited_for_a_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = FileSink(tmp_path, value=Row, roll=Roll(rows=3, seconds=60), partition_by=lambda row: {"p": row.id % 2})
    given = [(1000.0, (0, 1)), (1050.0, (2, 4)), (1055.0, (3,)), (1060.0, (5,))]

    assert ids_by_file(tmp_path, timed(sink, given, monkeypatch)) == [[0, 2, 4], [1, 3], [5]]


@pytest.mark.parametrize("at_once", [2, 64])
@pytest.mark.parametrize("roll", [None, Roll(rows=2)])
def test_rows_of_too_many_partitions_are_rejected_and_those_of_begun_ones_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, roll: Roll | None
) -> None:
    """Otherwise everybody who may name a partition could stop the job. Files are not rolled any more then."""
    monkeypatch.setattr(open_files, "MOST_FILES", 10)
    sink = FileSink(tmp_path, value=Row, format="parquet", roll=roll, partition_by=lambda row: {"p": row.text})
    rejected: list[int] = []

    def reject(batch: Batch[Any], index: int, operator: str, error: Exception) -> None:
        assert "one more than 10 files" in str(error)
        rejected.append(batch.values[index].id)

    given = [[Row(n, f"p{n % 12}") for n in range(begin, begin + 12)] for begin in (0, 12, 24)]
    with set_limits(open_files=at_once):
        committables = staged(sink, given, Services(reject_row=reject))

    assert rejected == [10, 11, 22, 23, 34, 35]
    assert len(committables) == 10
    assert ids(tmp_path, committables) == sorted({*range(36)} - {*rejected})


@pytest.mark.parametrize(
    ("given", "why"),
    [({"partition_by": "user"}, "partition_by= is a function .*not 'user'"), ({"roll": 7}, r"roll= is Roll\(.*not 7")],
)
def test_what_is_no_function_and_no_roll_is_refused_with_the_sink(
    tmp_path: Path, given: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        FileSink(tmp_path, **given)


@pytest.mark.parametrize("name", ["_day", ".day", "a=b", "a/b", "", "1st"])
def test_partitions_have_names_that_readers_see(name: str) -> None:
    assert partition({"day": 1, "Hour_2": None}) == "day=1/Hour_2=__HIVE_DEFAULT_PARTITION__"
    with pytest.raises(ValueError, match="is not a valid partition name"):
        partition({name: 1})


def test_a_writer_that_gives_up_keeps_no_file_open_and_begins_again(tmp_path: Path) -> None:
    def held() -> list[str]:
        return sorted(name for each in Path("/proc/self/fd").iterdir() if str(tmp_path) in (name := _target(each)))

    sink = FileSink(tmp_path, value=Row, partition_by=lambda row: {"p": row.id % 3})
    writer = sink.writer(TaskContext(JobContext("orders", Term(1), {}), 0, 1, "out"))
    rows = [Row(n) for n in range(6)]
    writer.write(Batch(rows, range(6), ListOrigin("in", "list", 0, 0, rows)))
    assert len(held()) == 3
    assert isinstance(writer, FileWriter)
    files = writer._files  # as the traceback of an error may hold them

    writer.discard()

    assert held() == []
    assert files
    assert list(writer.seal(FIRST)()) == []


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # closed meanwhile
        return ""


def test_a_sink_and_a_source_of_files_say_what_they_are(tmp_path: Path) -> None:
    where = {"directory": str(tmp_path)}
    assert FileSink(tmp_path, value=Row).describe() == {**where, "format": "json", "envelope": False}
    sink = FileSink(
        tmp_path, value=Row, format=Csv(compression="gzip"), partition_by=lambda row: {"p": row.id},
        roll=Roll(rows=5, size=2**20, seconds=60), epoch_files=True, envelope=True,
    )  # fmt: skip
    rolled = {"roll_rows": 5, "roll_size": 2**20, "roll_seconds": 60}
    assert sink.describe() == {
        **where, "format": "csv", "envelope": True, "compression": "gzip", "partitioned": True, "epoch_files": True,
        **rolled,
    }  # fmt: skip
    for limit in rolled:
        alone = FileSink(tmp_path, value=Row, roll=Roll(**{limit.removeprefix("roll_"): rolled[limit]})).describe()
        assert {name: found for name, found in alone.items() if name.startswith("roll")} == {limit: rolled[limit]}
    assert FileSink(tmp_path, value=Row, format=Avro(compression=None)).describe()["compression"] is None
    assert "compression" not in FileSink(tmp_path, value=Row, format=Avro()).describe()

    read: dict[str, Any] = {"connector": "files", **where}
    source = FileSource(tmp_path, value=Row, format="csv")
    assert source.describe() == {**read, "files": "*.csv, *.csv.gz", "format": "csv"}
    every = FileSource(tmp_path, files="p-*", partitions=["day", "hour"], until="latest", in_order=True)
    assert every.describe() == {
        **read, "files": "p-*", "format": every.describe()["format"], "partitions": "day/hour", "until": "latest",
        "in_order": True,
    }  # fmt: skip


@pytest.mark.limits(open_files=2, open_file_bytes=70000)
@pytest.mark.parametrize(
    ("form", "roll"),
    [
        ("jsonl", Roll()),
        ("jsonl", Roll(rows=3)),
        ("jsonl", Roll(size=40_000)),
        ("jsonl", Roll(rows=4, size=20_000)),
        ("parquet", Roll(rows=4, size=20_000)),
    ],
    ids=["no-roll", "rows", "size", "both", "parquet"],
)
def test_every_row_is_in_one_file_in_its_order_and_memory_is_what_files_and_buffers_hold(
    tmp_path: Path, form: str, roll: Roll
) -> None:
    """Batches of several partitions, small and large rows, more partitions than open files, and two epochs."""
    chance = random.Random(f"{form} {roll}")
    sink = FileSink(tmp_path, value=Row, format=form, roll=roll, partition_by=lambda row: {"p": row.id % 5})
    writer = sink.writer(TaskContext(JobContext("orders", Term(1), {}), 0, 1, "out"))
    assert isinstance(writer, FileWriter)
    number = 0
    for turn in (1, 2):
        rows: list[Row] = []
        files = writer._files
        for _ in range(12):
            sizes = [chance.choice((0, 10, 3_000, 12_000, 30_000)) for _ in range(chance.randint(1, 7))]
            some = [Row(chance.randrange(5) + 5 * (number + n), "x" * size) for n, size in enumerate(sizes)]
            number += len(some)
            writer.write(Batch(some, range(len(some)), ListOrigin("in", "list", 0, 0, some)))
            rows += some
            held = [*files._open.values(), *files._waiting.values()]
            assert files._memory == sum(each.memory for each in held)
            assert files._memory <= 70_000
            assert len(files._open) <= 2
            assert not any(roll.reached(each.records, each.size) for each in held)
            assert files._since.keys() == files._open.keys() | files._waiting.keys()
        committables = list(writer.seal(EpochId(Epoch(turn), Term(1)))())

        assert (files._memory, files._open, files._waiting, files._since) == (0, {}, {}, {})
        found: dict[int, list[int]] = {}
        for each in sorted(committables, key=_number):
            content = _ids_of(tmp_path / str(each.payload["staged"]), form)
            assert len({n % 5 for n in content}) == 1
            assert each.records == len(content) > 0
            assert roll.rows is None or len(content) <= roll.rows
            found.setdefault(content[0] % 5, []).extend(content)
        assert found == {
            key: [row.id for row in rows if row.id % 5 == key] for key in {row.id % 5 for row in rows}
        }  # fmt: skip


def _number(committable: Committable) -> int:
    parsed = PartId.parse(str(committable.payload["staged"]))
    assert parsed is not None
    return parsed[1].number


def _ids_of(path: Path, form: str) -> list[int]:
    if form == "jsonl":
        return [json.loads(line)["id"] for line in path.open()]
    found: list[int] = pq.ParquetFile(path).read().column("id").to_pylist()
    return found
