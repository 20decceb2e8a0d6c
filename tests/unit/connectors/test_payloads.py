"""What a manifest says of staged output: a payload is read as it was written, or it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias
from uuid import UUID

import pytest
from msgspec.structs import replace

from kafka_eos.connectors._lake.file_names import LakeCommittable
from kafka_eos.connectors._staged_tables.stage_names import Incarnation, Strategy, TableCommittable, TargetTable
from kafka_eos.connectors.files.file_names import FileCommittable, PartId
from kafka_eos.connectors.files.sink.s3_names import UploadCommittable, name_of
from kafka_eos.connectors.kafka.rpc.transaction_status import KafkaCommittable
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json

EPOCH, IDENTITY = EpochId(Epoch(7), Term(2)), JobIdentity("0123456789ab")
PART = PartId("orders", IDENTITY, EPOCH, 3, "out", 1)
FINAL = PART.build_final_name("csv.gz")
Payload: TypeAlias = Mapping[str, Json]
FILE = FileCommittable(PART, 10, "ab" * 32, f"day=1/hour=2/{FINAL}", True)
UPLOAD = UploadCommittable(f"day=1/hour=2/{name_of(PART, 'csv.gz')}", "upload", "tag", ("one", "two"), 10, True)
LAKE = LakeCommittable(PART, 10, "table", "schema", "day=1/hour=2")
TABLE = TableCommittable(
    UUID(int=1), Incarnation("orders", IDENTITY), EPOCH, TargetTable("s", "t", ("a", "b"), ("b", "a")),
    (UUID(int=2), UUID(int=3)), Strategy.PREPARE,
)  # fmt: skip
KAFKA = KafkaCommittable("orders.2.0", 1, 2, 3, "uuid", "group", "topic", "topic id", 4, 5, 6, 2, "cluster")
KINDS: dict[str, tuple[Any, Callable[[Payload], Any], Callable[[Any], Payload]]] = {
    "file": (FILE, FileCommittable.read, FileCommittable.payload),
    "upload": (UPLOAD, UploadCommittable.read, UploadCommittable.payload),
    "lake": (LAKE, LakeCommittable.read, LakeCommittable.payload),
    "lake with a key": (replace(LAKE, place="", key=("a", "b")), LakeCommittable.read, LakeCommittable.payload),
    "lake without partitions": (replace(LAKE, place=""), LakeCommittable.read, LakeCommittable.payload),
    "table": (TABLE, TableCommittable.from_payload, TableCommittable.to_payload),
    "kafka": (KAFKA, KafkaCommittable.from_payload, KafkaCommittable.payload),
}
OTHERS: tuple[Json, ...] = (
    None, True, False, 0, 1, -1, 1.5, "", "x", "ab" * 16, "../x", "a/b", "day=1", "day=1/x", "x/day=1", [], ["x"],
    ["x", 1], [1, "x"], ["ab" * 16, "x"], ["x", "ab" * 16], [["x"]], {}, {"a": 1},
)  # fmt: skip


def changed(payload: Payload) -> Iterator[tuple[str, Payload]]:
    """The payload with each part left out, and replaced by many others."""
    for name in payload:
        yield f"without {name}", {key: value for key, value in payload.items() if key != name}
        for other in OTHERS:
            if other != payload[name]:
                yield f"{name}: {other!r}", {**payload, name: other}


@pytest.mark.parametrize("kind", KINDS)
def test_a_payload_is_read_as_it_was_written(kind: str) -> None:
    committable, read, payload_of = KINDS[kind]

    assert read(json.loads(json.dumps(payload_of(committable)))) == committable


@pytest.mark.parametrize("kind", KINDS)
def test_a_payload_that_was_altered_is_refused_or_says_another_thing(kind: str) -> None:
    """No part of it is passed over."""
    committable, read, payload_of = KINDS[kind]
    taken = []
    for what, payload in changed(payload_of(committable)):
        if kind == "kafka" and what == "without version":  # it has a default
            continue
        try:
            found = read(payload)
        except CorruptCheckpoint:
            continue
        assert found != committable, what
        assert json.dumps(payload_of(found), sort_keys=True) == json.dumps(payload, sort_keys=True), what
        taken.append(what)

    assert not [what for what in taken if what.startswith(("without", "staged", "final", "name"))]
    assert kind == "kafka" or not [what for what in taken if what.startswith("version")]


@pytest.mark.parametrize("place", ["", "day=1", "a=b/c=d/e=f", "a=b=c", "a=/b=1"])
@pytest.mark.parametrize("name", [FINAL, PART.build_final_name("jsonl"), "part-1.jsonl", replace(PART, number=2)])
def test_a_file_may_only_have_a_final_name_of_its_own_part(place: str, name: str | PartId) -> None:
    final = name if isinstance(name, str) else name.build_final_name()
    committable = replace(FILE, final_name=f"{place}/{final}" if place else final)

    if place == "a=/b=1" or final not in (FINAL, PART.build_final_name("jsonl")):
        with pytest.raises(CorruptCheckpoint):
            FileCommittable.read(committable.payload())
    else:
        assert FileCommittable.read(committable.payload()) == committable
