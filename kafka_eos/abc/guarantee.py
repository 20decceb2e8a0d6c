"""What a source or a sink promises.

Rule: a promise that the outside system cannot keep is refused at the start.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from kafka_eos.abc.context import JobContext


class Guarantee(enum.Enum):
    """What a source or sink can promise; a path has the weakest of its ends."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@runtime_checkable
class SaysWhy(Protocol):
    """A sink that is at-least-once by its nature, and says what that means; others were asked for it by name."""

    @property
    def because(self) -> str: ...


@runtime_checkable
class Priced(Protocol):
    """A sink that says what its promise costs, for whoever chooses it."""

    def price(self) -> Sequence[str]:
        """Plain sentences for ``explain``, each about one thing: when rows are visible, what is locked, what stays."""


@runtime_checkable
class Advises(Protocol):
    """A sink that says what to look at if its system does not answer at a start."""

    def advice(self, ctx: JobContext) -> str:
        """One sentence without its full stop: what to check, and where the address and the login are said."""


@runtime_checkable
class Unshared(Protocol):
    """A sink that keeps something which no other sink of its pipeline may have too."""

    @property
    def unshared(self) -> str:
        """What it is, and which: two sinks that say the same are refused."""


@runtime_checkable
class OneScope(Protocol):
    """A sink of something that may have several names, and keeps its promise only if a job has one scope for it."""

    def identity(self) -> str:
        """What it is whatever it is called; asked after ``check``. Raises Retryable, ConfigError.

        Two sinks of a job that say the same and have two scopes are refused.
        """
