"""A record is read back as it was written, or the reader says which object is wrong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pytest
from checkpoint_samples import FILE, JOB, MANIFEST, PACKED, RECORDS, TOLD_BESIDE

from kafka_eos.abc.state import InFlightRows
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.storage import job_records as manifest
from kafka_eos.storage.job_records import Manifest, Receipt, StoredRecord, decode, encode
from kafka_eos.storage.job_storage import JobStorage

SCHEMAS = Path(manifest.__file__).parents[2] / "schemas"


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.name)
def test_a_record_round_trips(record: StoredRecord, storage: JobStorage) -> None:
    manifest.publish(storage, record)

    assert manifest.load(storage, type(record), record.name, JOB) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.name)
def test_every_flipped_bit_is_detected_and_the_object_named(record: StoredRecord) -> None:
    good = encode(record)
    for position in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            with pytest.raises(CorruptCheckpoint, match=record.name):
                decode(type(record), record.name, bytes(bad), JOB)


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.name)
def test_every_truncation_and_every_addition_is_detected(record: StoredRecord) -> None:
    good = encode(record)
    for bad in [good[:length] for length in range(len(good))] + [good + b"\0", good + b"\n", b"\n" + good, good + good]:
        with pytest.raises(CorruptCheckpoint, match=record.name):
            decode(type(record), record.name, bad, JOB)


def test_a_manifest_under_another_name_is_not_believed() -> None:
    other = msgspec.structs.replace(MANIFEST, epoch=8)

    with pytest.raises(CorruptCheckpoint, match=f"{MANIFEST.name}.*contains {other.name}"):
        decode(Manifest, MANIFEST.name, encode(other), JOB)


def test_a_manifest_of_another_job_is_not_believed() -> None:
    with pytest.raises(CorruptCheckpoint, match="other"):
        decode(Manifest, MANIFEST.name, encode(msgspec.structs.replace(MANIFEST, job="other")), JOB)


def test_a_receipt_does_not_pass_for_a_manifest() -> None:
    with pytest.raises(CorruptCheckpoint, match="contains a receipt"):
        decode(Manifest, MANIFEST.name, encode(RECORDS[1]), JOB)


def _sealed(head: bytes, body: bytes) -> bytes:
    return head + hashlib.sha256(head + body).hexdigest().encode() + b"\n" + body


def test_a_newer_format_asks_to_upgrade() -> None:
    newer = Manifest.VERSION + 1
    with pytest.raises(ConfigError, match=f"version {newer}.*Upgrade"):
        decode(Manifest, MANIFEST.name, _sealed(b"kafka-eos manifest %d 2 " % newer, b"{}"), JOB)


@pytest.mark.parametrize(
    "bad", [{"name": "../../etc/passwd"}, {"name": "a/b"}, {"sha256": "../../x"}, {"sha256": "AB" * 32}]
)
def test_a_file_that_points_elsewhere_is_refused_even_with_a_valid_checksum(bad: dict[str, str]) -> None:
    """Whichever part of the manifest names it: a state, rows on their way, or output, also of an earlier epoch."""
    manifest = msgspec.structs.replace(
        MANIFEST,
        states=MANIFEST.states * 2,
        in_flight=(InFlightRows("by-key", {}, (FILE, FILE), False),) * 2,
        committables=(TOLD_BESIDE.committables[0],) * 2,
        carried_over=(TOLD_BESIDE.committables[0],) * 2,
    )
    assert _read_again(msgspec.to_builtins(manifest)) == manifest
    number = len(_files(msgspec.to_builtins(manifest)))
    assert number == 2 + 4 + 2 + 2

    for at in range(number):
        body = msgspec.to_builtins(manifest)
        _files(body)[at].update(bad)
        with pytest.raises(CorruptCheckpoint, match=MANIFEST.name):
            _read_again(body)


@pytest.mark.parametrize("bad", [{"sha256": "../../x"}, {"start": -1}, {"start": 1912}, {"size": 2999}])
def test_a_file_that_is_not_inside_its_pack_is_refused(bad: dict[str, object]) -> None:
    body = msgspec.to_builtins(MANIFEST)
    packed = msgspec.to_builtins(PACKED)
    body["states"][0]["files"] = [packed]
    assert _read_again(body).states[0].files == (PACKED,)
    packed["pack"].update(bad)

    with pytest.raises(CorruptCheckpoint, match=MANIFEST.name):
        _read_again(body)


def _read_again(body: dict[str, Any]) -> Manifest:
    data = json.dumps(body).encode()
    return decode(Manifest, MANIFEST.name, _sealed(b"kafka-eos manifest 1 %d " % len(data), data), JOB)


def _files(part: Any) -> list[dict[str, Any]]:
    """All that is named with its checksum."""
    if isinstance(part, dict):
        return [part] if "sha256" in part else [file for each in part.values() for file in _files(each)]
    return [file for each in part for file in _files(each)] if isinstance(part, list | tuple) else []


@pytest.mark.parametrize("change", [{"epoch": "7"}, {"extra": 1}, {"states": {}}, {"committables": [1]}])
def test_a_body_of_another_shape_is_refused(change: dict[str, Any]) -> None:
    data = json.dumps(msgspec.to_builtins(MANIFEST) | change).encode()

    with pytest.raises(CorruptCheckpoint, match=MANIFEST.name):
        decode(Manifest, MANIFEST.name, _sealed(b"kafka-eos manifest 1 %d " % len(data), data), JOB)


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.name)
def test_the_published_schema_describes_the_body(record: StoredRecord) -> None:
    schema = json.loads((SCHEMAS / f"{record.FORMAT}.v{record.VERSION}.avsc").read_text())
    body = json.loads(encode(record).partition(b"\n")[2])

    assert fastavro.validate(_with_text(schema, body, {}), schema, strict=True)
    assert list(body) == [field["name"] for field in schema["fields"]]


def _with_text(schema: Any, value: Any, named: dict[str, Any]) -> Any:
    """``value`` with its free-form parts as text, as the schema says of an Avro container.

    ``named``: the records that were defined before, by name.
    """
    match schema:
        case str(name) if name in named:
            return _with_text(named[name], value, named)
        case {"logicalType": "json-text"}:
            return json.dumps(value)
        case {"type": "record", "name": name, "fields": fields}:
            named[name] = schema
            return {f["name"]: _with_text(f["type"], value.get(f["name"], f.get("default")), named) for f in fields}
        case {"type": "array", "items": items}:
            return [_with_text(items, item, named) for item in value]
        case {"type": "map", "values": values}:
            return {key: _with_text(values, item, named) for key, item in value.items()}
    return value


def test_a_receipt_is_of_its_manifest() -> None:
    receipt = RECORDS[1]

    assert isinstance(receipt, Receipt)
    assert receipt.id == MANIFEST.id
