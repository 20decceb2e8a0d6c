"""The schema of every version of every durable record: none changes, and what any of them describes is still read."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pytest
from checkpoint_samples import JOB, RECORDS

from kafka_eos.codecs.avro.foreign_schemas import parse_schema
from kafka_eos.codecs.avro.reader_compatibility import obstacles
from kafka_eos.storage import job_records as manifest
from kafka_eos.storage.job_records import StoredRecord, decode, encode

SAMPLES: dict[str, StoredRecord] = {record.FORMAT: record for record in RECORDS}
ALL_FILES = sorted((Path(manifest.__file__).parents[2] / "schemas").glob("*.avsc"))
FILES = [file for file in ALL_FILES if file.stem.split(".v")[0] in SAMPLES]
PUBLISHED = {
    "base.v1": "341f53271b0db43a",
    "claim.v1": "c8a25c6f74ad7202",
    "identity.v1": "a33afa495bc04807",
    "manifest.v1": "0137fa75a5e33b8a",
    "origin.v1": "071497e206727c11",
    "receipt.v1": "595029b86c55b612",
    "savepoint.v1": "39ee7c88ac407a01",
}
"""What each file says, documentation aside. A line is added with a file; a line never changes."""


def form_and_version(file: Path) -> tuple[str, int]:
    form, version = file.stem.split(".v")
    return form, int(version)


def said(schema: Any) -> Any:
    """The schema without its documentation."""
    if isinstance(schema, list):
        return [said(each) for each in schema]
    if isinstance(schema, dict):
        return {name: said(each) for name, each in schema.items() if name != "doc"}
    return schema


def of_version(schema: Any, value: Any) -> Any:
    """What a version with this schema would have stored of ``value``."""
    match schema:
        case {"logicalType": "json-text"}:
            return value
        case {"type": "record", "fields": fields}:
            stored = [field for field in fields if field["name"] in value]
            return {field["name"]: of_version(field["type"], value[field["name"]]) for field in stored}
        case {"type": "array", "items": items}:
            return [of_version(items, each) for each in value]
        case {"type": "map", "values": values}:
            return {name: of_version(values, each) for name, each in value.items()}
    return value


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_published_schema_never_changes(file: Path) -> None:
    """A change of a durable format is a new version, with a new file."""
    digest = hashlib.sha256(json.dumps(said(json.loads(file.read_text())), sort_keys=True).encode()).hexdigest()[:16]

    assert PUBLISHED[file.stem] == digest


def test_every_version_of_every_record_has_its_schema() -> None:
    wanted = {f"{form}.v{n}" for form, record in SAMPLES.items() for n in range(1, record.VERSION + 1)}

    assert {file.stem for file in FILES} == PUBLISHED.keys() == wanted


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_a_version_has_stored_is_read(file: Path) -> None:
    form, version = form_and_version(file)
    schema, sample = json.loads(file.read_text()), SAMPLES[form]
    fastavro.parse_schema(schema)
    body = json.dumps(of_version(schema, json.loads(encode(sample).partition(b"\n")[2]))).encode()
    head = f"kafka-eos {form} {version} {len(body)} ".encode()

    found = decode(
        type(sample), sample.name, head + hashlib.sha256(head + body).hexdigest().encode() + b"\n" + body, JOB
    )

    assert found.name == sample.name
    for field in schema["fields"]:
        if said(field) in said(newest(form))["fields"]:
            assert getattr(found, field["name"]) == getattr(sample, field["name"])
    assert msgspec.json.decode(encode(found).partition(b"\n")[2]).keys() == {f["name"] for f in newest(form)["fields"]}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_version_is_compatible_with_the_newest(file: Path) -> None:
    """As Avro says of data files with these schemas."""
    form, _ = form_and_version(file)

    assert obstacles(*parse_schema(json.loads(file.read_text())), *parse_schema(newest(form))) == []


def newest(form: str) -> Any:
    return json.loads(next(f for f in FILES if f.stem == f"{form}.v{SAMPLES[form].VERSION}").read_text())
