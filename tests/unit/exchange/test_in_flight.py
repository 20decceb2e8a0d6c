"""Rows under way as files of a checkpoint: in order, and a damaged file is named."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.checkpoints.storage import LocalStorage, MemoryStorage
from kafka_eos.errors import ConfigError, CorruptCheckpoint
from kafka_eos.exchange import in_flight
from kafka_eos.interfaces import CheckpointStorage, InFlight
from kafka_eos.schemas import wire_codec

CODEC = wire_codec(int)


def store(
    storage: CheckpointStorage, path: Path, exchange: str, frames: Sequence[bytes], overtaken: bool = False
) -> InFlight:
    log = in_flight.Log(path)
    for frame in frames:
        log.add(frame)
    stored = log.store(storage, exchange, CODEC, overtaken)
    log.drop()
    return stored


def test_frames_come_back_in_order_with_their_exchange(tmp_path: Path) -> None:
    storage, scratch = MemoryStorage(), tmp_path / "frames"
    kept = [
        store(storage, scratch, "first", [b"a", b"", b"c" * 70000]),
        store(storage, scratch, "second", [b"a"], overtaken=True),
    ]

    found = list(in_flight.load(storage, tmp_path / "fetched", kept))

    assert found == [("first", b"a"), ("first", b""), ("first", b"c" * 70000), ("second", b"a")]
    assert list(tmp_path.iterdir()) == [], "scratch files are left"


def test_a_long_log_is_on_the_disk_while_it_grows(tmp_path: Path) -> None:
    storage, log = MemoryStorage(), in_flight.Log(tmp_path / "frames-0")
    frames = [bytes([n]) * 300_000 for n in range(20)]
    for frame in frames:
        log.add(frame)

    assert (tmp_path / "frames-0").stat().st_size > 4_000_000
    kept = log.store(storage, "first", CODEC, False)
    log.drop()
    assert [frame for _, frame in in_flight.load(storage, tmp_path / "fetched", [kept])] == frames


def test_a_log_that_cannot_be_written_shows_when_it_is_to_be_stored(tmp_path: Path) -> None:
    """Rows go on meanwhile: it is the checkpoint that fails."""
    log = in_flight.Log(tmp_path / "absent" / "frames-0")
    for _ in range(3):
        log.add(bytes(1 << 20))

    with pytest.raises(OSError, match="absent"):
        log.store(MemoryStorage(), "first", CODEC, False)
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
        list(in_flight.load(storage, tmp_path / "fetched", [kept]))


def test_a_file_of_a_newer_version_asks_for_an_upgrade(tmp_path: Path) -> None:
    storage = MemoryStorage()
    newer = tmp_path / "frames-0"
    newer.write_bytes(b"kafka-eos frames 2\nwhatever")
    kept = InFlight("first", {}, (storage.upload(newer, "frames-0"),), False)

    with pytest.raises(ConfigError, match="frames-0.*Upgrade"):
        list(in_flight.load(storage, tmp_path / "fetched", [kept]))


def test_rows_of_another_type_are_refused_with_both_shown(tmp_path: Path) -> None:
    kept = store(MemoryStorage(), tmp_path / "frames", "first", [])

    in_flight.check_codec(kept, wire_codec(int))
    with pytest.raises(ConfigError, match=r"first.*integer.*string.*savepoint"):
        in_flight.check_codec(kept, wire_codec(str))
