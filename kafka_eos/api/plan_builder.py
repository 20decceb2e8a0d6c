"""The plan of a pipeline under construction: its nodes, their names, and the known types of the values between them.

Rule: nodes are added and never change. Nodes that a partial fold replaces are omitted from the finished plan.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from kafka_eos import plan
from kafka_eos._util.call_site import plan_error, user_line
from kafka_eos.abc.codec import ListCodec
from kafka_eos.abc.sink import Sink
from kafka_eos.abc.source import Source
from kafka_eos.codecs import exchange_codec
from kafka_eos.core.errors import ConfigError, PlanError
from kafka_eos.core.ids import ensure_name
from kafka_eos.plan import CodeLocation, DerivedNameWarning, KeyByNode, Node, Plan
from kafka_eos.plan.process_functions import OutputTag

_MAIN = "main"
"""Names the main output of an operator among its side outputs; no tag may have this name."""


class PlanBuilder:
    """Collects the nodes of one pipeline and builds its plan."""

    def __init__(self, name: str, where: CodeLocation) -> None:
        self.name = name
        self._where = where
        self._types: dict[str, Any] = {}
        """The types of the values that each node emits, as far as they are known."""
        self._nodes: list[Node] = []
        self._derived: Counter[str] = Counter()
        self._tags: dict[str, tuple[OutputTag[Any], ...]] = {}
        """Side outputs, by the node that takes the main one."""
        self._replaced: set[str] = set()
        """``key_by`` nodes whose work partial folds do; those without other readers are not in the plan."""

    def plan(self) -> Plan:
        """Return the plan so far, validated. Raises PlanError that quotes the line to change."""
        read = {name for node in self._nodes for name in node.inputs}
        nodes = (node for node in self._nodes if node.name in read or node.name not in self._replaced)
        drafted = Plan(self.name, tuple(nodes), self._where).validate()
        typed = replace(drafted, nodes=tuple(map(self._with_stream_type, drafted.nodes)))
        built = plan.insert_forwards(typed, self._codec).validate()
        for node in built.nodes:
            held = _stored_content(node)
            if held is not None and node.has_generated_name:
                warnings.warn(
                    f"{held} {node.kind} {node.name!r} is stored under a name that depends on its position; give it "
                    f"an explicit name ({node.code_line})",
                    DerivedNameWarning,
                    stacklevel=2,
                )
        return built

    def _with_stream_type(self, node: Node) -> Node:
        """Return the node; a sink that encodes values by their type knows that of its stream.

        PlanError with the user's line if the sink does not suit the stream.
        """
        if not isinstance(node, plan.SinkNode) or node.is_dead_letter_sink:
            return node
        try:
            return structs.replace(node, sink=node.sink.for_stream_type(self._types[node.inputs[0]]))
        except (PlanError, ConfigError) as error:
            raise PlanError(f"sink {node.name!r}: {error}\n  {node.code_line}") from error

    def _add_node(self, node: Node) -> None:
        """Add a node to the plan."""
        self._nodes.append(node)

    def _name(self, given: str | None, kind: str) -> tuple[str, bool]:
        """Return the given name, or one built from the kind and a number, and whether it was generated."""
        self._derived[kind] += 1
        return (f"{kind}-{self._derived[kind]}", True) if given is None else (given, False)

    def _source_of(self, name: str) -> str:
        """Return the first source above a node."""
        while inputs := self._node(name).inputs:
            name = inputs[0]
        return name

    def _sources_of(self, name: str) -> list[str]:
        """Return all sources above a node; a source is its own."""
        found, todo = dict[str, None](), [name]
        while todo:
            node = self._node(todo.pop())
            todo += node.inputs
            if not node.inputs:
                found[node.name] = None
        return sorted(found)

    def _key_by(self, name: str) -> KeyByNode:
        """Return the ``key_by`` of a keyed stream."""
        node = self._node(name)
        assert isinstance(node, KeyByNode)
        return node

    def _replace_key_by(self, name: str) -> KeyByNode:
        """Return the key_by that a partial fold replaces."""
        self._replaced.add(name)
        return self._key_by(name)

    def _add_side_outputs(self, node: str, tags: Sequence[OutputTag[Any]]) -> str:
        """Add a node for each side output; return the node of the main output."""
        if not tags:
            return node
        where = user_line()
        main, *others = _beside(node, tags)
        self._tags[main] = tuple(tags)
        for name, tag in zip((main, *others), (None, *tags), strict=True):
            tagged = None if tag is None else tag.name
            self._add_node(plan.SideOutputNode(name=name, code_line=where, inputs=(node,), tag=tagged))
        return main

    def _side_output(self, main: str, tag: OutputTag[Any]) -> str:
        """Return the node of the side output ``tag`` of ``main``. PlanError with the user's line if there is none."""
        declared = self._tags.get(main, ())
        if tag not in declared:
            known = f"it declares {', '.join(map(str, declared))}" if declared else "no side outputs are declared there"
            raise plan_error(
                f"{tag} is not a side output of {main!r}; {known}. Call .side_output(...) directly "
                "after the .process(...) of a function that lists the tag in side_outputs."
            )
        return f"{self._node(main).inputs[0]}-{tag.name}"

    def _node(self, name: str) -> Node:
        return next(node for node in self._nodes if node.name == name)

    def _codec(self, node: str) -> ListCodec[Any]:
        """Return the codec of values that stay in their worker.

        Most are never written, so their type may be undeclared.
        """
        try:
            return exchange_codec(self._types[node])
        except PlanError:
            return exchange_codec(Any)  # rejects the first written value that would be decoded as another one


def name_connector(kind: str, connector: Source[Any] | Sink[Any], given: str | None) -> str:
    """Return the name of a source or sink: as given, or that of its topic or table.

    Raises PlanError with the user's line if it has none.
    """
    if given is not None:
        return given
    if (target := connector.default_name) is None:
        raise plan_error(f"{kind} {connector!r:.80} has no single topic or table, so it needs a name: name=.")
    return re.sub("[^A-Za-z0-9_-]", "-", target)


def _stored_content(node: Node) -> str | None:
    """Describe what a checkpoint stores of a node, for a warning; None if nothing."""
    if isinstance(node, plan.AsyncMapNode):
        return "what waits in"
    return "state of" if node.stateful else None


def _beside(node: str, tags: Sequence[OutputTag[Any]]) -> list[str]:
    """Name the nodes that split the outputs of ``node``, the main one first. Raises PlanError if a tag is invalid."""
    names = [_MAIN]
    for tag in tags:
        if not isinstance(tag, OutputTag):
            raise plan_error(f"a side output of {node!r} must be OutputTag(name, type), not {tag!r}.")
        try:
            names.append(ensure_name(tag.name, "side output"))
        except ConfigError as error:
            raise plan_error(str(error)) from None
    if len(set(names)) < len(names):
        raise plan_error(
            f"two side outputs of {node!r} have one name, or one is named {_MAIN!r}, which is its output: "
            f"{', '.join(names[1:])}."
        )
    return [f"{node}-{name}" for name in names]
