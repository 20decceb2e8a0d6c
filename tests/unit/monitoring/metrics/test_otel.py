"""What is sent by OTLP, to a real receiver, and what becomes of a job whose receiver takes nothing."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator

import pytest

from kafka_eos._util.extras import ensure_extra
from kafka_eos._util.logging_setup import RepeatFilter
from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.metrics import opentelemetry as otel
from kafka_eos.monitoring.metrics.job_observer import MetricsObserver
from kafka_eos.monitoring.metrics.opentelemetry import Export, start_export
from tests.otlp_receiver import Receiver, receiving
from tests.waiting import eventually

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as receiver:
        for name, value in receiver.environment.items():
            monkeypatch.setenv(name, value)
        yield receiver
        receiver.answers.set()
        eventually(lambda: "otel-close" not in {each.name for each in threading.enumerate()}, "all threads end")


def an_epoch(observed: MetricsObserver, export: Export) -> None:
    """Of a job that reads, decides and commits."""
    now = time.time()
    spans = [{"worker": 1, "phase": "prepare", "started": now, "ended": now + 1, "operator": "out"}]
    for event, facts in (
        ("running", {"term": 2, "base": 0, "parallelism": 2}),
        ("triggered", {"epoch": 1}),
        ("phases", {"epoch": 1, "spans": spans}),
        ("decided", {"epoch": 1, "seconds": 0.2, "state_bytes_by_operator": {"sum": 9}, "committables": 1,
                     "records_by_sink": {"out": 5}}),
        ("committed", {"epoch": 1, "seconds": 0.3, "records_by_sink": {"out": 5}, "expires_in": None,
                       "commits": {"out": [now + 1, now + 2]}}),
    ):  # fmt: skip
        for hear in (observed, *export.observers):
            hear(event, facts)


def test_metrics_and_traces_come_with_the_last_figures(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "3600000")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.version=7")
    observed = MetricsObserver("orders", "1.0")
    with start_export(observed, "orders", "1.0") as export:
        an_epoch(observed, export)

    at = f"http://127.0.0.1:{receiver.server_port}"
    assert export.places == (f"metrics to {at}", f"traces to {at}")
    named = ("service.name", "service.version", "deployment.environment")
    assert [receiver.resource[name] for name in named] == ["orders", "7", "test"]
    assert receiver.resource["service.instance.id"].endswith(f":{os.getpid()}")
    assert receiver.metrics["kafka_eos_info", "orders", "1.0"] == 1
    assert receiver.metrics["kafka_eos_state_bytes", "sum"] == 9
    assert receiver.metrics["kafka_eos_committed_records_total", "out"] == 5
    assert receiver.metrics["kafka_eos_checkpoint_seconds_count", "decide"] == 1
    (trace,) = receiver.traces
    assert (trace.name, trace.error) == ("epoch", None)
    assert trace.attributes == {
        "kafka_eos.job": "orders", "kafka_eos.epoch": 1, "kafka_eos.term": 2, "kafka_eos.records": 5
    }  # fmt: skip
    assert set(trace.parts) == {"trigger", "prepare", "decide", "commit"}
    (prepare,), (commit,) = trace.parts["prepare"], trace.parts["commit"]
    assert prepare.attributes == {"kafka_eos.worker": 1, "kafka_eos.operator": "out"}
    assert commit.attributes == {"kafka_eos.sink": "out"}
    assert commit.ended - commit.began == pytest.approx(1e9, abs=1e6)
    assert {prepare.trace, commit.trace} == {trace.trace}


def test_an_epoch_that_failed_is_an_error(receiver: Receiver) -> None:
    observed = MetricsObserver("orders", "1.0")
    with start_export(observed, "orders", "1.0") as export:
        (hear,) = export.observers
        hear("triggered", {"epoch": 4})
        hear("aborted", {"epoch": 4})

    assert [trace.error for trace in receiver.traces] == ["aborted: its output is part of the next epoch"]


def test_names_are_those_that_prometheus_has(receiver: Receiver) -> None:
    """Collectors put a unit behind names, and a ratio behind what has the unit 1, unless that is there."""
    observed = MetricsObserver("orders", "1.0")
    with start_export(observed, "orders", "1.0") as export:
        an_epoch(observed, export)
        with observed.samples() as samples:
            names = {metric.full_name for metric, found in samples.values() if found}
            names |= {f"{metric.full_name}_count" for metric, _ in samples.distributions()}
        eventually(lambda: {name for name, *_ in receiver.metrics} == names, "all metrics come")
        units = {metric.name: metric.unit for metric in (
            *otel._numbers(samples, 0), *otel._distributions(samples, 0)
        )}  # fmt: skip
    assert {unit for name, unit in units.items() if name.endswith("_seconds")} == {"s"}
    assert {unit for name, unit in units.items() if name.endswith("_bytes")} == {"By"}
    assert {unit for name, unit in units.items() if not name.endswith(("_seconds", "_bytes"))} == {""}


def test_a_receiver_that_never_answers_does_not_keep_a_job_from_its_end(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exporter would wait for an hour."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    monkeypatch.setattr(otel, "_GOODBYE", 0.2)
    receiver.answers.clear()
    observed = MetricsObserver("orders", "1.0")
    with start_export(observed, "orders", "1.0") as export:
        an_epoch(observed, export)
        receiver.asked.wait()
        an_epoch(observed, export)

    assert not receiver.answers.is_set()
    assert not receiver.requests


@pytest.mark.parametrize("hangs", [False, True])
def test_what_a_receiver_does_not_take_is_told_once_and_not_waited_for(
    hangs: bool, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The end would wait for an hour for one that hangs."""
    monkeypatch.setattr(otel, "_GOODBYE", 3600.0)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1")
    for log in otel.LOGGERS:
        monkeypatch.setattr(log, "filters", [RepeatFilter(3600.0)])
    receiver.refuses = 400
    refused = MetricsObserver("orders", "1.0")
    with start_export(refused, "orders", "1.0") as export:
        an_epoch(refused, export)
        eventually(lambda: len(caplog.records) == 2, "both signals are refused")
        receiver.asked.clear()
        assert receiver.asked.wait(60), "it is not asked again"
        if hangs:
            receiver.answers.clear()
        an_epoch(refused, export)

    assert receiver.answers.is_set() is not hangs
    assert sorted(each.getMessage() for each in caplog.records) == [
        "Failed to export metrics batch code: 400, reason: Bad Request",
        "Failed to export spans batch code: 400, reason: Bad Request",
    ]
    assert {each.levelno for each in caplog.records} == {logging.ERROR}


def test_a_receiver_that_comes_back_gets_the_figures_of_now(receiver: Receiver) -> None:
    receiver.refuses = 400
    observed = MetricsObserver("orders", "1.0")
    with start_export(observed, "orders", "1.0") as export:
        an_epoch(observed, export)
        assert receiver.asked.wait(60)
        receiver.refuses = None
        eventually(lambda: receiver.metrics.get(("kafka_eos_committed_records_total", "out")) == 5, "figures come")


@pytest.mark.parametrize(
    ("variables", "places"),
    [
        ({"OTEL_SDK_DISABLED": "true"}, ()),
        ({"OTEL_METRICS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": "none"}, ()),
        ({"OTEL_METRICS_EXPORTER": "none"}, ("traces to http://127.0.0.1:1",)),
        (
            {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "https://me:secret@[::1]:1/x"},
            ("metrics to https://[::1]:1",),
        ),
    ],
)
def test_what_goes_where_is_said_by_the_standard_variables(
    variables: dict[str, str], places: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel, "_GOODBYE", 0.0)
    for name, value in {ENDPOINT: "http://127.0.0.1:1", **variables}.items():
        monkeypatch.setenv(name, value)
    with start_export(MetricsObserver("orders", "1.0"), "orders", "1.0") as export:
        assert export.places == places
        assert bool(export.observers) == any("traces" in place for place in places)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (ENDPOINT, "collector:4318", f"{ENDPOINT} is not a valid address: use http://HOST:4318"),
        (ENDPOINT, "http://collector:port", "is not a valid address"),
        (
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "collector",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is not a valid address",
        ),
        ("OTEL_METRICS_EXPORTER", "prometheus", "kafka-eos exports only OTLP"),
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "grpc",
            "OTEL_EXPORTER_OTLP_PROTOCOL=grpc: kafka-eos supports only http/protobuf",
        ),
        ("OTEL_METRIC_EXPORT_INTERVAL", "10s", "give milliseconds"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100000", "OTEL_BSP_"),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_start(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otel, "_GOODBYE", 0.0)
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said), start_export(MetricsObserver("orders", "1.0"), "orders", "1.0"):
        pass


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka_eos._util.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"otel needs opentelemetry.sdk, .*: pip install 'kafka-eos\[otel\]'"):
        ensure_extra("otel", "otel")
