"""Samples as Prometheus reads them: its text format, or OpenMetrics where the reader prefers that.

Rule: the formats are those of prometheus-client; nothing of them is written here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from kafka_eos.monitoring.metrics.catalogue import BUCKETS, PREFIX
from kafka_eos.monitoring.metrics.samples import Samples


def expose(samples: Samples, accept: str) -> tuple[bytes, str]:
    """Return the text and its content type, for a reader that accepts these."""
    try:
        encode, content_type = choose_encoder(accept)
    except TypeError:  # of a version that is not a number
        encode, content_type = choose_encoder("")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(samples))
    return encode(registry), content_type


class _Families(Collector):
    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        for metric, values in self._samples.values():
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(PREFIX + metric.name, metric.help, labels=metric.labels)
            for labels, value in sorted(values.items()):
                family.add_metric(labels, value)
            yield family
        for metric, distributions in self._samples.distributions():
            histogram = HistogramMetricFamily(PREFIX + metric.name, metric.help, labels=metric.labels)
            for labels, found in sorted(distributions.items()):
                sums = itertools.accumulate(found.counts)
                buckets = [(str(bound), float(count)) for bound, count in zip((*BUCKETS, "+Inf"), sums, strict=True)]
                histogram.add_metric(labels, buckets, found.sum)
            yield histogram
