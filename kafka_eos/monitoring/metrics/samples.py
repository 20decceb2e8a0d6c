"""Values under the names of the catalogue, and nothing else. Rule: a name or label that is not there is a bug."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kafka_eos.monitoring.metrics.catalogue import BUCKETS, METRICS, Metric

Labels: TypeAlias = tuple[str, ...]


@dataclass
class Distribution:
    """``counts``: by bucket, and above the last one."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    sum: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(BUCKETS, value)] += 1
        self.sum += value


class Samples:
    """The current samples of all metrics; not thread-safe. ``Labels`` are values in the order of the catalogue."""

    def __init__(self) -> None:
        self._values: dict[str, dict[Labels, float]] = {}
        self._distributions: dict[str, dict[Labels, Distribution]] = {}

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge, or a counter that another component keeps, which never falls."""
        metric = _known(name, labels)
        values = self._values.setdefault(name, {})
        values[labels] = max(value, values.get(labels, value)) if metric.kind == "counter" else value

    def add(self, name: str, more: float, *labels: str) -> None:
        _known(name, labels)
        values = self._values.setdefault(name, {})
        values[labels] = values.get(labels, 0.0) + more

    def replace(self, name: str, values: Mapping[Labels, float]) -> None:
        """Set all values of a gauge; those that are not in ``values`` are removed."""
        for labels in values:
            _known(name, labels)
        self._values[name] = dict(values)

    def zero(self, name: str) -> None:
        """Set all values of a gauge to 0."""
        self._values[name] = dict.fromkeys(self._values.get(name, ()), 0.0)

    def observe(self, name: str, value: float, *labels: str) -> None:
        _known(name, labels)
        self._distributions.setdefault(name, {}).setdefault(labels, Distribution()).observe(value)

    def value(self, name: str, *labels: str) -> float | None:
        return self._values.get(name, {}).get(labels)

    def values(self) -> Iterator[tuple[Metric, Mapping[Labels, float]]]:
        """Return counters and gauges, in the order of the catalogue."""
        return ((metric, self._values[name]) for name, metric in METRICS.items() if name in self._values)

    def distributions(self) -> Iterator[tuple[Metric, Mapping[Labels, Distribution]]]:
        return ((metric, self._distributions[name]) for name, metric in METRICS.items() if name in self._distributions)


def _known(name: str, labels: Labels) -> Metric:
    metric = METRICS[name]
    assert len(labels) == len(metric.labels), f"{name} has the labels {metric.labels}"
    return metric
