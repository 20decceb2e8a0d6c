"""OpenTelemetry: the metrics of a job, and a trace of each epoch, sent to a collector by OTLP over HTTP.

Imported only where it is asked for. What is sent where is said by the standard variables ``OTEL_*``.

Rule: sending is for those who watch. It has threads of its own, forgets what a collector does not take, and a job that
ends waits for a few seconds at most, and not for a collector that did not take what was sent last.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from msgspec import Struct
from opentelemetry.exporter.otlp.proto.http import metric_exporter, trace_exporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from kafka_eos._util.logging_setup import RepeatFilter
from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.metrics import catalogue
from kafka_eos.monitoring.metrics import opentelemetry_env as otel_environment
from kafka_eos.monitoring.metrics.catalogue import BUCKETS, PREFIX
from kafka_eos.monitoring.metrics.epoch_traces import EpochTrace, EpochTracer
from kafka_eos.monitoring.metrics.job_observer import MetricsObserver
from kafka_eos.monitoring.metrics.samples import Samples
from kafka_eos.monitoring.status_session import StatusSession

_NAME: Final = "kafka_eos"
_GOODBYE: Final = 3.0
"""Seconds that a job which ends waits for its last figures to be taken."""
_LOOK: Final = 0.05
_QUIET: Final = 600.0
"""Seconds between two lines of one kind about a collector that takes nothing."""
LOGGERS: Final = [logging.getLogger(exporter.__name__) for exporter in (metric_exporter, trace_exporter)]
"""Loggers of the SDK, which log at each try that a collector does not answer."""
_UNITS: Final = {"_seconds": "s", "_bytes": "By"}


class Export(Struct, frozen=True):
    """``observers`` must hear the job. ``places``: what goes where, in words."""

    observers: tuple[EpochTracer, ...]
    places: tuple[str, ...]


@contextmanager
def start_export(observed: MetricsObserver, job: str, version: str) -> Iterator[Export]:
    """Export metrics and traces while the block runs, and once more at its end.

    ConfigError if a variable asks for what cannot be done.
    """
    resource, observers, places = _resource(job, version), list[EpochTracer](), list[str]()
    closing: list[_MetricsExporter | _TraceExporter] = []
    try:
        if otel_environment.is_enabled("METRICS"):
            places.append(f"metrics to {otel_environment.read_endpoint('METRICS')}")
            metrics = _MetricsExporter(observed, resource, version, otel_environment.interval())
            metrics.start()
            closing.append(metrics)
        if otel_environment.is_enabled("TRACES"):
            places.append(f"traces to {otel_environment.read_endpoint('TRACES')}")
            traces = _TraceExporter(resource, job, version)
            observers.append(EpochTracer(traces.send, time.time))
            closing.append(traces)
        yield Export(tuple(observers), tuple(places))
    finally:
        _without_waiting_long(closing)


def _resource(job: str, version: str) -> Resource:
    """Return the OpenTelemetry resource of this job. Attributes in the environment take precedence."""
    attributes = {
        "service.name": job,
        "service.version": version,
        "service.instance.id": f"{platform.node()}:{os.getpid()}",
    }
    return Resource.create().merge(Resource(attributes)).merge(OTELResourceDetector().detect())


def _without_waiting_long(closing: list[_MetricsExporter | _TraceExporter]) -> None:
    """Close the exporters, each in a thread that is not awaited for long: a collector may not respond."""
    threads = [threading.Thread(target=each.close, daemon=True, name="otel-close") for each in closing]
    for thread in threads:
        thread.start()
    until = time.monotonic() + _GOODBYE
    for each, thread in zip(closing, threads, strict=True):
        while thread.is_alive() and each.last_export_ok and time.monotonic() < until:
            thread.join(_LOOK)


def _session(signal: str) -> StatusSession | None:
    """Return the session for requests; None if a variable asks the SDK for one with credentials."""
    return None if otel_environment.has_credential_provider(signal) else StatusSession()


# ---------------------------------------------------------------- metrics


class _MetricsExporter:
    """Export the metrics periodically from its own thread."""

    def __init__(self, observed: MetricsObserver, resource: Resource, version: str, interval: float) -> None:
        self._observed = observed
        self._resource = resource
        self._interval = interval
        self._scope = InstrumentationScope(_NAME, version)
        self._exporter = OTLPMetricExporter(session=_session("METRICS"))
        self._began, self._over = time.time_ns(), threading.Event()
        self.last_export_ok = True
        """Whether the collector has accepted the last export."""
        self._thread = threading.Thread(target=self._run, daemon=True, name="otel-metrics")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._over.wait(self._interval):
            self._send()
        self._send()

    def _send(self) -> None:
        """Export the current figures. A failed export is not repeated: the next figures include it."""
        with self._observed.samples() as samples:
            metrics = [*_numbers(samples, self._began), *_distributions(samples, self._began)]
        of_job = ResourceMetrics(self._resource, [ScopeMetrics(self._scope, metrics, "")], "")
        self.last_export_ok = self._exporter.export(MetricsData([of_job])) is MetricExportResult.SUCCESS


def _numbers(samples: Samples, began: int) -> Iterator[Metric]:
    now = time.time_ns()
    for metric, values in samples.values():
        counts = metric.kind == "counter"
        points = [
            NumberDataPoint(_attributes(metric, labels), began if counts else now, now, float(value))
            for labels, value in values.items()
        ]
        if points:
            data = Sum(points, AggregationTemporality.CUMULATIVE, True) if counts else Gauge(points)
            yield _named(metric, data)


def _distributions(samples: Samples, began: int) -> Iterator[Metric]:
    now = time.time_ns()
    for metric, found in samples.distributions():
        points = [
            HistogramDataPoint(
                attributes=_attributes(metric, labels),
                start_time_unix_nano=began,
                time_unix_nano=now,
                count=sum(each.counts),
                sum=each.sum,
                bucket_counts=list(each.counts),
                explicit_bounds=BUCKETS,
                min=None,  # type: ignore[arg-type]  # nobody keeps them, and a message may do without
                max=None,  # type: ignore[arg-type]
            )
            for labels, each in found.items()
        ]
        yield _named(metric, Histogram(points, AggregationTemporality.CUMULATIVE))


def _attributes(metric: catalogue.Metric, labels: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(metric.labels, labels, strict=True))


def _named(metric: catalogue.Metric, data: Sum | Gauge | Histogram) -> Metric:
    """Return a metric, named without ``_total``: collectors append it for Prometheus to sums.

    If a metric has a unit that its name contains, collectors append nothing for the unit.
    """
    unit = next((unit for ending, unit in _UNITS.items() if metric.name.endswith(ending)), "")
    return Metric(PREFIX + metric.name, metric.help, unit, data)


# ---------------------------------------------------------------- traces


class _SpanExporter(OTLPSpanExporter):
    last_export_ok = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        self.last_export_ok = result is SpanExportResult.SUCCESS
        return result


class _TraceExporter:
    """Export one trace per epoch. A processor of the SDK batches spans, and drops some when too many wait."""

    def __init__(self, resource: Resource, job: str, version: str) -> None:
        self._job, self._exporter = job, _SpanExporter(session=_session("TRACES"))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        try:
            self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        except ValueError as error:
            raise ConfigError(f"invalid OTEL_BSP_… variables: {error}") from error
        self._tracer = self._provider.get_tracer(_NAME, version)

    def send(self, epoch: EpochTrace) -> None:
        facts = {"job": self._job, "epoch": epoch.epoch, "term": epoch.term, "records": epoch.records}
        whole = self._tracer.start_span("epoch", attributes=_named_ours(facts), start_time=_ns(epoch.began))
        around = set_span_in_context(whole)
        for part in epoch.parts:
            attributes = _named_ours(part.attributes)
            span = self._tracer.start_span(part.name, around, attributes=attributes, start_time=_ns(part.began))
            span.end(_ns(part.ended))
        if epoch.failed is not None:
            whole.set_status(Status(StatusCode.ERROR, epoch.failed))
        whole.end(_ns(epoch.ended))

    @property
    def last_export_ok(self) -> bool:
        """Return whether the collector accepted the last export."""
        return self._exporter.last_export_ok

    def close(self) -> None:
        self._provider.shutdown()


def _named_ours(attributes: Mapping[str, Any]) -> dict[str, str | int]:
    return {f"{_NAME}.{name}": value for name, value in attributes.items()}


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


for log in LOGGERS:
    log.addFilter(RepeatFilter(_QUIET))
