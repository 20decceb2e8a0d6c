"""Statistics of the operators of a chain: rows in and out, time of their own code, and the user's counters.

Rule: built-in counters are updated per batch, never per row. Only an operator's own time counts: its clock stops while
its output is processed downstream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any, Final

from msgspec import Struct, field

from kafka_eos._util import log_context
from kafka_eos.core.error_messages import UnfitValue, show_value
from kafka_eos.core.records import Batch

_MOST_COUNTED: Final = 2**63 - 1
"""Where a counter stops: a number in a record may be larger than any that a message can have."""


class UserCounter(Struct):
    """A counter of the user's function; implements functions.Counter."""

    count: int = 0

    def inc(self, n: int = 1) -> None:
        if type(n) is not int or n < 0:
            raise UnfitValue(
                f"a counter can only grow by a whole number that is not negative (got inc({show_value(n)}))"
            )
        self.count = min(self.count + n, _MOST_COUNTED)


class OperatorCounters(Struct):
    """Counters of one operator in one subtask since its chain was opened. ``busy`` in seconds."""

    operator: str
    busy: float = 0.0
    rows_in: int = 0
    """Rows that came in; at an exchange, in the sending subtask."""
    rows_out: int = 0
    """Rows that were emitted, each once; at an exchange, in the receiving subtask."""
    counters: dict[str, UserCounter] = field(default_factory=dict)
    """The counters of the user's function, by name."""

    def counter(self, name: str) -> UserCounter:
        """Return the counter of that name; it is created at the first call."""
        return self.counters.setdefault(name, UserCounter())

    @property
    def counted(self) -> dict[str, int]:
        """Return the values of the counters by name."""
        return {name: counter.count for name, counter in self.counters.items()}

    def timed(self, made: Callable[[], Iterable[Batch[Any]]]) -> Iterator[Batch[Any]]:
        """Yield batches and add the time that producing them takes."""
        batches: Iterator[Batch[Any]] | None = None
        while True:
            began = perf_counter()
            log_context.enter_operator(self.operator)
            batches = iter(made()) if batches is None else batches
            batch = next(batches, None)
            log_context.leave_operator()
            self.busy += perf_counter() - began
            if batch is None:
                return
            yield batch
