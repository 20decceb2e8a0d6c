"""A whole demo, small: real broker, real job, real kills, real audit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from kafka_eos.audit import Outcome
from kafka_eos.demo import Options, run_demo


@pytest.mark.chaos
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("demo")
@pytest.mark.timeout(600)
def test_a_small_demo_passes_and_leaves_its_report(tmp_path: Path) -> None:
    options = Options(orders=20_000, seed=5, directory=tmp_path, step_kills=1, outside_kills=1, seconds=8.0)

    result = run_demo(options, Console(stderr=True))

    assert result.outcome is Outcome.PASS, result.headline
    assert (result.numbers["inputs"], result.numbers["kills"], result.numbers["broker_outages"]) == (20_000, 3, 1)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["headline"] == result.headline
    assert [one["under_load"] for one in report["struck"]] == [True] * 4
    assert result.headline in (tmp_path / "report.html").read_text()


def test_its_help_shows_an_example_and_the_exit_codes() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "kafka_eos", "demo", "--help"], capture_output=True, text=True, check=True
    ).stdout

    assert "kafka-eos demo --seed 7" in shown and "INVALID" in shown
