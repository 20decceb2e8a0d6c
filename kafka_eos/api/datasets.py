"""The datasets that a job reads and writes, with the fields of their types, for a data catalog."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_type_hints

from kafka_eos.abc.context import JobContext
from kafka_eos.abc.dataset import Dataset, JobDataset
from kafka_eos.codecs.type_inspection import field_names, is_model, type_name
from kafka_eos.plan import Plan


def list_inputs(plan: Plan, ctx: JobContext) -> Iterator[JobDataset]:
    """Yield what the sources of a plan read."""
    for node in plan.sources:
        for found in node.source.list_datasets(ctx) or [_unnamed(node.name)]:
            yield JobDataset(node.name, found, _fields(node.source.value_type))


def list_outputs(plan: Plan, ctx: JobContext) -> Iterator[JobDataset]:
    """Yield what the sinks of a plan write."""
    for node in plan.sinks:
        tp = getattr(node.sink.codecs().get("value"), "type", None)
        for found in node.sink.list_datasets(ctx) or [_unnamed(node.name)]:
            yield JobDataset(node.name, found, _fields(tp))


def _unnamed(operator: str) -> Dataset:
    """Return a dataset for a connector that names none."""
    return Dataset("kafka_eos", operator)


def _fields(tp: Any) -> tuple[tuple[str, str], ...]:
    names = [*tp.model_fields] if is_model(tp) else field_names(tp) if isinstance(tp, type) else []
    hints = get_type_hints(tp) if names else {}
    return tuple((name, type_name(hints[name])) for name in names)
