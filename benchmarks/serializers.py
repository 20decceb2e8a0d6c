"""Serializers: ``python -m benchmarks.serializers``. What a codec costs alone, and in the access of state.

One record of five fields, 100,000 keys, every codec that state can be declared with:

    encode, decode  the codec alone, in CPU time; the rest is what a worker would wait
    cold            the state was just restored: read each key (row and decode), write it, and take a checkpoint
    warm            once more: objects are in the cache, so that only writing them at the checkpoint meets the codec

A codec that is asked for on every access would pay encode and decode each time; here state is write-behind.
Codecs take turns; figures are medians over turns, in ns a value or a key.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import BaseModel

from benchmarks.command import Benchmark, middle, shown, table, tell, where
from benchmarks.plots import Row
from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs import AvroCodec, BytesCodec, JsonCodec, KeyCodec, MsgpackCodec
from kafka_eos.core.ids import Epoch
from kafka_eos.core.json_values import Json
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_storage import LocalStorage

_BATCH = 5000


class Account(msgspec.Struct):
    """What is stored for a key."""

    id: int
    owner: str
    balance: float
    payments: int
    blocked: bool


class AccountModel(BaseModel):
    """The same as a pydantic model."""

    id: int
    owner: str
    balance: float
    payments: int
    blocked: bool


class Packed(Codec[Account]):
    """A custom codec, as a user would write it: fixed fields first, then the text."""

    name = "packed"
    schema: Json = None
    _fixed = struct.Struct("<qdq?")

    def encode(self, value: Account) -> bytes:
        return self._fixed.pack(value.id, value.balance, value.payments, value.blocked) + value.owner.encode()

    def decode(self, data: bytes) -> Account:
        number, balance, payments, blocked = self._fixed.unpack_from(data)
        return Account(number, data[self._fixed.size :].decode(), balance, payments, blocked)

    def reader_of(self, schema: Json) -> Packed:
        return self


Maker = Callable[[int], Any]


def account(number: int) -> Account:
    return Account(number, f"owner {number:07d}", number * 1.25, number % 1000, number % 7 == 0)


def model(number: int) -> AccountModel:
    return AccountModel(**fields(number))


def fields(number: int) -> dict[str, Any]:
    return msgspec.structs.asdict(account(number))


def packed(number: int) -> bytes:
    return Packed().encode(account(number))


CODECS: Sequence[tuple[str, Codec[Any], Maker]] = (
    ("MessagePack, Struct", MsgpackCodec(Account), account),
    ("MessagePack, dict", MsgpackCodec(dict[str, Any]), fields),
    ("JSON, Struct", JsonCodec(Account), account),
    ("JSON, pydantic", JsonCodec(AccountModel), model),
    ("Avro, Struct", AvroCodec(Account), account),
    ("Avro, pydantic", AvroCodec(AccountModel), model),
    ("custom codec", Packed(), account),
    ("raw bytes", BytesCodec(), packed),
)


def measure_all(options: argparse.Namespace, home: Path) -> list[Row]:
    rows: list[Row] = []
    for turn in range(options.turns):
        rows += [_measured(*codec, options.keys, home) for codec in CODECS]
        tell(f"turn {turn + 1}")
    return rows


def _measured(name: str, codec: Codec[Any], make: Maker, keys: int, home: Path) -> Row:
    load = os.getloadavg()[0]
    values = [make(number) for number in range(keys)]
    encoded: list[bytes] = []
    encode = _ns(lambda: encoded.extend(map(codec.encode, values)), keys, time.thread_time_ns)
    decode = _ns(lambda: list(map(codec.decode, encoded)), keys, time.thread_time_ns)
    if codec.decode(encoded[-1]) != values[-1]:
        raise RuntimeError(f"{name}: a value comes back as another one")
    row = {"codec": name, "encode_ns": encode, "decode_ns": decode, "value_bytes": sum(map(len, encoded)) / keys}
    backends: tuple[Literal["rocksdb", "memory"], ...] = ("rocksdb", "memory")
    for backend in backends:
        row |= _access(backend, codec, values, home)
    return {**row, "load": load}


def _access(kind: Literal["rocksdb", "memory"], codec: Codec[Any], values: Sequence[Any], home: Path) -> Row:
    """Fill a state, restore it from a checkpoint, then use all of it twice, with a checkpoint each."""
    storage = LocalStorage(home / f"checkpoints-{time.time_ns()}")
    descriptor = StateDescriptor("accounts", KeyCodec(), codec)
    groups, where_ = range(MAX_KEY_GROUPS), home / f"state-{time.time_ns()}"
    backend = open_backend(kind, "accounts", where_, groups, (), storage)
    state = backend.value(descriptor)
    for key, value in enumerate(values):
        state.put(key, value)
    handle = backend.snapshot(Epoch(1))(storage)
    backend.close()
    backend = open_backend(kind, "accounts", where_, groups, [handle], storage)
    state = backend.value(descriptor)

    def use(epoch: int) -> None:
        for start in range(0, len(values), _BATCH):
            keys = range(start, min(start + _BATCH, len(values)))
            entries = state.view(keys)
            for key in keys:
                entries[key] = entries[key]
        uploads.append(backend.snapshot(Epoch(epoch)))

    uploads: list[Any] = []
    cold, warm = _ns(lambda: use(2), len(values)), _ns(lambda: use(3), len(values))
    for upload in uploads:
        upload(storage)
    backend.close()
    stored = sum(file.size for file in handle.files) / len(values)
    return {f"{kind}_cold_ns": cold, f"{kind}_warm_ns": warm, f"{kind}_bytes": stored}


def _ns(work: Callable[[], object], times: int, clock: Callable[[], int] = time.perf_counter_ns) -> float:
    began = clock()
    work()
    return (clock() - began) / times


def tables(rows: Sequence[Row]) -> str:
    headings = (
        "codec, value",
        "encode ns",
        "decode ns",
        "bytes",
        "RocksDB cold ns",
        "RocksDB warm ns",
        "RocksDB bytes per key",
        "memory cold ns",
        "memory warm ns",
        "load before",
    )
    names = ("encode_ns", "decode_ns", "value_bytes", "rocksdb_cold_ns", "rocksdb_warm_ns", "rocksdb_bytes")
    lines = [
        [name, *(shown(middle(found, each)) for each in (*names, "memory_cold_ns", "memory_warm_ns")), _load(found)]
        for name in dict.fromkeys(row["codec"] for row in rows)
        for found in [where(rows, codec=name)]
    ]
    return table(headings, lines)


def _load(rows: Sequence[Row]) -> str:
    return shown(middle(rows, "load"), 1)


BENCHMARK = Benchmark(
    "serializers",
    "What codecs cost, alone and in the access of state",
    measure_all,
    tables,
    (("turns", 5, 1), ("keys", 100_000, 20_000)),
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
