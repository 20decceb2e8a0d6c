"""The delivery guarantees of sources and sinks.

Rule: if the external system cannot provide the guarantee, the start is refused.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from kafka_eos.abc.context import JobContext


class Guarantee(enum.Enum):
    """The delivery guarantee of a source or sink; a path has the weakest guarantee of its ends."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


@runtime_checkable
class SupportsGuaranteeReason(Protocol):
    """A sink that is at-least-once by nature and explains why."""

    @property
    def guarantee_reason(self) -> str: ...


@runtime_checkable
class SupportsTradeOffs(Protocol):
    """A sink that states the trade-offs of its guarantee, for explain."""

    def trade_offs(self) -> Sequence[str]:
        """Return plain sentences on what the guarantee costs."""


@runtime_checkable
class SupportsAdvice(Protocol):
    """A sink that says what to check when its system does not answer at start."""

    def advice(self, ctx: JobContext) -> str:
        """Return one sentence without a full stop: what to check, and where the address and the login are
        configured."""


@runtime_checkable
class ExclusiveSink(Protocol):
    """A sink that owns a resource no other sink of the pipeline may use."""

    @property
    def exclusive_resource(self) -> str:
        """Return the resource that only this sink may use; two sinks with the same one are refused."""


@runtime_checkable
class SingleScopeSink(Protocol):
    """A sink whose target may have several names and must have one scope per job."""

    def get_target_identity(self) -> str:
        """Return an identity of the target that does not depend on the name used for it.

        Two sinks of a job with the same identity and different scopes are refused. Raises Retryable, ConfigError.
        """
