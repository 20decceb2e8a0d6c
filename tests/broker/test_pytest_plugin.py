"""The plugin's fixtures on a real broker: the same pipeline, in memory and as a job, has the same output."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.broker.topics import (
    RecordToSend,
    consume_records,
    count_records,
    create_topics,
    list_topics,
    produce_records,
)
from kafka_eos.devtools.project import create_project
from kafka_eos.pytest_plugin.outputs import AssertOutput
from kafka_eos.pytest_plugin.pipeline_runs import PipelineRunner
from kafka_eos.pytest_plugin.topics import TopicFactory

APP = """
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter

pipeline = Pipeline("{name}")
numbers = pipeline.source(KafkaSource("{name}-in", value=int), name="numbers", on_error=dead_letter("{name}-dead"))
sums = numbers.map(lambda n: 12 // n).key_by(str).fold(name="sum", init=int, step=int.__add__, emit=lambda k, a: a)
sums.sink(KafkaSink("{name}-out", value=int), name="sums")
"""


def test_a_run_in_memory_and_a_job_on_a_broker_have_the_same_output(
    tmp_path: Path, run_pipeline: PipelineRunner, kafka_eos_broker: str, observer: AdminClient
) -> None:
    name = f"plugin-{uuid4().hex[:8]}"
    (tmp_path / "app.py").write_text(APP.format(name=name))
    app, inputs = str(tmp_path / "app.py"), {"numbers": [3, 4, 0, 3]}

    in_memory = run_pipeline(app, inputs)
    as_job = run_pipeline(app, inputs, broker=kafka_eos_broker)

    assert in_memory["sums"] == as_job["sums"] == [4, 3, 8]
    assert [raw.value for raw in as_job.written["sums"]] == [b"4", b"3", b"8"]
    (letter,) = as_job.written["numbers-dead-letters"]
    assert letter.value == b"0"
    run_pipeline.__exit__()
    assert [topic for topic in observer.list_topics(timeout=20).topics if topic.startswith(name)] == []


def test_a_topic_of_a_test_is_written_and_read(
    kafka_eos_topic: TopicFactory, kafka_eos_broker: str, assert_output: AssertOutput
) -> None:
    numbers = kafka_eos_topic(partitions=2)
    numbers.produce({"n": 1}, {"n": 2}, key="n")

    assert_output(numbers, [{"n": 2}, {"n": 1}])
    assert {record.key for record in numbers.records()} == {b"1", b"2"}
    assert count_records(Cluster(kafka_eos_broker), numbers.name) == 2


def test_a_topic_that_exists_is_left_alone(kafka_eos_topic: TopicFactory, topic: Callable[..., str]) -> None:
    with pytest.raises(ConfigError, match="already exists"):
        kafka_eos_topic(topic())


def test_a_topic_that_no_test_has_created_is_not_written(
    tmp_path: Path, run_pipeline: PipelineRunner, bootstrap: str, admin: AdminClient
) -> None:
    name = f"plugin-{uuid4().hex[:8]}"
    (tmp_path / "app.py").write_text(APP.format(name=name))
    create_topics(Cluster(bootstrap), [f"{name}-in"], 1)

    with pytest.raises(ConfigError, match=f"{name}-in exist on {bootstrap} and were not created by this test session"):
        run_pipeline(str(tmp_path / "app.py"), {"numbers": [3]}, broker=bootstrap)
    assert list(consume_records(Cluster(bootstrap), f"{name}-in")) == []
    assert f"{name}-out" not in list_topics(Cluster(bootstrap))
    admin.delete_topics([f"{name}-in"])


@pytest.mark.campaign
def test_a_run_for_a_test_does_not_replace_the_job_of_the_same_name(
    tmp_path: Path, run_pipeline: PipelineRunner, bootstrap: str, topic: Callable[..., str]
) -> None:
    numbers, sums, name = topic(), topic(), f"plugin-{uuid4().hex[:8]}"
    real = APP.replace("{name}-in", numbers).replace("{name}-out", sums)
    (tmp_path / "real.py").write_text(real.replace(', on_error=dead_letter("{name}-dead")', "").format(name=name))
    (tmp_path / "app.py").write_text(APP.format(name=name))
    command = [sys.executable, "-m", "kafka_eos", "run", "real.py", "--until-caught-up", "-b", bootstrap]
    job = [*command, "--checkpoint-dir", "checkpoints", "--parallelism", "1"]

    for _ in range(2):
        produce_records(Cluster(bootstrap), numbers, [RecordToSend(None, b"3")])
        done = subprocess.run(job, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        run_pipeline(str(tmp_path / "app.py"), {"numbers": [4]}, broker=bootstrap)
    assert [raw.value for raw in consume_records(Cluster(bootstrap), sums)] == [b"4", b"8"]


@pytest.mark.parametrize(
    "template", ["totals", *(pytest.param(name, marks=pytest.mark.campaign) for name in ("join", "postgres", "lake"))]
)
def test_the_integration_test_of_a_new_project_passes(
    template: str, tmp_path: Path, bootstrap: str, request: pytest.FixtureRequest
) -> None:
    project = tmp_path / f"new-{template}"  # no other test has a job of this name on the broker
    create_project(project, template)
    conninfo = request.getfixturevalue("database")() if template == "postgres" else "local"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_on_broker.py"]
    command += [f"--kafka-eos-broker={bootstrap}", f"--kafka-eos-postgres={conninfo}"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
