"""Mistakes that lose, double or misplace rows: a step that is left out or done too early, a part taken for the whole.

    left out         a statement that does something; a ``raise``, ``continue`` or ``return`` that ends something early
    out of order     two neighbouring statements, of which one has an effect
    newest, oldest   ``min`` and ``max``, ``[0]`` and ``[-1]``, ``popleft`` and ``pop``, the order of ``sorted``
    all, one         ``any`` and ``all``, a filter, an operand, a slice, a set that another one is taken from
    own, any         ``==`` between names of jobs, terms, epochs …, and ``startswith``: true of every one
    a bound          ``<=`` for ``<``, and the like
    a field          an argument of ``replace`` or of what has a default for it, an entry of a dict
    a round          the first or the last of a loop, the last of a comprehension

Pure: text in, mutants out, always in the same order. Rule: only what is done in a function is changed, and nothing that
would fail wherever it runs: a first assignment to a name stays. Texts, failpoints, times and what only tells (logs,
notices, events, lines of the history) are left alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import chain
from typing import TypeVar

from tests.mutation.places import Change, Mutant, Place, mutants_by, no_decision, places, text_of
from tests.mutation.signatures import Optional

_T = TypeVar("_T")
_BOUNDS: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_OPPOSITE = {
    "min": "max", "max": "min", "any": "all", "all": "any",
    "bisect_left": "bisect_right", "bisect_right": "bisect_left",
}  # fmt: skip
_OTHER_END = {
    "popleft": "pop", "appendleft": "append", "rpartition": "partition", "partition": "rpartition",
    "rsplit": "split", "rfind": "find", "rindex": "index",
}  # fmt: skip
_ALL_BUT_LAST = "all_but_last"
_PREFIXES = ("startswith", "endswith")
_ENDLESS = ("count", "cycle", "repeat", "iter")
_WHOSE = re.compile(
    r"(job|identity|id|term|epoch|owner|live|life|incarnation|attempt|scope|operator|node|topic|partition|subtask|batch"
    r"|query|app|table|group|generation|uid|key|run|segment|source|sink|number|name|at|n)s?$"
)
_TIMES = re.compile(
    r"timeout|deadline|monotonic|perf_counter|patience|second|backoff|sleep|pause|nap|retry_in|interval", re.IGNORECASE
)
_MEASURED = re.compile(r"(monotonic|perf_counter)\(\)")
"""What is summed up of these is shown."""
_LOGS = re.compile(r"_?log(ger)?$|warnings$|(^|[._])history$|(^|[._])observers$|(^|\.)spans$", re.IGNORECASE)
_NOT_MISSED = ("hit", "assert_never", "sleep", "notice", "_notice")
_OBSERVE = ("observe", "_observe")
_COUNTED = ("running", "decided", "committed")
"""Events by which the job master counts failures; the others are only told."""
_TEXTS = ("__repr__", "__str__")
_SHOWS = "describe"
"""Where it returns a mapping, it is what ``explain`` shows of a source, a sink or a format."""
_CHECKS = re.compile(r"_?(ensure|expect|refuse|check)(_|$)")
_NOTIFIES = ("notify", "notify_all")
_OF_COLLECTIONS = {
    **dict.fromkeys(("append", "add", "update", "extend", "discard", "remove"), (1,)),
    "clear": (0,),
    "popleft": (0,),
    "pop": (0, 1, 2),
    "setdefault": (1, 2),
}
"""Methods that change a collection, with the number of their arguments."""
_BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try)
_ENDS = ast.Return | ast.Raise | ast.Continue | ast.Break
_UNMOVED = (
    *(ast.Return, ast.Raise, ast.Continue, ast.Break, ast.Pass, ast.Global, ast.Nonlocal),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assert),
)


def loss_mutants(source: str, optional: Optional) -> Iterator[Mutant]:
    """All of a source. ``optional``: what may be left out of a call."""
    return mutants_by(
        lambda tree: chain.from_iterable(_of_function(*each, optional) for each in _functions(tree)), source
    )


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions of modules and classes, with their names. Those inside another function are part of it."""
    outer: set[ast.AST] = set()
    for place in places(tree):
        node = place.node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node not in outer:
            outer.update(ast.walk(node))
            if not _left_alone(node):
                yield (node.name if place.function == "module" else f"{place.function}.{node.name}"), node


def _of_function(name: str, function: ast.FunctionDef | ast.AsyncFunctionDef, optional: Optional) -> Iterator[Change]:
    assigned_again, counted = _assigned_again(function), {id(each) for each in _breaks_of_while(function)}
    setting_up = function.name in ("__init__", "__post_init__")
    for place in places(function, name, _left_alone):
        match place.node:
            case ast.stmt() as node:
                if id(node) not in counted and _can_be_left_out(node, assigned_again, setting_up):
                    yield Change(place, ast.Pass(), text_of(node), "pass")
                if not setting_up:
                    yield from _swapped(place)
                if isinstance(node, ast.For) and not isinstance(node.body[0], ast.Pass):
                    yield from _rounds(place, node)
            case ast.comprehension() as node:
                yield from _part(place, node)
            case ast.expr() as node if not _TIMES.search(ast.unparse(node)):
                for other in chain(_ends(node), _alls(node), _bounds(node), _fields(node, optional)):
                    yield Change(place, other, text_of(node), text_of(other))


def _left_alone(node: ast.AST) -> bool:
    """Is it a text, a failpoint, a default of an argument, what an exception says, a statement that only tells, or what
    cannot happen?
    """
    if no_decision(node) or isinstance(node, ast.arguments):
        return True
    match node:
        case ast.Raise(ast.Call(ast.Name("Bug"))) | ast.If(body=[ast.Raise(ast.Call(ast.Name("Bug")))], orelse=[]):
            return True  # as an assert
        case ast.Raise():
            return False
        case ast.FunctionDef(name=name, returns=returns):
            return name in _TEXTS or (name == _SHOWS and returns is not None and "Mapping" in ast.unparse(returns))
        case ast.AugAssign(value=value):
            return bool(_MEASURED.search(ast.unparse(value)))
        case ast.Expr(ast.Call(ast.Attribute(value=value))) if _LOGS.search(ast.unparse(value)):
            return True
        case ast.Expr(ast.Call(ast.Name(name) | ast.Attribute(attr=name), [ast.Constant(event), *_])) if (
            name in _OBSERVE
        ):
            return event not in _COUNTED
        case ast.Expr(ast.Call(ast.Name(name) | ast.Attribute(attr=name))):
            return name in _NOT_MISSED
        case ast.Call(ast.Name(name)):
            return name.endswith(("Error", "Bug", "Fenced", "Lost", "Retryable"))
    return False


# ---------------------------------------------------------------- statements


def _can_be_left_out(node: ast.stmt, assigned_again: set[int], setting_up: bool) -> bool:
    match node:
        case ast.Expr(ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom()) | ast.Delete() | ast.AugAssign():
            return True
        case ast.Assign() | ast.AnnAssign(value=ast.expr()):
            return not setting_up and (_is_stored(node) or id(node) in assigned_again)
        case ast.Raise(exc=exc):
            return exc is None or "NotImplemented" not in ast.unparse(exc)
        case ast.Return(value=None) | ast.Continue() | ast.Break():
            return True
    return False


def _is_stored(node: ast.stmt) -> bool:
    """Is something assigned to what lasts longer than the function?"""
    match node:
        case ast.Assign(targets=targets):
            return all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return isinstance(target, ast.Attribute | ast.Subscript)
    return False


def _assigned_again(function: ast.AST) -> set[int]:
    """The assignments to names that have had a value before, in the order of the lines."""
    before = {argument.arg for argument in ast.walk(function) if isinstance(argument, ast.arg)}
    again: set[int] = set()
    for node in sorted((n for n in ast.walk(function) if isinstance(n, ast.stmt)), key=lambda n: n.lineno):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.For | ast.With):
            names = _bound(node) if not isinstance(node, ast.For | ast.With) else _bound_in_head(node)
            if names <= before:
                again.add(id(node))
            before |= names
    return again


def _breaks_of_while(function: ast.AST) -> Iterator[ast.AST]:
    """The ends of loops that have no other: without one, a mutant only takes time."""
    for loop in ast.walk(function):
        if isinstance(loop, ast.While):
            yield from (node for node in ast.walk(loop) if isinstance(node, _ENDS))


def _swapped(place: Place) -> Iterator[Change]:
    """A statement and the next one in the other order, if one may notice what the other does."""
    block = getattr(place.parent, place.field)
    if place.at is None or place.at + 1 >= len(block):
        return
    first, second = block[place.at : place.at + 2]
    if any(isinstance(each, _UNMOVED) or _left_alone(each) for each in (first, second)):
        return
    if _bound(first) & _used(second) or _bound(second) & _used(first) or not _depend(first, second):
        return
    other = [*block[: place.at], second, first, *block[place.at + 2 :]]
    before, after = text_of(first), text_of(second)
    both = Place(place.function, place.parent, place.field, None, block)
    yield Change(both, other, f"{before}; {after}", f"{after}; {before}")


def _depend(first: ast.stmt, second: ast.stmt) -> bool:
    """May it matter which one is first? It does not where the two have nothing in common."""
    if isinstance(first, _BLOCKS) and isinstance(second, _BLOCKS):
        return False
    if _configured(first) is not None and _configured(first) == _configured(second):
        return False
    if (_only_checks(first) and _only_checks(second)) or _only_notifies(first) or _only_notifies(second):
        return False
    effects = [_has_effect(each) for each in (first, second)]
    if all(effects):
        changed = _changed(first), _changed(second)
        return None in changed or changed[0] == changed[1]
    if not any(effects):
        return False
    effect, other = (first, second) if effects[0] else (second, first)
    if isinstance(other, _BLOCKS):
        return True
    if _attributes(effect) & _attributes(other):
        return True
    return _is_stored(other) and _is_own_method(effect) and not _only_collects(effect, other)


def _configured(node: ast.stmt) -> str | None:
    """The object of which a statement sets one option: in which order options are set does not matter."""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(value), name))) if name.startswith("set_"):
            return value
    return None


def _only_checks(node: ast.stmt) -> bool:
    """Does a statement only raise if something is wrong? Of two such statements, either may be the first to do so."""
    match node:
        case ast.Expr(ast.Call(ast.Name(name) | ast.Attribute(attr=name))):
            return _CHECKS.match(name) is not None
        case ast.If(body=[ast.Raise()], orelse=[]):
            return True
    return False


def _only_notifies(node: ast.stmt) -> bool:
    """Does a statement only wake who waits for a lock? They go on when it is released, which is after its neighbors."""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(attr=name))):
            return name in _NOTIFIES
    return False


def _changed(node: ast.stmt) -> str | None:
    """The collection that is all that a statement changes."""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(value, name))) if name in _OF_COLLECTIONS:
            return ast.unparse(value)
    return None


def _only_collects(node: ast.stmt, other: ast.stmt) -> bool:
    """Does a statement only change a collection that the other one does not look at, neither itself nor by a method?"""
    match node:
        case ast.Expr(ast.Call(ast.Attribute(value, name), args, [])) if len(args) in _OF_COLLECTIONS.get(name, ()):
            seen = {ast.unparse(each) for each in ast.walk(other) if isinstance(each, ast.Name | ast.Attribute)}
            return ast.unparse(value) not in seen and not any(map(_is_own_method, (other, *args)))
    return False


def _has_effect(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(ast.Call() | ast.Await() | ast.Yield() | ast.YieldFrom()) | ast.Delete():
            return True
        case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try():
            return any(isinstance(each, ast.stmt) and each is not node and _has_effect(each) for each in ast.walk(node))
    return False


def _is_own_method(node: ast.AST) -> bool:
    return any(isinstance(call, ast.Call) and ast.unparse(call.func).startswith("self.") for call in ast.walk(node))


def _bound(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)}


def _bound_in_head(node: ast.For | ast.With) -> set[str]:
    if isinstance(node, ast.For):
        return _bound(node.target)
    return set().union(*(_bound(item.optional_vars) for item in node.items if item.optional_vars is not None))


def _used(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _attributes(node: ast.AST) -> set[str]:
    return {ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Attribute)}


# ---------------------------------------------------------------- rounds


def _rounds(place: Place, loop: ast.For) -> Iterator[Change]:
    iterable = Place(place.function, loop, "iter", None, loop.iter)
    before = text_of(loop)
    for name in _parts(loop.iter):
        yield Change(iterable, _call(name, loop.iter), before, name.replace("_", " "))


def _part(place: Place, node: ast.comprehension) -> Iterator[Change]:
    for at in range(len(node.ifs)):
        other = ast.comprehension(node.target, node.iter, _without(node.ifs, at), node.is_async)
        yield Change(place, other, text_of(node), text_of(other))
    if _ALL_BUT_LAST in _parts(node.iter) and not node.is_async:
        other = ast.comprehension(node.target, _call(_ALL_BUT_LAST, node.iter), node.ifs, 0)
        yield Change(place, other, text_of(node), _ALL_BUT_LAST.replace("_", " "))


def _parts(iterable: ast.expr) -> tuple[str, ...]:
    if isinstance(iterable, ast.Call) and ast.unparse(iterable.func).rpartition(".")[2] in _ENDLESS:
        return ()
    return "all_but_first", _ALL_BUT_LAST


# ---------------------------------------------------------------- expressions


def _ends(node: ast.expr) -> Iterator[ast.expr]:
    """The newest for the oldest, the last for the first."""
    match node:
        case ast.Call(ast.Name("sorted") | ast.Attribute(attr="sort"), args, keywords):
            others = [keyword for keyword in keywords if keyword.arg != "reverse"]
            reverse = [ast.keyword("reverse", ast.Constant(True))] if len(others) == len(keywords) else []
            yield ast.Call(node.func, args, [*others, *reverse])
        case ast.Call(ast.Name("reversed"), [items]):
            yield _call("iter", _call("list", items))
        case ast.Call(ast.Name("next"), [ast.GeneratorExp() | ast.Call(ast.Name("iter" | "reversed")), *_]):
            yield ast.Call(ast.Name("last_of", ast.Load()), node.args, [])
        case ast.Call(ast.Name(name), args, keywords) if name in _OPPOSITE:
            yield ast.Call(ast.Name(_OPPOSITE[name], ast.Load()), args, keywords)
        case ast.Call(ast.Attribute(value, name), args, keywords) if name in _OTHER_END and (args or "pop" in name):
            yield ast.Call(ast.Attribute(value, _OTHER_END[name], ast.Load()), args, keywords)
        case ast.Subscript(value, ast.Constant(0), ast.Load()):
            yield ast.Subscript(value, ast.UnaryOp(ast.USub(), ast.Constant(1)), ast.Load())
        case ast.Subscript(value, ast.UnaryOp(ast.USub(), ast.Constant(1)), ast.Load()):
            yield ast.Subscript(value, ast.Constant(0), ast.Load())


def _alls(node: ast.expr) -> Iterator[ast.expr]:
    """All for some, any for the own, one for all."""
    match node:
        case ast.Subscript(value, ast.Slice(lower, upper), ast.Load()) if lower is not None or upper is not None:
            yield value
        case ast.BoolOp(operator, values):
            for at in range(len(values)):
                left = _without(values, at)
                yield left[0] if len(left) == 1 else ast.BoolOp(operator, left)
        case ast.BinOp(left, ast.Sub() | ast.BitAnd(), _):
            yield left
        case ast.BinOp(left, ast.BitOr(), right):
            yield from (left, right)
        case ast.BinOp(left, ast.Add(), ast.Constant(int())):
            yield left
        case ast.Call(ast.Attribute(attr=name)) if name in _PREFIXES:
            yield ast.Constant(True)
        case ast.Compare(left, [ast.Eq() | ast.NotEq() as operator], [right]) if _whose(left) or _whose(right):
            yield ast.Constant(isinstance(operator, ast.Eq))


def _bounds(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare):
        for at, operator in enumerate(node.ops):
            if type(operator) in _BOUNDS:
                ops = [*node.ops[:at], _BOUNDS[type(operator)](), *node.ops[at + 1 :]]
                yield ast.Compare(node.left, ops, node.comparators)


def _fields(node: ast.expr, optional: Optional) -> Iterator[ast.expr]:
    match node:
        case ast.Call(ast.Name(name) | ast.Attribute(attr=name), args, keywords):
            for at, keyword in enumerate(keywords):
                if keyword.arg is not None and _may_be_left_out(name, keyword, optional):
                    yield ast.Call(node.func, args, _without(keywords, at))
        case ast.Dict(keys, values) if len(keys) > 1 and all(isinstance(key, ast.Constant) for key in keys):
            yield from (ast.Dict(_without(keys, at), _without(values, at)) for at in range(len(keys)))


def _may_be_left_out(name: str, keyword: ast.keyword, optional: Optional) -> bool:
    assert keyword.arg is not None
    if name == "replace":
        return True
    defaults = optional.get(name, {}).get(keyword.arg, frozenset())
    return bool(defaults) and ast.unparse(keyword.value) not in defaults


def _whose(node: ast.expr) -> bool:
    """Does it tell whose a thing is?"""
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return bool(_WHOSE.search(name.lower()))
    return False


def _call(name: str, argument: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [argument], [])


def _without(items: list[_T], at: int) -> list[_T]:
    return [*items[:at], *items[at + 1 :]]
