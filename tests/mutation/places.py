"""The places of a source where a mistake can be made, and the mutant that has one mistake in one place.

Rule: a mutant is named by its function and by what it makes of what, never by a line, so that a name outlives changes
elsewhere. What is no decision (messages, docstrings, annotations, decorators, imports) is left alone.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass

Node = ast.AST | list[ast.stmt]
"""What is replaced: a node, or the statements of a block."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node, and where it hangs."""

    function: str
    parent: ast.AST
    field: str
    at: int | None
    node: Node

    def with_(self, tree: ast.Module, change: Node) -> ast.Module:
        """A copy of the whole tree with ``change`` in this place."""
        self._put(change)
        try:
            return ast.fix_missing_locations(deepcopy(tree))
        finally:
            self._put(self.node)

    @property
    def line(self) -> int:
        first = self.node[0] if isinstance(self.node, list) else self.node
        return next((each.lineno for each in ast.walk(first) if isinstance(each, ast.expr | ast.stmt)), 0)

    def _put(self, node: Node) -> None:
        if self.at is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.at] = node


@dataclass(frozen=True, slots=True)
class Change:
    """What a mistake puts in a place; ``before`` and ``after`` name it."""

    place: Place
    node: Node
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one source."""

    name: str
    whole: ast.Module
    change: Change

    @property
    def function(self) -> str:
        return self.change.place.function

    @property
    def line(self) -> int:
        return self.change.place.line

    @property
    def tree(self) -> ast.Module:
        """The source with the change in it."""
        return self.change.place.with_(self.whole, self.change.node)


def mutants_by(changes: Callable[[ast.Module], Iterable[Change]], source: str) -> Iterator[Mutant]:
    """A mutant for each change, in the order of the changes."""
    tree, seen = ast.parse(source), Counter[str]()
    for change in changes(tree):
        name = f"{change.place.function}: {change.before} → {change.after}"
        seen[name] += 1
        number = f" ({seen[name]})" if seen[name] > 1 else ""
        yield Mutant(name + number, tree, change)


_SKIPPED = {"annotation", "returns", "decorator_list", "bases", "type_params", "ctx", "op", "ops", "pattern"}


def no_decision(node: ast.AST) -> bool:
    """Is it a text, a type, an import, what cannot happen, or the message of an exception?"""
    match node:
        case ast.Expr(ast.Constant(str())) | ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.Assert():
            return True
        case ast.If(ast.Name("TYPE_CHECKING")) | ast.Expr(ast.Call(ast.Name("assert_never"))):
            return True
    return False


def places(
    parent: ast.AST, function: str = "module", left_alone: Callable[[ast.AST], bool] = no_decision
) -> Iterator[Place]:
    """All places of a tree, in the order of its lines, but those in a node that is ``left_alone``."""
    for field, value in ast.iter_fields(parent):
        if field in _SKIPPED:
            continue
        for at, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST) and not left_alone(node):
                yield Place(function, parent, field, at, node)
                yield from places(node, qualified(function, node), left_alone)


def qualified(function: str, node: ast.AST) -> str:
    """The function that the children of a node are in."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return function
    return node.name if function == "module" else f"{function}.{node.name}"


def text_of(node: ast.AST) -> str:
    """One line of a node, as it is written."""
    match node:
        case ast.match_case():
            guard = f" if {ast.unparse(node.guard)}" if node.guard else ""
            return f"case {ast.unparse(node.pattern)}{guard}"
        case ast.comprehension():
            return f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}" + "".join(
                f" if {ast.unparse(test)}" for test in node.ifs
            )
        case ast.If() | ast.While():
            return f"{type(node).__name__.lower()} {ast.unparse(node.test)}"
        case ast.Match():
            return "; ".join(text_of(case) for case in node.cases)
        case ast.For() | ast.With() | ast.Try():
            return ast.unparse(node).partition("\n")[0].rstrip(":")
    return ast.unparse(node)
