"""The records of an epoch are read again from its sources, and none before or behind them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.files import FileSource
from kafka_eos.core.errors import ConfigError, InputLost
from kafka_eos.core.ids import SplitId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.ops.epoch_replay.epoch_reader import find_ends, read_epochs
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.epoch_replay import InputRecord

CONTEXT = JobContext("numbers", Term(1), {})


def _pipeline(**sources: Any) -> Pipeline:
    pipeline = Pipeline("numbers")
    for name, source in sources.items():
        pipeline.source(source, name=name).sink(MemorySink(), name=f"{name}-out")
    return pipeline


def _at(**indices: int) -> dict[str, Positions]:
    """Positions of ``ListSource``, by source and number of the split: ``n_1=4``."""
    found: dict[str, dict[SplitId, Any]] = {}
    for name, index in indices.items():
        source, _, split = name.partition("_")
        found.setdefault(source, {})[SplitId(f"list/{split}")] = {"index": index}
    return dict(found)


def _values(records: list[InputRecord]) -> list[Any]:
    return [record.batch.values[0] for record in records if record.batch is not None]


def test_epochs_get_the_records_between_their_positions() -> None:
    plan = _pipeline(n=ListSource(range(10), splits=2)).plan()  # split 0 has the even numbers

    epochs = read_epochs(plan, CONTEXT, _at(n_0=1, n_1=0), [_at(n_0=3, n_1=0), _at(n_0=3, n_1=0), _at(n_0=4, n_1=4)])

    assert [_values(records) for records in epochs] == [[2, 4], [], [6, 1, 3, 5, 7]]


def test_a_split_that_an_epoch_found_begins_at_its_beginning() -> None:
    plan = _pipeline(n=ListSource(range(6), splits=2)).plan()

    first, second = read_epochs(plan, CONTEXT, _at(n_0=2), [_at(n_0=3), _at(n_0=3, n_1=1)])

    assert (_values(first), _values(second)) == ([4], [1])


def test_records_of_several_partitions_are_merged_by_time_and_keep_the_order_of_their_partition() -> None:
    def read(times: Mapping[str, list[int]]) -> list[Any]:
        sources = {name: ListSource(of, name=name) for name, of in times.items()}
        plan = _pipeline(**sources).plan()
        for source in sources.values():
            source.reader = _timed(source.reader)  # type: ignore[method-assign]
        begin: dict[str, Positions] = {name: {SplitId(f"{name}/0"): {"index": 0}} for name in times}
        end: dict[str, Positions] = {name: {SplitId(f"{name}/0"): {"index": len(of)}} for name, of in times.items()}
        (records,) = read_epochs(plan, CONTEXT, begin, [end])
        return [(record.source, *_values([record])) for record in records]

    assert read({"a": [5, 3, 9], "b": [4, 7]}) == [("b", 4), ("a", 5), ("a", 3), ("b", 7), ("a", 9)]


def _timed(open_reader: Any) -> Any:
    """Records of ``ListSource`` whose value is their timestamp."""

    def opened(*given: Any) -> Any:
        reader = open_reader(*given)
        poll = reader.poll

        def polled(*given: Any) -> Any:
            batch = poll(*given)
            if batch is not None:
                batch.origin._timestamps = batch.values
            return batch

        reader.poll = polled
        return reader

    return opened


def test_files_are_read_from_row_to_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("1\n2\n3\n")
    (tmp_path / "b.jsonl").write_text('4\n"five"\n6\n')
    plan = _pipeline(n=FileSource(tmp_path, format="jsonl", value=int)).plan()
    source = plan.sources[0].source
    begin = source.discover(CONTEXT, None)
    row_2 = {split: {**at, "row": 2 if split == "a.jsonl/0" else 0} for split, at in begin.items()}
    done = {
        split: {part: of for part, of in at.items() if part != "row"} | {"done": True} for split, at in begin.items()
    }

    first, rest = read_epochs(plan, CONTEXT, {"n": begin}, [{"n": row_2}, {"n": done}])

    assert (_values(first), _values(rest)) == ([1, 2], [3, 4, 6])
    assert [record.raw.location for record in rest if record.error is not None] == ["b.jsonl/0/1"]


def test_the_end_of_an_epoch_that_was_not_decided_is_the_present_end() -> None:
    plan = _pipeline(n=ListSource(range(6), splits=2)).plan()

    ends = find_ends(plan, CONTEXT, _at(n_0=2, n_1=0))

    (records,) = read_epochs(plan, CONTEXT, _at(n_0=2, n_1=0), [ends])
    assert _values(records) == [4, 1, 3, 5]


def test_input_that_is_gone_is_named() -> None:
    plan = _pipeline(n=ListSource(range(3))).plan()
    with pytest.raises(ConfigError, match=r"'m', which the pipeline does not have any more; it has n"):
        list(read_epochs(plan, CONTEXT, _at(n_0=0), [_at(m_0=1)]))
    with pytest.raises(InputLost):
        list(read_epochs(plan, CONTEXT, _at(n_0=7), [_at(n_0=9)]))
