"""A job whose code quotes a record in an exception: what others can read of the job does not contain the record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.otlp_receiver import Receiver, receiving
from tests.waiting import PATIENCE, eventually

PAN = "4111-2222-3333-4444"
APP = """
from pydantic import BaseModel
from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink, FileSource

class Card(BaseModel):
    pan: str

def checked(card: Card) -> Card:
    raise {error}(card.pan)

pipeline = Pipeline("cards")
pipeline.source(FileSource("in", value=Card), name="cards").map(checked, name="checked").sink(
    FileSink("out", value=Card), name="out"
)
"""


@contextmanager
def job(home: Path, error: str, receiver: Receiver, **settings: str) -> Iterator[subprocess.Popen[str]]:
    (home / "in").mkdir()
    (home / "in" / "cards.jsonl").write_text(json.dumps({"pan": PAN}) + "\n")
    (home / "app.py").write_text(APP.format(error=error))
    command = [
        sys.executable,
        "-m",
        "kafka_eos",
        "run",
        "app.py",
        "--parallelism",
        "1",
        "--http",
        "127.0.0.1:0",
        "--otel",
    ]
    env = {**os.environ, **receiver.environment, **settings}
    with (
        (home / "log").open("w") as log,
        subprocess.Popen(command, cwd=home, env=env, stderr=log, text=True) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def address(home: Path) -> str:
    """The job's address, once it is printed."""
    text: str = eventually(lambda: (home / "log").read_text().partition("metrics at ")[2], "the address")
    return text.partition("/metrics")[0]


def fetched(url: str) -> dict[str, str]:
    """What the job answers now, by path; nothing if it has ended."""
    found = {}
    for path in ("/api/status", "/metrics", "/api/jobs", "/api/jobs/cards", "/readyz"):
        with suppress(OSError), urlopen(f"{url}{path}", timeout=PATIENCE) as answer:
            found[path] = answer.read().decode()
    return found


def written(home: Path) -> dict[str, str]:
    """The log, and the files of the job that pages and tools show."""
    directory = home / ".kafka-eos" / "cards"
    return {
        path.name: path.read_text() for path in (home / "log", directory / "status.json", directory / "history.jsonl")
    }


def expect_hidden(texts: dict[str, str], receiver: Receiver) -> None:
    sent = {to: body.decode(errors="replace") for to, body in receiver.requests}
    assert {"/v1/metrics"} <= sent.keys()
    for name, text in {**texts, **sent}.items():
        assert PAN not in text and PAN[:9] not in text, name


def test_a_record_that_stops_the_job_is_nowhere_to_be_read(tmp_path: Path) -> None:
    answers: list[dict[str, str]] = []
    with receiving() as receiver, job(tmp_path, "ValueError", receiver) as process:
        url, over = address(tmp_path), threading.Event()

        def look() -> None:
            while not over.wait(0.05):
                answers.append(fetched(url))

        looking = threading.Thread(target=look)
        looking.start()
        assert process.wait(PATIENCE) not in (0, None)
        over.set()
        looking.join()
        texts = written(tmp_path)

        assert "ValueError" in texts["log"] and "app.py:10 in checked" in texts["log"].replace("\n", "")
        assert "ValueError" in texts["status.json"] and '"failed"' in texts["history.jsonl"]
        assert any("/api/status" in answer and "/metrics" in answer for answer in answers)
        for answer in answers:
            expect_hidden(answer, receiver)
        expect_hidden(texts, receiver)


def test_what_restarts_the_job_is_shown_without_the_record(tmp_path: Path) -> None:
    """An OSError of user code counts as a failure of what the code depends on: the job goes on, and keeps answering."""
    with receiving() as receiver, job(tmp_path, "ConnectionError", receiver):
        url = address(tmp_path)
        eventually(lambda: "ConnectionError" in fetched(url).get("/api/status", ""), "the failure is shown")
        answers = fetched(url)

        assert {"/api/status", "/metrics", "/api/jobs", "/api/jobs/cards"} <= answers.keys()
        expect_hidden({**answers, **written(tmp_path)}, receiver)


@pytest.mark.parametrize("name", ["log", "status.json"])
def test_the_setting_shows_it(tmp_path: Path, name: str) -> None:
    """So that the tests above are known to look in the right places."""
    with (
        receiving() as receiver,
        job(tmp_path, "ValueError", receiver, KAFKA_EOS_SHOW_ERROR_MESSAGES="true") as process,
    ):
        process.wait(PATIENCE)
        assert PAN in written(tmp_path)[name].replace("\n", "")
