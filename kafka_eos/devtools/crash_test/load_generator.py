"""The load of a crash test: given records, written to Kafka at a steady pace while faults happen.

Rule: only the pace is adapted. The last part is held back, as a trickle, until the last fault has happened, so that
every fault hits a job under load.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from kafka_eos.connectors.kafka.client.librdkafka import KafkaError, Producer, map_errors
from kafka_eos.core.errors import RestartFromCheckpoint
from kafka_eos.devtools.broker.topics import RecordToSend

_RESERVE = 0.2
"""Share of the records that is held back until the faults are over."""
_TRICKLE_SECONDS = 120.0
"""The time in which about two thirds of the remaining records are sent: the rate falls, and some always remain."""
_LEAST_RATE = 0.1
"""Records per second that the trickle has at least."""
_FLUSH_SECONDS = 60.0


class LoadGenerator:
    """Write records from its own thread, holding back a part until `finish`.

    ``records``: topic and record, in order. ``delivered`` counts records that the broker has acknowledged. The producer
    waits through outages. It is idempotent, but a broker that is killed forgets the producers whose last record has a
    timestamp older than ``producer.id.expiration.ms`` (a day), and then accepts a retried batch again. Such records are
    input like any other: count those of the topics.
    """

    def __init__(self, bootstrap: str, records: Iterable[tuple[str, RecordToSend]], count: int, seconds: float) -> None:
        self.count = count
        self.delivered = 0
        self._records = iter(records)
        self._rate = count * (1 - _RESERVE) / seconds
        self._no_hold, self._stop = threading.Event(), threading.Event()
        self._failures: list[str] = []
        with map_errors("producer of the test's input"):
            self._producer = Producer(
                {
                    "bootstrap.servers": bootstrap,
                    "enable.idempotence": True,
                    "linger.ms": 20,
                    "delivery.timeout.ms": 120_000,
                    "reconnect.backoff.max.ms": 500,
                    "log_level": 2,
                    "on_delivery": self._on_delivery,
                }
            )
        self._thread = threading.Thread(target=self._run, daemon=True, name="load")

    @property
    def done(self) -> bool:
        """Return whether all records are written and acknowledged."""
        return self.delivered == self.count

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Write the remaining records as fast as possible, after the faults."""
        self._no_hold.set()

    def stop(self) -> None:
        """End early. Records that are not written yet never will be."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_FLUSH_SECONDS)

    def check(self) -> None:
        """Raise RestartFromCheckpoint if the broker rejected a record."""
        if self._failures:
            raise RestartFromCheckpoint(f"records could not be written: {'; '.join(self._failures[:3])}")

    def _run(self) -> None:
        written, allowance, last = 0, 0.0, time.monotonic()
        while written < self.count and not self._stop.is_set():
            now = time.monotonic()
            allowance += (now - last) * self._pace(written)
            last = now
            due = self.count - written if self._no_hold.is_set() else min(int(allowance), self.count - written)
            for topic, record in (next(self._records) for _ in range(min(due, 1000))):
                self._write(topic, record)
                written += 1
                allowance -= 1
            self._producer.poll(0.0 if due > 1000 else 0.01)
        while not self._stop.is_set() and self._producer.flush(0.2):
            pass

    def _pace(self, written: int) -> float:
        """Return the rate, in records per second."""
        if written < self.count * (1 - _RESERVE):
            return self._rate
        return max((self.count - written) / _TRICKLE_SECONDS, _LEAST_RATE)

    def _write(self, topic: str, record: RecordToSend) -> None:
        while not self._stop.is_set():
            try:
                record.send(self._producer, topic)
                return
            except BufferError:  # the broker is away: wait until it takes some
                self._producer.poll(0.1)

    def _on_delivery(self, error: KafkaError | None, _message: Any) -> None:
        if error is None:
            self.delivered += 1
        else:
            self._failures.append(error.str())
