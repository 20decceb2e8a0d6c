"""The input of the demo: seeded orders, written to Kafka at a steady pace while faults happen.

Rule: which orders there are depends on the seed alone. Only the pace is adapted: the last part is held back, as a
trickle, until the last fault has happened, so that every fault hits a job under load.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

from kafka_eos.connectors.kafka.client.librdkafka import KafkaError, Producer, map_errors
from kafka_eos.core.errors import RestartFromCheckpoint

USERS = 2_000
_NOT_PAID = ("pending", "cancelled", "refused")
_PAID_SHARE = 0.9
_RESERVE = 0.2
"""Share of the orders that is held back until the faults are over."""
_TRICKLE_SECONDS = 120.0
"""In so many seconds the trickle takes about two thirds of what is left: it gets thinner, and does not run dry."""
_FLUSH_SECONDS = 60.0


def orders(seed: int, count: int, users: int = USERS) -> Iterator[tuple[str, bytes]]:
    """Yield ``count`` orders as (key, JSON): about ninety of a hundred are paid, keyed by user."""
    dice = random.Random(f"orders of {seed}")  # noqa: S311 - repeated by its seed
    for _ in range(count):
        user = f"user-{dice.randrange(users):04d}"
        paid = dice.random() < _PAID_SHARE
        order = {"user": user, "amount": dice.randint(1, 500), "status": "paid" if paid else dice.choice(_NOT_PAID)}
        yield user, json.dumps(order).encode()


class LoadGenerator:
    """Write orders from its own thread, holding back a part until `finish`.

    ``delivered`` counts orders that the broker has acknowledged. The producer is idempotent and waits through
    outages, so each order is written once and a user's orders stay in order.
    """

    def __init__(self, bootstrap: str, topic: str, seed: int, count: int, seconds: float) -> None:
        self.count = count
        self.delivered = 0
        self._topic, self._orders = topic, orders(seed, count)
        self._rate = count * (1 - _RESERVE) / seconds
        self._no_hold, self._stop = threading.Event(), threading.Event()
        self._failures: list[str] = []
        with map_errors("producer of orders"):
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
        self._thread = threading.Thread(target=self._run, daemon=True, name="orders")

    @property
    def done(self) -> bool:
        """Return whether all orders are written and acknowledged."""
        return self.delivered == self.count

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Write the remaining orders as fast as possible, after the faults."""
        self._no_hold.set()

    def stop(self) -> None:
        """End early. Orders that are not written yet never will be."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_FLUSH_SECONDS)

    def check(self) -> None:
        """Raise RestartFromCheckpoint if the broker rejected an order."""
        if self._failures:
            raise RestartFromCheckpoint(f"orders could not be written: {'; '.join(self._failures[:3])}")

    def _run(self) -> None:
        written, allowance, last = 0, 0.0, time.monotonic()
        while written < self.count and not self._stop.is_set():
            now = time.monotonic()
            allowance += (now - last) * self._pace(written)
            last = now
            due = self.count - written if self._no_hold.is_set() else min(int(allowance), self.count - written)
            for key, value in (next(self._orders) for _ in range(min(due, 1000))):
                self._write(key, value)
                written += 1
                allowance -= 1
            self._producer.poll(0.0 if due > 1000 else 0.01)
        while not self._stop.is_set() and self._producer.flush(0.2):
            pass

    def _pace(self, written: int) -> float:
        """Return the rate, in orders per second."""
        if written < self.count * (1 - _RESERVE):
            return self._rate
        return max((self.count - written) / _TRICKLE_SECONDS, 1.0)

    def _write(self, key: str, value: bytes) -> None:
        while not self._stop.is_set():
            try:
                self._producer.produce(self._topic, value, key=key)
                return
            except BufferError:  # the broker is away: wait until it takes some
                self._producer.poll(0.1)

    def _on_delivery(self, error: KafkaError | None, _message: Any) -> None:
        if error is None:
            self.delivered += 1
        else:
            self._failures.append(error.str())
