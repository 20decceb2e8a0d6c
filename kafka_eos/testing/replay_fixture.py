"""The fixture of a replayed epoch: a directory with its records and the state before it.

    input.json  the epoch, its times and splits, and its records, one per line, in the order of processing
    state/      a savepoint with the state that the records met

Keys, values and headers that are text are stored as text, other bytes as ``{"base64": …}``. The records of a source
without a codec are stored as the values that its reader returned.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_eos.abc.auditable import AuditableSource
from kafka_eos.codecs import JsonCodec
from kafka_eos.core.errors import ConfigError, PlanError
from kafka_eos.core.ids import AppRef
from kafka_eos.core.records import Batch, RawRecord
from kafka_eos.plan import Plan, SourceNode
from kafka_eos.runtime.program import Program, load_program
from kafka_eos.savepoints import Snapshot
from kafka_eos.testing.epoch_replay import EpochInput, InputRecord, ReplayedEpoch, ReplayStart, replay_epochs
from kafka_eos.testing.list_source import ListOrigin

INPUT, STATE = "input.json", "state"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class FixtureInput:
    """The content of ``input.json``."""

    job: str
    start_at: int
    splits: Mapping[str, Sequence[str]]
    excluded: Mapping[str, Sequence[str]]
    epoch: EpochInput


def replay_fixture(pipeline: Plan | Program | str, directory: str | Path) -> ReplayedEpoch:
    """Replay the epoch of a fixture and return what each sink gets, and the state.

    ``pipeline``: a pipeline, or what ``kafka-eos run`` takes, such as ``"orders.py"``. Raises PoisonRecord as the job
    would, and ConfigError if the fixture cannot be read.
    """
    if isinstance(pipeline, str):
        pipeline = load_program(AppRef.parse(pipeline))
    plan = pipeline if isinstance(pipeline, Plan) else pipeline.plan()
    directory = Path(directory)
    found = read_input(plan, directory / INPUT)
    state = Snapshot.open(directory / STATE)
    return replay_epochs(plan, ReplayStart(state, found.start_at, found.splits, found.excluded), [found.epoch])


def write_input(plan: Plan, path: Path, given: FixtureInput) -> None:
    """Write ``input.json``. Raises ConfigError if a value of a source without a codec cannot be stored."""
    head = {
        "version": _VERSION,
        "job": given.job,
        "epoch": given.epoch.epoch,
        "start_at": given.start_at,
        "decided_at": given.epoch.decided_at,
        "splits": {source: sorted(splits) for source, splits in given.splits.items()},
        "excluded": {source: sorted(splits) for source, splits in given.excluded.items()},
    }
    lines = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
    records = ",\n".join(json.dumps(_encode(plan, record), ensure_ascii=False) for record in given.epoch.records)
    path.write_text("{\n" + ",\n".join(lines) + f',\n"records": [\n{records}\n]\n}}\n', encoding="utf-8")


def read_input(plan: Plan, path: Path) -> FixtureInput:
    """Read ``input.json``. Raises ConfigError or PlanError."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        if given["version"] != _VERSION:
            raise ConfigError(f"{path} has version {given['version']}; this kafka-eos reads {_VERSION}")
        records = [_decode(plan, record) for record in given["records"]]
        epoch = EpochInput(given["epoch"], given["decided_at"], records)
        return FixtureInput(given["job"], given["start_at"], given["splits"], given["excluded"], epoch)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not the input of a replay: {type(error).__name__}: {error}") from error


def _encode(plan: Plan, record: InputRecord) -> dict[str, Any]:
    raw = record.raw
    place = {"source": record.source, "topic": raw.topic, "partition": raw.partition, "offset": raw.offset}
    if record.batch is None:
        headers = [[name, _to_text(value)] for name, value in raw.headers]
        more = {"key": _to_text(raw.key), "value": _to_text(raw.value), "headers": headers}
        return {**place, "timestamp": raw.timestamp, **more}
    codec, value = _codec(plan, record.source), record.batch.values[0]
    try:
        return {**place, "timestamp": record.batch.origin.timestamps()[0], "row": json.loads(codec.encode(value))}
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"the value of {raw.location} of source {record.source!r} cannot be stored as JSON: {error}. Replay the "
            "epoch without --write-test"
        ) from error


def _decode(plan: Plan, given: Mapping[str, Any]) -> InputRecord:
    source, topic, partition, offset = (given[name] for name in ("source", "topic", "partition", "offset"))
    if "row" not in given:
        headers = tuple((name, _to_bytes(value)) for name, value in given["headers"])
        raw = RawRecord(
            topic, partition, offset, given["timestamp"], _to_bytes(given["key"]), _to_bytes(given["value"]), headers
        )
        return InputRecord(source, raw)
    value = _codec(plan, source).decode(json.dumps(given["row"]).encode())
    origin = ListOrigin(source, topic, partition, offset, [value], [given["timestamp"]])
    return InputRecord(source, origin.raw(0), Batch([value], [0], origin))


def _codec(plan: Plan, source: str) -> JsonCodec[Any]:
    """Return the codec of the rows of a source that has none itself."""
    node = next((node for node in plan.nodes if node.name == source), None)
    if not isinstance(node, SourceNode) or isinstance(node.source, AuditableSource):
        raise PlanError(f"pipeline {plan.name!r} has no source {source!r} that returns rows")
    declared = node.source.value_type
    return JsonCodec(Any if declared is None else declared)


def _to_text(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _to_bytes(text: Any) -> bytes | None:
    if isinstance(text, dict):
        return base64.b64decode(text["base64"])
    return None if text is None else str(text).encode()
