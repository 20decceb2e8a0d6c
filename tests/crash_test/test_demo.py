"""A whole demo, small: real broker, real job, real kills, real audit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kafka_eos.audit import Conclusion
from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.crash_test.result import CrashTestResult
from kafka_eos.devtools.demo import DemoOptions, run_demo

pytestmark = [pytest.mark.xdist_group("demo"), pytest.mark.timeout(900)]


def still_there(text: str) -> list[str]:
    """Processes other than this one that name ``text`` in their command."""
    commands = {entry: entry / "cmdline" for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    return [entry.name for entry, file in commands.items() if entry.name != str(os.getpid()) and text in said_by(file)]


def said_by(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def demonstrate(options: DemoOptions) -> CrashTestResult:
    with (options.directory / "said.txt").open("w") as said:
        return run_demo(options, Console(file=said))


def run_small(directory: Path, engine: str) -> tuple[CrashTestResult, dict[str, Any]]:
    options = DemoOptions(
        orders=20_000, seed=5, directory=directory, step_kills=1, outside_kills=1, seconds=8.0, engine=engine
    )
    # As users do, in a process of its own: Spark's have the environment that there was when the first one began.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as one:
        result = one.submit(demonstrate, options).result()
    assert result.conclusion is Conclusion.PASS, result.headline
    assert (directory / "said.txt").read_text().startswith("watch it: http://127.0.0.1:")
    assert result.headline in (directory / "report.html").read_text()
    report = json.loads((directory / "report.json").read_text())
    assert report["headline"] == result.headline
    assert [one["under_load"] for one in report["struck"]] == [True] * len(report["planned"])
    assert (result.numbers["inputs"], result.numbers["broker_outages"]) == (20_000, 1)
    assert report["sessions"][0]["parallelism"] == 2
    return result, report


@pytest.mark.chaos
@pytest.mark.spark
@pytest.mark.slow
def test_a_small_demo_passes_and_leaves_its_report(tmp_path: Path) -> None:
    result, report = run_small(tmp_path, "embedded")

    assert result.numbers["killed"] == {"worker": 2, "supervisor": 1}
    assert {"supervisor", "worker 0", "worker 1"} <= {process["name"] for process in report["processes"]}
    assert [2, report["sessions"][-1]["parallelism"]] in [list(each) for each in result.numbers["rescaled"]]


@pytest.mark.chaos
@pytest.mark.spark
@pytest.mark.slow
def test_a_small_demo_passes_on_a_spark_cluster(tmp_path: Path) -> None:
    result, report = run_small(tmp_path, "spark")

    assert result.numbers["killed"] == {"worker": 1, "executor": 1, "driver": 2}
    assert {"driver", "executor 0", "executor 1"} <= {process["name"] for process in report["processes"]}
    assert not still_there(str(tmp_path))


def test_its_help_shows_an_example_and_the_exit_codes() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "kafka_eos", "demo", "--help"], capture_output=True, text=True, check=True
    ).stdout

    assert "kafka-eos demo --seed 7" in shown and "INVALID" in shown


def test_too_few_orders_are_refused() -> None:
    with pytest.raises(ConfigError, match="--orders"):
        DemoOptions(orders=10)


def test_an_engine_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="--engine"):
        DemoOptions(engine="storm")
