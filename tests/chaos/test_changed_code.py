"""All processes of a job run one code: a worker that would load another one than the job began with ends the job."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.chaos.harness import Job, check
from tests.chaos.running import running
from tests.waiting import PATIENCE

APP = """
import sys

from kafka_eos import Pipeline
from kafka_eos.testing import ListSource, MemorySink

in_a_worker = "kafka_eos.embedded.worker_main" in sys.orig_argv
pipeline = Pipeline("unlike", parallelism=2)
for name in sorted(("a", "b"), reverse=in_a_worker):
    pipeline.source(ListSource([1]), name=name).sink(MemorySink(), name=f"out-{name}")
"""


def test_a_worker_that_is_replaced_after_the_file_has_changed_ends_the_job(new_job: Callable[..., Job]) -> None:
    """Else the operator that was renamed would begin without its state, and nobody would have been asked."""
    job = new_job(2_000)
    job.app = Path(shutil.copy(job.app, job.directory / "app.py"))
    text = job.app.read_text()
    with running(job) as started:
        started.until_output()
        job.app.write_text(text.replace('name="total"', 'name="sum"'))
        os.kill(started.worker, signal.SIGKILL)
        assert started.ended() == 1
        assert f"Fatal: app.py in {job.directory} changed since the job was started" in started.log
        assert "Traceback" not in started.log

    job.app.write_text(text)
    job.run()
    check(job)


def test_a_pipeline_that_each_process_makes_in_another_order_is_refused(tmp_path: Path) -> None:
    """As one that is made of a set: workers call the ways between them by their order."""
    app = tmp_path / "app.py"
    app.write_text(APP)
    command = [sys.executable, "-m", "kafka_eos", "run", str(app), "--checkpoint-dir", str(tmp_path / "checkpoints")]

    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert ended.returncode == 1
    assert "builds another pipeline in each process of the job" in " ".join(ended.stderr.split())
