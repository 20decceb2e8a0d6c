"""Ten thousand hostile records in each format of a registry, on a real broker: a job reads on, each has its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos.abc.codec import SupportsHeaders
from kafka_eos.codecs import Registry, avro, json_schema, protobuf
from tests.chaos.harness import Job, create_topic, open_transactions, read
from tests.producers import in_order
from tests.registry_server import RegistryServer
from tests.unit.codecs.test_hostile import PAYLOADS, Tree, headers, message, payloads, tree
from tests.waiting import PATIENCE

NewJob = Callable[..., Job]


@pytest.mark.campaign
@pytest.mark.chaos
def test_hostile_records_are_written_aside_with_their_offsets_and_no_worker_starts_anew(
    new_job: NewJob, registry: RegistryServer
) -> None:
    job = new_job(0, app="hostile.py", TEST_REGISTRY=registry.url)
    asked = Registry(registry.url)
    trees: Any = (Tree, tree(3))
    formats = {
        "avro": (avro, *trees, {}),
        "avro-header": (avro, *trees, {"id_in": "header"}),
        "json": (json_schema, *trees, {}),
        "protobuf": (protobuf, *message(), {}),
    }
    for name, (language, tp, value, options) in formats.items():
        for topic in (f"{job.input}-{name}", f"{job.output}-{name}", f"{job.output}-{name}-letters"):
            create_topic(job.bootstrap, topic, 1)
        made: Any = language(tp, registry=asked, auto_register=True, **options)
        codec = made.for_topic(f"{job.input}-{name}", "value")
        codec.check()
        good, told = codec.encode(value), codec.headers() if isinstance(codec, SupportsHeaders) else ()
        _send(job, f"{job.input}-{name}", good, told)

    job.run()

    for name in formats:
        refused = [int(dict(letter.headers())["dead_letter.offset"]) for letter in
                   read(job.bootstrap, f"{job.output}-{name}-letters")]  # fmt: skip
        done = read(job.bootstrap, f"{job.output}-{name}")
        assert len(set(refused)) == len(refused)
        assert len(done) + len(refused) == PAYLOADS
        assert done
    assert [event for event in job.history() if event["event"] == "restarting"] == []
    assert open_transactions(job) == []


def _send(job: Job, topic: str, good: bytes, told: Any) -> None:
    producer = in_order(job.bootstrap)
    for payload, more in zip(payloads(good, seed=18), headers(told, seed=18), strict=False):
        producer.produce(topic, payload, headers=list(more))
        producer.poll(0)
    assert producer.flush(PATIENCE) == 0
