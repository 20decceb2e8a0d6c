"""A broker that wants TLS and a password: all clients of a job reach it, those of its recovery and of its audit too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from kafka_eos.checkpoints import paths
from kafka_eos.devbroker import Broker
from kafka_eos.devbroker.settings import free_ports
from tests.certificates import certificate
from tests.chaos.harness import Job
from tests.chaos.running import check_all, make_job, refused
from tests.marks import campaign

PASSWORD = "canary-8d21c4"
KILLS = "manifest.published=kill@2;recovery.committed=kill;commit.between=kill@2"


@dataclass(frozen=True)
class Secured:
    broker: Broker
    address: str
    """Where TLS and SASL are asked for; ``broker.bootstrap`` is open, for the test's own clients."""
    config: Mapping[str, str]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    store, authority = certificate(tmp_path, PASSWORD)
    with Broker(tmp_path / "kafka") as first:
        ports = json.loads((first.directory / "broker.json").read_text())
    port, controller, (private,) = ports["port"], ports["controller_port"], free_ports(1)
    secure = f"SASL_SSL://127.0.0.1:{private}"
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_app="{PASSWORD}";'
    overrides = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},{secure},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},{secure}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": login,
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(store),
        "ssl.keystore.password": PASSWORD,
    }
    config = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "app",
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(authority),
    }
    with Broker(tmp_path / "kafka", overrides=overrides) as broker:
        yield Secured(broker, f"127.0.0.1:{private}", config)


def _job(secured: Secured, directory: Path, provenance: str = "header", **config: str) -> Job:
    security = json.dumps({**secured.config, **config})
    return make_job(
        secured.broker.bootstrap,
        directory,
        400,
        "totals.py",
        KAFKA_EOS_BOOTSTRAP_SERVERS=secured.address,
        KAFKA_EOS_KAFKA_CONFIG=security,
        TEST_PROVENANCE=provenance,
    )


@pytest.mark.slow
@pytest.mark.parametrize("provenance", ["header", "ledger"])
def test_a_job_is_killed_recovers_and_is_audited(secured: Secured, tmp_path: Path, provenance: str) -> None:
    job = _job(secured, tmp_path, provenance)

    job.run(KILLS)

    check_all(job)
    assert (job.checkpoints / job.name / paths.PROVENANCE).is_dir() == (provenance == "ledger")
    reports = tmp_path / "reports"
    command = [sys.executable, "-m", "kafka_eos", "audit", str(job.app), "--checkpoint-dir", str(job.checkpoints)]
    done = subprocess.run([*command, "--report-dir", str(reports)], env=job.environ(), capture_output=True, text=True)
    assert (done.returncode, done.stdout[:5]) == (0, "PASS:"), done.stdout + done.stderr
    kept = [path for path in (*reports.rglob("*"), *job.checkpoints.rglob("*"), job.log) if path.is_file()]
    assert [path for path in kept if PASSWORD.encode() in path.read_bytes()] == []
    assert PASSWORD not in done.stdout + done.stderr


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("config", "said"),
    [campaign({"ssl.ca.pem": "x"}, "ssl.ca.pem", named="not-carried-over"), ({"sasl.password": "wrong"}, "uthenticat")],
)
def test_what_cannot_work_is_said_at_the_start(
    secured: Secured, tmp_path: Path, config: dict[str, str], said: str
) -> None:
    assert said in refused(_job(secured, tmp_path, **config), 2)
