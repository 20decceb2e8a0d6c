"""The fixtures that the plugin gives to users' projects, without a broker; ``tests/broker`` has those with one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kafka_eos.core.errors import ConfigError
from kafka_eos.pytest_plugin.outputs import AssertOutput, assert_output
from kafka_eos.pytest_plugin.pipeline_runs import PipelineRunner
from kafka_eos.pytest_plugin.servers import choose

LATE = """
from kafka_eos import OutputTag, Pipeline, agg, bounded, tumbling
from kafka_eos.testing import ListSource, MemorySink

pipeline = Pipeline("late")
LATE = OutputTag("late", int)
keyed = pipeline.source(ListSource([]), name="numbers").with_timestamps(watermarks=bounded(seconds=0)).key_by(str)
window = keyed.window(tumbling(seconds=10), late=LATE)
sums = window.aggregate(agg.count(), name="counts")
sums.sink(MemorySink(), name="sink")
sums.side_output(LATE).sink(MemorySink(), name="late")
"""
USE = """
from kafka_eos.testing import TimestampedValue


def test_late(run_pipeline):
    rows = [TimestampedValue(1, 1_000), TimestampedValue(1, 30_000), TimestampedValue(1, 2_000)]
    run = run_pipeline("late.py", {"numbers": rows})
    assert run["late"] == []
"""


def test_the_plugin_imports_nothing_before_a_fixture_is_used() -> None:
    code = "import sys, kafka_eos.pytest_plugin; print(*(name for name in sys.modules if name.startswith('kafka_eos')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["kafka_eos", "kafka_eos.pytest_plugin"]


def test_a_project_without_settings_gets_the_fixtures_and_sees_late_rows(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(LATE)
    (tmp_path / "test_late.py").write_text(USE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=Path(os.sep), capture_output=True, text=True, check=False)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "late rows of late: 1 at counts" in done.stdout
    assert "assert [1] == []" in done.stdout


def test_outputs_are_compared_with_their_number(assert_output: AssertOutput) -> None:
    assert_output([1, 2, 2], [2, 1, 2])

    with pytest.raises(AssertionError) as caught:
        assert_output([1, 2, 2, 4], [1, 2, 3])
    assert str(caught.value).splitlines() == [
        "4 outputs, expected 3",
        "  missing:",
        "    3",
        "  duplicated:",
        "    2",
        "  unexpected:",
        "    4",
    ]


def test_outputs_of_a_key_are_compared_in_order() -> None:
    rows = [{"user": "ann", "n": 1}, {"user": "bob", "n": 1}, {"user": "ann", "n": 2}]

    assert_output(rows, [rows[1], rows[0], rows[2]], key="user")
    with pytest.raises(AssertionError, match="outputs of key 'ann' in another order"):
        assert_output(rows, rows[::-1], key="user")


def test_the_option_precedes_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_EOS_TEST_BROKER", "one:9092")

    wanted = "KAFKA_EOS_TEST_BROKER", "--kafka-eos-broker", "HOST:PORT"
    assert choose("local", *wanted) == "local"
    assert choose(None, *wanted) == "one:9092"
    with pytest.raises(ConfigError, match="'docker' must be auto, local, testcontainers or an address: HOST:PORT"):
        choose("docker", *wanted)


def test_a_file_is_found_below_the_root_of_the_tests(tmp_path: Path, run_pipeline: PipelineRunner) -> None:
    (tmp_path / "app.py").write_text(LATE)

    with PipelineRunner(tmp_path) as run:
        assert run("app.py", {}) == {"sink": [], "late": []}
    with pytest.raises(ConfigError, match=r"other\.py does not exist"):
        run_pipeline("other.py", {})
