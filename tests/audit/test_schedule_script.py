"""The script of the page that audits topics on a schedule."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.audit.topic_pair import ORDERS, Pair
from tests.waiting import PATIENCE

PAGE = Path(__file__).parents[2] / "docs/audit.md"


@pytest.mark.campaign
@pytest.mark.timeout(600)
def test_each_run_begins_where_the_newest_pass_ended(pair: Pair, tmp_path: Path) -> None:
    (shown,) = (block for block in PAGE.read_text().split("```sh\n") if block.startswith("#!/bin/sh"))
    names = {"--input orders": f"--input {pair.input}", "--output totals": f"--output {pair.output}", "order_id": "id"}
    text = shown.partition("```")[0]
    for shown_name, name in names.items():
        assert shown_name in text
        text = text.replace(shown_name, name)
    script, audits = tmp_path / "orders.sh", tmp_path / "audits"
    script.write_text(text)
    audits.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, "AUDITS": str(audits), "KAFKA_EOS_BOOTSTRAP_SERVERS": pair.job.bootstrap}

    def run() -> tuple[int, str, str]:
        """Return the exit code, what was printed, and the metrics."""
        done = subprocess.run(
            ["/bin/sh", script], env=given, capture_output=True, text=True, timeout=PATIENCE * 4, check=False
        )
        return done.returncode, done.stdout + done.stderr, (audits / "orders.prom").read_text()

    pair.job.write(pair.output, pair.outs)
    code, said, metrics = run()
    newest = (audits / "newest").readlink()
    assert (0, True) == (code, f"PASS: {ORDERS} records in" in said), said
    assert f'kafka_eos_audit_verdict{{job="{pair.output}",verdict="PASS"}} 1.0' in metrics

    more = range(ORDERS, ORDERS + 8)
    pair.feed(more)
    pair.job.write(pair.output, pair.made(more)[1:])
    code, said, metrics = run()
    assert (1, True) == (code, "FAIL: lost: 1" in said), said
    assert f'kafka_eos_audit_findings{{check="lost",job="{pair.output}"}} 1.0' in metrics
    assert newest == (audits / "newest").readlink(), "only a PASS is resumed"
