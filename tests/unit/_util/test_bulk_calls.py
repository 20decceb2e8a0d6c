"""A value for which a function or codec raises StopIteration is refused like any other: none behind it is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos import ConfigError, Pipeline, PlanError
from kafka_eos._util.bulk_calls import STOP_ITERATION_ESCAPED, map_rows
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import BytesCodec, KeyCodec, codec_for, exchange_codec
from kafka_eos.connectors.kafka.source.fetched_records import MessageRecords
from kafka_eos.connectors.kafka.source.message_decoder import MessageDecoder, record_decoder, value_decoder
from kafka_eos.core.errors import Bug
from kafka_eos.core.ids import Epoch
from kafka_eos.core.records import Batch, RawRecord
from kafka_eos.runtime.exchange import wire_format as wire
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.runtime.state.rocksdb_store import RocksStore
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink, run_local
from kafka_eos.testing.list_source import ListOrigin

PREFIXES = ("A-", "B-")


class Order(pydantic.BaseModel):
    sku: str

    @pydantic.field_validator("sku")
    @classmethod
    def known(cls, sku: str) -> str:
        next(prefix for prefix in PREFIXES if sku.startswith(prefix))
        return sku


def order(sku: str) -> bytes:
    return b'{"sku":"%s"}' % sku.encode()


def message(offset: int, value: bytes) -> Message:
    return Message(topic="t", partition=0, offset=offset, key=None, value=value, headers=[], timestamp=(1, 5))


@given(st.lists(st.sampled_from(["good", "bad", "stops"])))
def test_each_row_has_a_result_or_is_refused(rows: list[str]) -> None:
    def fn(row: str, other: str) -> str:
        if row == "stops":
            raise StopIteration
        if row == "bad":
            raise KeyError(other)
        return row + other

    told: list[tuple[int, type[Exception]]] = []
    done, refused = map_rows(fn, rows, rows, refuse=lambda index, error: told.append((index, type(error))))

    kinds = {"bad": KeyError, "stops": RuntimeError}
    assert told == [(index, kinds[row]) for index, row in enumerate(rows) if row in kinds]
    assert refused == [index for index, _ in told]
    assert done == ["goodgood"] * rows.count("good")


@pytest.mark.parametrize("columns", [value_decoder(codec_for(Order)), record_decoder(BytesCodec(), codec_for(Order))])
def test_a_reader_goes_on_behind_a_record_whose_validator_raises_it(columns: Any) -> None:
    skus = ["A-1", "Z-1", "B-1", "", "Z-2", "A-2"]
    messages = [message(offset, order(sku) if sku else b"{") for offset, sku in enumerate(skus)]
    refused: list[tuple[int, str]] = []

    def refuse(raw: RawRecord, error: Exception) -> None:
        refused.append((raw.offset, str(error) if str(error) == STOP_ITERATION_ESCAPED else type(error).__name__))

    batch, *_ = MessageDecoder(lambda topic: columns).batch("in", MessageRecords("t", messages), refuse)

    assert (len(batch.values), list(batch.origin_rows)) == (3, [0, 2, 5])
    assert refused == [(1, STOP_ITERATION_ESCAPED), (3, "ValueError"), (4, STOP_ITERATION_ESCAPED)]


def test_a_key_that_cannot_be_decoded_is_told_from_a_value() -> None:
    bad = Message(topic="t", partition=0, offset=0, key=b"x1", value=order("A-1"), headers=[], timestamp=(1, 5))
    told: list[str] = []
    decoding = MessageDecoder(lambda topic: record_decoder(codec_for(int), codec_for(Order)))

    batch, *_ = decoding.batch("in", MessageRecords("t", [bad]), lambda raw, error: told.append(str(error)))

    assert [*batch.values] == []
    assert [text.partition(": ")[0] for text in told] == ["in the key"]


def test_a_function_that_raises_it_makes_a_dead_letter() -> None:
    pipeline, letters = Pipeline("stops"), MemorySink()
    source: Any = pipeline.source(ListSource([]), name="in", on_error=DeadLetters(letters))
    source.map(lambda sku: next(p for p in PREFIXES if sku.startswith(p))).sink(MemorySink(), name="out")
    found = run_local(pipeline, {"in": ["A-1", "Z-1", "B-1"]})

    assert found.pop("out") == ["A-", "B-"]
    assert [[letter.message for letter in sent] for sent in found.values()] == [[STOP_ITERATION_ESCAPED]]


class Unclear:
    """Is neither true nor false; an array of several numbers is the like."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __bool__(self) -> bool:
        raise self.error


@pytest.mark.parametrize("error", [StopIteration, ValueError])
def test_a_filter_refuses_what_is_neither_true_nor_false(error: type[Exception]) -> None:
    pipeline, letters = Pipeline("unclear"), MemorySink()
    source: Any = pipeline.source(ListSource([]), name="in", on_error=DeadLetters(letters))
    source.filter(lambda n: Unclear(error) if n == 2 else n % 2).sink(MemorySink(), name="out")
    found = run_local(pipeline, {"in": [1, 2, 3, 4, 5]})

    assert found.pop("out") == [1, 3, 5]
    assert [len(sent) for sent in found.values()] == [1]


class Numbers(Codec[int]):
    """Of numbers; ``stops`` names the way in which it raises StopIteration for 2."""

    name, schema, type = "numbers", None, int

    def __init__(self, stops: Literal["encode", "decode", ""]) -> None:
        self.stops = stops

    def encode(self, value: int) -> bytes:
        return next(iter(() if (self.stops, value) == ("encode", 2) else [b"%d" % value]))

    def decode(self, data: bytes) -> int:
        return next(iter(() if (self.stops, data) == ("decode", b"2") else [int(data)]))

    def reader_of(self, schema: Any) -> Numbers:
        return self


@pytest.mark.parametrize("stops", ["encode", "decode"])
def test_rows_that_change_subtasks_arrive_or_stop_the_job(stops: Literal["encode", "decode"]) -> None:
    batch = Batch([1, 2, 3], range(3), ListOrigin("in", "t", 0, 0, [1, 2, 3]))
    pipeline = Pipeline("stops")
    source: Any = pipeline.source(ListSource([]), name="in")
    source.rebalance(values=Numbers(stops), name="spread").sink(MemorySink(), name="out")
    plan = pipeline.plan()

    with pytest.raises(PlanError, match=f"{STOP_ITERATION_ESCAPED}, at value 1 of 3"):
        wire.decode(wire.encode_at(plan, plan.node("spread"), [batch]), exchange_codec(Numbers(stops)))


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_a_value_of_state_that_cannot_be_encoded_is_named_and_nothing_is_forgotten(
    kind: Literal["memory", "rocksdb"], tmp_path: Path
) -> None:
    codec, storage = Numbers("encode"), MemoryStorage()
    backend = open_backend(kind, "op", tmp_path / "first", range(128), [], storage)
    state = backend.value(StateDescriptor("counts", KeyCodec(), codec))
    for number in range(5):
        state.put(f"k{number}", number)
    with pytest.raises(ConfigError, match=f"the value of key 'k2' cannot be encoded .*{STOP_ITERATION_ESCAPED}"):
        backend.snapshot(Epoch(0))
    codec.stops = ""
    handle = backend.snapshot(Epoch(0))(storage)
    backend.close()
    backend = open_backend(kind, "op", tmp_path / "second", range(128), [handle], storage)
    state = backend.value(StateDescriptor("counts", KeyCodec(), codec))

    assert [state.get(f"k{number}") for number in range(5)] == [0, 1, 2, 3, 4]
    backend.close()


def test_rocksdb_takes_no_key_without_a_value(tmp_path: Path) -> None:
    store = RocksStore(tmp_path, None, MemoryStorage())
    rows = store.rows("counts")

    with pytest.raises(Bug, match="3 keys and 2 values of state 'counts'"):
        rows.write([b"1", b"2", b"3"], [b"1", b"2"], [])
    store.close()
