"""Failpoints act once each, in the order of the script, and leave a record before they act."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kafka_eos._util.failpoints import ScriptEntry, parse_script
from kafka_eos.core.errors import ConfigError


def hits(log: Path, script: str, *names: str) -> subprocess.CompletedProcess[str]:
    """Pass the named points in a process of its own; prints each point that it survived."""
    code = f"from kafka_eos._util.failpoints import hit\nfor n in {names!r}:\n    hit(n); print(n)"
    environment = {"KAFKA_EOS_FAILPOINTS": script, "KAFKA_EOS_FAILPOINT_LOG": str(log), "PATH": "/usr/bin"}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_a_script_is_read_in_order() -> None:
    assert parse_script("commit.before=kill; commit.after=enospc@3") == (
        ScriptEntry("commit.before", "kill", 1),
        ScriptEntry("commit.after", "enospc", 3),
    )


@pytest.mark.parametrize("text", ["nowhere=kill", "commit.before", "commit.before=explode", "commit.before=kill@x"])
def test_a_wrong_entry_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="KAFKA_EOS_FAILPOINTS"):
        parse_script(text)


def test_a_kill_is_recorded_and_happens_at_the_kth_hit(tmp_path: Path) -> None:
    log = tmp_path / "log"

    done = hits(log, "commit.before=kill@2", "commit.before", "commit.after", "commit.before", "commit.after")

    assert done.returncode == -9
    assert log.read_text().startswith("commit.before kill pid=")


def test_an_entry_acts_once_however_often_processes_restart(tmp_path: Path) -> None:
    log = tmp_path / "log"
    hits(log, "commit.before=kill", "commit.before")

    assert hits(log, "commit.before=kill", "commit.before").returncode == 0


def test_a_later_entry_waits_for_those_before_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = "commit.before=kill;recovery.claimed=kill"

    assert hits(log, script, "recovery.claimed", "commit.before").returncode == -9
    assert hits(log, script, "recovery.claimed").returncode == -9
    assert hits(log, script, "recovery.claimed", "commit.before").returncode == 0


def test_whoever_has_a_shorter_script_passes_when_others_have_gone_further(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("commit.before stop pid=1\nrecovery.based stop pid=2\n")

    done = hits(log, "commit.before=stop", "commit.before")

    assert done.stdout == "commit.before\n", done.stderr


def test_an_error_is_an_oserror(tmp_path: Path) -> None:
    done = hits(tmp_path / "log", "commit.before=enospc", "commit.before")

    assert "OSError: [Errno 28] failpoint commit.before" in done.stderr
