"""The address of a job while it is killed: it goes on answering, and its numbers are those of the run."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from urllib.error import HTTPError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.harness import Job, read
from tests.chaos.running import Running, running, signal_worker

NewJob = Callable[..., Job]
ROWS, PAID = 1500, 1350


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


def test_a_job_is_scraped_while_a_worker_is_killed(new_job: NewJob) -> None:
    job = new_job(ROWS, "straight.py", KAFKA_EOS_PARALLELISM=2, TEST_PAUSE=0.002)
    with running(job, "", "--http", "127.0.0.1:0") as run:
        url = address(run)
        run.until(lambda: ask(url, "/readyz")[0] == 200, "become ready")
        run.until_committed()
        before = scrape(url)
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
    assert after["kafka_eos_segment_seconds_total", "payments", "busy"] > 0
    assert 0 < after["kafka_eos_transaction_margin_seconds",] <= after["kafka_eos_transaction_timeout_seconds",] == 3600
    assert after["kafka_eos_standing_by",] == 0
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
        state: after["kafka_eos_operator_seconds_total", "map-1", state] for state in ("busy", "blocked", "idle")
    }
    assert seconds["busy"] > seconds["blocked"] == 0 < seconds["idle"]
    for phase in ("prepare", "commit"):
        assert after["kafka_eos_sink_seconds_count", phase, "to-kafka"] > 0
    assert status["ready"] is True
    assert status["last"]["restarting"]["what"] == "worker ended"
