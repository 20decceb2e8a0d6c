"""The plan of a pipeline as frozen nodes in topological order.

An engine reads only the plan, nothing else of the user's program. Nodes name their inputs, so a plan is plain data plus
the user's functions.

Rule: a plan that an engine receives is valid. ``validate`` refuses every plan that could not keep its guarantee, and
every error quotes the user's line.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property

from kafka_eos.plan.graph import Graph
from kafka_eos.plan.keyed_nodes import one_phase
from kafka_eos.plan.segments import ChainSpec, cut_plan
from kafka_eos.plan.validation import validate


@dataclass(frozen=True)
class Plan(Graph):
    """A whole pipeline."""

    @cached_property
    def without_partial_folds(self) -> Plan:
        """Return the same plan with every fold in one phase."""
        return replace(self, nodes=tuple(map(one_phase, self.nodes)))

    def describe_clients(self) -> list[str]:
        """Return which clients the sources and sinks use on this machine, each once."""
        described = [node.source.describe_client() for node in self.sources]
        described += [node.sink.describe_client() for node in self.sinks]
        return list(dict.fromkeys(line for line in described if line is not None))

    @cached_property
    def segments(self) -> tuple[ChainSpec, ...]:
        """Return the operator chains of the plan, cut at its exchanges, for several subtasks; ordered by their first
        heads."""
        return tuple(cut_plan(self, self.exchanges))

    @cached_property
    def loops_only(self) -> tuple[ChainSpec, ...]:
        """Return the operator chains of the plan, cut only at feedback edges, for a single subtask."""
        return tuple(cut_plan(self, self.feedbacks))

    @cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 of names, kinds, edges and event-time settings.

        User code and job settings do not change it.
        """
        shape = [
            [n.name, n.kind, list(n.inputs), *([n.time_rules] if n.time_rules is not None else [])] for n in self.nodes
        ]
        return hashlib.sha256(json.dumps([self.name, shape], separators=(",", ":")).encode()).hexdigest()

    def validate(self) -> Plan:
        """Return the plan if it can run and keep its guarantees, else raise PlanError that quotes the line."""
        validate(self)
        return self
