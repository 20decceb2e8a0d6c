"""What Kafka's clients may hold is one number a worker, and the user's own settings win."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos import Pipeline
from kafka_eos.abc.context import JobContext
from kafka_eos.config.settings import Settings
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.client.memory import SHARE, expect_room, read_ahead, share_of
from kafka_eos.connectors.kafka.sink.kafka_sink import producer_config
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Term
from kafka_eos.plan import Plan, kafka_share

MB = 1 << 20


def _held(share: int, **config: Any) -> tuple[int, int]:
    """Bytes that a consumer and a producer may hold."""
    cluster = Cluster("a:1", config)
    consumer = cluster.build_client_config(read_ahead(share, 1), {})
    producer = producer_config(cluster, 60_000, share)
    return consumer["queued.max.messages.kbytes"] * 1024, producer["queue.buffering.max.kbytes"] * 1024


def test_a_record_that_fills_the_queue_of_its_producer_is_sent() -> None:
    expect_room({"queue.buffering.max.kbytes": 1, "message.max.bytes": 1024})
    with pytest.raises(ConfigError, match="one record may have 1025"):
        expect_room({"queue.buffering.max.kbytes": 1, "message.max.bytes": 1025})


def _plan(sources: int, together: int = 1, apart: int = 0, files: int = 0) -> Plan:
    pipeline = Pipeline("p")
    for n in range(sources):
        stream = pipeline.source(KafkaSource(f"in-{n}"), name=f"in-{n}")
        for m in range(together if n == 0 else 0):
            stream.sink(KafkaSink(f"out-{m}"), name=f"out-{m}")
        for m in range(apart if n == 0 else 0):
            stream.sink(KafkaSink(f"plain-{m}", delivery="at-least-once"), name=f"plain-{m}")
        for m in range(files):
            stream.sink(FileSink(Path(f"/files/{n}/{m}"), value=bytes), name=f"files-{n}-{m}")
        stream.filter(bool, name=f"some-{n}").sink(KafkaSink("others"), name=f"others-{n}")
    return pipeline.plan()


@given(st.integers(1, 6), st.integers(0, 3), st.integers(0, 3), st.integers(16 * MB, 2048 * MB))
def test_all_clients_of_a_worker_together_hold_no_more_than_the_setting(
    sources: int, together: int, apart: int, memory: int
) -> None:
    share = share_of(JobContext("p", Term(1), {"kafka_share": kafka_share(_plan(sources, together, apart), memory)}))
    consumer, producer = _held(share, **{"message.max.bytes": 1000})

    assert sources * consumer + (1 + apart) * producer <= memory
    assert consumer <= SHARE
    assert producer <= 2 * SHARE


def test_plain_jobs_get_by_default_as_much_as_makes_them_fast() -> None:
    for plan in (_plan(1), _plan(2), _plan(1, together=3)):
        share = kafka_share(plan, Settings.resolve().kafka_memory)
        assert _held(share_of(JobContext("p", Term(1), {"kafka_share": share}))) == (128 * MB, 256 * MB)


def test_files_take_nothing_of_it() -> None:
    assert kafka_share(_plan(1, files=5), 300 * MB) == kafka_share(_plan(1), 300 * MB) == 100 * MB


def test_a_dead_letter_topic_shares_the_producer_of_the_outputs() -> None:
    pipeline = Pipeline("p")
    source = pipeline.source(KafkaSource("in"), name="in", on_error=dead_letter("aside"))
    source.sink(KafkaSink("out"), name="out")

    assert kafka_share(pipeline.plan(), 300 * MB) == 100 * MB


def test_who_sets_librdkafkas_own_limits_has_them() -> None:
    mine = {"queued.max.messages.kbytes": 7, "queue.buffering.max.kbytes": 2048}

    assert _held(50 * MB, **mine) == (7 * 1024, 2 * MB)


@pytest.mark.parametrize("config", [{}, {"queue.buffering.max.kbytes": 100}, {"message.max.bytes": 50_000_000}])
def test_a_queue_that_could_never_hold_the_largest_record_is_refused(config: dict[str, Any]) -> None:
    share = 100_000 if not config else 10 * MB

    with pytest.raises(ConfigError, match=r"kafka_memory.*message\.max\.bytes"):
        producer_config(Cluster("a:1", config), 60_000, share)


@given(st.integers(1, SHARE), st.integers(1, 2_000))
def test_read_ahead_counts_what_librdkafka_keeps_of_each_record(share: int, partitions: int) -> None:
    settings = read_ahead(share, partitions)

    records = settings["queued.min.messages"] * partitions
    assert records * 400 <= max(share, 64 * 400 * partitions)
    assert 256 << 10 <= settings["fetch.message.max.bytes"] <= 1 << 20
    assert settings["fetch.message.max.bytes"] * partitions <= max(share / 5, (256 << 10) * partitions)


def test_a_reader_divides_its_share_between_its_partitions() -> None:
    one, four = read_ahead(64 * MB, 1), read_ahead(64 * MB, 4)

    assert one["queued.min.messages"] // 4 == four["queued.min.messages"] == 41_943
    assert one["queued.max.messages.kbytes"] == four["queued.max.messages.kbytes"] == 64 << 10
