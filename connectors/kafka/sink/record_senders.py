"""One producer, and the ways in which the rows of a batch are passed to it.

Two senders behave in the same way: one makes a call of confluent_kafka for each row, and one a call of
``kafka_eos_native`` for many, which is used where it can be. Rule: the rows of a batch reach the producer in order,
whichever way each of them takes, and every failed delivery is reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Any, TypeAlias

from kafka_eos.connectors.kafka.client.librdkafka import KafkaError, Producer
from kafka_eos.connectors.kafka.client.native_module import NativeModule, load_native_module
from kafka_eos.connectors.kafka.sink.record_encoders import ProducerColumns
from kafka_eos.connectors.kafka.sink.record_sizes import ProvenanceHeaders
from kafka_eos.core.errors import Bug
from kafka_eos.core.provenance import HEADER

Row: TypeAlias = tuple[int, tuple[Any, ...]]
"""The index of a row in its batch, and its value, key, timestamp, headers and partition."""


class RecordSender:
    """A sender that leaves every row to calls of confluent_kafka's producer."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer

    def send(
        self, topic: str, columns: ProducerColumns, stamps: ProvenanceHeaders | None, without: Collection[int]
    ) -> Iterator[Row]:
        """Send the rows of a batch, except ``without``. Yield each row that the caller must pass to the producer.

        The caller does so before it takes the next one: that preserves the order.
        """
        return iter_rows(columns, stamps, without)

    def list_failures(self) -> Sequence[tuple[KafkaError, str]]:
        """Return error and topic of the failed deliveries that the producer's callback does not get."""
        return ()


class NativeSender(RecordSender):
    """A sender that passes rows to ``kafka_eos_native``, except those that it does not accept.

    Those are left to confluent_kafka, which accepts a row, waits while the queue is full, or raises the row's error.
    """

    def __init__(self, config: Mapping[str, Any], native: NativeModule) -> None:
        super().__init__(Producer(native.add_plugin(config)))
        self._sender = native.module.take_sender()
        if self._sender is None:
            raise Bug("librdkafka has created a producer without its plugin")

    def send(
        self, topic: str, columns: ProducerColumns, stamps: ProvenanceHeaders | None, without: Collection[int]
    ) -> Iterator[Row]:
        if columns.headers is not None and any(columns.headers):
            yield from iter_rows(columns, stamps, without)
            return
        rows = len(columns.values)
        values, keys, times = (
            tuple(islice(column, rows)) for column in (columns.values, columns.keys, columns.timestamps)
        )
        places = None if columns.partitions is None else tuple(islice(columns.partitions, rows))
        header = (None,) * 4 if stamps is None else (HEADER, stamps.prefixes, stamps.numbers, stamps.suffixes())
        for start, stop in _runs(without, rows):
            at = start
            while (at := self._sender.produce(topic, values, keys, times, places, *header, at, stop)) < stop:
                stamp = None if stamps is None else stamps.row(at)
                yield at, (values[at], keys[at], times[at], stamp, -1 if places is None else places[at])
                at += 1

    def list_failures(self) -> Sequence[tuple[KafkaError, str]]:
        return [(KafkaError(code), topic) for topic, code in self._sender.failures()]


def open_sender(config: Mapping[str, Any]) -> RecordSender:
    """Open a producer. Raises the client's errors."""
    native = load_native_module()
    return RecordSender(Producer({**config})) if native.module is None else NativeSender(config, native)


def iter_rows(
    columns: ProducerColumns, stamps: ProvenanceHeaders | None, without: Collection[int] = ()
) -> Iterator[Row]:
    """Yield the rows of a batch, except ``without``, as the producer takes them."""
    stamped = None if stamps is None else stamps.rows()
    headers: Any = stamped if columns.headers is None else _join(columns.headers, stamped)
    places: Iterable[int] = repeat(-1) if columns.partitions is None else columns.partitions
    rows = zip(columns.values, columns.keys, columns.timestamps, headers or repeat(None), places, strict=False)
    return ((index, row) for index, row in enumerate(rows) if index not in without) if without else enumerate(rows)


def _join(user_headers: Sequence[Any], stamps: Iterable[Mapping[str, str]] | None) -> Iterator[list[Any]]:
    if stamps is None:
        return map(list, user_headers)
    return ([*headers, *stamp.items()] for headers, stamp in zip(user_headers, stamps, strict=True))


def _runs(without: Collection[int], rows: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the runs of rows between those left out."""
    start = 0
    for index in (*sorted(without), rows):
        if start < index:
            yield start, index
        start = index + 1
