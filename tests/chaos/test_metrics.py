"""A job that is watched while it is killed: its address goes on answering, and its numbers are those of the run."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.harness import Job, read
from tests.chaos.running import Running, running, signal_worker
from tests.otlp_receiver import Receiver, Span, receiving
from tests.waiting import eventually

NewJob = Callable[..., Job]
ROWS, PAID = 1500, 1350
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def ask(url: str, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"{url}{path}", timeout=30) as answer:
            return int(answer.status), answer.read().decode()
    except HTTPError as refused:
        return refused.code, refused.read().decode()


def scrape(url: str) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(ask(url, "/metrics")[1])
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def address(run: Running) -> str:
    found = run.until(lambda: re.search(r"metrics at (http://\S+)/metrics", run.log), "say its address")
    assert found is not None
    return found[1]


def watched(job: Job, receiver: Receiver) -> Job:
    return replace(job, environment={**job.environment, **receiver.environment})


def check_figures(scraped: dict[tuple[str, ...], float], exported: dict[tuple[str, ...], float]) -> None:
    """What was sent last, at the job's end, is what was scraped before, or came later."""
    histograms = re.compile(r"_(bucket|sum|created)$")
    assert {key for key in scraped if not histograms.search(key[0])} ^ exported.keys() == set()
    for key, value in exported.items():
        counts = key[0].endswith(("_total", "_count"))
        assert value >= scraped[key] if counts else True, key
    assert exported["kafka_eos_running",] == 0
    assert exported["kafka_eos_restarts_total", "worker"] == 1


def check_traces(traces: list[Span], job: str) -> None:
    """Each epoch once, those of the attempt that was killed as well."""
    assert {trace.attributes["kafka_eos.job"] for trace in traces} == {job}
    whole = [trace for trace in traces if trace.error is None and "recover" not in trace.parts]
    epochs = [trace.attributes["kafka_eos.epoch"] for trace in whole]
    assert len(epochs) == len(set(epochs)) > 1
    assert len({trace.attributes["kafka_eos.term"] for trace in whole}) == 2
    for trace in whole:
        (trigger,), (decide,) = trace.parts["trigger"], trace.parts["decide"]
        assert len(trace.parts["align"]) == len(trace.parts["snapshot"]) == 2, "of both workers"
        assert trace.began == trigger.began <= decide.began <= decide.ended <= trace.ended
    committed = [part for trace in whole for part in trace.parts.get("commit", [])]
    prepared = [part for trace in whole for part in trace.parts.get("prepare", [])]
    assert {part.attributes["kafka_eos.sink"] for part in committed} == {"to-kafka", "to-files"}
    assert {part.attributes["kafka_eos.operator"] for part in prepared} == {"to-kafka", "to-files"}


def screen_with_commit(job: Job) -> list[str] | None:
    """What ``top`` shows; None if its newest epoch is one without output, which has nothing to commit."""
    command = [sys.executable, "-m", "kafka_eos", "top", job.name, "--once", "--checkpoint-dir", str(job.checkpoints)]
    screen = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return screen if any(line.startswith("epoch") and " commit " in line for line in screen) else None


def test_a_job_is_scraped_while_a_worker_is_killed(new_job: NewJob, tmp_path: Path) -> None:
    """By Prometheus, and by a collector of OpenTelemetry, which gets the same."""
    slow = tmp_path / "until top has shown an epoch with output"
    slow.touch()
    job = new_job(ROWS, "straight.py", KAFKA_EOS_PARALLELISM=2, TEST_PAUSE=0.002, TEST_SLOW=slow)
    with receiving() as receiver, running(watched(job, receiver), "", "--http", "127.0.0.1:0", "--otel") as run:
        url = address(run)
        run.until(lambda: ask(url, "/readyz")[0] == 200, "become ready")
        run.until_committed()
        before = scrape(url)
        screen = eventually(lambda: screen_with_commit(job), "an epoch with output, shown by top")
        slow.unlink()
        signal_worker(run.worker, signal.SIGKILL)
        run.until(lambda: scrape(url)["kafka_eos_restarts_total", "worker"] == 1, "tell of the restart")
        run.until(lambda: scrape(url).get(("kafka_eos_lag_records",)) == 0, "read everything")
        for sink in ("to-kafka", "to-files"):
            counter = "kafka_eos_committed_records_total", sink
            run.until(lambda counter=counter: scrape(url).get(counter) == PAID, "commit everything")  # type: ignore[misc]
        after = scrape(url)
        status = json.loads(ask(url, "/api/status")[1])
        committed = sum(sum(event["records"].values()) for event in run.events("committed"))
        run.drain()
        exported, traces = receiver.metrics, receiver.traces

    shown = {line.split()[0]: line.split()[1:] for line in screen if line}
    assert shown[job.name][0] == "running"
    assert {"payments", "map-1", "filter-1", "to-kafka", "to-files"} < shown.keys()
    assert all(share.endswith("%") for share in shown["map-1"][2:5]), screen
    assert "commit" in shown["epoch"]
    assert f"OpenTelemetry: metrics to {receiver.environment[ENDPOINT]}, traces to" in run.log
    check_figures(after, exported)
    check_traces(traces, job.name)
    assert committed == 2 * PAID == 2 * len(read(job.bootstrap, job.output))
    ends = {f"{job.input}/{partition}" for partition in range(3)}
    positions = {key[2]: n for key, n in after.items() if key[0] == "kafka_eos_read_position"}
    assert positions.keys() == ends
    assert sum(positions.values()) == ROWS
    assert {key[2] for key in after if key[0] == "kafka_eos_split_lag_records"} == ends
    # Not >= ROWS: what the killed worker read, and committed, since its last word is counted by nobody.
    assert after["kafka_eos_read_records_total", "payments"] > before["kafka_eos_read_records_total", "payments"]
    assert after["kafka_eos_term",] > before["kafka_eos_term",]
    assert all(after[key] >= n for key, n in before.items() if key[0].endswith(("_total", "_bucket", "_count")))
    assert after["kafka_eos_chain_seconds_total", "payments", "busy"] > 0
    assert 0 < after["kafka_eos_transaction_margin_seconds",] <= after["kafka_eos_transaction_timeout_seconds",] == 3600
    assert after["kafka_eos_standby",] == 0
    operators = {(key[2], key[1]): n for key, n in after.items() if key[0] == "kafka_eos_operator_rows_total"}
    assert {name for name, _ in operators} == {"payments", "map-1", "filter-1", "to-kafka", "to-files"}
    assert (
        operators["map-1", "in"]
        == operators["map-1", "out"]
        == operators["filter-1", "in"]
        > operators["filter-1", "out"]
    )
    assert operators["to-kafka", "in"] == operators["to-files", "in"] == operators["filter-1", "out"]
    seconds = {
        state: after["kafka_eos_operator_seconds_total", "map-1", state] for state in ("busy", "backpressured", "idle")
    }
    assert seconds["busy"] > seconds["backpressured"] == 0 < seconds["idle"]
    for phase in ("prepare", "commit"):
        assert after["kafka_eos_sink_seconds_count", phase, "to-kafka"] > 0
    assert status["ready"] is True
    assert status["last"]["restarting"]["what"] == "worker ended"
