"""The dashboard for Grafana, asked of a real Prometheus about a real job: each of its panels has something to draw."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.harness import Job, create_topic, feed
from tests.chaos.running import running, signal_worker
from tests.chaos.test_metrics import address
from tests.monitoring.prometheus import SERVER, prometheus
from tests.monitoring.test_monitoring import DASHBOARD

pytestmark = [pytest.mark.campaign, pytest.mark.skipif(SERVER is None, reason="there is no Prometheus on this machine")]
FAST = 60
"""Prometheus asks four times a second."""


def panels() -> Iterator[tuple[str, str, set[str]]]:
    """Title, query, and the labels that its legend names, of each line that is drawn."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "5s").replace("$instance", ".+")
            yield panel["title"], query, set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))


def test_each_panel_has_data_and_the_labels_of_its_legend(new_job: Callable[..., Job], tmp_path: Path) -> None:
    job = new_job(0, "watched.py", KAFKA_EOS_PARALLELISM=2, TEST_BASE=int(time.time() * 1000))
    job.environment["TEST_LETTERS"] = f"{job.name}-letters"
    create_topic(job.bootstrap, f"{job.name}-letters", 1)
    feed(job.bootstrap, job.input, range(1000))
    with running(job, "", "--http", "127.0.0.1:0") as run:
        at = address(run).removeprefix("http://")
        with prometheus(tmp_path / "prometheus", [at], FAST) as watching:
            run.until_committed()
            signal_worker(run.worker, signal.SIGKILL)
            left = {query: (title, labels) for title, query, labels in panels()}

            def drawn() -> bool:
                """Rows come all the time, all of them late by now; what has had data once is done."""
                feed(job.bootstrap, job.input, range(500, 700))
                for query, (title, labels) in [*left.items()]:
                    if found := watching.labels(query):
                        assert all(labels <= each for each in found), (title, query, found)
                        del left[query]
                return not left

            try:
                run.until(drawn, "have data in each panel")
            except AssertionError as error:
                raise AssertionError(f"nothing to draw in {left}") from error
