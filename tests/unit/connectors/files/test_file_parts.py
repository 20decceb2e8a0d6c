"""What files, their names, their lines and their rows consist of. Without a directory."""

from __future__ import annotations

import dataclasses
import enum
import io
import json
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from kafka_eos.connectors.files.file_names import PartId, PartState, partition
from kafka_eos.connectors.files.formats.record_fields import (
    expect_columns,
    expect_declared,
    fields_of,
    picker,
    taken_apart,
)
from kafka_eos.connectors.files.hive_partitions import PartitionLevels, typed
from kafka_eos.connectors.files.sink.announcements import EpochFileEntry, build_epoch_files
from kafka_eos.connectors.files.sink.commit_markers import CommitMarkers
from kafka_eos.connectors.files.source.bounded_reads import READ_ENDS, PartTooLarge, rows_from
from kafka_eos.connectors.files.source.bounded_text import csv_rows, text_lines
from kafka_eos.connectors.files.source.positions import FileProgress, get_file_name, name_split
from kafka_eos.connectors.files.source.unreadable_rows import (
    TypeColumns,
    UnreadableRow,
    rejecting_unreadable,
    rows_per_read,
)
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, InputLost, PlanError
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term

# ---------------------------------------------------------------- directories of partitions

LEVELS = PartitionLevels.of(["day", "hour", "shop"])


def test_each_directory_is_a_column() -> None:
    assert LEVELS.columns("day=2026-01-31/hour=5/shop=a%2Fb=c/part.json") == {
        "day": "2026-01-31", "hour": "5", "shop": "a/b=c"
    }  # fmt: skip
    null = "__HIVE_DEFAULT_PARTITION__"
    assert LEVELS.columns(f"day={null}/hour=5/shop={null}/x") == {"day": None, "hour": "5", "shop": None}
    assert PartitionLevels.of([]).columns("x") == {}


@pytest.mark.parametrize(
    "name",
    [
        "x",
        "day=1/hour=2/x",
        "day=1/hour=2/shop=3/more=4/x",
        "hour=2/day=1/shop=3/x",
        "day=1/hour=2/shops=3/x",
        "day=/hour=2/shop=3/x",
        "day=1/hour=2/shop=/x",
        "day=1/hour/shop=3/x",
    ],
)
def test_a_file_outside_of_the_levels_is_named_with_where_it_should_be(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is not in a directory such as day=…/hour=…/shop=…$"):
        LEVELS.columns(name)


@pytest.mark.parametrize(
    ("given", "said"),
    [("day", "list the"), (["day", "2x"], "list the"), (["2x", "day"], "list the"), (["a", "b", "a"], "twice")],
)
def test_levels_have_names_each_its_own(given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PartitionLevels.of(given)


class Named(pydantic.BaseModel):
    day: date
    hour: int | None = pydantic.Field(alias="h")
    shop: str = pydantic.Field(alias="s")


class Coded(msgspec.Struct, rename={"hour": "h"}):
    day: date
    hour: int


def test_a_column_has_the_type_of_its_field_under_either_of_its_names() -> None:
    found = typed({"day": "2026-01-31", "h": "5", "s": "7", "more": "1"}, Named)
    assert found == {"day": date(2026, 1, 31), "h": 5, "s": "7", "more": "1"}
    assert typed({"hour": None, "shop": "x"}, Named) == {"hour": None, "shop": "x"}
    assert typed({"day": "2026-01-31", "h": "5"}, Coded) == {"day": date(2026, 1, 31), "h": 5}
    for untyped in (dict, dict[str, int], Any):
        assert typed({"hour": "5", "more": None}, untyped) == {"hour": "5", "more": None}
    with pytest.raises(ValueError, match="^h=five: "):
        typed({"day": "2026-01-31", "h": "five"}, Coded)
    with pytest.raises(ValueError, match="^hour=__HIVE_DEFAULT_PARTITION__: "):
        typed({"hour": None}, Coded)


# ---------------------------------------------------------------- positions

FOUND = FileProgress(0, 10, 77)


def test_the_split_of_a_file_is_its_name() -> None:
    for name in ("a", "a/b.json", "day=1/a/b"):
        assert get_file_name(name_split(name)) == name
    assert name_split("a/b") == "a/b/0"


@pytest.mark.parametrize("at", [FOUND, FOUND.after(3), FOUND.after(3).at_end()])
def test_a_position_is_read_as_it_was_written(at: FileProgress) -> None:
    assert FileProgress.read(at.position()) == at
    assert at.position() == {"size": 10, "modified": 77} | ({"done": True} if at.done else {"row": at.row})


@pytest.mark.parametrize(
    "position", [{}, {"size": 1, "modified": 2}, {"size": 1, "modified": 2, "row": -1}, {"size": "1", "done": True}]
)
def test_what_is_no_position_is_damage(position: Any) -> None:
    with pytest.raises(CorruptCheckpoint, match="not a position in a file"):
        FileProgress.read(position)


def test_a_file_is_begun_and_comes_to_an_end() -> None:
    assert [each.begun for each in (FOUND, FOUND.after(1), FOUND.at_end())] == [False, True, True]
    end = FOUND.after(3)
    assert [FOUND.after(row).reaches(end) for row in (2, 3, 4)] == [False, True, True]
    assert FOUND.at_end().reaches(end) and FOUND.at_end().reaches(FOUND.at_end())
    assert not FOUND.after(9).reaches(FOUND.at_end())


def test_a_file_that_was_changed_is_lost_input() -> None:
    FOUND.after(3).expect_unchanged("a", FOUND)
    for now in (FileProgress(0, 11, 77), FileProgress(0, 10, 78)):
        with pytest.raises(InputLost, match="^a has changed since it was found: it had 10 bytes"):
            FOUND.expect_unchanged("a", now)


# ---------------------------------------------------------------- lines


def parts(rows: Any) -> list[Any]:
    return ["|" if row is READ_ENDS else row for row in rows]


@pytest.mark.limits(bytes_per_file_read=200)
def test_lines_are_read_without_blank_ones_and_a_read_ends_by_size() -> None:
    text = io.BytesIO(b"a\n\n  \nb\r\n" + b"c" * 80 + b"\nd")

    assert parts(text_lines(text, 100)) == [b"a\n", b"b\r\n", "|", b"c" * 80 + b"\n", b"d", "|"]


@pytest.mark.limits("usual")
def test_a_line_and_the_blank_ones_before_it_have_so_many_bytes_at_most() -> None:
    for fitting in (b"12345", b"1234\n12345", b"\n\n\n\n\n1", b"\n\n\n\n1\n\n\n\n\n1"):
        assert parts(text_lines(io.BytesIO(fitting), 5))
    for large in (b"123456", b"1\n12345\n", b"\n\n\n\n\n\n1", b"1\n   \n   \n"):
        with pytest.raises(PartTooLarge, match="more than 5 bytes"):
            parts(text_lines(io.BytesIO(large), 5))


@pytest.mark.limits("usual")
def test_a_row_of_csv_has_so_many_characters_at_most_on_all_its_lines() -> None:
    rows = [["a", "b"], ["c", "d\ne"], ["f", "g"]]
    assert parts(csv_rows(io.StringIO('a,b\n\nc,"d\ne"\nf,g'), 9)) == rows
    for large in ('a,b\nc,"d\nef"\n', "123456789", "\n" * 9 + "a"):
        with pytest.raises(PartTooLarge, match="more than 8 bytes"):
            parts(csv_rows(io.StringIO(large), 8))


@pytest.mark.limits(bytes_per_file_read=150)
def test_a_read_of_csv_ends_by_size() -> None:
    assert parts(csv_rows(io.StringIO("a,1\n" * 5), 8)) == [*([["a", "1"]] * 3), "|", *([["a", "1"]] * 2)]


def test_rows_before_a_position_are_left_out_and_the_ends_of_reads_are_not() -> None:
    rows = ["a", READ_ENDS, "b", "c", READ_ENDS, "d"]

    assert [parts(rows_from(first, rows)) for first in range(5)] == [
        ["a", "|", "b", "c", "|", "d"], ["|", "b", "c", "|", "d"], ["|", "c", "|", "d"], ["|", "|", "d"], ["|", "|"]
    ]  # fmt: skip


# ---------------------------------------------------------------- fields


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int
    b: str = ""


class Pair(msgspec.Struct):
    a: int
    b: str = ""


class Triple(Pair):
    c: int = 0


@dataclasses.dataclass
class Plain:
    a: int
    b: str = ""


@pytest.mark.parametrize("tp", [Open, Pair, Plain])
def test_the_fields_of_a_record_are_its_columns(tp: Any) -> None:
    assert fields_of(tp, "columns") == {"a": int, "b": str}
    assert taken_apart(tp(a=1, b="x")) == {"a": 1, "b": "x"}
    assert list(picker(tp, ["b", "a"])(tp(a=1, b="x"))) == ["x", 1]
    if tp is not Open:  # which may have others
        assert list(picker(tp, ["a"])(tp(a=1))) == [1]
    with pytest.raises(ValueError, match=f"expected {tp.__name__}, got dict"):
        picker(tp, ["a"])({"a": 1})


def test_what_has_no_fields_has_no_columns() -> None:
    for tp in (int, dict[str, int], list):
        with pytest.raises(ConfigError, match="for streams of dicts omit value and pass columns"):
            fields_of(tp, "columns")
    assert taken_apart(5) is None
    assert taken_apart({"a": 1}) == {"a": 1}


def test_no_field_is_dropped_silently() -> None:
    both = {"a", "b"}
    expect_declared(Open(a=1), both)
    expect_declared(5, both)
    extra = Open(a=1, c=2)  # type: ignore[call-arg]
    for value, more in ((extra, "c"), (Triple(1), "c"), ({"a": 1, "y": 2, "x": 3}, "x, y")):
        with pytest.raises(ValueError, match=f"no column for {more}$"):
            expect_declared(value, both)
    for tp, record in ((Open, extra), (Pair, Triple(1))):
        with pytest.raises(ValueError, match="no column for c$"):
            picker(tp, ["a", "b"])(record)
    with pytest.raises(ValueError, match="no column for x, y$"):
        picker(None, ["a"])({"y": 1, "a": 2, "x": 3})
    with pytest.raises(ValueError, match="expected a dict with the columns, got int"):
        picker(None, ["a"])(5)
    assert list(picker(None, ["a", "b", "c"])({"c": 3, "a": 1})) == [1, None, 3]


@pytest.mark.parametrize("names", [[], ["a", "b", "a"], ["a", "kafka_eos_provenance"]])
def test_columns_have_names_each_its_own(names: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"got {', '.join(names) or 'none'}"):
        expect_columns(names)


def test_a_type_whose_fields_cannot_be_told_apart_or_are_reserved_is_refused() -> None:
    twice: Any = msgspec.defstruct("Twice", [("a", int), ("b", int)], rename={"a": "b", "b": "c"})
    reserved: Any = msgspec.defstruct("Reserved", [("kafka_eos_provenance", int)])

    with pytest.raises(PlanError, match="Twice: b is the name of one field and the alias of another"):
        fields_of(twice, "columns")
    with pytest.raises(ConfigError, match="none named kafka_eos_provenance"):
        fields_of(reserved, "columns")


class Forbidding(msgspec.Struct, forbid_unknown_fields=True):
    a: int


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    a: int


@pytest.mark.parametrize(
    ("tp", "in_partitions", "names", "read"),
    [
        (Pair, False, "xab", "ab"),
        (Pair, False, "bx", "b"),
        (Pair, True, "xy", ""),
        (Forbidding, False, "xay", "xay"),
        (Strict, False, "xay", "xay"),
        (dict, False, "xy", "xy"),
        (None, False, "xy", "xy"),
    ],
)
def test_only_columns_that_a_type_decides_about_are_read(tp: Any, in_partitions: bool, names: str, read: str) -> None:
    assert TypeColumns.of(tp, in_partitions=in_partitions).select([*names]) == [*read]


def test_a_file_without_any_field_of_the_type_is_refused_with_the_columns_that_it_has() -> None:
    columns = TypeColumns.of(Pair, in_partitions=False)

    with pytest.raises(ValueError, match="it has the columns 'x', 'y', but none of them is a field of Pair"):
        columns.select(["x", "y"])
    for more in (1, 5):
        with pytest.raises(ValueError, match="'c48', 'c49', …, but") as refused:
            columns.select([f"c{n}" for n in range(50 + more)])
        assert str(refused.value).count("…") == 1
    with pytest.raises(ValueError, match="'c49', but"):
        columns.select([f"c{n}" for n in range(50)])
    with pytest.raises(ValueError, match="it has 20,001 columns, and at most 20,000 are read"):
        columns.select(["a"] * 20_001)
    assert len(columns.select(["a"] * 20_000)) == 20_000


@pytest.mark.limits(rows_per_file_read=10, cells_per_file_read=40)
def test_a_read_has_so_many_rows_and_cells_at_most() -> None:
    assert [rows_per_read(columns) for columns in (0, 1, 4, 8, 40, 41, 1_000)] == [10, 10, 10, 5, 1, 1, 1]


def test_a_row_that_cannot_be_represented_is_refused_with_its_reason() -> None:
    decode = rejecting_unreadable(lambda row: dict(row))

    assert decode({"a": 1}) == {"a": 1}
    row = UnreadableRow({"a": 10**30}, "a year after 9999")
    assert row == {"a": 10**30}
    with pytest.raises(ValueError, match="a year after 9999"):
        decode(row)


# ---------------------------------------------------------------- partitions that are written


class Size(enum.Enum):
    LARGE = "large"


@pytest.mark.parametrize(
    ("values", "directory"),
    [
        ({"a": "x", "b": 1, "c": 1.5, "d": date(2026, 1, 31)}, "a=x/b=1/c=1.5/d=2026-01-31"),
        ({"a": None, "b": "", "c": True, "d": Size.LARGE}, "a={0}/b={0}/c=true/d=large"),
        ({"a": Decimal("1.20"), "b": UUID(int=5)}, "a=1.20/b=00000000-0000-0000-0000-000000000005"),
        ({"a": "b:/c=%\n"}, "a=b%3A%2Fc%3D%25%0A"),
        ({"a": "x" * 253}, "a=" + "x" * 253),
    ],
)
def test_the_directory_of_a_partition_is_spelt_as_by_hive(values: dict[str, object], directory: str) -> None:
    assert partition(values) == directory.format("__HIVE_DEFAULT_PARTITION__")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "returned no partition"),
        ({"a": 1, "_b": 2}, "'_b' is not a valid partition name"),
        ({"2": 1, "b": 2}, "'2' is not a valid partition name"),
        ({"a": 1, "b": "x" * 254}, "at most 255 bytes"),
        ({"a": "ä" * 127, "b": 1}, "at most 255 bytes"),
        ({"a": 1, "b": b"x"}, "a bytes cannot be the value of a partition"),
    ],
)
def test_what_cannot_be_the_directory_of_a_partition_is_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        partition(values)


# ---------------------------------------------------------------- markers and epoch files

ONE, OTHER = JobIdentity("a" * 12), JobIdentity("b" * 12)


def part(epoch: int, term: int = 1, identity: JobIdentity | None = ONE, **more: Any) -> PartId:
    return PartId("job", identity, EpochId(Epoch(epoch), Term(term)), 0, **{"operator": "out", **more})


class Names:
    """A store of markers, with other hidden files between them."""

    def __init__(self, *names: str) -> None:
        self.names = {*names}

    def create(self, name: str) -> bool:
        created = name not in self.names
        self.names.add(name)
        return created

    def hidden(self, job: str) -> list[tuple[str, PartState, PartId]]:
        parsed = ((name, PartId.parse(name)) for name in sorted(self.names))
        return [(name, *found) for name, found in parsed if found is not None and found[1].job == job]

    def remove(self, name: str) -> None:
        self.names.remove(name)


def test_markers_go_with_the_first_commit_of_a_later_epoch() -> None:
    store = Names()
    markers = CommitMarkers(store)
    first, second = EpochId(Epoch(1), Term(1)), EpochId(Epoch(2), Term(1))
    of_first = [part(1, number=number) for number in range(3)]

    assert all(markers.make(each, first) for each in of_first)
    assert not markers.make(of_first[0], first)
    aborted = part(1, number=9)
    store.create(aborted.build_hidden_name(PartState.ABORTED))
    markers.note(aborted, PartState.ABORTED, second)
    markers.forget(of_first[0], first)
    assert len(store.names) == 4, "they are needed until the receipt of their own epoch"
    assert markers.make(part(2), second)
    markers.forget(part(2), second)
    kept = {aborted.build_hidden_name(PartState.ABORTED), part(2).build_hidden_name(PartState.COMMITTED)}
    assert store.names == kept
    for number in (3, 3, 4):
        markers.forget(part(number), EpochId(Epoch(number), Term(1)))
        assert store.names == set()


def test_the_first_commit_of_a_term_removes_the_markers_of_earlier_terms_of_its_incarnation() -> None:
    kinds = PartState.COMMITTED, PartState.ABORTED
    of_earlier = [part(epoch, 1).build_hidden_name(kind) for epoch in (1, 2) for kind in kinds]
    others = [
        part(1, 1).build_hidden_name(PartState.STAGED),
        part(1, 1).build_hidden_name(PartState.OPEN),
        part(3, 2).build_hidden_name(PartState.COMMITTED),
        part(1, 1, OTHER).build_hidden_name(PartState.COMMITTED),
        part(1, 1, None).build_hidden_name(PartState.COMMITTED),
    ]
    store = Names(*of_earlier, *others)
    markers = CommitMarkers(store)

    markers.forget(part(3, 2), EpochId(Epoch(3), Term(2)))
    assert store.names == {*others}
    late = part(2, 1).build_hidden_name(PartState.COMMITTED)
    store.create(late)
    markers.forget(part(4, 2), EpochId(Epoch(4), Term(2)))
    assert store.names == {*others, late}, "once a term"
    markers.forget(part(5, 3), EpochId(Epoch(5), Term(3)))
    assert store.names == {*others} - {others[2]}


def test_an_epoch_file_lists_the_files_of_its_incarnation_in_the_order_of_their_names() -> None:
    epoch = EpochId(Epoch(7), Term(2))

    def entry(final: str, identity: JobIdentity | None, number: int = 0) -> EpochFileEntry:
        return EpochFileEntry(part(7, 2, identity, number=number), final, number, 10 * number, {"more": number})

    entries = [entry("c", ONE, 3), entry("x", None, 9), entry("a", ONE, 1), entry("z", OTHER, 4), entry("b", ONE, 2)]
    found = [(name, json.loads(content)) for name, content in build_epoch_files(epoch, entries)]

    assert [name for name, _ in found] == [
        f"_epochs/000000000007-job{identity}.json" for identity in ("", f".{ONE}", f".{OTHER}")
    ]
    assert [[file["file"] for file in content["files"]] for _, content in found] == [["x"], ["a", "b", "c"], ["z"]]
    assert found[1][1]["files"][2] == {"file": "c", "operator": "out", "rows": 3, "size": 30, "more": 3}
    assert {(content["version"], content["job"], content["epoch"]) for _, content in found} == {(1, "job", 7)}
    assert [*build_epoch_files(epoch, entries)] == [*build_epoch_files(epoch, entries[::-1])]
