"""What a job does with the functions of its user: it closes what it has opened, and says what is wrong with them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

APP = """
from pathlib import Path

from kafka_eos import Pipeline, ProcessFunction, monotonic
from kafka_eos.connectors.files import FileSink, FileSource

DIRECTORY = Path({directory!r})

class Opened(ProcessFunction[str, str, str]):
    def open(self, ctx):
        self.ctx = ctx
        {opens}

    def process(self, key, word):
        {processes}
        return [word]

    def close(self):
        {closes}

pipeline = Pipeline("opened", tolerated_checkpoint_failures=0)
(
    pipeline.source(FileSource(DIRECTORY / "in", value=str, until="latest"), name="words")
    {times}
    .key_by(lambda word: word)
    .process(Opened, name="opened")
    .sink(FileSink(DIRECTORY / "out", value=str), name="out")
)
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a job of two workers to its end, with these lines in its function."""

    def run(
        *, opens: str = "pass", processes: str = "pass", closes: str = "pass", times: str = ""
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "words.jsonl").write_text("".join(f'"word-{n}"\n' for n in range(20)))
        app = tmp_path / "app.py"
        lines = {"opens": opens, "processes": processes, "closes": closes, "times": times}
        app.write_text(APP.format(directory=str(tmp_path), **lines))
        command = [sys.executable, "-m", "kafka_eos", "run", str(app), "--parallelism", "2"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)

    return run


def test_when_a_job_ends_each_worker_closes_its_functions(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"

    done = run(opens=f"self.log = open({str(log)!r}, 'a')", closes="self.log.write('closed\\n'); self.log.close()")

    assert done.returncode == 0, done.stderr
    assert log.read_text() == "closed\n" * 2


def test_what_close_raises_is_said(run: Run) -> None:
    done = run(closes="raise RuntimeError('still open')")

    assert done.returncode == 0, done.stderr
    assert "close of operator 'opened' raised RuntimeError (raised at " in done.stderr


def test_what_open_raises_is_said_with_its_operator_and_line(run: Run, tmp_path: Path) -> None:
    done = run(opens="raise RuntimeError('no price list')")

    assert done.returncode == 1
    place = f"(raised at {tmp_path / 'app.py'}:12 in open)"
    assert f"open of operator 'opened' raised RuntimeError {place}" in done.stderr
    assert "no price list" not in done.stderr


def test_a_state_of_a_type_that_cannot_be_stored_stops_the_job_at_once(run: Run) -> None:
    done = run(opens="ctx.value_state('seen', object)")

    assert done.returncode == 2
    assert "PlanError: operator 'opened': state 'seen': values of type object cannot be stored" in done.stderr
    assert "restarting from the last checkpoint" not in done.stderr


def test_a_side_output_is_named_by_a_tag_and_not_by_a_text(run: Run) -> None:
    done = run(processes="self.ctx.output('late', word)")

    assert done.returncode == 2
    assert "PlanError: operator 'opened' emits to 'late', which is not an OutputTag(name, type)" in done.stderr


def test_times_in_seconds_are_remarked_while_the_job_runs_and_seen_at_its_end(run: Run) -> None:
    done = run(times=".with_timestamps(lambda word: 1_795_648_000, watermarks=monotonic())")

    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the times of 'words-timestamps' look like seconds since 1970") == 1
    assert "; watermark of words: 1970-01-21T18:47:27Z" in done.stderr
