"""run_local: what a pipeline makes of given inputs, in this process, without a broker or a disk.

The same operators run as in an engine, in the same order of batches; sources and sinks are replaced by lists, so
codecs are not exercised. State is kept as in production: keys and values of keyed state do pass their codecs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from kafka_eos.checkpoints.storage import MemoryStorage
from kafka_eos.errors import PlanError
from kafka_eos.interfaces import StateBackend
from kafka_eos.operators.chain import Chain, Output
from kafka_eos.plan import Plan
from kafka_eos.records import Batch
from kafka_eos.state.backends import open_backend
from kafka_eos.state.keygroups import MAX_KEY_GROUPS
from kafka_eos.testing.sources import ListOrigin


class Planned(Protocol):
    """Something that has a plan, like a Pipeline."""

    def plan(self) -> Plan: ...


def run_local(
    pipeline: Plan | Planned, inputs: Mapping[str, Sequence[Any]], *, batch_size: int = 500
) -> dict[str, list[Any]]:
    """Run all ``inputs`` (decoded values by source name) and return the values each sink got, by name, in order.

    Sources are read one after the other, in the order of the pipeline; a source that is not named has no input. All of
    it is one epoch, which matters for a fold with ``merge=`` only.
    Dead letters appear under their sink's name. Raises PoisonRecord as an engine would, PlanError if ``inputs``
    names a source that the pipeline does not have.
    """
    plan = pipeline if isinstance(pipeline, Plan) else pipeline.plan()
    names = [source.name for source in plan.sources]
    if unknown := sorted(set(inputs) - set(names)):
        raise PlanError(f"pipeline {plan.name!r} has no source {unknown}; its sources are {names}")
    results: dict[str, list[Any]] = {sink.name: [] for sink in plan.sinks}
    with ExitStack() as closing:
        directory = Path(closing.enter_context(TemporaryDirectory(prefix="kafka-eos-")))
        chain = Chain(plan, _backends(plan, directory, closing), {name: _into(results[name]) for name in results})
        closing.callback(chain.close)
        for name in names:
            for start in range(0, len(inputs.get(name, ())), batch_size):
                values = list(inputs[name][start : start + batch_size])
                chain.push(name, Batch(values, range(len(values)), ListOrigin(name, name, 0, start, values)))
        chain.flush()
    return results


def _backends(plan: Plan, directory: Path, closing: ExitStack) -> dict[str, StateBackend]:
    backends: dict[str, StateBackend] = {}
    for node in plan.nodes:
        if node.stateful:
            backends[node.name] = open_backend(
                "memory", node.name, directory / node.name, range(MAX_KEY_GROUPS), (), MemoryStorage()
            )
            closing.callback(backends[node.name].close)
    return backends


def _into(values: list[Any]) -> Output:
    def output(batch: Batch[Any]) -> None:
        values.extend(batch.values)

    return output
