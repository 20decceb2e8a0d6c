"""Aggregates such as sums, extremes and lists. Values are added one by one, in any order; partial results are merged.

    aggregate        the base class; subclass ``Aggregate`` for your own
    sums             count, sum_, mean
    extremes         min_, max_, min_by, max_by, first, last, top, collect
    sketches         approx_distinct, approx_quantiles
    row_aggregation  several aggregates together, and the result rows that they build

Rule: the result of an aggregate depends only on the values, and on their event times where documented. It depends
neither on the order of arrival nor on how the values were partitioned.
"""

from __future__ import annotations

from kafka_eos.api.aggregates.aggregate import Aggregate
from kafka_eos.api.aggregates.extremes import collect, first, last, max_, max_by, min_, min_by, top
from kafka_eos.api.aggregates.sketches import approx_distinct, approx_quantiles
from kafka_eos.api.aggregates.sums import count, mean, sum_

__all__ = [
    "Aggregate",
    "approx_distinct",
    "approx_quantiles",
    "collect",
    "count",
    "first",
    "last",
    "max_",
    "max_by",
    "mean",
    "min_",
    "min_by",
    "sum_",
    "top",
]
