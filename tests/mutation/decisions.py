"""Small mistakes in a decision: a bound, a condition, a case, a field, an exception that is not raised.

Pure: text in, mutants out, always in the same order.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeVar

from tests.mutation.places import Change, Mutant, mutants_by, places, text_of

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
"""Of ``dataclasses`` and ``msgspec.structs``: to leave one of its fields out is to forget one."""


def decision_mutants(source: str) -> Iterator[Mutant]:
    """All of a source, in the order of its lines."""
    return mutants_by(_all, source)


def _all(tree: ast.Module) -> Iterator[Change]:
    for place in places(tree):
        assert isinstance(place.node, ast.AST)
        for change in _changes(place.node):
            yield Change(place, change, text_of(place.node), text_of(change))


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
        case ast.Call((ast.Name(name) | ast.Attribute(ast.Name("structs"), name)) as called, args, keywords) if (
            name == _REPLACE
        ):
            yield from (ast.Call(called, args, _without(keywords, n)) for n in range(len(keywords)))


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
