"""Stored checkpoints of a job, opened without it: state is what the input below the offsets says.

Rule: rows under way belong to the checkpoint: the state and what they still bring to it are the fold of the input.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kafka_eos.abc.state import StateDescriptor
from kafka_eos.core.ids import AppRef
from kafka_eos.plan import FoldNode, Plan
from kafka_eos.runtime.exchange import in_flight_rows as in_flight
from kafka_eos.runtime.operators.fold import STATE
from kafka_eos.runtime.program import load_program
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_records import Manifest
from tests.chaos.harness import Job, read
from tests.chaos.running import manifests, storage

Totals = dict[str, tuple[int, int, int]]
"""By account: number of payments, their sum, the id of the last one."""


def check_checkpoints(job: Job, directory: Path, operator: str = "total") -> list[Manifest]:
    """Check every stored checkpoint of a job that does not run; returns them, oldest first."""
    plan, payments = plan_of(job), read(job.bootstrap, job.input)
    stored = manifests(job)
    for number, manifest in enumerate(stored):
        wanted = _fold(_below(payments, manifest, job.input))
        found = _state(job, plan, manifest, directory / f"{operator}-{number}")
        for payment in _under_way(job, plan, manifest, directory / "frames"):
            _add(found, payment.account, payment.amount, payment.id)
        assert found == wanted, f"{manifest.name}: state and rows under way are not the fold of the input"
        assert _groups(manifest, operator) == list(range(MAX_KEY_GROUPS)), f"{manifest.name}: key groups"
        assert sum(handle.operator == operator for handle in manifest.states) in (0, manifest.parallelism)
    return stored


def plan_of(job: Job) -> Plan:
    with patch.dict(os.environ, job.environ()):
        return load_program(AppRef(job.app, "pipeline")).plan()


def _below(messages: list[Any], manifest: Manifest, topic: str) -> Iterator[dict[str, Any]]:
    ends = {split: int(str(at["offset"])) for split, at in manifest.sources["payments"].items()}
    for message in sorted(messages, key=lambda m: (m.partition(), m.offset())):
        if message.offset() < ends.get(f"{topic}/{message.partition()}", 0):  # type: ignore[call-overload]
            yield json.loads(message.value())


def _fold(payments: Iterator[dict[str, Any]]) -> Totals:
    totals: Totals = {}
    for payment in payments:
        if payment["amount"] > 0:
            _add(totals, payment["account"], payment["amount"], payment["id"])
    return totals


def _add(totals: Totals, account: str, amount: int, number: int) -> None:
    count, total, _ = totals.get(account, (0, 0, -1))
    totals[account] = count + 1, total + amount, number


def _state(job: Job, plan: Plan, manifest: Manifest, directory: Path) -> Totals:
    node = plan.node(directory.name.rpartition("-")[0])
    assert isinstance(node, FoldNode)
    handles = [handle for handle in manifest.states if handle.operator == node.name]
    backend = open_backend("memory", node.name, directory, range(MAX_KEY_GROUPS), handles, storage(job))
    try:
        entries = list(backend.value(StateDescriptor(STATE, node.key_codec, node.entry_codec)).items())
    finally:
        backend.close()
    return {account: (count, acc.total, acc.id) for account, (count, acc) in entries}


def _under_way(job: Job, plan: Plan, manifest: Manifest, scratch: Path) -> Iterator[Any]:
    """Values on their way to the state, in an order that keeps that of every key."""
    for _, _, batch in in_flight.read_rows(plan, storage(job), scratch, manifest.in_flight):
        yield from batch.values


def _groups(manifest: Manifest, operator: str) -> list[int]:
    handles = [handle.key_groups for handle in manifest.states if handle.operator == operator]
    return sorted(group for first, last in handles for group in range(first, last + 1)) or list(range(MAX_KEY_GROUPS))
