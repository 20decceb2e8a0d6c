"""``assert_output``: the comparison of outputs with what a test expects.

Rule: exactly-once means each output once, so outputs are compared with their number. Their order counts per key only,
because no engine guarantees more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from kafka_eos.pytest_plugin.topics import TestTopic
from kafka_eos.testing.multisets import subtract

_SHOWN = 10


class AssertOutput(Protocol):
    """The type of the fixture ``assert_output``."""

    def __call__(
        self,
        actual: Iterable[Any] | TestTopic,
        expected: Sequence[Any],
        *,
        key: str | Callable[[Any], Any] | None = None,
        seconds: float = 30.0,
    ) -> None: ...


def assert_output(
    actual: Iterable[Any] | TestTopic,
    expected: Sequence[Any],
    *,
    key: str | Callable[[Any], Any] | None = None,
    seconds: float = 30.0,
) -> None:
    """Raise AssertionError that lists missing and unexpected outputs, or the first key with another order.

    ``actual``: the outputs of a sink, or a topic, which is read until it has as many records as expected, at most for
    ``seconds``. ``key``: a field or a function; outputs of the same key must be in the order of ``expected``.
    """
    __tracebackhide__ = True
    if isinstance(actual, TestTopic):
        found = actual.await_values(len(expected), type(expected[0]) if expected else bytes, seconds)
    else:
        found = list(actual)
    missing, unexpected = subtract(expected, found), subtract(found, expected)
    if missing or unexpected:
        again = [row for row in unexpected if row in expected]
        raise AssertionError(
            "\n".join(
                [
                    f"{len(found)} outputs, expected {len(expected)}",
                    *_list("missing", missing),
                    *_list("duplicated", again),
                    *_list("unexpected", subtract(unexpected, again)),
                ]
            )
        )
    if key is not None:
        _compare_order(found, list(expected), key)


def _list(what: str, rows: Sequence[Any]) -> list[str]:
    more = [f"    … and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
    return [f"  {what}:", *(f"    {row!r}" for row in rows[:_SHOWN]), *more] if rows else []


def _compare_order(found: list[Any], expected: list[Any], key: str | Callable[[Any], Any]) -> None:
    __tracebackhide__ = True

    def by_key(rows: list[Any], wanted: Any) -> list[Any]:
        return [row for row in rows if _key_of(row, key) == wanted]

    for row in expected:
        wanted = _key_of(row, key)
        if (one := by_key(found, wanted)) != (other := by_key(expected, wanted)):
            raise AssertionError(
                "\n".join(
                    [f"outputs of key {wanted!r} in another order", *_list("found", one), *_list("expected", other)]
                )
            )


def _key_of(row: Any, key: str | Callable[[Any], Any]) -> Any:
    if callable(key):
        return key(row)
    return row[key] if isinstance(row, dict) else getattr(row, key)
