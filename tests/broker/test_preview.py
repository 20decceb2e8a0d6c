"""``preview`` of real topics: it reads what is asked for, and leaves no trace on the broker."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from kafka_eos.api import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.source import record_sample
from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.broker.topics import RecordToSend, produce_records

HOUR = 3_600_000
BEGIN = 1_767_225_600_000


def fill(bootstrap: str, name: str, count: int) -> None:
    """Write numbers, one per hour, to the partitions in turn."""
    records = [RecordToSend(None, str(n).encode(), (), BEGIN + n * HOUR, n % 3) for n in range(count)]
    produce_records(Cluster(bootstrap), name, records)


def pipeline_of(name: str) -> Pipeline:
    pipeline = Pipeline("preview")
    pipeline.source(KafkaSource(name, value=int), name="numbers").map(lambda n: n * 2, name="double").sink(
        KafkaSink("preview-out", value=int), name="out"
    )
    return pipeline


def test_a_sample_is_the_newest_records_the_oldest_or_those_from_a_time_on(
    bootstrap: str, topic: Callable[..., str], admin: AdminClient
) -> None:
    name = topic(partitions=3)
    fill(bootstrap, name, 30)
    pipeline = pipeline_of(name)

    def values(**options: object) -> list[str]:
        return [row.value for row in pipeline.preview(bootstrap_servers=bootstrap, **options).rows]  # type: ignore[arg-type]

    assert values(records=6) == ["24", "25", "26", "27", "28", "29"]
    assert values(records=6, start="earliest") == ["0", "1", "2", "3", "4", "5"]
    assert values(start=datetime.fromtimestamp((BEGIN + 27 * HOUR) / 1000, UTC)) == ["27", "28", "29"]
    groups = [group.group_id for group in admin.list_consumer_groups().result().valid]
    assert [group for group in groups if "preview" in group or "sample" in group] == []


def test_a_pattern_reads_all_topics_that_match(bootstrap: str, topic: Callable[..., str]) -> None:
    one, other = topic(partitions=3), topic(partitions=3)
    fill(bootstrap, one, 3)
    fill(bootstrap, other, 3)
    pipeline = Pipeline("preview")
    numbers = pipeline.source(KafkaSource(re.compile(f"{one}|{other}"), value=int), name="numbers")
    numbers.sink(KafkaSink("preview-out", value=int), name="out")

    rows = pipeline.preview(bootstrap_servers=bootstrap).rows
    assert {row.place.split("/")[0] for row in rows} == {one, other}
    assert len(rows) == 6


def test_a_missing_topic_is_named(bootstrap: str) -> None:
    with pytest.raises(ConfigError, match="no topic not-there-at-all"):
        pipeline_of("not-there-at-all").preview(bootstrap_servers=bootstrap)


def test_a_sample_that_the_cluster_does_not_complete_is_an_error(
    bootstrap: str, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    produce_records(Cluster(bootstrap), name, [RecordToSend(None, b"1")])
    monkeypatch.setattr(record_sample, "_SECONDS", 1.0)
    waiting = Cluster(bootstrap, {"fetch.min.bytes": 50_000_000, "fetch.wait.max.ms": 30_000})

    with pytest.raises(ConfigError, match=f"{name}/0 did not respond for 1 s, so not all records were read"):
        record_sample.sample_records(waiting, lambda _: [name], 10, "earliest")


def test_the_command_prints_the_table_and_the_way_of_a_record(
    bootstrap: str, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(partitions=3)
    fill(bootstrap, name, 9)
    (tmp_path / "app.py").write_text(
        "from kafka_eos import Pipeline\n"
        "from kafka_eos.connectors.kafka import KafkaSink, KafkaSource\n"
        "pipeline = Pipeline('preview')\n"
        f"rows = pipeline.source(KafkaSource('{name}', value=int), name='numbers')\n"
        "rows.map(lambda n: n * 2, name='double').sink(KafkaSink('preview-out', value=int), name='out')\n"
    )
    command = [sys.executable, "-m", "kafka_eos", "preview", "app.py", "--records", "4", "--from", "earliest"]
    done = subprocess.run(
        [*command, "--expand", "4", "-b", bootstrap], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "preview: 4 records" in done.stdout and f"{name}/0/1" in done.stdout
    assert "4. " in done.stdout and "double (map)" in done.stdout
