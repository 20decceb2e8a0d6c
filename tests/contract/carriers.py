"""Carriers of values: each writes values and reads them again, by the type that both sides declare.

Rule: a carrier only uses what users use, and reports which values were rejected. It compares nothing itself.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import msgspec
import psycopg
import pyarrow as pa
from deltalake import DeltaTable
from google.protobuf.message import Message as ProtobufMessage
from pyiceberg.catalog import load_catalog
from sqlalchemy import Boolean, Column, Float, MetaData, Table, create_engine, select

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.committer import CommitOutcome, CommitPermit
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.incarnation import SupportsRegistration
from kafka_eos.abc.services import Services
from kafka_eos.abc.sink import Sink
from kafka_eos.abc.source import Source
from kafka_eos.codecs import JsonCodec, exchange_codec
from kafka_eos.codecs.json_schema.registry_language import json_schema
from kafka_eos.connectors.dbapi import DbApiSink
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.files import FileSink, FileSource
from kafka_eos.connectors.files.formats import Format
from kafka_eos.connectors.http import HttpSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.connectors.kafka.sink.dead_letters import DeadLetter
from kafka_eos.connectors.postgres import PostgresSink, PostgresSource
from kafka_eos.core import provenance_blocks as ledger
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.provenance import Provenance, parse_provenance
from kafka_eos.core.provenance_blocks import ProvenanceRecorder
from kafka_eos.core.records import Batch, RawOrigin, RawRecord, RejectedRecord
from kafka_eos.testing.list_source import ListOrigin
from tests.receiver import receiving

JOB = JobContext("job", Term(1), {}, JobIdentity("a" * 12))
FIRST = EpochId(Epoch(1), Term(1))


Carrier = Callable[[Any, Sequence[Any]], tuple[list[Any], set[int]]]
"""Carries values of a type: returns those that came back, in order, and the indices of those that were rejected."""


def by_codec(codec_of: Callable[[Any], Codec[Any]]) -> Carrier:
    """As in a topic or in state: each value alone."""

    def carry(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
        codec, back, rejected = codec_of(tp), list[Any](), set[int]()
        for index, value in enumerate(values):
            try:
                data = codec.encode(value)
            except ValueError:
                rejected.add(index)
            else:
                back.append(codec.decode(data))
        return back, rejected

    return carry


class ValidatedJson(Codec[Any]):
    """JSON as a schema registry has it, without the registry."""

    name, schema = "json", None

    def __init__(self, tp: Any) -> None:
        self._encode = json_schema(tp, registry=cast("Any", None)).language.encoder(b"")
        self._decode = JsonCodec[Any](tp).decode

    def encode(self, value: Any) -> bytes:
        return self._encode(value)

    def decode(self, data: bytes) -> Any:
        return self._decode(data)


class ExchangeCodec(Codec[Any]):
    """One row that changes subtasks."""

    name, schema = "exchange", None

    def __init__(self, tp: Any) -> None:
        self._rows = exchange_codec(tp)

    def encode(self, value: Any) -> bytes:
        return self._rows.encode([value])

    def decode(self, data: bytes) -> Any:
        (value,) = self._rows.decode(data)
        return value


class ProvenanceText(Codec[Provenance]):
    """The text of an output in a header, a line or a cell."""

    name, schema = "provenance", None

    def __init__(self, tp: Any) -> None: ...

    def encode(self, value: Provenance) -> bytes:
        return str(value).encode("ascii")

    def decode(self, data: bytes) -> Provenance:
        return parse_provenance(data.decode())


def by_ledger(tp: Any, values: Sequence[Provenance]) -> tuple[list[Provenance], set[int]]:
    """As provenance beside the checkpoints, in blocks of three outputs."""
    recorder = ProvenanceRecorder(full=3)
    for each in values:
        origin = RawOrigin(each.source, [RawRecord(each.topic, each.partition, each.offset, -1, None, None, ())])
        branch, _, number = each.ordinal.rpartition("-")
        outputs = int(number) + 1  # of the same row
        batch = Batch(
            [None] * outputs, [0] * outputs, origin, lane=each.lane,
            branch=[f"{branch}-" if branch else ""] * outputs,
            updates=None if each.update is None else [each.update] * outputs,
        )  # fmt: skip
        recorder.add("out", batch, [0] * outputs, without=range(outputs - 1))
    data = ledger.encode(Term(1), Epoch(1), 1, 1, {"out": recorder})
    stored = ledger.decode(data)
    back = list[Provenance]()
    for block in map(ledger.decode_block, stored.blocks["out"]):
        spans = [span for span in block.spans for _ in range(span.count)]
        for at, span in enumerate(spans):
            branch, update = block.names[block.branches[at] if block.branches else 0], block.updates
            back.append(
                Provenance(
                    "job", stored.term, stored.epoch, block.names[span.source], block.names[span.topic],
                    block.partitions[at], block.offsets[at], span.lane,
                    f"{branch}{block.numbers[at] if block.numbers else 0}", (update[at] or None) if update else None,
                )
            )  # fmt: skip
    return back, set()


def written(sink: Sink[Any], values: Sequence[Any], job: JobContext = JOB) -> set[int]:
    """Write the values in one epoch and commit it. Returns the indices of those that were rejected."""
    rejected = set[int]()

    def reject(batch: Batch[Any], index: int, operator: str, error: Exception) -> None:
        rejected.add(batch.origin.offsets[batch.origin_rows[index]])

    sink.check(job)
    with closing(sink.committer(job)) as committer:
        if isinstance(committer, SupportsRegistration):
            committer.register(job)
        writer = sink.writer(TaskContext(job, 0, 1, "out", Services(reject_row=reject), Epoch(1)))
        writer.write(Batch([*values], range(len(values)), ListOrigin("in", "values", 0, 0, values)))
        if committables := writer.seal(FIRST)():
            assert {*committer.commit_all(CommitPermit(FIRST), committables)} == {CommitOutcome.COMMITTED}
        writer.discard()
    return rejected


def by_file(form: str) -> Carrier:
    def carry(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
        with TemporaryDirectory() as directory:
            rejected = written(FileSink(Path(directory), value=tp, format=form), values)
            source = FileSource[Any](Path(directory), value=None if tp is Any else tp, format=form)
            return read_all(source), rejected

    return carry


def by_schema(given: Format) -> Carrier:
    """Dicts in files whose columns the format declares."""

    def carry(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
        with TemporaryDirectory() as directory:
            rejected = written(FileSink(Path(directory), format=given), values)
            return read_all(FileSource[Any](Path(directory), format=given.extension)), rejected

    return carry


_OF_DRIVERS: Final = (
    *(bytes, decimal.Decimal, uuid.UUID),
    *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
)
"""Classes that SQLAlchemy returns itself, so that no text is converted to them."""


def by_table(server: str, columns: Mapping[str, str]) -> Carrier:
    """Through ``DbApiSink``, in columns of these types, and back through a table of SQLAlchemy.

    The table is reflected; what MySQL does not show, its BOOLEAN and floats, is declared. ``server``: a database as
    SQLAlchemy names it.
    """

    def carry(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
        engine = create_engine(server)
        try:
            with engine.begin() as connection:
                defined = ", ".join(map(" ".join, columns.items()))
                connection.exec_driver_sql("DROP TABLE IF EXISTS carried")
                connection.exec_driver_sql(f"CREATE TABLE carried (n INTEGER PRIMARY KEY, {defined})")
            numbered = [{"n": n, **msgspec.structs.asdict(value)} for n, value in enumerate(values)]
            declared = {"n": "INTEGER NOT NULL", **columns}
            rejected = written(DbApiSink[Any](server, "carried", declared, key="n"), numbered)
            readable = {"BOOLEAN": Boolean(), "DOUBLE": Float(), "DOUBLE PRECISION": Float()}
            known = (Column(name, readable[kind]) for name, kind in columns.items() if kind in readable)
            table = Table("carried", MetaData(), *known, autoload_with=engine)
            with engine.begin() as connection:
                found = connection.execute(select(*(table.c[name] for name in columns)).order_by(table.c.n))
                back = [dict(zip(columns, row, strict=True)) for row in found]
        finally:
            engine.dispose()
        return [msgspec.convert(row, tp, builtin_types=_OF_DRIVERS) for row in back], rejected

    return carry


def by_sqlite(columns: Mapping[str, str]) -> Carrier:
    def carry(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
        with TemporaryDirectory() as directory:
            return by_table(f"sqlite:///{directory}/rows.db", columns)(tp, values)

    return carry


def by_postgres(conninfo: str, columns: Mapping[str, str]) -> Carrier:
    """Through ``PostgresSink``, and back through ``PostgresSource``. Rows have an ``id`` from 0 in their order."""

    def carry(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            declared = ", ".join(map(" ".join, columns.items()))
            connection.execute("DROP TABLE IF EXISTS carried")
            connection.execute(f"CREATE TABLE carried ({declared}, PRIMARY KEY (id))".encode())
        rejected = written(PostgresSink[Any](conninfo, "carried", value=tp, key="id"), values)
        return read_all(PostgresSource(conninfo, "carried", value=tp)), rejected

    return carry


def by_dead_letters(bootstrap: str, topic: Callable[[], str]) -> Carrier:
    """Records become dead letters in a real topic, and are replayed into another one."""

    def carry(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
        letters, out = topic(), topic()
        job = JobContext(f"letters-{letters}", Term(1), {"bootstrap_servers": bootstrap}, JobIdentity("b" * 12))
        rejections = [
            RejectedRecord(
                RawRecord("orders", 0, offset, value.timestamp, value.key, value.value, value.headers),
                "parse", "ValueError", "no number",
            )
            for offset, value in enumerate(values)
        ]  # fmt: skip
        rejected = written(KafkaSink.dead_letters(letters), rejections, job)
        found = [DeadLetter.from_record(each) for each in read_topic(letters, job)]
        assert None not in found
        again = JobContext(f"replay-{letters}", Term(1), job.settings, JobIdentity("c" * 12))
        written(KafkaSink.originals(out, in_place=False), found, again)
        return [msgspec.structs.replace(each, headers=each.headers[:-1]) for each in read_topic(out, job)], rejected

    return carry


def read_topic(topic: str, job: JobContext) -> list[Any]:
    """Return the records of a topic, each with the header of its provenance at the end."""
    return read_all(KafkaSource.records(topic, key=bytes, value=bytes), job)


def read_all(source: Source[Any], job: JobContext = JOB) -> list[Any]:
    """Return the values of a source up to its present end."""
    positions, ends, back = source.discover(job, None), source.get_end_positions(job), list[Any]()
    with closing(source.reader(TaskContext(job, 0, 1, "in", Services()), positions)) as reader:
        while not reader.has_reached(ends):
            batch = reader.poll(100, 0.1)
            back += [] if batch is None else batch.values
    return back


def by_request(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
    with receiving() as receiver, TemporaryDirectory() as directory:
        rejected = written(HttpSink(receiver.url, outbox=directory, value=tp, batch=3), values)
        return [JsonCodec[Any](tp).decode(json.dumps(each).encode()) for each in receiver.values()], rejected


def by_lake(sink_of: Callable[[Path], Any], rows_of: Callable[[Path], pa.Table]) -> Carrier:
    def carry(tp: Any, values: Sequence[Any]) -> tuple[list[Any], set[int]]:
        with TemporaryDirectory() as directory:
            rejected = written(sink_of(Path(directory)).for_stream_type(tp), values)
            return [
                msgspec.convert(row, tp) for row in rows_of(Path(directory)).to_pylist(maps_as_pydicts="strict")
            ], rejected

    return carry


def catalog(directory: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/iceberg"}


def _new_iceberg_sink(directory: Path) -> IcebergSink[Any]:
    load_catalog(**catalog(directory)).create_namespace("shop")
    return IcebergSink("shop.rows", properties=catalog(directory), create=True)


by_iceberg: Final = by_lake(
    _new_iceberg_sink, lambda home: load_catalog(**catalog(home)).load_table("shop.rows").scan().to_arrow()
)
by_delta: Final = by_lake(
    lambda home: DeltaSink(home / "rows", create=True),
    lambda home: pa.table(DeltaTable(home / "rows").to_pyarrow_table()),
)


def is_same(a: Any, b: Any) -> bool:
    """Is a value another one in value and type? An int is the same as an equal float where a float is declared."""
    match a, b:
        case msgspec.Struct(), msgspec.Struct():
            return type(a) is type(b) and all(is_same(getattr(a, n), getattr(b, n)) for n in a.__struct_fields__)
        case ProtobufMessage(), ProtobufMessage():
            return a.SerializeToString(deterministic=True) == b.SerializeToString(deterministic=True)
        case (list(), list()) | (tuple(), tuple()):
            return len(a) == len(b) and all(map(is_same, a, b))
        case dict(), dict():
            return len(a) == len(b) and all(is_same([*p], [*q]) for p, q in zip(a.items(), b.items(), strict=True))
        case float(), float() if math.isnan(a):
            return math.isnan(b)
        case decimal.Decimal(), decimal.Decimal():
            return a.as_tuple() == b.as_tuple()
    return type(a) is type(b) and bool(a == b)
