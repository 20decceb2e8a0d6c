"""How fast ``kafka-eos audit topics`` is: topics of N records, one audit by id, and what it took.

    python -m benchmarks.audit_scale --records 2000000 --bootstrap 127.0.0.1:9092

Rule: the audited output is right, and the audit must say so: a fast audit that finds nothing wrong proves nothing,
so with ``--spoil`` one output is left out and the audit must name it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import TypeVar
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_eos.audit import Check
from kafka_eos.audit.topics import Question, audit_topics

T = TypeVar("T")
PARTITIONS = 4
KEYS = 100_000


def main() -> None:
    """Make the topics, audit them, print records per second, and remove the topics."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--records", type=int, default=2_000_000)
    arguments.add_argument("--bootstrap", default="127.0.0.1:9092")
    arguments.add_argument("--spoil", action="store_true", help="leave one output out, which must be found")
    given = arguments.parse_args()
    admin = AdminClient({"bootstrap.servers": given.bootstrap})
    source, target = (f"audit-scale-{role}-{uuid4().hex[:8]}" for role in ("in", "out"))
    for made in admin.create_topics([NewTopic(t, PARTITIONS, 1) for t in (source, target)]).values():
        made.result(30)
    try:
        _timed("generated", given.records * 2, lambda: _generate(given.bootstrap, source, target, given))
        question = Question(given.bootstrap, inputs=(source,), outputs=(target,), id="$.id")
        verdict = _timed(
            "audited", given.records * 2, lambda: audit_topics(question, progress=lambda text: print(f"  {text}"))
        )
    finally:
        for gone in admin.delete_topics([source, target]).values():
            gone.result(30)
    print(verdict.headline)
    found = {finding.check: finding.count for finding in verdict.findings}
    if found != ({Check.LOST: 1} if given.spoil else {}):
        sys.exit(f"the audit should have found {'one loss' if given.spoil else 'nothing'}")


def _timed(what: str, records: int, work: Callable[[], T]) -> T:
    began = time.monotonic()
    result = work()
    took = time.monotonic() - began
    print(f"{what} {records:,} records in {took:.1f} s: {records / took:,.0f} records/s")
    return result


def _generate(bootstrap: str, source: str, target: str, given: argparse.Namespace) -> None:
    """The same ids in both topics, about 100 bytes a record."""
    producer = Producer({
        "bootstrap.servers": bootstrap, "linger.ms": 50, "batch.size": 1_000_000, "compression.type": "lz4",
        "queue.buffering.max.messages": 500_000,
    })  # fmt: skip
    for i in range(given.records):
        key, partition = b"user-%06d" % (i % KEYS), i % KEYS % PARTITIONS
        _produce(
            producer, source, b'{"id":%d,"user":"user-%06d","amount":%d}' % (i, i % KEYS, i % 1000), key, partition
        )
        if given.spoil and i == given.records // 2:
            continue
        _produce(producer, target, b'{"id":%d,"user":"user-%06d","total":%d}' % (i, i % KEYS, i * 7), key, partition)
    if left := producer.flush(120):
        sys.exit(f"{left} records were not delivered")


def _produce(producer: Producer, topic: str, value: bytes, key: bytes, partition: int) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition)
            return
        except BufferError:
            producer.poll(0.1)


if __name__ == "__main__":
    main()
