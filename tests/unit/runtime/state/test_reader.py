"""Stored state is read and rewritten without the job, and comes out the same whoever wrote it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pandas
import pyarrow
import pyarrow.parquet
import pydantic
import pytest
from state_world import Kind
from typer.testing import CliRunner

from kafka_eos.abc.state import StateDescriptor, StateHandle, Ttl
from kafka_eos.cli import app as cli
from kafka_eos.codecs import (
    AvroCodec,
    CountedCodec,
    ElementsCodec,
    KeyCodec,
    MsgpackCodec,
    RowPanesCodec,
    StrCodec,
    register_codec,
    state_codec,
)
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import Epoch, SplitId
from kafka_eos.runtime.state import canonical_savepoint as making
from kafka_eos.runtime.state.entry_states import ElementNumberCodec
from kafka_eos.runtime.state.key_groups import group_of, key_group_range
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.runtime.state.timers import create_timer_descriptor
from kafka_eos.savepoints import SavepointBuilder, Snapshot
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.job_records import Manifest, publish
from kafka_eos.storage.job_storage import LocalStorage

JOB = "orders"


class Total(msgspec.Struct):
    total: int
    last: int = 0


class Largest(pydantic.BaseModel):
    account: str
    amount: int


KEY = KeyCodec()
SUM: StateDescriptor[Any] = StateDescriptor("sum", KEY, MsgpackCodec(int))
FOLD: StateDescriptor[Any] = StateDescriptor("accumulator", KEY, CountedCodec(state_codec(Total)))
AVRO: StateDescriptor[Any] = StateDescriptor("largest", KEY, AvroCodec(Largest))
TEXT: StateDescriptor[Any] = StateDescriptor("text", KEY, StrCodec())
MAP: StateDescriptor[Any] = StateDescriptor("map", KEY, MsgpackCodec(int), "map", entry=KEY)
LIST: StateDescriptor[Any] = StateDescriptor("list", KEY, MsgpackCodec(int), "list", entry=ElementNumberCodec())
WINDOWS: StateDescriptor[Any] = StateDescriptor("windows", KEY, MsgpackCodec(int), namespace=KEY)
BOTH: StateDescriptor[Any] = StateDescriptor("both", KEY, MsgpackCodec(int), "map", namespace=KEY, entry=KEY)
EXPIRING: StateDescriptor[Any] = StateDescriptor("expiring", KEY, MsgpackCodec(int), ttl=Ttl(10.0, "event"))


class Job:
    """A job's storage, and epochs made of states written at any parallelism by any backend."""

    def __init__(self, root: Path) -> None:
        self.root, self.storage = root, LocalStorage(root / JOB)
        self._serial = itertools.count()

    def manifest(self, kind: Kind, parallelism: int, operators: dict[str, dict[StateDescriptor[Any], Any]]) -> Manifest:
        states = tuple(
            self._handle(kind, key_group_range(subtask, parallelism), operator, states)
            for operator, states in operators.items()
            for subtask in range(parallelism)
        )
        return Manifest(
            job=JOB, epoch=4, term=2, created_at=0, plan="p", max_key_groups=128, parallelism=parallelism,
            sources={"in": {SplitId("in/0"): {"offset": 7}}}, states=states, committables=(),
            identity="0123456789ab",
        )  # fmt: skip

    def _handle(self, kind: Kind, groups: range, operator: str, states: dict[Any, Any]) -> StateHandle:
        backend = open_backend(kind, operator, self.root / f"local-{next(self._serial)}", groups, (), self.storage)
        for descriptor, content in states.items():
            state = backend.value(descriptor)
            for place, value in content.items():
                key = place[0] if descriptor.entry or descriptor.namespace else place
                if group_of(descriptor.key.encode(key)) in groups:
                    state.put(place, value)
        handle = backend.snapshot(Epoch(4))(self.storage)
        backend.close()
        return handle

    def savepoint(self, *args: Any) -> Snapshot:
        path = self.root / f"savepoint-{next(self._serial)}"
        making.write_savepoint(self.storage, self.manifest(*args), path)
        return Snapshot.open(path)

    def restored(
        self, snapshot: Snapshot, kind: Kind, operator: str, descriptor: StateDescriptor[Any]
    ) -> dict[Any, Any]:
        """What a job that begins with the snapshot has, in three subtasks."""
        found: dict[Any, Any] = {}
        for subtask in range(3):
            groups, directory = key_group_range(subtask, 3), self.root / f"local-{next(self._serial)}"
            handles = snapshot.handles_of(operator)
            own = [h for h in handles if h.key_groups[0] < groups.stop and h.key_groups[1] >= groups.start]
            backend = open_backend(kind, operator, directory, groups, own, snapshot.storage)
            found.update(backend.value(descriptor).items())
            backend.close()
        return found


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


SUMS = {f"a{n}": n for n in range(1000)}
OPERATORS: dict[str, dict[StateDescriptor[Any], Any]] = {
    "total": {SUM: SUMS, TEXT: {"k": "v"}},
    "fold": {FOLD: {("x", 1): (3, Total(12, 5)), 7: (1, Total(1))}},
}


# ---------------------------------------------------------------- one format


@pytest.mark.limits(savepoint_part_bytes=256 << 20)
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_the_same_state_is_the_same_bytes_whatever_wrote_it(job: Job, kind: Kind, parallelism: int) -> None:
    reference = job.savepoint("memory", 1, OPERATORS)

    assert job.savepoint(kind, parallelism, OPERATORS).handles == reference.handles


@pytest.mark.parametrize("target", ["memory", "rocksdb"])
@pytest.mark.parametrize("source", ["memory", "rocksdb"])
def test_state_moves_between_backends_and_parallelisms(job: Job, source: Kind, target: Kind) -> None:
    snapshot = job.savepoint(source, 2, OPERATORS)

    assert job.restored(snapshot, target, "total", SUM) == SUMS
    assert job.restored(snapshot, target, "fold", FOLD) == OPERATORS["fold"][FOLD]


@pytest.mark.limits(savepoint_part_bytes=1000)
@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_large_state_is_stored_in_parts(job: Job, kind: Kind) -> None:

    snapshot = job.savepoint(kind, 2, OPERATORS)

    handles = snapshot.handles_of("total")
    assert len(handles) > 2
    assert [group for h in handles for group in range(h.key_groups[0], h.key_groups[1] + 1)] == list(range(128))
    assert [snapshot.find_entries("total", "sum", key) for key in SUMS] == [[each] for each in SUMS.items()]
    assert dict(snapshot.read("total", "sum")) == SUMS
    assert job.restored(snapshot, "rocksdb", "total", SUM) == SUMS
    assert snapshot.get("total", "sum", "a77") == 77


def test_the_marks_of_all_subtasks_count(job: Job) -> None:
    manifest = job.manifest("memory", 2, {"total": {LIST: {}}})
    first, second = manifest.states
    marked = [
        StateHandle(h.operator, h.backend, h.key_groups, h.files, ({**h.states[0], "marks": {"next": mark}},))
        for h, mark in ((first, 4), (second, 9))
    ]
    values = {name: getattr(manifest, name) for name in manifest.__struct_fields__}
    making.write_savepoint(job.storage, Manifest(**{**values, "states": tuple(marked)}), job.root / "sp")

    assert Snapshot.open(job.root / "sp").states("total")["list"].description["marks"] == {"next": 9}


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("stored", ["savepoint", "memory", "rocksdb"])
def test_values_come_out_as_plain_ones(job: Job, stored: str) -> None:
    total: dict[StateDescriptor[Any], Any] = {
        SUM: SUMS,
        AVRO: {"k": Largest(account="k", amount=5)},
        TEXT: {"k": "ü"},
    }
    operators = {**OPERATORS, "total": total}
    snapshot = (
        job.savepoint("rocksdb", 2, operators)
        if stored == "savepoint"
        else Snapshot(job.root, job.storage, job.manifest(stored, 2, operators))  # type: ignore[arg-type]
    )

    assert snapshot.operators() == ["fold", "total"]
    assert list(snapshot.states("total")) == ["largest", "sum", "text"]
    assert dict(snapshot.read("total", "sum")) == SUMS
    assert dict(snapshot.read("total", "largest")) == {"k": {"account": "k", "amount": 5}}
    assert dict(snapshot.read("total", "text")) == {"k": "ü"}
    assert dict(snapshot.read("fold")) == {
        ("x", 1): {"updates": 3, "accumulator": {"total": 12, "last": 5}},
        7: {"updates": 1, "accumulator": {"total": 1, "last": 0}},
    }
    assert snapshot.get("fold", None, ("x", 1)) == {"updates": 3, "accumulator": {"total": 12, "last": 5}}
    assert [snapshot.get("total", "sum", f"a{n}") for n in range(0, 1000, 111)] == list(range(0, 1000, 111))
    assert snapshot.get("total", "sum", "nobody") is None
    assert (snapshot.job, snapshot.epoch, snapshot.sources) == (JOB, 4, {"in": {"in/0": {"offset": 7}}})


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_every_kind_of_state_is_read(job: Job, kind: Kind) -> None:
    content: dict[StateDescriptor[Any], Any] = {
        MAP: {("a", "x"): 1, ("a", "y"): 2, ("ab", "x"): 3},
        LIST: {("a", 0): 5, ("a", 1): 6},
        WINDOWS: {("a", 10): 1, ("a", 20): 2},
        BOTH: {("a", 10, "x"): 1, ("b", 10, "x"): 2},
    }
    snapshot = job.savepoint(kind, 2, {"op": content})

    for descriptor, places in content.items():
        assert dict(snapshot.read("op", descriptor.name)) == places
    assert snapshot.get("op", "map", "a") == {"x": 1, "y": 2}
    assert snapshot.get("op", "map", "nobody") == {}
    assert snapshot.get("op", "list", "a") == {0: 5, 1: 6}
    assert snapshot.get("op", "both", "a") == {(10, "x"): 1}
    assert {name: info.kind for name, info in snapshot.states("op").items()} == {
        "map": "map", "list": "list", "windows": "value", "both": "map",
    }  # fmt: skip


def test_what_has_expired_is_left_out(job: Job) -> None:
    backend = open_backend("memory", "op", job.root / "local", range(128), (), job.storage)
    state = backend.value(EXPIRING)
    for time, key in ((1_000, "old"), (20_000, "young")):
        state.advance(time)
        state.put(key, time)
    handle = backend.snapshot(Epoch(4))(job.storage)
    values = {n: getattr(m, n) for m in [job.manifest("memory", 1, {})] for n in m.__struct_fields__}
    making.write_savepoint(job.storage, Manifest(**{**values, "states": (handle,)}), job.root / "sp")

    assert dict(Snapshot.open(job.root / "sp").read("op")) == {"young": 20_000}


OWN = """
from kafka_eos.abc import Codec
from kafka_eos.codecs import register_codec

class Own(Codec):
    name = ""

    def __init__(self, name):
        self.name = name

    def encode(self, value):
        return bytes([value])

    def decode(self, data):
        return data[0]
"""


def own(name: str) -> Any:
    """A codec that the library does not know."""
    found: dict[str, Any] = {}
    exec(OWN, found)
    return found["Own"](name)


def test_an_unknown_codec_gives_bytes(job: Job) -> None:
    snapshot = job.savepoint("memory", 1, {"op": {StateDescriptor("s", KEY, own("unknown")): {"a": 65}}})

    assert dict(snapshot.read("op")) == {"a": b"A"}


def test_a_registered_codec_gives_its_values(job: Job, tmp_path: Path) -> None:
    path = job.savepoint("memory", 1, {"op": {StateDescriptor("s", KEY, own("known")): {"a": 65}}}).path
    codecs = tmp_path / "codecs.py"
    codecs.write_text(OWN + "register_codec('known', lambda schema: Own('known'))")
    ask = ["state", "read", str(path), "--operator", "op", "--codecs", str(codecs)]

    assert json.loads(CliRunner().invoke(cli, ask).stdout) == {"key": "a", "value": 65}
    again = CliRunner().invoke(cli, ask)
    assert isinstance(again.exception, ConfigError)
    assert "a codec named 'known' already exists" in str(again.exception)
    with pytest.raises(ConfigError, match="'avro' already"):
        register_codec("avro", lambda schema: own("avro"))


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_one_namespace_of_a_key_is_read(job: Job, kind: Kind) -> None:
    windows = {("a", 10): 1, ("a", "10"): 2, ("a", ("x", 1)): 3, ("a", None): 4, ("a", "null"): 5, ("b", 7): 6}
    both = {("a", 10, "x"): 1, ("a", 10, "y"): 2, ("a", 20, "x"): 3}
    snapshot = job.savepoint(kind, 2, {"op": {WINDOWS: windows, BOTH: both, SUM: {"a": 1}}})

    def read(state: str, namespace: str, key: str = "a") -> Any:
        ask = ["--operator", "op", "--state", state, "--key", key, "--namespace", namespace]
        done = CliRunner().invoke(cli, ["state", "read", str(snapshot.path), *ask])
        return done.exception or [json.loads(line)["value"] for line in done.stdout.splitlines()]

    texts = ("10", '"10"', '["x", 1]', "null", '"null"')
    assert [read("windows", text) for text in texts] == [[1], [2], [3], [4], [5]]
    assert read("both", "10") == [1, 2]
    assert snapshot.find_entries("op", "windows", "a", None) == [(("a", None), 4)]
    assert "nothing for key 'a' in namespace '7'" in str(read("windows", "7"))
    assert "'sum' of operator 'op'" in str(read("sum", "7")) and "has no namespaces" in str(read("sum", "7"))


def test_a_namespace_is_one_of_a_key(job: Job) -> None:
    path = str(job.savepoint("memory", 1, {"op": {WINDOWS: {("a", 10): 1}}}).path)

    done = CliRunner().invoke(cli, ["state", "read", path, "--operator", "op", "--namespace", "10"])

    assert isinstance(done.exception, ConfigError) and "add --key" in str(done.exception)


@pytest.mark.limits(state_rows_per_block=2)
def test_a_field_that_is_null_in_the_first_rows_and_not_in_later_ones_goes_to_parquet(job: Job, tmp_path: Path) -> None:
    values = {f"k{n}": {"n": n, "note": "late" if n == 7 else None} for n in range(8)}
    path = job.savepoint("memory", 1, {"op": {StateDescriptor("s", KEY, MsgpackCodec(dict)): values}}).path
    target = tmp_path / "out.parquet"
    ask = ["state", "read", str(path), "--operator", "op", "--format", "parquet", "--output", str(target)]

    assert CliRunner().invoke(cli, ask).exit_code == 0

    assert {row["key"]: row["value"] for row in pyarrow.parquet.read_table(target).to_pylist()} == values


ELEMENTS = [{"value": {"n": 1}, "place": [5, 0, 7]}, {"value": {"n": 2}, "place": [6, 0, 8]}]
PANES = {"updates": 3, "accumulator": [{"first": 0, "value": 3}, {"first": 2, "value": 4}]}


@pytest.mark.parametrize(
    ("codec", "held", "shown"),
    [
        (ElementsCodec(MsgpackCodec(dict)), [({"n": 1}, (5, 0, 7)), ({"n": 2}, (6, 0, 8))], ELEMENTS),
        (CountedCodec(RowPanesCodec(MsgpackCodec(int))), (3, {0: 3, 2: 4}), PANES),
    ],
)
def test_what_windows_hold_is_read_as_json_and_as_parquet_and_can_be_edited(
    job: Job, codec: Any, held: Any, shown: Any, tmp_path: Path
) -> None:
    snapshot = job.savepoint("memory", 1, {"op": {StateDescriptor("windows", KEY, codec): {"a": held}}})
    target, ask = tmp_path / "out.parquet", ["state", "read", str(snapshot.path), "--operator", "op"]
    as_json = CliRunner().invoke(cli, ask)
    as_table = CliRunner().invoke(cli, [*ask, "--format", "parquet", "--output", str(target)])

    assert json.loads(as_json.stdout) == {"key": "a", "value": shown}
    assert (as_table.exit_code, pyarrow.parquet.read_table(target).to_pylist()) == (0, [{"key": "a", "value": shown}])
    with SavepointBuilder.from_snapshot(snapshot) as builder:
        builder.put("op", "windows", "b", shown)
        with pytest.raises(ConfigError, match="key 'b': expected"):
            builder.put("op", "windows", "b", held)
        builder.write(tmp_path / "edited")
    assert dict(Snapshot.open(tmp_path / "edited").read("op")) == {"a": shown, "b": shown}


def test_tables(job: Job) -> None:
    snapshot = job.savepoint("rocksdb", 1, OPERATORS)

    table = snapshot.to_arrow("total", "sum")
    frame = snapshot.to_pandas("total", "sum")

    assert dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == SUMS
    assert dict(zip(frame["key"], frame["value"], strict=True)) == SUMS


@pytest.mark.parametrize(
    ("descriptor", "content", "columns"),
    [
        (MAP, {("a", "x"): 1, ("a", "y"): 2}, ["key", "entry"]),
        (LIST, {("a", 0): 1, ("a", 1): 2}, ["key", "entry"]),
        (WINDOWS, {("a", 10): 1, ("b", 10): 2}, ["key", "namespace"]),
        (BOTH, {("a", 10, "x"): 1, ("a", 20, "x"): 2}, ["key", "namespace", "entry"]),
        (create_timer_descriptor("due", KEY), {("a", 10): True}, ["key", "time"]),
    ],
    ids=lambda given: given.name if isinstance(given, StateDescriptor) else "",
)
def test_each_part_of_a_place_is_a_column_of_a_table(
    descriptor: StateDescriptor[Any], content: dict[Any, Any], columns: list[str], job: Job, tmp_path: Path
) -> None:
    snapshot = job.savepoint("memory", 1, {"op": {descriptor: content}})
    rows = [dict(zip([*columns, "value"], (*place, value), strict=True)) for place, value in content.items()]
    target, ask = tmp_path / "out.parquet", ["state", "read", str(snapshot.path), "--operator", "op"]

    done = CliRunner().invoke(cli, [*ask, "--format", "parquet", "--output", str(target)])

    def by_place(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(table, key=lambda row: [str(row[column]) for column in columns])

    assert done.exit_code == 0, done.exception
    assert by_place(pyarrow.parquet.read_table(target).to_pylist()) == rows
    assert (
        by_place(snapshot.to_arrow("op").to_pylist()) == by_place(snapshot.to_pandas("op").to_dict("records")) == rows
    )


def test_what_is_not_there_is_named_beside_what_is(job: Job) -> None:
    snapshot = job.savepoint("memory", 1, OPERATORS)

    with pytest.raises(ConfigError, match="'tutal'; it contains that of: fold, total"):
        snapshot.states("tutal")
    with pytest.raises(ConfigError, match="choose one of its states: sum, text"):
        list(snapshot.read("total"))
    with pytest.raises(ConfigError, match="no state 'som', but: sum, text"):
        snapshot.get("total", "som", "a")
    with pytest.raises(ConfigError, match="neither a savepoint nor"):
        Snapshot.open(job.root)


def test_an_epoch_of_a_job_is_chosen_by_its_number_and_is_that_of_the_newest_term(job: Job) -> None:
    for value, (epoch, term) in enumerate([(4, 2), (5, 2), (5, 3)]):
        made = job.manifest("memory", 1, {"total": {SUM: {"k": value}}})
        publish(job.storage, msgspec.structs.replace(made, epoch=epoch, term=term))

    found = [Snapshot.open(job.storage.root, epoch) for epoch in (4, 5)]

    assert [dict(snapshot.read("total", "sum")) for snapshot in found] == [{"k": 0}, {"k": 2}]
    with pytest.raises(ConfigError, match="contains no epoch 6; it contains 4, 5"):
        Snapshot.open(job.storage.root, 6)
    with pytest.raises(ConfigError, match="is a savepoint of a single epoch: omit the epoch"):
        Snapshot.open(job.savepoint("memory", 1, OPERATORS).path, 4)


def test_each_file_belongs_to_one_state(job: Job) -> None:
    snapshot = job.savepoint("memory", 2, OPERATORS)

    for operator in snapshot.operators():
        stored = sum(file.size for handle in snapshot.handles_of(operator) for file in handle.files)
        assert sum(state.bytes for state in snapshot.states(operator).values()) == stored
    assert snapshot.states("total")["sum"].bytes > snapshot.states("total")["text"].bytes > 0


def test_a_snapshot_of_another_number_of_key_groups_is_refused(job: Job) -> None:
    found = job.savepoint("memory", 1, OPERATORS)

    with pytest.raises(ConfigError, match=r"savepoint-\S* has 64 key groups and this kafka-eos 128"):
        Snapshot(found.path, found.storage, msgspec.structs.replace(found.content, max_key_groups=64))


def test_damage_is_found_while_reading(job: Job) -> None:
    snapshot = job.savepoint("memory", 1, OPERATORS)
    (file,) = (file for file in snapshot.handles_of("total")[0].files if file.name == "sum.rows")
    path = Path(snapshot.path) / "files" / file.sha256
    path.write_bytes(path.read_bytes()[:-1] + b"!")

    with pytest.raises(CorruptCheckpoint, match=file.sha256):
        list(snapshot.read("total", "sum"))


# ---------------------------------------------------------------- writing


def test_a_value_is_fixed_and_the_rest_stays(job: Job) -> None:
    old = job.savepoint("rocksdb", 2, OPERATORS)
    with SavepointBuilder.from_snapshot(old) as builder:
        builder.put("fold", "accumulator", 7, {"updates": 1, "accumulator": {"total": 100, "last": 9}})
        builder.put("total", "sum", "new", -1)
        builder.delete("total", "sum", "a0")
        builder.sources["in"] = {SplitId("in/0"): {"offset": 3}}
        builder.write(job.root / "fixed")

    fixed = Snapshot.open(job.root / "fixed")
    assert job.restored(fixed, "rocksdb", "fold", FOLD) == {("x", 1): (3, Total(12, 5)), 7: (1, Total(100, 9))}
    assert job.restored(fixed, "memory", "total", SUM) == {**{k: v for k, v in SUMS.items() if k != "a0"}, "new": -1}
    assert job.restored(fixed, "memory", "total", TEXT) == {"k": "v"}
    assert (fixed.job, fixed.epoch, fixed.sources) == (JOB, 4, {"in": {"in/0": {"offset": 3}}})
    assert dict(old.read("total", "sum")) == SUMS
    assert savepoints.read_savepoint(job.root / "fixed").id != savepoints.read_savepoint(Path(old.path)).id


@pytest.mark.limits(savepoint_part_bytes=256 << 20)
def test_nothing_edited_is_the_same_state(job: Job) -> None:
    old = job.savepoint("rocksdb", 2, OPERATORS)

    SavepointBuilder.from_snapshot(old).write(job.root / "same")

    assert Snapshot.open(job.root / "same").handles == old.handles


@pytest.mark.parametrize("form", ["pairs", "plain pairs", "pandas", "arrow"])
def test_a_new_job_gets_its_first_state(job: Job, form: str) -> None:
    rows = [{"account": f"a{n}", "total": n, "last": -n} for n in range(100)]
    items: Any = {
        "pairs": [(r["account"], Total(r["total"], r["last"])) for r in rows],  # type: ignore[arg-type]
        "plain pairs": ((r["account"], {"total": r["total"], "last": r["last"]}) for r in rows),
        "pandas": pandas.DataFrame(rows),
        "arrow": pyarrow.Table.from_pylist(rows),
    }[form]
    key = "account" if form in ("pandas", "arrow") else None
    with SavepointBuilder.new(JOB) as builder:
        assert builder.bootstrap_fold("fold", items, accumulator=Total, key=key) == 100
        builder.write(job.root / "first")

    snapshot = Snapshot.open(job.root / "first")
    expected = {f"a{n}": (0, Total(n, -n)) for n in range(100)}
    assert job.restored(snapshot, "rocksdb", "fold", FOLD) == expected
    assert (snapshot.job, snapshot.epoch, snapshot.sources) == (JOB, 0, {})


def test_the_number_of_updates_is_kept(job: Job) -> None:
    with SavepointBuilder.new(JOB) as builder:
        builder.bootstrap("fold", "accumulator", [(7, (12, Total(1, 2)))], value=CountedCodec(state_codec(Total)))
        builder.bootstrap_fold("pairs", [("a", (5, 6))], accumulator=tuple[int, int])
        with pytest.raises(ConfigError, match="not a pair of updates and accumulator"):
            builder.bootstrap("wrong", "accumulator", [(7, Total(1, 2))], value=CountedCodec(state_codec(Total)))
        builder.write(job.root / "first")

    snapshot = Snapshot.open(job.root / "first")
    assert snapshot.get("fold", None, 7) == {"updates": 12, "accumulator": {"total": 1, "last": 2}}
    assert snapshot.get("pairs", None, "a") == {"updates": 0, "accumulator": [5, 6]}


def test_columns_become_keys_and_values(job: Job) -> None:
    table = pandas.DataFrame({"shop": ["s", "t"], "n": [1, 2], "amount": [10, 20]})
    with SavepointBuilder.new(JOB) as builder:
        builder.bootstrap("total", "sum", table, value=int, key=["shop", "n"])
        builder.bootstrap("avro", "largest", pandas.DataFrame({"k": [1], "account": ["x"], "amount": [5]}),
                          value=Largest, key="k")  # fmt: skip
        builder.write(job.root / "first")

    snapshot = Snapshot.open(job.root / "first")
    assert job.restored(snapshot, "memory", "total", SUM) == {("s", 1): 10, ("t", 2): 20}
    assert job.restored(snapshot, "memory", "avro", AVRO) == {1: Largest(account="x", amount=5)}


def test_an_operator_is_left_out_or_begun_anew(job: Job) -> None:
    old = job.savepoint("memory", 1, OPERATORS)
    with SavepointBuilder.from_snapshot(old) as builder:
        builder.put("total", "sum", "a1", 5)
        builder.drop("total")
        builder.drop("fold")
        builder.bootstrap("fold", "sum", [("k", 1)], value=int)
        builder.write(job.root / "less")

    less = Snapshot.open(job.root / "less")
    assert less.operators() == ["fold"]
    assert {name: dict(less.read("fold", name)) for name in less.states("fold")} == {"sum": {"k": 1}}


def test_what_is_rewritten_is_of_the_same_epoch_and_a_first_state_is_of_none(job: Job) -> None:
    sources: dict[str, Any] = {name: {SplitId(f"{name}/0"): {"offset": 7}} for name in ("a", "b", "in")}
    old = job.savepoint("rocksdb", 2, OPERATORS)
    with SavepointBuilder.from_snapshot(old) as builder:
        builder.sources.update(sources)
        builder.put("total", "text", "k", "w")
        builder.put("total", "sum", "a1", -1)
        builder.write(job.root / "next")
    with SavepointBuilder.new(JOB, sources) as builder:
        for operator in ("total", "fold"):
            builder.bootstrap(operator, "sum", [("k", 1)], value=int)
        builder.write(job.root / "first")

    changed = Snapshot.open(job.root / "next")
    assert (changed.get("total", "text", "k"), dict(changed.read("total", "sum"))) == ("w", {**SUMS, "a1": -1})
    following, first = (savepoints.read_savepoint(job.root / name) for name in ("next", "first"))
    assert (following.epoch, following.term, following.plan, following.identity) == (4, 2, "p", "0123456789ab")
    assert (first.epoch, first.term, first.plan, first.identity) == (0, 0, "", None)
    for found in (following, first):
        assert (found.job, found.max_key_groups, found.sources) == (JOB, 128, sources)
        assert [handle.operator for handle in found.operators] == ["fold", "total"]


def test_the_positions_of_all_sources_outlive_an_operator(job: Job) -> None:
    sources: dict[str, Any] = {name: {SplitId(f"{name}/0"): {"offset": 7}} for name in ("in", "other")}
    with SavepointBuilder.from_snapshot(job.savepoint("memory", 1, OPERATORS)) as builder:
        builder.sources.update(sources)
        builder.drop("fold")
        builder.write(job.root / "less")

    less = Snapshot.open(job.root / "less")
    assert {name: [*splits] for name, splits in less.sources.items()} == {"in": ["in/0"], "other": ["other/0"]}
    assert {at["offset"] for splits in less.sources.values() for at in splits.values()} == {7}
    assert less.operators() == ["total"]


def test_only_what_is_there_can_be_left_out_or_changed(job: Job) -> None:
    old = job.savepoint("memory", 1, OPERATORS)
    with SavepointBuilder.from_snapshot(old) as builder, SavepointBuilder.new(JOB) as first:
        with pytest.raises(ConfigError, match="no state of an operator 'tutal'"):
            builder.drop("tutal")
        builder.drop("total")
        for each in (builder, first):
            with pytest.raises(ConfigError, match="operator 'total' has no state 'sum' yet: bootstrap it"):
                each.put("total", "sum", "a1", 1)
        builder.bootstrap("more", "sum", [("k", 1)], value=int)
        with pytest.raises(ConfigError, match="state 'sum' of operator 'more' is open already"):
            builder.bootstrap("more", "sum", [("k", 1)], value=int)
        builder.bootstrap("more", "text", [("k", "v")], value=str, key_codec=StrCodec())
        builder.write(job.root / "other")

    other = Snapshot.open(job.root / "other")
    assert other.operators() == ["fold", "more"]
    assert {name: dict(other.read("more", name)) for name in ("sum", "text")} == {"sum": {"k": 1}, "text": {"k": "v"}}
    keys: Any = {name: state.description["key"] for name, state in other.states("more").items()}
    assert {name: key["name"] for name, key in keys.items()} == {"sum": KEY.name, "text": StrCodec().name}


def test_the_columns_of_a_row_are_one_value_unless_one_is_left_of_no_record(job: Job) -> None:
    rows = pandas.DataFrame({"k": ["a"], "total": [1], "last": [2]})
    with SavepointBuilder.new(JOB) as builder:
        builder.bootstrap("op", "dict", rows, value=dict[str, int], key="k")
        builder.bootstrap("op", "record", rows[["k", "total"]], value=Total, key="k")
        builder.bootstrap("op", "number", rows[["k", "total"]], value=int, key="k")
        builder.write(job.root / "first")

    first = Snapshot.open(job.root / "first")
    assert [first.get("op", name, "a") for name in ("dict", "record", "number")] == [
        {"total": 1, "last": 2}, {"total": 1, "last": 0}, 1
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "state", "key", "value", "message"),
    [
        ("fold", "accumulator", 7, {"updates": 1, "accumulator": {"totl": 1}}, "lacks 'total'.*has 'totl'"),
        ("fold", "accumulator", 7, {"total": 1}, "expected .*updates.*accumulator"),
        ("total", "sum", 1.5, 1, "a key must be"),
        ("total", "som", "a", 1, "no state 'som'; it has: sum, text"),
        ("tutal", "sum", "a", 1, "no state of an operator 'tutal'"),
        ("total", "text", "a", 1, "expected str"),
    ],
)
def test_what_the_job_could_not_read_is_refused(
    job: Job, operator: str, state: str, key: Any, value: Any, message: str
) -> None:
    with (
        SavepointBuilder.from_snapshot(job.savepoint("memory", 1, OPERATORS)) as builder,
        pytest.raises(ConfigError, match=message),
    ):
        builder.put(operator, state, key, value)


def test_a_table_needs_the_name_of_its_key() -> None:
    with SavepointBuilder.new(JOB) as builder, pytest.raises(ConfigError, match="name the key column"):
        builder.bootstrap("total", "sum", pandas.DataFrame({"a": [1]}), value=int)


def test_a_row_that_does_not_fit_is_shown() -> None:
    table = pandas.DataFrame({"k": ["a"], "total": ["much"]})
    with SavepointBuilder.new(JOB) as builder, pytest.raises(ConfigError, match=r"'total': 'much'.*Expected `int`"):
        builder.bootstrap_fold("fold", table, accumulator=Total, key="k")
