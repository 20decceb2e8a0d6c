"""A pipeline that a function of a package returns runs with workers, which call the function again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.marks import campaign
from tests.waiting import PATIENCE

ORDERS = """
import sys

from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink
from kafka_eos.testing import ListSource

from .numbers_of_test import NUMBERS


def build(name="built"):
    pipeline = Pipeline(name, checkpoint_dir="checkpoints", checkpoint_interval=0.2, parallelism=2)
    rows = pipeline.source(ListSource(NUMBERS), name="numbers").rebalance(name="spread")
    rows.sink(FileSink("out"), name="out")
    return pipeline


if __name__ == "__main__":
    build().run(until_caught_up=True)
"""
SCRIPT = """
from shop_in_files.orders import build

build().run(until_caught_up=True)
"""


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("-m", "kafka_eos", "run", "shop_in_files.orders:build", "--until-caught-up"), id="module"),
        campaign(("-m", "kafka_eos", "run", "shop_in_files/orders.py:build", "--until-caught-up"), named="file"),
        campaign(("-m", "shop_in_files.orders"), named="main"),
        pytest.param(("script.py",), id="script"),
    ],
)
def test_workers_call_the_function_that_returns_the_pipeline(tmp_path: Path, command: tuple[str, ...]) -> None:
    package = tmp_path / "shop_in_files"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "numbers_of_test.py").write_text("NUMBERS = list(range(20))\n", encoding="utf-8")
    (package / "orders.py").write_text(ORDERS, encoding="utf-8")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")

    run = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert run.returncode == 0, run.stderr + run.stdout
    lines = [line for file in (tmp_path / "out").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert sorted(map(int, lines)) == list(range(20))
