"""What a mutant calls in place of a loop's iterable, or of ``next``; all of it is among the globals of a mutant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

_NOTHING = object()


def all_but_first(items: Iterable[Any]) -> Iterator[Any]:
    """Without the first round."""
    rounds = iter(items)
    next(rounds, None)
    yield from rounds


def all_but_last(items: Iterable[Any]) -> Iterator[Any]:
    """Without the last round. It is one item behind, so that it reads no more of an endless source than it yields."""
    before: Any = _NOTHING
    for item in items:
        if before is not _NOTHING:
            yield before
        before = item


def last_of(items: Iterable[Any], default: Any = _NOTHING) -> Any:
    """The last item where ``next`` returns the first."""
    last = default
    for last in items:  # noqa: B007 - what is left of it counts
        pass
    if last is _NOTHING:
        raise StopIteration
    return last


MADE_KNOWN = {function.__name__: function for function in (all_but_first, all_but_last, last_of)}
