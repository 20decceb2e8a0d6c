"""A job to plant a bug in, and the kill rate at the end of the run."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import uuid4

import pytest

from tests.chaos.harness import Job, create_topic, feed

SITE = Path(__file__).parent / "site"
ROOT = Path(__file__).parents[2]
RECORDS = range(2000)


@pytest.fixture
def job(bootstrap: str, tmp_path: Path) -> Job:
    """A fed job; every Python process of it looks for a bug to plant."""
    name = f"planted-{uuid4().hex[:10]}"
    search = os.pathsep.join(filter(None, [str(SITE), str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {"PYTHONPATH": search, "PLANTED_LOG": str(tmp_path / "planted.log"), "TEST_PAUSE": "0.0004"}
    job = Job(name, bootstrap, f"{name}-in", f"{name}-out", tmp_path, environment=environment)
    for topic in (job.input, job.output):
        create_topic(bootstrap, topic, 3)
    feed(bootstrap, job.input, RECORDS)
    return job


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    caught, missed = (
        [report.nodeid.partition("[")[2].rstrip("]") for kind in kinds for report in terminalreporter.getreports(kind)
         if "::test_the_checks_catch[" in report.nodeid]
        for kinds in (["passed"], ["failed", "error"])
    )  # fmt: skip
    missed = sorted(set(missed))
    if caught or missed:
        terminalreporter.write_line(f"planted bugs: {len(caught)} of {len(caught) + len(missed)} caught")
    if missed:
        terminalreporter.write_line(f"not caught: {', '.join(missed)}")
