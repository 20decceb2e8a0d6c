"""What a pipeline has become so far: its nodes, their names, and what is known of the values between them.

Rule: nodes are added and never change. What a partial fold replaces is left out when the plan is made.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kafka_eos import plan
from kafka_eos._util.call_site import mistake, user_line
from kafka_eos.abc.codec import ListCodec
from kafka_eos.codecs import wire_codec
from kafka_eos.core.errors import ConfigError, PlanError
from kafka_eos.core.ids import token
from kafka_eos.plan import DerivedNameWarning, KeyBy, Node, Plan, Where
from kafka_eos.plan.process_functions import OutputTag

_MAIN = "main"
"""Stands for the output of an operator where others stand for its side outputs; no tag has that name."""


class Draft:
    """The plan that the verbs of one pipeline make: a ``Pipeline``, as its streams know it."""

    def __init__(self, name: str, where: Where) -> None:
        self.name = name
        self._where = where
        self._types: dict[str, Any] = {}
        """What is known of the values that each node makes."""
        self._nodes: list[Node] = []
        self._derived: Counter[str] = Counter()
        self._tags: dict[str, tuple[OutputTag[Any], ...]] = {}
        """Side outputs, by the node that takes the main one."""
        self._replaced: set[str] = set()
        """``key_by`` nodes whose work partial folds do; those that nobody else reads are not in the plan."""

    def plan(self) -> Plan:
        """The plan so far, validated. Raises PlanError that quotes the line to change."""
        read = {name for node in self._nodes for name in node.inputs}
        nodes = (node for node in self._nodes if node.name in read or node.name not in self._replaced)
        built = plan.with_forwards(Plan(self.name, tuple(nodes), self._where).validate(), self._codec).validate()
        for node in built.nodes:
            held = _held(node)
            if held is not None and node.derived:
                warnings.warn(
                    f"{held} {node.kind} {node.name!r} is stored under a name that depends on its position; "
                    f"give it a name of its own ({node.where})",
                    DerivedNameWarning,
                    stacklevel=2,
                )
        return built

    def _add(self, node: Node) -> None:
        """Put ``node`` behind those that are there."""
        self._nodes.append(node)

    def _name(self, given: str | None, kind: str) -> tuple[str, bool]:
        """The given name, or one made of the kind and its number; and whether it was made."""
        self._derived[kind] += 1
        return (f"{kind}-{self._derived[kind]}", True) if given is None else (given, False)

    def _source_of(self, name: str) -> str:
        """The first source above a node."""
        while inputs := self._node(name).inputs:
            name = inputs[0]
        return name

    def _sources_of(self, name: str) -> list[str]:
        """All sources above a node, itself if it is one."""
        found, todo = dict[str, None](), [name]
        while todo:
            node = self._node(todo.pop())
            todo += node.inputs
            if not node.inputs:
                found[node.name] = None
        return sorted(found)

    def _key_by(self, name: str) -> KeyBy:
        """The ``key_by`` that a keyed stream begins with."""
        node = self._node(name)
        assert isinstance(node, KeyBy)
        return node

    def _combined(self, name: str) -> KeyBy:
        """The ``key_by`` of that name, whose work a partial fold will do for one of its readers."""
        self._replaced.add(name)
        return self._key_by(name)

    def _part(self, node: str, tags: Sequence[OutputTag[Any]]) -> str:
        """Give each side output of ``node`` a node of its own; returns the node that takes the main one."""
        if not tags:
            return node
        where = user_line()
        main, *others = _beside(node, tags)
        self._tags[main] = tuple(tags)
        for name, tag in zip((main, *others), (None, *tags), strict=True):
            tagged = None if tag is None else tag.name
            self._add(plan.SideOutput(name=name, where=where, inputs=(node,), tag=tagged))
        return main

    def _side_output(self, main: str, tag: OutputTag[Any]) -> str:
        """The node that takes what goes to ``tag``, beside ``main``. PlanError with the user's line if none does."""
        declared = self._tags.get(main, ())
        if tag not in declared:
            known = f"it declares {', '.join(map(str, declared))}" if declared else "no side outputs are declared there"
            raise mistake(
                f"{tag} is no side output of {main!r}; {known}. Take it right behind .process(...) of a function that "
                "names it in side_outputs."
            )
        return f"{self._node(main).inputs[0]}-{tag.name}"

    def _node(self, name: str) -> Node:
        return next(node for node in self._nodes if node.name == name)

    def _codec(self, node: str) -> ListCodec[Any]:
        """For values that stay in their worker: most are never written, so it is no mistake not to say how."""
        try:
            return wire_codec(self._types[node])
        except PlanError:
            return wire_codec(Any)  # refuses the first value that is written and would come back as another one


def _held(node: Node) -> str | None:
    """What a checkpoint has of an operator under its name, for people; None if it has nothing."""
    if isinstance(node, plan.AsyncMap):
        return "what waits in"
    return "state of" if node.stateful else None


def _beside(node: str, tags: Sequence[OutputTag[Any]]) -> list[str]:
    """Names of the nodes that part the outputs of ``node``, the main one first. PlanError if a tag is not usable."""
    names = [_MAIN]
    for tag in tags:
        if not isinstance(tag, OutputTag):
            raise mistake(f"side outputs of {node!r} are of OutputTag(name, type), not {tag!r}.")
        try:
            names.append(token(tag.name, "side output"))
        except ConfigError as error:
            raise mistake(str(error)) from None
    if len(set(names)) < len(names):
        raise mistake(
            f"two side outputs of {node!r} have one name, or one is named {_MAIN!r}, which is its output: "
            f"{', '.join(names[1:])}."
        )
    return [f"{node}-{name}" for name in names]
