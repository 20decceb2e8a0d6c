"""A collector of OpenTelemetry in this process: it takes OTLP over HTTP, as protobuf, and keeps what came."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

Key = tuple[str, ...]
"""Name of a metric, and values of its attributes in the order of their names."""


@dataclass
class Span:
    """``parts``: spans that have this one as their parent, by name, oldest first."""

    name: str
    trace: bytes
    attributes: dict[str, Any]
    began: int
    ended: int
    error: str | None
    parts: dict[str, list[Span]] = field(default_factory=dict)


class Receiver(ThreadingHTTPServer):
    """``refuses``: the status that it answers with instead of taking anything. ``silent``: it answers when that is
    cleared."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[tuple[str, bytes]] = []
        self.asked = threading.Event()
        self.answers = threading.Event()
        self.answers.set()
        self.refuses: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What makes a job send here, often."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.server_port}",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }

    @property
    def resource(self) -> dict[str, Any]:
        """Of the newest figures."""
        (of_job,) = ExportMetricsServiceRequest.FromString(self._bodies("/v1/metrics")[-1]).resource_metrics
        return _attributes(of_job.resource.attributes)

    @property
    def metrics(self) -> dict[Key, float]:
        """The newest figures: of a histogram, how many were counted in all; sums are ``…_total``, as for Prometheus."""
        bodies = self._bodies("/v1/metrics")
        if not bodies:
            return {}
        found: dict[Key, float] = {}
        (of_job,) = ExportMetricsServiceRequest.FromString(bodies[-1]).resource_metrics
        for metric in of_job.scope_metrics[0].metrics:
            for point in metric.gauge.data_points:
                found[_key(metric.name, point)] = point.as_double
            for point in metric.sum.data_points:
                assert metric.sum.is_monotonic and point.start_time_unix_nano
                found[_key(f"{metric.name}_total", point)] = point.as_double
            for point in metric.histogram.data_points:
                assert sum(point.bucket_counts) == point.count
                assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
                found[_key(f"{metric.name}_count", point)] = point.count
        return found

    @property
    def traces(self) -> list[Span]:
        """All that have come whole, with what they are made of."""
        spans: dict[bytes, tuple[Span, bytes]] = {}
        for body in self._bodies("/v1/traces"):
            for of_job in ExportTraceServiceRequest.FromString(body).resource_spans:
                for each in of_job.scope_spans[0].spans:
                    error = each.status.message if each.status.code == 2 else None
                    found = Span(each.name, each.trace_id, _attributes(each.attributes), each.start_time_unix_nano,
                                 each.end_time_unix_nano, error)  # fmt: skip
                    spans[each.span_id] = found, each.parent_span_id
        for part, parent in spans.values():
            if parent in spans:
                spans[parent][0].parts.setdefault(part.name, []).append(part)
        return [span for span, parent in spans.values() if not parent]

    def _bodies(self, path: str) -> list[bytes]:
        return [body for to, body in list(self.requests) if to == path]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A collector that is gone afterwards."""
    with Receiver() as receiver:
        threading.Thread(target=receiver.serve_forever, args=(0.02,), daemon=True, name="otlp-receiver").start()
        try:
            yield receiver
        finally:
            receiver.answers.set()
            receiver.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: Receiver
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert self.headers["Content-Type"] == "application/x-protobuf"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.set()
        self.server.answers.wait()
        if self.server.refuses is None:
            self.server.requests.append((self.path, body))
        self.send_response(self.server.refuses or 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        """Nobody reads it."""


def _key(name: str, point: Any) -> Key:
    attributes = _attributes(point.attributes)
    return (name, *(attributes[each] for each in sorted(attributes)))


def _attributes(listed: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in listed}
