"""A broker that wants TLS and a password, or certificates: all clients of a job reach it, those of its audit too."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.storage import object_names as paths
from tests.chaos.feeding import feeding
from tests.chaos.harness import Job
from tests.chaos.running import check_all, make_job, refused, running
from tests.marks import campaign
from tests.oidc import Provider, provider, signed
from tests.secured import PASSWORD, RENEWED, SESSION_MS, Secured

pytestmark = pytest.mark.xdist_group("secured")

KILLS = "manifest.published=kill@2;recovery.committed=kill;commit.between=kill@2"


@pytest.fixture
def issuer() -> Iterator[Provider]:
    with provider(app=PASSWORD) as found:
        yield found


def _user(mechanism: str) -> dict[str, Any]:
    return {"sasl_mechanism": mechanism, "sasl_username": "app", "sasl_password": PASSWORD}


def replaced(file: Path, text: str) -> None:
    """As whoever writes secrets does: nobody sees half of it."""
    beside = file.with_suffix(".new")
    beside.write_text(text)
    beside.replace(file)


def _job(secured: Secured, directory: Path, listener: str, provenance: str = "header", **config: str) -> Job:
    return make_job(
        secured.open,
        directory,
        400,
        "totals.py",
        KAFKA_EOS_BOOTSTRAP_SERVERS=secured.addresses[listener],
        KAFKA_EOS_KAFKA_CONFIG=json.dumps(secured.config(listener, **config)),
        TEST_PROVENANCE=provenance,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("listener", "provenance", "mechanism"),
    [("BOTH", "header", "PLAIN"), ("BOTH", "ledger", "SCRAM-SHA-512"), ("MUTUAL", "header", None)],
)
def test_a_job_is_killed_recovers_and_is_audited(
    secured: Secured, tmp_path: Path, listener: str, provenance: str, mechanism: str | None
) -> None:
    shown = {"ssl_certificate_location": str(secured.client.certificate), "ssl_key_location": str(secured.client.key)}
    login = shown if mechanism is None else _user(mechanism)
    job = _job(secured, tmp_path, listener, provenance, **login)

    _killed_and_audited(job, tmp_path, provenance)


@pytest.mark.slow
def test_a_job_that_logs_in_with_tokens_of_a_provider_is_killed_and_audited(
    secured: Secured, tmp_path: Path, issuer: Provider
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(PASSWORD)
    login = issuer.config("app", **{"sasl.oauthbearer.client.secret.from_file": str(secret)})
    job = _job(secured, tmp_path, "BOTH", **login)

    _killed_and_audited(job, tmp_path, "header")
    secret.write_text("hunter2")
    said = _audit(job, tmp_path)
    assert (said.returncode, said.stdout[:13]) == (2, "INCONCLUSIVE:"), said.stdout + said.stderr
    assert f"with a token from {issuer.url}" in said.stdout
    assert "401" in said.stdout
    assert "hunter2" not in said.stdout + said.stderr


@pytest.mark.slow
def test_a_job_that_logs_in_with_a_token_of_a_file_is_killed_and_audited(secured: Secured, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(signed("app"))
    job = _job(
        secured, tmp_path, "SASL", **{"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.from_file": str(file)}
    )

    _killed_and_audited(job, tmp_path, "header", secret=file.read_text())


def _audit(job: Job, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kafka_eos", "audit", str(job.app), "--checkpoint-dir", str(job.checkpoints)]
    return subprocess.run(
        [*command, "--report-dir", str(directory / "reports")], env=job.environ(), capture_output=True, text=True
    )


def _killed_and_audited(job: Job, directory: Path, provenance: str, secret: str = PASSWORD) -> None:
    job.run(KILLS)

    check_all(job)
    assert (job.checkpoints / job.name / paths.PROVENANCE).is_dir() == (provenance == "ledger")
    done = _audit(job, directory)
    assert done.stdout.startswith(("PASS:", "PARTIAL:")), done.stdout + done.stderr
    kept = [path for path in (*directory.joinpath("reports").rglob("*"), *job.checkpoints.rglob("*"), job.log)
            if path.is_file()]  # fmt: skip
    assert [path for path in kept if secret.encode() in path.read_bytes()] == []
    assert secret not in done.stdout + done.stderr


@pytest.mark.campaign
def test_a_password_is_changed_while_the_job_runs(secured: Secured, tmp_path: Path) -> None:
    """First at the broker: sessions end, and nobody comes in before the file has it. Then in the file first."""
    file = tmp_path / "password"
    replaced(file, "first")
    secured.password(RENEWED, "first")
    user = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": RENEWED}
    job = _job(secured, tmp_path, "SASL", **user, **{"sasl.password.from_file": str(file)})

    with running(job) as started, feeding(job):
        started.until_output()
        secured.password(RENEWED, "second")
        started.until(lambda: started.count("restarting"), "be refused")
        replaced(file, "second")
        started.until_committed(3)

        restarts = started.count("restarting")
        replaced(file, "third")
        secured.password(RENEWED, "third")
        ends = time.monotonic() + 2 * SESSION_MS / 1000
        started.until(lambda: time.monotonic() > ends, "outlive its sessions")
        started.until_committed(3)
        assert all(
            "refuse" in event["reason"] or "uthentication" in event["reason"] for event in started.events("restarting")
        )
        assert started.count("restarting") <= restarts + 1
    job.run()

    check_all(job)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("config", "said"),
    [campaign({"ssl_ca_pem": "x"}, "ssl.ca.pem", named="not-carried-over"), ({"sasl_password": "wrong"}, "uthenticat")],
)
def test_what_cannot_work_is_said_at_the_start(
    secured: Secured, tmp_path: Path, config: dict[str, str], said: str
) -> None:
    assert said in refused(_job(secured, tmp_path, "BOTH", **{**_user("PLAIN"), **config}), 2)
