"""``kafka-eos crash-test`` as a user calls it: a correct pipeline passes, and each planted mistake is found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.devtools.broker.topics import RecordToSend, produce_records
from tests.crash_test import planted

pytestmark = [pytest.mark.xdist_group("crash-test"), pytest.mark.timeout(1200)]


def crash(directory: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "planted_app.py").write_text(program)
    command = [sys.executable, "-m", "kafka_eos", "crash-test", "planted_app.py", *options]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def test_a_planted_side_effect_fails_a_quick_test_with_its_line(tmp_path: Path) -> None:
    done = crash(tmp_path, planted.SIDE_EFFECT, "--quick")

    assert done.returncode == 1, done.stdout + done.stderr
    assert f"planted_app.py:{planted.line_of(planted.SIDE_EFFECT, 'kafka-eos-planted')}: Path(" in done.stdout
    report = json.loads((tmp_path / ".kafka-eos/crash-test/report.json").read_text())
    assert report["outcome"] == "FAIL" and report["findings"][0]["kind"] == "side effect"
    assert "writes the file" in (tmp_path / ".kafka-eos/crash-test/report.html").read_text()


@pytest.mark.campaign
def test_a_planted_non_determinism_makes_a_quick_test_invalid_with_its_line(tmp_path: Path) -> None:
    done = crash(tmp_path, planted.NOT_DETERMINISTIC, "--quick")

    assert done.returncode == 2, done.stdout + done.stderr
    assert f"planted_app.py:{planted.line_of(planted.NOT_DETERMINISTIC, 'def add')}: def add" in done.stdout


@pytest.mark.campaign
def test_a_key_that_is_not_deterministic_fails(tmp_path: Path) -> None:
    done = crash(tmp_path, planted.RANDOM_KEY, "--quick")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "it decides which worker keeps the state of a row" in done.stdout


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.spark
def test_a_planted_sink_that_lies_fails_a_quick_test_with_its_line(tmp_path: Path) -> None:
    done = crash(tmp_path, planted.LYING_SINK, "--quick")

    assert done.returncode == 1, done.stdout + done.stderr
    assert f"planted_app.py:{planted.line_of(planted.LYING_SINK, '.sink(DirectSink')}: .sink(DirectSink" in done.stdout
    assert "duplicate" in done.stdout


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.spark
@pytest.mark.parametrize("options", [("--quick",), ("--kills", "5")], ids=["quick", "full"])
def test_a_correct_pipeline_passes(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = crash(tmp_path, planted.CORRECT, *options)

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / ".kafka-eos/crash-test/report.json").read_text())
    assert report["numbers"]["duplicated"] == report["numbers"]["lost"] == 0
    assert report["missed"] == []
    (step,) = (each for each in report["calls"] if each["function"].startswith("add "))
    assert step["under_faults"] > step["without_faults"] > 1000, "replays repeat calls"
    victims = {one["victim"] for one in report["struck"]}
    assert victims >= {"worker", "supervisor", "job"}
    if "--quick" not in options:
        assert victims >= {"broker", "savepoint", "zombie"}
        assert report["state_audit"]["headline"].startswith("PASS")


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.spark
@pytest.mark.timeout(7200)
def test_on_spark_a_driver_dies_at_every_step_and_a_hundred_processes_at_random(tmp_path: Path) -> None:
    done = crash(tmp_path, planted.CORRECT, "--engine", "spark", "--kills", "100")

    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / ".kafka-eos/crash-test/report.json").read_text())
    assert report["numbers"]["duplicated"] == report["numbers"]["lost"] == 0
    assert report["missed"] == []
    assert {one["victim"] for one in report["struck"]} >= {"worker", "executor", "driver", "broker", "savepoint"}


def test_outputs_outside_of_the_test_are_refused(tmp_path: Path) -> None:
    program = planted.CORRECT.replace(
        'KafkaSink("totals", value=Total, key="user")', 'FileSink("lake", value=Total), name="files"'
    )
    done = crash(tmp_path, f"from kafka_eos.connectors.files import FileSink\n{program}", "--quick")

    assert done.returncode == 2, done.stdout + done.stderr
    assert "--files VARIABLE" in done.stderr and "--write-outputs" in done.stderr
    assert not (tmp_path / "lake").exists()


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.spark
def test_on_a_given_broker_with_a_sample_of_its_topic_nothing_is_left_there(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str], observer: AdminClient
) -> None:
    """The topic of the pipeline is the one that is sampled, so it needs another broker: it is refused there."""
    real, name = topic(partitions=3), f"crash-{uuid4().hex[:8]}"
    order = {"user": "ann", "amount": 1, "status": "paid"}
    records = [RecordToSend(b"ann", json.dumps({**order, "amount": n}).encode()) for n in range(500)]
    produce_records(Cluster(bootstrap), real, records)

    refused = crash(tmp_path, planted.CORRECT.replace('"orders"', f'"{real}"'), "--quick", "-b", bootstrap)
    assert refused.returncode == 2 and f"{real} exist on" in refused.stderr

    program = planted.CORRECT.replace('"orders"', f'"{name}-in"').replace('"totals"', f'"{name}-out"')
    done = crash(tmp_path, program.replace('Pipeline("planted")', f'Pipeline("{name}")'), "--quick", "-b", bootstrap)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [each for each in observer.list_topics(timeout=20).topics if each.startswith(name)] == []

    sampled = crash(
        tmp_path,
        planted.CORRECT.replace('"orders"', f'"{real}"'),
        "--quick",
        "--input",
        "topic",
        "--sample-from",
        bootstrap,
    )
    assert sampled.returncode == 0, sampled.stdout + sampled.stderr
    assert f"500 records of {real} on {bootstrap}" in sampled.stdout + sampled.stderr
