"""The plan: what a pipeline does, as frozen nodes in topological order.

An engine reads the plan and nothing else of the user's program. Nodes name their inputs, so a plan is plain
data plus the user's functions.

Rule: a plan that exists in an engine's hands is valid. ``validate`` refuses everything that could not keep its
guarantee, and every refusal quotes the line of the user's file it is about.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property

from kafka_eos.plan.graph import Graph
from kafka_eos.plan.keyed_nodes import one_phase
from kafka_eos.plan.segments import Segment, segments
from kafka_eos.plan.validation import validate


@dataclass(frozen=True)
class Plan(Graph):
    """A whole pipeline."""

    @cached_property
    def one_by_one(self) -> Plan:
        """The same plan with every fold in one phase: outputs for each record, where this has one a key and epoch."""
        return replace(self, nodes=tuple(map(one_phase, self.nodes)))

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The plan cut at its exchanges, in the order of their first heads: what several subtasks run."""
        return tuple(segments(self, self.exchanges))

    @cached_property
    def loops_only(self) -> tuple[Segment, ...]:
        """The plan cut where it leads back, and nowhere else: what a single subtask runs."""
        return tuple(segments(self, self.feedbacks))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of names, kinds and edges, and of what is said of event time.

        The user's code and settings do not change it.
        """
        shape = [
            [n.name, n.kind, list(n.inputs), *([n.time_rules] if n.time_rules is not None else [])] for n in self.nodes
        ]
        return hashlib.sha256(json.dumps([self.name, shape], separators=(",", ":")).encode()).hexdigest()

    def validate(self) -> Plan:
        """Return the plan if it can run and keep its guarantees, else raise PlanError that quotes the line."""
        validate(self)
        return self
