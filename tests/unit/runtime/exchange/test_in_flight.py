"""Rows under way as files of a checkpoint: in order, as the types of today, and a damaged file is named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_eos import Pipeline, ProcessFunction, Stream
from kafka_eos.abc.codec import Codec, ListCodec
from kafka_eos.abc.state import InFlightRows
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.codecs import CountedCodec, exchange_codec
from kafka_eos.codecs.row_list_codecs import PerValueListCodec
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, PlanError
from kafka_eos.core.records import Batch
from kafka_eos.plan import Plan
from kafka_eos.runtime.exchange import in_flight_rows as in_flight
from kafka_eos.runtime.exchange import wire_format as wire
from kafka_eos.runtime.state.schema_evolution import describe_codec, resolve_codec
from kafka_eos.storage.job_storage import LocalStorage, MemoryStorage
from kafka_eos.storage.upload_batch import UploadBatch
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin

CODEC = exchange_codec(int)


def store_log(
    log: in_flight.InFlightLog, storage: CheckpointStorage, exchange: str, codec: ListCodec[Any], overtaken: bool
) -> InFlightRows:
    batch = UploadBatch(storage)
    get_rows = log.add_to(batch, exchange, codec, overtaken)
    batch.store()
    return get_rows()


def store(
    storage: CheckpointStorage, path: Path, exchange: str, frames: Sequence[bytes], overtaken: bool = False
) -> InFlightRows:
    log = in_flight.InFlightLog(path)
    for frame in frames:
        log.add(frame)
    stored = store_log(log, storage, exchange, CODEC, overtaken)
    log.drop()
    return stored


def test_frames_come_back_in_order_with_their_exchange(tmp_path: Path) -> None:
    storage, scratch = MemoryStorage(), tmp_path / "frames"
    kept = [
        store(storage, scratch, "first", [b"a", b"", b"c" * 70000]),
        store(storage, scratch, "second", [b"a"], overtaken=True),
    ]

    found = list(in_flight.read_frames(storage, tmp_path / "fetched", kept))

    assert found == [("first", b"a"), ("first", b""), ("first", b"c" * 70000), ("second", b"a")]
    assert list(tmp_path.iterdir()) == [], "scratch files are left"


def test_a_log_is_stored_as_a_line_and_frames_behind_their_lengths(tmp_path: Path) -> None:
    """Changing this makes rows under way of every checkpoint unreadable."""
    storage = MemoryStorage()
    stored = store(storage, tmp_path / "frames", "first", [b"abc", b""])
    (file,) = stored.files
    storage.fetch(file, tmp_path / "fetched")

    assert (tmp_path / "fetched").read_bytes() == b"kafka-eos frames 1\n\0\0\0\3abc\0\0\0\0"


def test_what_a_killed_attempt_has_left_is_no_part_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "frames").write_bytes(b"of another incarnation")
    storage = MemoryStorage()
    stored = store(storage, tmp_path / "frames", "first", [b"a"])

    assert list(in_flight.read_frames(storage, tmp_path / "fetched", [stored])) == [("first", b"a")]


@pytest.mark.limits(in_flight_bytes_in_memory=1 << 20)
def test_a_log_goes_to_the_disk_a_megabyte_at_a_time(tmp_path: Path) -> None:
    path, rest = tmp_path / "frames", (1 << 20) - len(b"kafka-eos frames 1\n") - 2 * 4
    log = in_flight.InFlightLog(path)
    log.add(b"x")
    assert not path.exists()
    log.add(b"x" * (rest - 1))

    assert path.stat().st_size == 1 << 20


def test_a_log_of_which_a_part_is_missing_is_never_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full after the first megabyte, and has room again before the log is to be stored."""
    storage, log = LocalStorage(tmp_path / "job"), in_flight.InFlightLog(tmp_path / "frames")
    log.add(b"a" * (1 << 20))

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        log.add(b"b" * (1 << 20))
    log.add(b"c" * (1 << 20))

    with pytest.raises(OSError, match="no space left"):
        store_log(log, storage, "first", CODEC, overtaken=False)


def test_a_stored_log_is_private(tmp_path: Path) -> None:
    log = in_flight.InFlightLog(tmp_path / "frames")
    store_log(log, MemoryStorage(), "first", CODEC, overtaken=False)

    assert (tmp_path / "frames").stat().st_mode & 0o777 == 0o600


def test_a_long_log_is_on_the_disk_while_it_grows(tmp_path: Path) -> None:
    storage, log = MemoryStorage(), in_flight.InFlightLog(tmp_path / "frames-0")
    frames = [bytes([n]) * 300_000 for n in range(20)]
    for frame in frames:
        log.add(frame)

    assert (tmp_path / "frames-0").stat().st_size > 4_000_000
    kept = store_log(log, storage, "first", CODEC, False)
    log.drop()
    assert [frame for _, frame in in_flight.read_frames(storage, tmp_path / "fetched", [kept])] == frames


def test_a_log_that_cannot_be_written_shows_when_it_is_to_be_stored(tmp_path: Path) -> None:
    """Rows go on meanwhile: it is the checkpoint that fails."""
    log = in_flight.InFlightLog(tmp_path / "absent" / "frames-0")
    for _ in range(3):
        log.add(bytes(1 << 20))

    with pytest.raises(OSError, match="absent"):
        store_log(log, MemoryStorage(), "first", CODEC, False)
    log.drop()


@given(st.binary(max_size=200))
def test_a_file_that_is_cut_off_anywhere_is_named(tmp_path_factory: pytest.TempPathFactory, frame: bytes) -> None:
    data = b"kafka-eos frames 1\n" + len(frame).to_bytes(4, "big") + frame
    for end in range(len(data)):
        torn = data[:end]
        if torn == b"kafka-eos frames 1\n":
            continue  # no frame at all
        with pytest.raises((CorruptCheckpoint, ConfigError), match=r"frames-0"):
            list(in_flight._frames(BytesIO(torn), "frames-0"))


def test_a_file_that_was_altered_is_named(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "job")
    kept = store(storage, tmp_path / "frames-0", "first", [b"row"])
    (stored,) = [p for p in (tmp_path / "job").rglob("*") if p.is_file() and b"row" in p.read_bytes()]
    stored.chmod(0o600)
    stored.write_bytes(stored.read_bytes()[:-1])

    with pytest.raises(CorruptCheckpoint, match=kept.files[0].sha256):
        list(in_flight.read_frames(storage, tmp_path / "fetched", [kept]))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "job")
    stored = store(storage, tmp_path / "frames", "first", [b"a"])
    for path in (tmp_path / "job").rglob("*"):
        if path.is_file():
            path.unlink()

    with pytest.raises(CorruptCheckpoint):
        list(in_flight.read_frames(storage, tmp_path / "fetched", [stored]))


def test_a_file_of_a_newer_version_asks_for_an_upgrade(tmp_path: Path) -> None:
    storage = MemoryStorage()
    newer = tmp_path / "frames-0"
    newer.write_bytes(b"kafka-eos frames 2\nwhatever")
    kept = InFlightRows("first", {}, (storage.upload(newer, "frames-0"),), False)

    with pytest.raises(ConfigError, match="frames-0.*Upgrade"):
        list(in_flight.read_frames(storage, tmp_path / "fetched", [kept]))


# ---------------------------------------------------------------- another type than theirs


class Old(msgspec.Struct):
    id: int
    account: str


class Wider(msgspec.Struct):
    id: float
    account: str
    note: str = "none"


class Narrower(msgspec.Struct):
    account: str


class Other(msgspec.Struct):
    id: str
    account: str


class Needing(msgspec.Struct):
    id: int
    account: str
    note: str


class OldModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(title="Row")
    id: int
    account: str


class WiderModel(pydantic.BaseModel):
    id: float
    account: str
    note: str = "none"


class NarrowerModel(pydantic.BaseModel):
    account: str


class OtherModel(pydantic.BaseModel):
    id: str
    account: str


class NeedingModel(pydantic.BaseModel):
    id: int
    account: str
    note: str


for model in (OldModel, WiderModel, NarrowerModel, OtherModel, NeedingModel):
    model.__name__ = "Row"  # Avro compares the names of records


def plan(values: Any) -> Plan:
    """Two exchanges, the second of them the way back of a loop: ``by`` and ``rounds-feedback``."""

    def body(rows: Stream[Any]) -> tuple[Stream[Any], Stream[Any]]:
        return rows.filter(lambda row: False), rows

    pipeline = Pipeline("evolves")
    keyed = pipeline.source(ListSource([]), name="in").key_by(lambda row: row.account, name="by", values=values)
    seen = keyed.process(Seen, name="seen")
    seen.iterate(body, name="rounds", values=values).sink(MemorySink(), name="out")
    return pipeline.plan()


class Seen(ProcessFunction[str, Any, Any]):
    def process(self, key: str, value: Any) -> list[Any]:
        return [value]


def under_way(storage: CheckpointStorage, path: Path, exchange: str, values: list[Any], tp: Any) -> InFlightRows:
    codec, keys = exchange_codec(tp), [("k", n) for n in range(len(values))]
    batch = Batch(values, range(len(values)), ListOrigin("in", "list", 0, 7, range(len(values))), keys=keys)
    log = in_flight.InFlightLog(path / "scratch")
    log.add(wire.encode(batch, codec, keep_raw=False))
    kept = store_log(log, storage, exchange, codec, False)
    log.drop()
    # As a manifest brings it.
    return replace(kept, codec=json.loads(json.dumps(kept.codec)))


EXCHANGES = pytest.mark.parametrize("exchange", ["by", "rounds-feedback"])


@EXCHANGES
@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        (Old, Old, Old(1, "a")),
        (Old, Wider, Wider(1.0, "a", "none")),
        (Old, Narrower, Narrower("a")),
        (OldModel, OldModel, OldModel(id=1, account="a")),
        (OldModel, WiderModel, WiderModel(id=1.0, account="a", note="none")),
        (OldModel, NarrowerModel, NarrowerModel(account="a")),
    ],
    ids=["same", "added-promoted", "removed", "same-model", "added-promoted-model", "removed-model"],
)
def test_rows_come_as_the_type_that_the_plan_declares_now(
    tmp_path: Path, exchange: str, old: Any, new: Any, wanted: Any
) -> None:
    storage = MemoryStorage()
    kept = under_way(storage, tmp_path, exchange, [old(id=1, account="a")], old)

    ((number, name, batch),) = in_flight.read_rows(plan(new), storage, tmp_path / "fetched", [kept])

    assert (number, name) == (0, exchange)
    assert batch.values == [wanted]
    assert all(type(getattr(batch.values[0], f)) is type(getattr(wanted, f)) for f in ("id", "note") if hasattr(new, f))
    assert (batch.keys, list(batch.origin.offsets)) == ([("k", 0)], [7])


@EXCHANGES
@pytest.mark.parametrize(
    ("old", "new"),
    [(Old, Other), (Old, Needing), (OldModel, OtherModel), (OldModel, NeedingModel), (Old, OldModel), (Old, Any)],
    ids=["other", "no-default", "other-model", "no-default-model", "other-codec", "no-type"],
)
def test_rows_that_the_new_type_cannot_read_are_refused_with_both_shown(
    tmp_path: Path, exchange: str, old: Any, new: Any
) -> None:
    storage = MemoryStorage()
    kept = under_way(storage, tmp_path, exchange, [old(id=1, account="a")], old)

    with pytest.raises(ConfigError) as refused:
        list(in_flight.read_rows(plan(new), storage, tmp_path / "fetched", [kept]))

    said = str(refused.value)
    assert repr(exchange) in said
    assert f"were written with {kept.codec}" in said
    assert f"now declares {describe_codec(exchange_codec(new))} (" in said
    in_loop = exchange == "rounds-feedback"
    assert ("--until-caught-up" in said, "its last checkpoint contains no such rows" in said) == (in_loop, not in_loop)


def test_another_codec_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    storage = MemoryStorage()
    kept = [
        under_way(storage, tmp_path, "rounds-feedback", [Old(1, "a")], Old),
        under_way(storage, tmp_path, "by", [OldModel(id=1, account="a")], OldModel),
    ]

    with pytest.raises(ConfigError, match="'by' were written with .*'avro-each'"):
        next(in_flight.read_rows(plan(Old), storage, tmp_path / "fetched", kept))


def test_rows_to_an_exchange_that_is_gone_are_refused(tmp_path: Path) -> None:
    storage = MemoryStorage()
    kept = under_way(storage, tmp_path, "gone", [Old(1, "a")], Old)

    with pytest.raises(PlanError, match="'gone'.*restore the old name"):
        next(in_flight.read_rows(plan(Old), storage, tmp_path / "fetched", [kept]))


def test_what_is_older_comes_first_and_frames_are_numbered(tmp_path: Path) -> None:
    """Rows further down are older; of one exchange, those that the receivers had."""
    storage = MemoryStorage()
    parts = [(exchange, late) for exchange in ("by", "rounds-feedback") for late in (True, False)]
    kept = [
        replace(under_way(storage, tmp_path, exchange, [Old(n, "a")], Old), overtaken=late)
        for n, (exchange, late) in enumerate(parts)
    ]

    rows = list(in_flight.read_rows(plan(Old), storage, tmp_path / "fetched", kept))

    assert [(number, batch.values[0].id) for number, _, batch in rows] == [(0, 3), (1, 2), (2, 1), (3, 0)]


class Plain(Codec[Any]):
    """A codec of somebody's own that cannot resolve."""

    name, schema = "plain", 1

    def encode(self, value: Any) -> bytes:
        return bytes(value)

    def decode(self, data: bytes) -> Any:
        return data


@pytest.mark.parametrize(
    "codec", [PerValueListCodec(Plain()), CountedCodec(Plain()), Plain()], ids=["each", "counted", "alone"]
)
def test_a_codec_around_one_that_cannot_resolve_cannot_either(codec: Any) -> None:
    assert resolve_codec(codec, describe_codec(codec)) is codec
    with pytest.raises(ConfigError, match="'plain' cannot read data of another schema"):
        resolve_codec(codec, {"name": codec.name, "schema": 2})
