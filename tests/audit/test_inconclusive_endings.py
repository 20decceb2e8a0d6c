"""An audit that cannot judge ends as INCONCLUSIVE with exit code 2, whatever failed: exit code 1 means wrong data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kafka_eos.audit import Check, Conclusion
from kafka_eos.audit.checks.verdict import Evidence, Observations, Violation, judge
from kafka_eos.audit.report.audit_outcome import ReportWriter
from kafka_eos.audit.report.report_files import Context
from kafka_eos.cli import app as cli
from kafka_eos.coordination.job_lock import job_lock
from kafka_eos.core.ids import SplitId
from kafka_eos.devtools.broker import Broker
from tests.audit.conftest import TOTALS, Totals
from tests.audit.job import Job, epoch, out
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(300)
FOUND = judge(
    Observations(
        inputs=3, outputs=2, committed_epochs=1,
        evidence={check: Evidence(2) for check in Check} | {Check.LOST: Evidence(3, 1, (Violation("t", 0, 0, "x"),))},
    )
)  # fmt: skip


def command(job: Job, report: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """``kafka-eos audit`` in a process of its own."""
    asked = [sys.executable, "-m", "kafka_eos", "audit", str(job.app), "-b", job.bootstrap, "--report-dir", str(report)]
    checkpoints = {"KAFKA_EOS_CHECKPOINT_DIR": str(job.directory / "checkpoints")}
    return subprocess.run(
        asked,
        env={**os.environ, **checkpoints, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def reported(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "report.json").read_text())
    return found


def test_a_running_job_is_said_to_run_before_anything_is_started(tmp_path: Path) -> None:
    """Neither a session nor a broker is looked for: this one is no session, and there is no broker."""
    app = tmp_path / "orders.py"
    app.write_text(TOTALS.format(name="orders", input="in", output="out"))
    job = Job("127.0.0.1:1", tmp_path, app, "orders")

    with job_lock(job.settings.job_dir("orders") / "lock", "orders"):
        verdict = job.audit(object())

    said = "the job 'orders' is running: stop it (kafka-eos stop orders.py), then audit again"
    assert (f"INCONCLUSIVE: {said}", 2) == (verdict.headline, verdict.exit_code)


def test_without_java_it_says_what_to_install(totals: Totals, tmp_path: Path) -> None:
    totals.finish()

    done = command(totals.job, tmp_path / "report", JAVA_HOME=str(tmp_path))

    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith(f"INCONCLUSIVE: no java found in JAVA_HOME={tmp_path}")
    assert "apt-get install" in done.stdout and "Traceback" not in done.stdout + done.stderr
    report = reported(tmp_path / "report")
    assert "INCONCLUSIVE" == report["verdict"] and "find_java" in report["traceback"]
    assert "find_java" in (tmp_path / "report" / "report.html").read_text()


def test_a_report_that_cannot_be_written_is_noticed_before_anything_is_read(totals: Totals, tmp_path: Path) -> None:
    totals.finish()
    (tmp_path / "file").touch()

    done = command(totals.job, tmp_path / "file" / "report")

    assert done.returncode == 2, done.stderr
    assert "INCONCLUSIVE: the report cannot be written to" in done.stdout and "--report-dir" in done.stdout
    assert "NotADirectoryError" in done.stderr and "starting Spark" not in done.stderr


def test_a_report_that_is_lost_at_the_end_takes_no_finding_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ending = ReportWriter(tmp_path / "report", Context(job="j", app="a.py"))

    def judged() -> Any:
        for file in (tmp_path / "report").iterdir():
            file.unlink()
        (tmp_path / "report").rmdir()
        (tmp_path / "report").touch()
        return FOUND

    verdict = ending.of(judged)

    assert (Conclusion.FAIL, 2) == (verdict.conclusion, len(verdict.reasons))
    assert "FileExistsError" in capsys.readouterr().err


def test_an_older_verdict_does_not_outlive_the_beginning_of_an_audit(tmp_path: Path) -> None:
    ReportWriter(tmp_path, Context(job="j", app="a.py")).of(lambda: FOUND)
    seen: list[str] = []

    def judged() -> Any:
        seen.append(reported(tmp_path)["verdict"])
        raise MemoryError("all of it is used")

    verdict = ReportWriter(tmp_path, Context(job="j", app="a.py")).of(judged)

    assert (["INCONCLUSIVE"], Conclusion.INCONCLUSIVE) == (seen, verdict.conclusion)
    assert "all of it is used" in verdict.headline and "more memory" in verdict.headline
    assert "MemoryError" in reported(tmp_path)["traceback"]


def test_an_interrupted_command_is_no_verdict_on_the_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("kafka_eos.audit.topics.audit_topics", interrupted)
    asked = ["audit", "topics", "--output", "b", "--id", "$.x", "--report-dir", str(tmp_path)]

    done = CliRunner().invoke(cli, asked)

    assert (2, "INCONCLUSIVE") == (done.exit_code, reported(tmp_path)["verdict"])
    assert "interrupted" in done.output


def test_functions_that_fail_today_are_named(
    new_job: Callable[..., Job], topic: Callable[..., str], spark: Any
) -> None:
    """Spark tells of it in a Python traceback within a Java one."""
    source, target = topic(), topic()
    broken = TOTALS.replace("Total(user=user, total=total)", "Total(user=user, total=total / (total - 7))")
    job = new_job(broken, input=source, output=target)
    job.feed(source, [(0, "ann", b'{"user":"ann","amount":7}')])
    job.write(target, [out((0, 0), "ann", b'{"user":"ann","total":7}', update=1, topic=source)])
    job.commits(epoch(1, 0), epoch(1, 1), positions={"orders": {SplitId(f"{source}/0"): 1}}, counts={epoch(1, 1): 1})

    verdict = job.audit(spark)

    assert Conclusion.INCONCLUSIVE is verdict.conclusion
    assert "ZeroDivisionError" in verdict.headline and "with the code that made the output" in verdict.headline
    assert f"{source}/0/0" in verdict.traceback


@pytest.mark.campaign
@pytest.mark.parametrize("step", ["waiting", "reading", "recomputing"])
def test_a_broker_that_goes_away_in_the_middle_is_no_verdict_on_the_data(
    broker_factory: Callable[..., Broker], tmp_path: Path, spark: Any, step: str
) -> None:
    broker = broker_factory()
    job = hand_made(broker.bootstrap, tmp_path)
    assert Conclusion.PASS is job.audit(spark).conclusion

    def progress(text: str) -> None:
        if text.startswith(step):
            broker.kill()

    verdict = job.audit(spark, progress=progress, report_dir=tmp_path / "report")

    assert Conclusion.INCONCLUSIVE is verdict.conclusion, verdict.headline
    assert "brokers" in verdict.headline or "could not" in verdict.headline, verdict.headline
    assert "Traceback" in reported(tmp_path / "report")["traceback"]


def hand_made(bootstrap: str, directory: Path) -> Job:
    """A clean job of one output on a broker of its own."""
    from tests.chaos.harness import create_topic

    app = directory / "alone.py"
    app.write_text(TOTALS.format(name="alone", input="in", output="out"))
    job = Job(bootstrap, directory, app, "alone")
    for name in ("in", "out"):
        create_topic(bootstrap, name, 1)
    job.feed("in", [(0, "ann", b'{"user":"ann","amount":7}')])
    job.write("out", [out((0, 0), "ann", b'{"user":"ann","total":7}', update=1, topic="in")])
    job.commits(epoch(1, 0), epoch(1, 1), positions={"orders": {SplitId("in/0"): 1}}, counts={epoch(1, 1): 1})
    return job
