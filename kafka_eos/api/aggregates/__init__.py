"""Aggregates: sums, extremes, lists … of values that come one by one, in any order, and in parts that are merged.

    base      what an aggregate is; subclass ``Aggregate`` for one of your own
    numbers   count, sum_, mean
    order     min_, max_, min_by, max_by, first, last, top, collect
    sketches  approx_distinct, approx_quantiles
    rows      several of them together, and the row that they make

Rule: what an aggregate gives depends on the values alone, and on their event times where it says so: not on the order
in which they came, nor on how they were split up.
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
