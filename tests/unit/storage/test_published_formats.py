"""The schema of every version of what outlives a job besides its records: committables, headers, verdicts.

None changes, what the code writes is what the newest says, and what any of them describes is still read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fastavro
import pytest
from msgspec.structs import asdict
from test_published_schemas import ALL_FILES, FILES, form_and_version, said

from kafka_eos.audit.checks.verdict import Check, Evidence, Observations, SkippedCheck, StateFacts, Violation, judge
from kafka_eos.audit.report.report_files import Context, as_json
from kafka_eos.codecs.avro.foreign_schemas import parse_schema
from kafka_eos.codecs.avro.reader_compatibility import obstacles
from kafka_eos.connectors._lake import file_names as lake
from kafka_eos.connectors._staged_tables import stage_names as tables
from kafka_eos.connectors.files import file_names as files
from kafka_eos.connectors.files.sink import s3_names as objects
from kafka_eos.connectors.kafka.rpc.transaction_status import KafkaCommittable
from kafka_eos.connectors.kafka.sink.dead_letters import DeadLetter, encode_dead_letter
from kafka_eos.core.provenance import parse_provenance
from kafka_eos.core.records import RawRecord, Record, RejectedRecord

OTHERS = [file for file in ALL_FILES if file not in FILES]
PUBLISHED = {
    "committable-files.v1": "7ebde1ece802277a",
    "committable-kafka.v1": "517cddab3e7fbda8",
    "committable-lake.v1": "17dcdf12ced2dde9",
    "committable-objects.v1": "c2df8899cc43cd95",
    "committable-table.v1": "3e3c250d86bd0921",
    "dead-letter.v1": "ca619df7972bb947",
    "provenance.v1": "c989ab1f2a678600",
    "verdict.v1": "a2a704d7e7eedbef",
}
"""What each file says, documentation aside. A line is added with a file; a line never changes."""

INCARNATION = "orders.aaaaaaaaaaaa"
STAGED = {"staged": f".staged.{INCARNATION}.2.7.1.out", "size": 3}
FILE = {**STAGED, "final": f"part-000000000007-0001-{INCARNATION}.out.jsonl", "sha256": "ab"}
TABLE = {"id": "0" * 31 + "7", "job": "orders", "identity": "aaaaaaaaaaaa", "term": 2, "epoch": 7, "schema": "public",
         "table": "totals", "columns": ["user", "total"], "key": ["user"]}  # fmt: skip
LAKE = {**STAGED, "table": "an id", "schema": "columns"}
SAMPLES: dict[str, Mapping[str, Any]] = {
    "committable-kafka.v1": {
        "transactional_id": "orders.aaaaaaaaaaaa.2.0.1", "producer_id": 52, "producer_epoch": 0, "end_txn_version": 5,
        "uuid": "d3d4e460-6acd-49a8-bf4d-9f68a948993f", "marker_group": "orders.0.1", "marker_topic": "totals",
        "marker_topic_id": "b0f2a7de-0c3e-4d38-9c0e-9a0f2c5b7f11",
        "marker_partition": 0, "prepared_at": 1_795_417_069_013, "timeout_ms": 900_000, "term": 2,
        "cluster_id": "tB7Sc1sQTFqn0eE3xk4cPA", "version": 1,
    },
    "committable-files.v1": {"version": 1, **FILE, "announced": True},
    "committable-objects.v1": {
        "version": 1, "name": f"day=1/part-000000000007-2-0001-{INCARNATION}.out.jsonl", "upload": "xyz",
        "upload_tag": "m",
        "tags": ["a", "b"], "size": 3, "announced": True,
    },
    "committable-table.v1": {"version": 1, **TABLE, "after": ["0" * 31 + "6"], "strategy": "prepare"},
    "committable-lake.v1": {"version": 1, **LAKE, "partition": "", "key": ["user"]},
}  # fmt: skip
"""Payloads, as each version has stored them."""
WRITE_AGAIN: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "committable-kafka": lambda payload: KafkaCommittable.from_payload(payload).payload(),
    "committable-files": lambda payload: files.FileCommittable.read(payload).payload(),
    "committable-objects": lambda payload: objects.UploadCommittable.read(payload).payload(),
    "committable-table": lambda payload: tables.TableCommittable.from_payload(payload).to_payload(),
    "committable-lake": lambda payload: lake.LakeCommittable.read(payload).payload(),
}
RAW = RawRecord("orders", 3, 17, 1_795_417_069_013, b"key", b"value", (("kind", b"paid"),))
FACTS = Observations(
    inputs=3,
    outputs=3,
    rejected={"totals": 2},
    not_audited={"files": "a reason"},
    notes=["a note"],
    state=StateFacts(states=1, stored=2, made=2, epoch=7),
    evidence={
        **{check: Evidence(3) for check in Check},
        Check.DUPLICATE: Evidence(3, 1, (Violation("totals", 0, 12, "twice"),), {"totals": 1}),
        Check.WRONG_COUNT: SkippedCheck("no counts"),
    },
)


def fits(schema: Any, value: Any) -> bool:
    """Is a value of JSON what the schema says, with no field more?"""
    match schema:
        case list():
            return any(fits(each, value) for each in schema)
        case {"logicalType": "json-text"}:
            return True
        case {"type": "record", "fields": fields}:
            known = {field["name"]: field for field in fields}
            there = isinstance(value, Mapping) and not value.keys() - known.keys()
            return there and all(
                fits(field["type"], value[name]) if name in value else "default" in field
                for name, field in known.items()
            )
        case {"type": "array", "items": items}:
            return isinstance(value, list | tuple) and all(fits(items, each) for each in value)
        case {"type": "map", "values": values}:
            return isinstance(value, Mapping) and all(fits(values, each) for each in value.values())
        case {"type": "enum", "symbols": symbols}:
            return value in symbols
    kinds = {"string": str, "long": int, "boolean": bool, "double": float, "null": type(None)}
    return type(value) is kinds[schema]


def schema_of(stem: str) -> Any:
    return json.loads(next(file for file in OTHERS if file.stem == stem).read_text())


@pytest.mark.parametrize("file", OTHERS, ids=lambda file: file.stem)
def test_a_published_schema_never_changes(file: Path) -> None:
    """A change of what is stored, or of what others read, is a new version, with a new file."""
    schema = json.loads(file.read_text())
    fastavro.parse_schema(schema)

    assert PUBLISHED[file.stem] == hashlib.sha256(json.dumps(said(schema), sort_keys=True).encode()).hexdigest()[:16]


def test_every_format_has_its_schemas() -> None:
    assert {file.stem for file in OTHERS} == PUBLISHED.keys()
    assert PUBLISHED.keys() == SAMPLES.keys() | {"provenance.v1", "dead-letter.v1", "verdict.v1"}


@pytest.mark.parametrize("stem", SAMPLES)
def test_a_committable_of_each_version_is_what_its_schema_says_and_is_read(stem: str) -> None:
    form, _, version = stem.rpartition(".v")
    payload = SAMPLES[stem]
    assert fits(schema_of(stem), payload)

    again = WRITE_AGAIN[form](payload)

    newest = max(int(each.rpartition(".v")[2]) for each in SAMPLES if each.startswith(form))
    assert fits(schema_of(f"{form}.v{again.get('version', 1)}"), again)
    assert again == payload or again["version"] == newest > int(version)
    assert {**again, "version": 0} == {**again, **payload, "version": 0}, "nothing is read as something else"


@pytest.mark.parametrize("file", OTHERS, ids=lambda file: file.stem)
def test_each_version_is_compatible_with_the_next(file: Path) -> None:
    """As Avro says of data with these schemas."""
    form, version = form_and_version(file)
    after = f"{form}.v{version + 1}"

    if after in PUBLISHED:
        assert obstacles(*parse_schema(json.loads(file.read_text())), *parse_schema(schema_of(after))) == []


@pytest.mark.parametrize(
    "text", ["job.2.7/orders/in/3/17/0.0", "job.2.7/orders/in/3/17/1.0-1-2/5", "job.2.7/total/timers/3/-4/0.1-2-0"]
)
def test_a_provenance_is_what_its_schema_says(text: str) -> None:
    found = parse_provenance(text)
    told = asdict(found) | {"term": found.term.n, "epoch": found.epoch.n}

    assert fits(schema_of("provenance.v1"), told)
    assert str(found) == text


def test_headers_of_a_dead_letter_are_what_their_schema_says() -> None:
    value, key, _, headers = encode_dead_letter(RejectedRecord(RAW, "total", "ValueError", "not a number"))
    told = {name.removeprefix("dead_letter."): (text or b"").decode() for name, text in headers[len(RAW.headers) :]}

    assert fits(schema_of("dead-letter.v1"), told)
    letter = DeadLetter.from_record(Record(key, value, tuple(headers), None))  # type: ignore[arg-type]
    assert letter is not None
    assert {name: str(getattr(letter, name)) for name in told} == told


@pytest.mark.parametrize("extra", [{}, {"question": {"expect": "unchanged"}, "partitions": [], "resume": None}])
@pytest.mark.parametrize("facts", [FACTS, Observations(inputs=None, committed_epochs=None)])
def test_a_verdict_is_what_its_schema_says(facts: Observations, extra: Mapping[str, Any]) -> None:
    report = json.loads(json.dumps(as_json(judge(facts), Context(job="orders", app="orders.py", extra=extra))))

    assert fits(schema_of("verdict.v1"), report)
    assert not fits(schema_of("verdict.v1"), report | {"more": 1})
