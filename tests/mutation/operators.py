"""Small mistakes in a source: what a tired programmer writes, and a test should notice.

Pure: text in, mutants out, always in the same order. Rule: a mutant is named by its function and by what it makes of
what, never by a line, so that a name outlives changes elsewhere. What is no decision (messages, docstrings,
annotations, decorators, imports) is left alone.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")
_ORDER: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_OPPOSITE = {"min": "max", "max": "min", "any": "all", "all": "any"}
_REPLACE = "replace"
"""``dataclasses.replace``: to leave one of its fields out is to forget one."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one source."""

    name: str
    whole: ast.Module
    place: Place
    change: ast.AST

    @property
    def line(self) -> int:
        return getattr(self.place.node, "lineno", 0)

    @property
    def tree(self) -> ast.Module:
        """The source with the change in it."""
        return self.place.with_(self.whole, self.change)


def mutants(source: str) -> Iterator[Mutant]:
    """All mutants of a source, in the order of its lines."""
    tree, seen = ast.parse(source), Counter[str]()
    for place in _places(tree, "module"):
        for change in _changes(place.node):
            name = f"{place.function}: {_text(place.node)} → {_text(change)}"
            seen[name] += 1
            number = f" ({seen[name]})" if seen[name] > 1 else ""
            yield Mutant(name + number, tree, place, change)


# ---------------------------------------------------------------- where


@dataclass(frozen=True, slots=True)
class Place:
    """A node, and where it hangs."""

    function: str
    parent: ast.AST
    field: str
    at: int | None
    node: ast.AST

    def with_(self, tree: ast.Module, change: ast.AST) -> ast.Module:
        """A copy of the whole tree with ``change`` in this place."""
        self._put(change)
        try:
            return ast.fix_missing_locations(deepcopy(tree))
        finally:
            self._put(self.node)

    def _put(self, node: ast.AST) -> None:
        if self.at is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.at] = node


_SKIPPED = {"annotation", "returns", "decorator_list", "bases", "type_params", "ctx", "op", "ops", "pattern"}


def _places(parent: ast.AST, function: str) -> Iterator[Place]:
    for field, value in ast.iter_fields(parent):
        if field in _SKIPPED:
            continue
        for at, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(node, ast.AST) and not _is_no_decision(node):
                inside = _qualified(function, node)
                yield Place(function, parent, field, at, node)
                yield from _places(node, inside)


def _is_no_decision(node: ast.AST) -> bool:
    """Texts, types, imports, what cannot happen, and the message of an exception."""
    match node:
        case ast.Expr(ast.Constant(str())) | ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.Assert():
            return True
        case ast.If(ast.Name("TYPE_CHECKING")) | ast.Expr(ast.Call(ast.Name("assert_never"))):
            return True
    return False


def _qualified(function: str, node: ast.AST) -> str:
    if not isinstance(node, ast.FunctionDef | ast.ClassDef):
        return function
    return node.name if function == "module" else f"{function}.{node.name}"


def _text(node: ast.AST) -> str:
    """One line of it, as it is written."""
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
            return "; ".join(_text(case) for case in node.cases)
    return ast.unparse(node)


# ---------------------------------------------------------------- what


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of a node."""
    match node:
        case ast.expr():
            yield from _expressions(node)
        case ast.stmt():
            yield from _statements(node)
        case ast.match_case(pattern, guard, body) if guard is not None:
            yield ast.match_case(pattern, None, body)
        case ast.comprehension(target, iter_, ifs, is_async):
            for at in range(len(ifs)):
                yield ast.comprehension(target, iter_, _without(ifs, at), is_async)


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left, [operator], comparators):
            yield from (ast.Compare(left, [other()], comparators) for other in _ORDER[type(operator)])
        case ast.Compare(left, [first, second], [middle, right]):
            yield from (ast.Compare(left, [other(), second], [middle, right]) for other in _ORDER[type(first)])
            yield from (ast.Compare(left, [first, other()], [middle, right]) for other in _ORDER[type(second)])
        case ast.BoolOp(operator, values):
            for at in range(len(values)):
                left = _without(values, at)
                yield left[0] if len(left) == 1 else ast.BoolOp(operator, left)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.BinOp(left, operator, right) if type(operator) in _ARITHMETIC:
            yield ast.BinOp(left, _ARITHMETIC[type(operator)](), right)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.IfExp(_, body, orelse):
            yield from (body, orelse)
        case ast.Call(ast.Name(name), args, keywords) if name in _OPPOSITE:
            yield ast.Call(ast.Name(_OPPOSITE[name], ast.Load()), args, keywords)
        case ast.Call(ast.Name(name), args, keywords) if name == _REPLACE:
            yield from (ast.Call(ast.Name(name, ast.Load()), args, _without(keywords, n)) for n in range(len(keywords)))


def _statements(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.If(_, body, orelse):
            yield from (ast.If(ast.Constant(value), body, orelse) for value in (True, False))
        case ast.While(ast.Constant()):
            return
        case ast.While(_, body, orelse):
            yield ast.While(ast.Constant(False), body, orelse)
        case ast.Match(subject, cases) if len(cases) > 1:
            yield from (ast.Match(subject, _without(cases, at)) for at in range(len(cases)))
        case ast.Raise() | ast.AugAssign() | ast.Expr(ast.Call()) | ast.Continue() | ast.Break():
            yield ast.Pass()
        case ast.Return(value) if value is not None and not isinstance(value, ast.Constant | ast.Name):
            yield ast.Return(ast.Constant(None))


def _without(items: list[_T], at: int) -> list[_T]:
    return [*items[:at], *items[at + 1 :]]
