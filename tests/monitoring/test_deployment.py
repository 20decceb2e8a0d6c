"""The manifests and the unit of docker/: what they say is there, and a job that is run as they say lives as it should.

The life cycle is played with plain processes, started and ended as systemd and Kubernetes would: no cluster is needed.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import yaml
from jsonschema import Draft7Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7
from starlette.routing import Route

from kafka_eos._util.jvm.jars import cache_dir
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.job_lock import find_holder
from kafka_eos.core.errors import Retryable, UserError
from kafka_eos.monitoring.metrics.endpoints import MetricsEndpoints
from kafka_eos.monitoring.metrics.job_observer import MetricsObserver
from kafka_eos.monitoring.terminal.exit_codes import exit_code
from kafka_eos.storage import object_names as paths
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "docker/systemd/kafka-eos@.service"
MANIFESTS = sorted((ROOT / "docker/kubernetes").glob("*.yaml"))
CHART = ROOT / "docker/helm/kafka-eos"
VALUES = {
    "job": (),
    "standby": ("standby.enabled=true", "checkpoints.address=s3://bucket/jobs", "networkPolicy.egressPorts={9092,443}"),
}
"""What a chart is told, by the manifest that it then gives."""
SCHEMAS_OF = "1.37.0"
"""The release of the package kubernetes-validate, which has the schemas of Kubernetes."""
APP = """
import time
from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink
from kafka_eos.testing import ListSource

def slowly(number):
    time.sleep(0.001)
    return number

pipeline = Pipeline("counting")
slow = pipeline.source(ListSource(range(1_000_000)), name="in").map(slowly)
slow.sink(FileSink("out", value=int), name="out")
"""


# ---------------------------------------------------------------- what is written


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    return parser


def deployment(file: Path) -> dict[str, Any]:
    (found,) = [each for each in yaml.safe_load_all(file.read_text()) if each["kind"] == "Deployment"]
    return dict(found["spec"])


def container(file: Path) -> dict[str, Any]:
    (found,) = deployment(file)["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_a_manifest_asks_what_a_job_answers_and_waits_until_it_has_drained(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, job = deployment(file), container(file)
    pod = spec["template"]["spec"]
    for variable in job["env"]:
        monkeypatch.setenv(variable["name"], variable["value"])
    settings = Settings.resolve(cli={"http": job["args"][job["args"].index("--http") + 1]})

    assert pod["terminationGracePeriodSeconds"] > settings.stop_timeout
    (port,) = job["ports"]
    assert settings.http_at is not None and settings.http_at[1] == port["containerPort"]
    probes = {name: job[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness", "startup")}
    served = MetricsEndpoints(MetricsObserver("orders", "1.0"), 60, lambda: None).routes()
    assert {probe["path"] for probe in probes.values()} <= {route.path for route in served if isinstance(route, Route)}
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert (probes["liveness"]["path"], probes["startup"]["path"]) == ("/healthz", "/healthz")
    mounted = {mount["name"] for mount in job["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def resolved(directory: Path, answer: str) -> subprocess.CompletedProcess[str]:
    """What looks up the digests, with a docker that gives this answer for each image."""
    docker = directory / "docker"
    docker.write_text(f"#!/bin/sh\necho '{answer}'\n")
    docker.chmod(0o755)
    command = [ROOT / "requirements/images.sh", directory / "images.env"]
    environment = {"PATH": f"{directory}:/usr/bin:/bin"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_each_base_image_is_pinned_by_its_digest_or_none_is(tmp_path: Path) -> None:
    digest, pins = f"sha256:{'0a' * 32}", tmp_path / "images.env"
    assert resolved(tmp_path, digest).returncode == 0
    pinned = dict(line.split("=", 1) for line in pins.read_text().splitlines())

    refused = resolved(tmp_path, "<no value>")

    assert (refused.returncode, "gave no digest" in refused.stderr) == (1, True)
    assert dict(line.split("=", 1) for line in pins.read_text().splitlines()) == pinned
    compose = (ROOT / "docker/compose.yaml").read_text()
    tags = dict(re.findall(r"image: \$\{([A-Z_]+):-(.+)\}", compose))
    base = pinned.pop("PYTHON_IMAGE")
    assert pinned == {name: f"{tag}@{digest}" for name, tag in tags.items()}
    assert base.endswith(f"@{digest}")
    assert compose.count("image:") == len(tags)
    dockerfile = (ROOT / "docker/Dockerfile").read_text()
    assert re.findall(r"^(?:FROM|ARG) .*", dockerfile, re.MULTILINE) == [
        "ARG BASE", "FROM ${BASE} AS build", "FROM ${BASE}"
    ]  # fmt: skip


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_a_pod_has_the_least_rights_and_no_keys(file: Path) -> None:
    pod, job = deployment(file)["template"]["spec"], container(file)
    kinds = {each["kind"]: each for each in yaml.safe_load_all(file.read_text())}

    identity = pod["securityContext"]
    assert (identity["runAsNonRoot"], identity["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    assert job["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert pod["automountServiceAccountToken"] is kinds["ServiceAccount"]["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] == kinds["ServiceAccount"]["metadata"]["name"]
    assert "envFrom" not in job
    assert kinds["NetworkPolicy"]["spec"]["podSelector"] == deployment(file)["selector"]
    assert kinds["NetworkPolicy"]["spec"]["policyTypes"] == ["Ingress", "Egress"]
    written = [mount["mountPath"] for mount in job["volumeMounts"] if not mount.get("readOnly")]
    image = (ROOT / "docker/Dockerfile").read_text()
    assert job.get("workingDir", image.split("WORKDIR ")[-1].split()[0]) in written
    assert "/tmp" in written


@pytest.fixture(scope="module")
def helm() -> str:
    found = [*sorted(cache_dir().glob("helm-*/helm")), *filter(None, [shutil.which("helm")])]
    if not found:
        pytest.skip("no helm: requirements/helm.sh builds it, with Go")
    return str(found[0])


def rendered(helm: str, *values: str) -> list[dict[str, Any]]:
    options = [option for value in values for option in ("--set", value)]
    command = [helm, "template", "order-totals", str(CHART), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert not done.returncode, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def told(resources: Any) -> dict[str, Any]:
    """By kind; variables in any order."""
    found = {each["kind"]: each for each in resources}
    for each in found["Deployment"]["spec"]["template"]["spec"]["containers"]:
        each["env"].sort(key=lambda variable: variable["name"])
    return found


@pytest.mark.parametrize("name", VALUES)
def test_the_chart_gives_the_manifests(helm: str, name: str) -> None:
    manifest = yaml.safe_load_all((ROOT / f"docker/kubernetes/{name}.yaml").read_text())

    assert told(rendered(helm, *VALUES[name])) == told(manifest)


def test_the_chart_has_what_values_say(helm: str) -> None:
    digest = f"sha256:{'0' * 64}"
    found = told(rendered(
        helm, "serviceMonitor.enabled=true", f"image.digest={digest}", "secrets={kafka-login}",
        "networkPolicy.enabled=false", "serviceAccount.annotations.role=totals", "pipeline.args={--profile,prod}",
    ))  # fmt: skip
    (job,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]

    assert job["image"] == f"kafka-eos:0.1.0@{digest}"
    assert job["envFrom"] == [{"secretRef": {"name": "kafka-login"}}]
    assert job["args"][-2:] == ["--profile", "prod"]
    assert found["ServiceMonitor"]["spec"]["endpoints"][0]["path"] == "/metrics"
    assert found["ServiceMonitor"]["spec"]["selector"]["matchLabels"] == found["Service"]["metadata"]["labels"]
    assert found["ServiceAccount"]["metadata"]["annotations"] == {"role": "totals"}
    assert "NetworkPolicy" not in found


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("standby.enabled=true", "standby.enabled needs checkpoints.address"),
        ("image.tag=latest", "tag"),
        ("image.digest=sha256:1", "digest"),
        ("terminationGracePeriodSeconds=10", "terminationGracePeriodSeconds"),
        ("replicas=2", "replicas"),
    ],
)
def test_the_chart_refuses_values_that_would_harm_a_job(helm: str, value: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        rendered(helm, value)


@pytest.fixture(scope="module")
def kubernetes() -> Path:
    """The schemas of all releases of Kubernetes that are maintained, by release, as kubeconform reads them too."""
    asked = [ROOT / "requirements/release.sh", sys.executable, "kubernetes-validate", SCHEMAS_OF]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return Path(done.stdout.strip()) / "kubernetes_validate/kubernetes-json-schema"


@pytest.mark.campaign
@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.stem)
def test_each_maintained_kubernetes_takes_the_manifests(kubernetes: Path, file: Path) -> None:
    """Strictly: a field that it does not know is an error."""
    releases = sorted(kubernetes.glob("v*-strict"))
    assert len(releases) >= 3
    for release in releases:
        for resource in yaml.safe_load_all(file.read_text()):
            assert refusals(release, resource) == [], release.name


@pytest.mark.campaign
@pytest.mark.parametrize("name", VALUES)
def test_each_maintained_kubernetes_takes_what_the_chart_gives(kubernetes: Path, helm: str, name: str) -> None:
    resources = rendered(helm, *VALUES[name], "secrets={kafka-login}", "serviceMonitor.enabled=true")
    for release in sorted(kubernetes.glob("v*-strict")):
        for resource in resources:
            if resource["kind"] != "ServiceMonitor":  # a resource of the operator of Prometheus
                assert refusals(release, resource) == [], release.name


@pytest.mark.campaign
def test_a_field_that_kubernetes_does_not_know_is_found(kubernetes: Path) -> None:
    release = max(kubernetes.glob("v*-strict"))
    (resource,) = [each for each in yaml.safe_load_all(MANIFESTS[0].read_text()) if each["kind"] == "Deployment"]
    resource["spec"]["template"]["spec"]["terminationGracePeriod"] = "60"

    assert "terminationGracePeriod" in str(refusals(release, resource))


def refusals(release: Path, resource: dict[str, Any]) -> list[str]:
    """What one release of Kubernetes would not take of a resource."""
    group, _, version = resource["apiVersion"].rpartition("/")
    name = "-".join(filter(None, (resource["kind"].lower(), group.split(".")[0], version)))
    schema = json.loads((release / f"{name}.json").read_text())
    definitions = Resource.from_contents(
        json.loads((release / "_definitions.json").read_text()), default_specification=DRAFT7
    )
    registry = Registry().with_resource("_definitions.json", definitions)
    return [error.message for error in Draft7Validator(schema, registry=registry).iter_errors(resource)]


def test_one_supervisor_is_never_two_and_of_two_one_stands_by() -> None:
    job, standby = (ROOT / f"docker/kubernetes/{name}.yaml" for name in ("job", "standby"))

    assert (deployment(job)["replicas"], deployment(job)["strategy"]) == (1, {"type": "Recreate"})
    assert "--standby" not in container(job)["args"]
    assert container(job)["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert deployment(standby)["replicas"] == 2
    assert deployment(standby)["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert "--standby" in container(standby)["args"]
    assert container(standby)["readinessProbe"]["httpGet"]["path"] == "/healthz", "a standby is not ready"


def test_the_unit_waits_until_the_job_has_drained_and_starts_again_what_a_start_can_mend() -> None:
    service = unit()["Service"]

    assert int(service["TimeoutStopSec"]) > Settings.resolve().stop_timeout
    assert (service["KillMode"], service["Restart"]) == ("mixed", "on-failure")
    assert int(service["RestartPreventExitStatus"]) == exit_code(UserError())
    assert exit_code(Retryable()) != exit_code(UserError()), "what was away at a start may be there at the next"
    assert unit()["Unit"]["StartLimitIntervalSec"] == "0", "nobody knows for how long"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """With the program of this environment in place of the one that is installed."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed (Debian, Ubuntu: apt-get install systemd)")
    file = tmp_path / "kafka-eos@orders.service"
    file.write_text(UNIT.read_text().replace("/opt/kafka-eos/bin/kafka-eos", shutil.which("true") or "/bin/true"))
    done = subprocess.run([analyze, "verify", "--man=no", file], capture_output=True, text=True, timeout=120)

    ours = [line for line in done.stderr.splitlines() if "kafka-eos" in line]
    assert (done.returncode, ours) == (0, []), done.stderr


def test_systemd_finds_little_that_the_unit_leaves_open() -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed (Debian, Ubuntu: apt-get install systemd)")
    command = [analyze, "security", "--offline=true", "--threshold=20", "--no-pager", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert (done.returncode, " OK " in done.stdout.splitlines()[-1]) == (0, True), done.stdout + done.stderr


# ---------------------------------------------------------------- how it lives


class Host:
    """Runs one job as a unit or a manifest says; its programs and directories are those of the test."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "counting.py").write_text(APP)

    @contextmanager
    def supervisor(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process group of its own, as for each unit or pod; all of it is gone afterwards."""
        environment = {
            **os.environ, "KAFKA_EOS_CHECKPOINT_DIR": str(self.home / "jobs"), "KAFKA_EOS_BATCH_SIZE": "50",
            "KAFKA_EOS_PARALLELISM": "1", "KAFKA_EOS_CHECKPOINT_INTERVAL": "200ms",
        }  # fmt: skip
        with (self.home / "log").open("ab") as log:
            started = subprocess.Popen(
                [sys.executable, "-m", "kafka_eos", *command], cwd=self.home, env=environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        try:
            yield started
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()

    @property
    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")

    def committed(self) -> list[int]:
        """What readers of the output see."""
        files = [file for file in (self.home / "out").rglob("*.jsonl") if not file.name.startswith((".", "_"))]
        return sorted(json.loads(line) for file in files for line in file.read_text().splitlines())

    def goes_on(self, supervisor: subprocess.Popen[bytes]) -> None:
        """It commits what nobody has committed before."""
        before = len(self.committed())

        def more() -> bool:
            assert supervisor.poll() is None, self.log[-4000:]
            return len(self.committed()) > before

        eventually(more, "it commits more")

    def leads(self) -> int | None:
        return find_holder(self.home / "jobs" / "counting" / paths.LOCK)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.campaign
def test_a_service_is_stopped_killed_and_started_again_and_nothing_is_lost_or_doubled(host: Host) -> None:
    """As systemd does with the unit: SIGTERM to the main process alone, then a start; a kill, then a start."""
    _, *command = shlex.split(unit()["Service"]["ExecStart"].replace("/etc/kafka-eos/%i.py", "counting.py"))
    seconds = float(unit()["Service"]["TimeoutStopSec"])

    with host.supervisor(*command) as first:
        host.goes_on(first)
        first.send_signal(signal.SIGTERM)
        assert first.wait(seconds) == 0, host.log[-4000:]
    drained = host.committed()
    with host.supervisor(*command) as second:
        host.goes_on(second)
        second.kill()
    with host.supervisor(*command) as third:
        host.goes_on(third)
        third.send_signal(signal.SIGTERM)
        assert third.wait(seconds) == 0, host.log[-4000:]

    found = host.committed()
    assert drained == [*range(len(drained))]
    assert found == [*range(len(found))] and len(found) > len(drained)


def test_pods_hand_a_job_over_when_one_is_told_to_end_or_is_lost(host: Host) -> None:
    """As Kubernetes does with the manifest of two pods, which here are two processes of a machine."""
    file = ROOT / "docker/kubernetes/standby.yaml"
    run, _, *options = container(file)["args"]
    options = [option.replace("0.0.0.0:9100", "127.0.0.1:0") for option in options]
    seconds = float(deployment(file)["template"]["spec"]["terminationGracePeriodSeconds"])

    def pod() -> Any:
        return host.supervisor(run, "counting.py", *options)

    with pod() as first:
        host.goes_on(first)
        with pod() as second:
            eventually(lambda: "standby for process" in host.log, "the other one stands by")
            assert host.leads() == first.pid
            first.send_signal(signal.SIGTERM)
            assert first.wait(seconds) == 0, host.log[-4000:]
            eventually(lambda: host.leads() == second.pid, "the other one leads")
            host.goes_on(second)
            with pod() as third:
                eventually(lambda: f"standby for process {second.pid}" in host.log, "a new one stands by")
                assert probes(host) == {"/healthz": 200, "/readyz": 503}
                os.killpg(second.pid, signal.SIGKILL)
                eventually(lambda: host.leads() == third.pid, "it leads", PATIENCE)
                host.goes_on(third)
                eventually(lambda: probes(host) == {"/healthz": 200, "/readyz": 200}, "it is ready")
                third.send_signal(signal.SIGTERM)
                assert third.wait(seconds) == 0, host.log[-4000:]

    found = host.committed()
    assert found == [*range(len(found))]


def probes(host: Host) -> dict[str, int]:
    """What the newest one that has told its address answers."""
    address = [line for line in host.log.splitlines() if "metrics at http" in line][-1].split("metrics at ")[1]
    url = address.partition("/metrics")[0]
    return {path: status(f"{url}{path}") for path in ("/healthz", "/readyz")}


def status(url: str) -> int:
    try:
        with urlopen(url, timeout=30) as answer:
            return int(answer.status)
    except HTTPError as refused:
        return refused.code
