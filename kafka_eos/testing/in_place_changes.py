"""Detection of functions that change the values that they are given, for ``run_local``.

Such a value may also be the stored row of a table, an accumulator, or the input of a retry. So the result would depend
on the size of batches and on what else reads the value.

Rule: the only value that a function may change is the accumulator of ``step`` or ``merge``, as long as no output shares
it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Final

from msgspec import structs

from kafka_eos.codecs.returned_values import unchanged
from kafka_eos.core.errors import PlanError
from kafka_eos.plan import FoldNode, MapBatchesNode, Node, Plan
from kafka_eos.plan.function_checks import asynchronous, describe_function
from kafka_eos.plan.function_wrapping import wrap_functions
from kafka_eos.runtime.operators.branch_copies import are_immutable

_FIRST_CHECKED: Final = {"step": 1, "merge": 1, "add": 1}
"""By the role of a function: the index of the first argument that it must not change; 0 for other roles."""
_MAX_SHOWN: Final = 200


def detect_in_place_changes(plan: Plan) -> Plan:
    """Return the plan with functions that raise PlanError when they change a value that they are given."""
    return replace(plan, nodes=tuple(map(_checked, plan.nodes)))


def _checked(node: Node) -> Node:
    checked = wrap_functions(node, lambda fn, role: _guard(fn, node, _FIRST_CHECKED.get(role, 0)))
    if isinstance(node, FoldNode) and isinstance(checked, FoldNode) and node.merge is None:
        emitted = _EmittedAccumulators(node)
        emit = checked.emit or (lambda key, accumulator: (key, accumulator))
        return structs.replace(checked, step=emitted.watch_step(checked.step), emit=emitted.watch_emit(emit))
    return checked


def _guard(fn: Callable[..., Any], node: Node, first: int) -> Callable[..., Any]:
    """Return a function like ``fn`` that compares arguments before and after each call, from number ``first`` on."""

    def watched(args: tuple[Any, ...]) -> list[_WatchedValue]:
        values = args[0] if isinstance(node, MapBatchesNode) else args[first:]
        return [_WatchedValue(value) for value in values if not are_immutable([value])]

    def compare(given: list[_WatchedValue]) -> None:
        for each in given:
            if each.is_changed():
                raise PlanError(
                    f"{describe_function(fn)}, a function of operator {node.name!r}, changed a value that it was "
                    f"given: {_shown(each.before)} became {_shown(each.value)}. Stored state, a retry or another "
                    "output may use the same value. Return a new value: change a copy (copy.deepcopy, "
                    f"dataclasses.replace, model_copy), and declare the class frozen\n  {node.code_line}"
                )

    @wraps(fn)
    def guarded(*args: Any) -> Any:
        given = watched(args)
        made = fn(*args)
        if inspect.isgenerator(made):
            return drained(made, given)
        compare(given)
        return made

    def drained(made: Iterator[Any], given: list[_WatchedValue]) -> Iterator[Any]:
        yield from made
        compare(given)

    @wraps(fn)
    async def guarded_request(*args: Any) -> Any:
        given = watched(args)
        made = await fn(*args)
        compare(given)
        return made

    return guarded_request if asynchronous(fn) else guarded


class _WatchedValue:
    """A value and its copy from before a call."""

    def __init__(self, value: Any) -> None:
        self.value = value
        try:
            self.before = copy.deepcopy(value)
        except Exception:  # noqa: BLE001 (a lock, a generator, or what the user's class raises)
            self.before = value

    def is_changed(self) -> bool:
        """Return whether the value is another one than before; False for classes that do not compare their contents."""
        return not _same(self.before, self.value) and _same(self.before, copy.deepcopy(self.before))


def _same(a: Any, b: Any) -> bool:
    try:
        return unchanged(a, b)
    except Exception:  # noqa: BLE001 (the user's class compares; an array, for example, returns an array)
        return False


@dataclass
class _EmittedAccumulators:
    """The last output of each accumulator of a fold, which a later step must not change."""

    node: FoldNode
    _by_id: dict[int, tuple[Any, _WatchedValue]] = field(default_factory=dict)
    """Contains the accumulator too, so that no other object gets its id."""

    def watch_step(self, step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        @wraps(step)
        def watched(accumulator: Any, value: Any) -> Any:
            made = step(accumulator, value)
            _, output = self._by_id.pop(id(accumulator), (None, None))
            if output is not None and output.is_changed():
                raise PlanError(
                    f"{describe_function(step)}, the step of operator {self.node.name!r}, changed an accumulator that "
                    f"was already part of an output: {_shown(output.before)} became {_shown(output.value)}. Outputs "
                    "that are not written yet would change. Return a new accumulator, or build each output from a "
                    f"copy in emit\n  {self.node.code_line}"
                )
            return made

        return watched

    def watch_emit(self, emit: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        @wraps(emit)
        def watched(key: Any, accumulator: Any) -> Any:
            made = emit(key, accumulator)
            if not are_immutable([made]):
                self._by_id[id(accumulator)] = accumulator, _WatchedValue(made)
            return made

        return watched


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
