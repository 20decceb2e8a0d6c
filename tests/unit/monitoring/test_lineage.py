"""The OpenLineage events of a job, received by a real HTTP server through OpenLineage's own client."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openlineage.client.event_v2 import RunEvent

from kafka_eos import Pipeline
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.dataset import Dataset, JobDataset
from kafka_eos.api.datasets import list_inputs, list_outputs
from kafka_eos.connectors.dbapi import DbApiSink
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.files import FileSink, FileSource
from kafka_eos.connectors.http import HttpSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.connectors.postgres import PostgresSink
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Term
from kafka_eos.monitoring import lineage
from kafka_eos.monitoring.lineage import JobName, LineageObserver, start_lineage
from kafka_eos.testing import MemorySink
from tests.scripted_http_server import Answering, Sent

CTX = JobContext("sales", Term(0), {"bootstrap_servers": "a:9092,b:9092", "kafka_config": {}})


class Sale(msgspec.Struct):
    user: str
    amount: int | None


def list_datasets(directory: Path) -> tuple[list[JobDataset], list[JobDataset]]:
    pipeline = Pipeline("sales")
    sales = pipeline.source(KafkaSource("sales", value=Sale))
    sales.sink(KafkaSink("copies"))
    sales.sink(FileSink(directory / "files"), name="files")
    plan = pipeline.plan()
    return [*list_inputs(plan, CTX)], [*list_outputs(plan, CTX)]


@contextmanager
def catalog() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the URL of a catalog, and the events that it has received."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()


def test_a_run_that_ends_well_is_sent_with_its_datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with catalog() as (url, received):
        monkeypatch.setenv("OPENLINEAGE_URL", url)
        with start_lineage(JobName("payments", "sales"), *list_datasets(tmp_path), "1.2") as hear:
            hear("running", {})
            hear("running", {})
            hear("committed", {"records_by_sink": {"copies": 5, "files": 5}})
            hear("committed", {"records_by_sink": {"copies": 2}})
            hear("stopped", {})

    start, end = received
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == end["run"]["runId"]
    assert (start["job"]["namespace"], start["job"]["name"]) == ("payments", "sales")
    assert start["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    (read,) = start["inputs"]
    assert (read["namespace"], read["name"]) == ("kafka://a:9092", "sales")
    fields = [(field["name"], field["type"]) for field in read["facets"]["schema"]["fields"]]
    assert fields == [("user", "str"), ("amount", "int | None")]
    rows = {each["name"]: each["outputFacets"]["outputStatistics"]["rowCount"] for each in end["outputs"]}
    assert rows == {"copies": 7, str(tmp_path / "files"): 5}
    assert end["outputs"][0]["facets"]["schema"] == read["facets"]["schema"]


def observe(directory: Path, events: list[tuple[float, str, Mapping[str, Any]]]) -> list[RunEvent]:
    sent: list[RunEvent] = []
    now = 0.0
    observer = LineageObserver(JobName("ns", "sales"), *list_datasets(directory), "1", sent.append, clock=lambda: now)
    for at, event, facts in events:
        now = at
        observer(event, facts)
    return sent


def test_rows_are_sent_once_a_minute_and_counted_from_event_to_event(tmp_path: Path) -> None:
    rows = {"records_by_sink": {"copies": 1}}
    sent = observe(
        tmp_path,
        [(0, "running", {}), (59, "committed", rows), (60, "committed", rows), (61, "committed", rows),
         (125, "stopped", {}), (126, "stopped", {})],
    )  # fmt: skip

    counts = [event.outputs[0].outputFacets["outputStatistics"].rowCount for event in sent]  # type: ignore[index, union-attr]
    assert [event.eventType.value for event in sent] == ["START", "RUNNING", "COMPLETE"]  # type: ignore[union-attr]
    assert counts == [0, 2, 1]


def test_a_failed_run_names_the_class_of_its_error_and_nothing_of_a_record(tmp_path: Path) -> None:
    failed = {"error": "PoisonRecord", "reason": "int('4111-1111')", "where": "sales/0/7"}
    (_, event) = observe(tmp_path, [(0, "running", {}), (1, "failed", failed)])

    assert event.eventType is not None
    assert event.eventType.value == "FAIL"
    assert event.run.facets is not None
    assert event.run.facets["errorMessage"].message == "PoisonRecord"  # type: ignore[attr-defined]
    assert "4111" not in str(event)


def test_a_start_that_never_ran_sends_no_end_but_its_failure(tmp_path: Path) -> None:
    assert observe(tmp_path, [(0, "stopped", {})]) == []
    assert len(observe(tmp_path, [(0, "failed", {"error": "ConfigError"})])) == 1


def test_without_a_destination_the_start_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    with (
        pytest.raises(ConfigError, match="OPENLINEAGE_URL"),
        start_lineage(JobName("ns", "sales"), *list_datasets(tmp_path), "1"),
    ):
        pass


def test_a_catalog_that_is_away_is_reported_and_ends_no_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__RETRY", '{"total": 0}')
    monkeypatch.setattr(lineage, "_GOODBYE", 30.0)
    with caplog.at_level(logging.WARNING), start_lineage(JobName("ns", "sales"), *list_datasets(tmp_path), "1") as hear:
        hear("running", {})
        hear("stopped", {})

    assert "an OpenLineage event was not sent" in caplog.text


def test_a_catalog_that_redirects_gets_no_events_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Answering(lambda request: (200, b"")) as other:
        with Answering(lambda request: Sent(307, b"", {"Location": other.url})) as server:
            monkeypatch.setenv("OPENLINEAGE_URL", server.url)
            monkeypatch.setattr(lineage, "_GOODBYE", 30.0)
            with (
                caplog.at_level(logging.WARNING),
                start_lineage(JobName("ns", "x"), *list_datasets(tmp_path), "1") as hear,
            ):
                hear("running", {})
        assert len(server.seen) == 1 and other.seen == []
    assert "an OpenLineage event was not sent: TooManyRedirects" in caplog.text


@pytest.mark.parametrize(
    ("connector", "expected"),
    [
        (KafkaSource(["a", "b"]), [Dataset("kafka://a:9092", "a"), Dataset("kafka://a:9092", "b")]),
        (KafkaSink("out", value=bytes, bootstrap_servers="c:1"), [Dataset("kafka://c:1", "out")]),
        (FileSource("/in", value=Sale), [Dataset("file", "/in")]),
        (FileSink("s3://bucket/a/b", value=Sale), [Dataset("s3://bucket", "a/b")]),
        (PostgresSink("host=h dbname=d", "t", value=Sale), [Dataset("postgres://h:5432", "d.public.t")]),
        (PostgresSink("host=h dbname=d", "s.t", value=Sale), [Dataset("postgres://h:5432", "d.s.t")]),
        (DeltaSink("/lake/t", value=Sale), [Dataset("file", "/lake/t")]),
        (IcebergSink("shop.sales", catalog="c", value=Sale), [Dataset("iceberg://c", "shop.sales")]),
        (DbApiSink("sqlite:////data/d.db", "t", {"id": "INTEGER"}), [Dataset("sqlite:///data", "d.db.t")]),
        (HttpSink("https://h/hook", outbox="/o", value=Sale), [Dataset("https://h", "/")]),
        (MemorySink(), []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_connector_names_its_datasets_without_secrets(connector: Any, expected: list[Dataset]) -> None:
    assert [*connector.list_datasets(CTX)] == expected
