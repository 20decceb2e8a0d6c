"""Aggregates such as sums, extremes and lists, imported as ``agg``.

Values are added one by one, in any order; partial results are merged.

    aggregate        the base class; subclass ``Aggregate`` for your own
    sums             count, sum, mean
    extremes         min, max, min_by, max_by, first, last, top, collect
    sketches         approx_distinct, approx_quantiles
    row_aggregation  several aggregates together, and the result rows that they build

Rule: the result of an aggregate depends only on the values, and on their event times where documented. It depends
neither on the order of arrival nor on how the values were partitioned.
"""

from __future__ import annotations

from kafka_eos.api.aggregates.aggregate import Aggregate
from kafka_eos.api.aggregates.extremes import collect, first, last, max_by, min_by, top
from kafka_eos.api.aggregates.extremes import max_ as max  # noqa: A004 - used as agg.max
from kafka_eos.api.aggregates.extremes import min_ as min  # noqa: A004 - used as agg.min
from kafka_eos.api.aggregates.sketches import approx_distinct, approx_quantiles
from kafka_eos.api.aggregates.sums import count, mean
from kafka_eos.api.aggregates.sums import sum_ as sum  # noqa: A004 - used as agg.sum

__all__ = [
    "Aggregate",
    "approx_distinct",
    "approx_quantiles",
    "collect",
    "count",
    "first",
    "last",
    "max",
    "max_by",
    "mean",
    "min",
    "min_by",
    "sum",
    "top",
]
