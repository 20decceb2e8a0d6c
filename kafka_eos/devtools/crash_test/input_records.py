"""The input of a crash test: rows made by the models of the pipeline, a file, or a sample of the real topics.

Rule: records depend on the seed, the file or the sample alone, so that a test can be repeated.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Final

import msgspec
import pydantic

from kafka_eos.abc.auditable import AuditableSource, SupportsSampling
from kafka_eos.abc.context import JobContext
from kafka_eos.codecs.type_inspection import is_model
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Term
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import RawRecord
from kafka_eos.devtools.broker.topics import RecordToSend
from kafka_eos.devtools.crash_test.code_checks import SourceRecords
from kafka_eos.plan import KeyByNode, Plan, SourceNode
from kafka_eos.plan.function_wrapping import wrap_functions
from kafka_eos.testing.input_lines import read_lines

_FIRST_TIME: Final = 1_767_225_600_000
"""The time of the first generated record: 2026-01-01T00:00Z, in milliseconds. Each record is 100 ms later."""
_STEP: Final = 100
_DISTINCT: Final = 100
"""Different values of each generated text, so that keys occur again."""


@dataclass(frozen=True, slots=True)
class InputRecords:
    """Records in order, each with its source. ``description``: where they come from, for the report."""

    __test__ = False

    records: Sequence[tuple[str, RecordToSend]]
    topics: Mapping[str, str]
    """The topic of each source."""
    description: str

    def by_source(self) -> SourceRecords:
        """Return the records for a run in memory."""
        found: dict[str, list[tuple[bytes | None, bytes | None, int]]] = {name: [] for name in self.topics}
        for name, record in self.records:
            found[name].append((record.key, record.value, record.timestamp or -1))
        return SourceRecords(found, dict(self.topics))


def topics_of_sources(plan: Plan, bootstrap: str) -> dict[str, str]:
    """Return the topic of each source that reads one. Raise ConfigError for a source that no test can feed."""
    context = JobContext(plan.name, Term(0), {"bootstrap_servers": bootstrap})
    found = {}
    for node in plan.sources:
        if not isinstance(node.source, AuditableSource):
            continue  # it reads what is there, such as files
        if node.source.several or len(logs := node.source.audit_logs(context, ())) != 1:
            raise ConfigError(
                f"source {node.name!r} reads several topics or a pattern, which a crash test cannot feed yet. Test a "
                f"function that builds the pipeline with one topic\n  {node.code_line}"
            )
        topic, address, _ = logs[0]
        if address != bootstrap:
            raise ConfigError(
                f"source {node.name!r} has bootstrap_servers={address!r} in its code, so a crash test would read the "
                f"real cluster. Leave it out, and set KAFKA_EOS_BOOTSTRAP_SERVERS instead\n  {node.code_line}"
            )
        found[node.name] = topic
    if not found:
        raise ConfigError("the pipeline reads no topic: there is nothing to feed under faults")
    return found


# ---------------------------------------------------------------- generated


def generate(plan: Plan, topics: Mapping[str, str], count: int, seed: int) -> InputRecords:
    """Make rows of the types that the sources declare. Raise ConfigError if that is not possible for one."""
    dice, words = random.Random(f"rows of {seed}"), _list_words(plan)  # noqa: S311 - repeated by its seed
    nodes = [node for node in plan.sources if node.name in topics]
    makers = {node.name: _maker(node, dice, words) for node in nodes}
    records = []
    for number, node in zip(range(count), itertools.cycle(nodes), strict=False):
        time = _FIRST_TIME + number * _STEP
        records.append((node.name, _encode(node, makers[node.name](number), time, number, plan)))
    return InputRecords(records, topics, f"{count:,} generated rows (seed {seed})")


def _maker(node: SourceNode, dice: random.Random, words: Sequence[str]) -> Callable[[int], Any]:
    codecs: Mapping[str, Any] = getattr(node.source, "codecs", dict)()
    tp = getattr(codecs.get("value"), "type", None)
    if tp is None or tp is bytes or tp is Any:
        raise ConfigError(
            f"source {node.name!r} declares no type from which rows can be made. Give rows: --input FILE, or a sample "
            f"of its topic: --input topic\n  {node.code_line}"
        )
    try:
        schema = _schema(tp)
    except (TypeError, pydantic.errors.PydanticUserError) as error:
        raise ConfigError(f"no rows can be made for source {node.name!r}: {error}. Give them: --input FILE") from error

    def make(number: int) -> Any:
        plain = _RowMaker(dice, words, number).make(schema)
        try:
            return (
                msgspec.convert(plain, tp, strict=False)
                if not is_model(tp)
                else pydantic.TypeAdapter(tp).validate_python(plain)
            )
        except (msgspec.ValidationError, pydantic.ValidationError) as error:
            raise ConfigError(
                f"a generated row does not fit {tp.__name__}: {error}. Give rows: --input FILE\n  {node.code_line}"
            ) from error

    return make


def _schema(tp: Any) -> Mapping[str, Any]:
    """Return the JSON schema of a type: pydantic's, which has formats of times that msgspec's lacks."""
    if isinstance(tp, type) and issubclass(tp, msgspec.Struct):
        return {
            "type": "object",
            "properties": {each.encode_name: _schema(each.type) for each in msgspec.structs.fields(tp)},
        }
    try:
        return pydantic.TypeAdapter(tp).json_schema()
    except pydantic.PydanticSchemaGenerationError:  # a type that contains a Struct
        return msgspec.json.schema(tp)


@dataclass(frozen=True, slots=True)
class _RowMaker:
    """Makes a value for a JSON schema."""

    dice: random.Random
    words: Sequence[str]
    number: int
    definitions: dict[str, Any] = field(default_factory=dict)

    def make(self, schema: Mapping[str, Any]) -> Json:
        self.definitions.update(schema.get("$defs", {}))
        if "$ref" in schema:
            return self.make(self.definitions[str(schema["$ref"]).rpartition("/")[2]])
        if "const" in schema:
            return schema["const"]  # type: ignore[no-any-return]
        if "enum" in schema:
            return self.dice.choice(schema["enum"])  # type: ignore[no-any-return]
        for union in ("anyOf", "oneOf", "allOf"):
            if union in schema:
                kinds = [each for each in schema[union] if each.get("type") != "null"]
                return self.make(self.dice.choice(kinds or schema[union]))
        match schema.get("type"):
            case "object":
                return self._object(schema)
            case "array":
                items = schema.get("items") or {"type": "string"}
                least = schema.get("minItems", 1)
                return [self.make(items) for _ in range(self.dice.randint(least, max(least, 3)))]
            case "integer":
                return self._integer(schema)
            case "number":
                return self._integer(schema) / 1
            case "boolean":
                return self.dice.random() < 0.5
            case "null":
                return None
            case _:
                return self._text(schema)

    def _object(self, schema: Mapping[str, Any]) -> Json:
        if "properties" in schema:
            return {key: self.make(value) for key, value in schema["properties"].items()}
        values = schema.get("additionalProperties")
        return {self._text({}): self.make(values if isinstance(values, dict) else {})}

    def _integer(self, schema: Mapping[str, Any]) -> int:
        least = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        most = schema.get("maximum", schema.get("exclusiveMaximum", least + 501) - 1)
        return self.dice.randint(int(least), max(int(least), int(most)))

    def _text(self, schema: Mapping[str, Any]) -> str:
        second = _FIRST_TIME // 1000 + self.number // 10
        match schema.get("format"):
            case "date-time":
                return f"{_date(second)}T{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}Z"
            case "date":
                return _date(second)
            case "uuid":
                return f"00000000-0000-4000-8000-{self.dice.randrange(_DISTINCT):012x}"
        if self.words and self.dice.random() < 0.5:
            return self.dice.choice(self.words)
        return f"key-{self.dice.randrange(_DISTINCT)}"  # of any field: rows of two streams have common keys


def _date(second: int) -> str:
    day = 1 + (second - _FIRST_TIME // 1000) // 86_400 % 28
    return f"2026-01-{day:02}"


def _list_words(plan: Plan) -> list[str]:
    """Return the texts that the user's functions contain: rows with them pass a filter such as status == "paid"."""
    found: dict[str, None] = {}

    def note(fn: Callable[..., Any], _: str) -> Callable[..., Any]:
        code = getattr(fn, "__code__", None)
        if code is not None:
            found.update(dict.fromkeys(_texts(code)))
        return fn

    for node in plan.nodes:
        wrap_functions(node, note)
    return [text for text in found if text.isidentifier() or text.replace("-", "_").isidentifier()]


def _texts(code: CodeType) -> Iterator[str]:
    names = {*code.co_names, code.co_name, code.co_qualname}
    for constant in code.co_consts:
        if isinstance(constant, str) and constant != (code.co_consts[0] if code.co_name != "<lambda>" else None):
            if constant not in names:
                yield constant
        elif isinstance(constant, CodeType):
            yield from _texts(constant)


# ---------------------------------------------------------------- given


def read_files(plan: Plan, topics: Mapping[str, str], files: Sequence[str]) -> InputRecords:
    """Read values from files with one JSON value per line: ``FILE`` for the only source, else ``SOURCE=FILE``."""
    records: list[tuple[str, RecordToSend]] = []
    nodes = {node.name: node for node in plan.sources}
    for name, lines in read_lines(files, topics, "--input").items():
        for line in lines:
            number = len(records)
            records.append((name, _record(nodes[name], line, _FIRST_TIME + number * _STEP, number, plan)))
    return InputRecords(records, topics, f"{len(records):,} rows of {', '.join(files)}")


def sample_topics(plan: Plan, topics: Mapping[str, str], bootstrap: str, count: int) -> InputRecords:
    """Read the oldest records of the real topics, and change nothing there."""
    context, records = JobContext(plan.name, Term(0), {"bootstrap_servers": bootstrap}), []
    for node in plan.sources:
        if node.name in topics and isinstance(node.source, SupportsSampling):
            for raw in node.source.sample(context, count, "earliest"):
                record = RecordToSend(raw.key, raw.value, raw.headers, max(raw.timestamp, 0))
                records.append((node.name, record))
    if not records:
        raise ConfigError(f"topics {', '.join(topics.values())} on {bootstrap} have no records to sample")
    return InputRecords(records, topics, f"{len(records):,} records of {', '.join(topics.values())} on {bootstrap}")


def _encode(node: SourceNode, value: Any, time: int, offset: int, plan: Plan) -> RecordToSend:
    assert isinstance(node.source, AuditableSource)
    raw = node.source.raw(value, offset, time)
    return RecordToSend(raw.key or _key_of(value, node, plan), raw.value, raw.headers, time)


def _record(node: SourceNode, line: bytes, time: int, offset: int, plan: Plan) -> RecordToSend:
    """Return the record of a line as it is: a line that cannot be decoded is part of the test."""
    assert isinstance(node.source, AuditableSource)
    topic = node.source.audit_logs(JobContext(plan.name, Term(0), {"bootstrap_servers": "none"}), ())[0][0]
    raw = RawRecord(topic, 0, offset, time, None, line, ())
    values = node.source.decode(node.name, [raw], lambda raw, error: None).values
    return RecordToSend(_key_of(values[0], node, plan) if values else None, line, (), time)


def _key_of(value: Any, node: SourceNode, plan: Plan) -> bytes | None:
    """Return the key that the first ``key_by`` behind a source computes, so that rows of a key keep their order."""
    for each in plan.nodes:
        if isinstance(each, KeyByNode) and _is_behind(plan, each.name, node.name):
            try:
                return str(each.fn(value)).encode()
            except Exception:  # noqa: BLE001 - the user's function expects what the operators between make of the value
                return None
    return None


def _is_behind(plan: Plan, name: str, source: str) -> bool:
    """Return whether the rows of a source reach an operator."""
    found, waiting = set[str](), [source]
    while waiting:
        for node, _ in plan.downstream(waiting.pop()):
            if node.name not in found:
                found.add(node.name)
                waiting.append(node.name)
    return name in found
