"""The node of ``match``: sequences of rows of a key.

Rule: all of the pattern but its functions is stored beside the rows that wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from kafka_eos.abc.codec import Codec
from kafka_eos.core.json_values import Json
from kafka_eos.plan.nodes import Node
from kafka_eos.plan.pattern import Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Patterns(Node):
    """``values``: the codec of stored rows. ``timed_out``: the tag of sequences whose time was up, of which
    ``on_timeout`` makes the values. ``late``: of rows that came when event time had passed them.
    """

    kind: ClassVar[str] = "pattern"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    pattern: Pattern[Any]
    fn: Callable[[Any, Any], Any]
    key_codec: Codec[Any]
    values: Codec[Any]
    on_timeout: Callable[[Any, Any], Any] | None = None
    timed_out: str | None = None
    late: str | None = None

    @property
    def definition(self) -> Json:
        return self.pattern.definition

    @property
    def time_rules(self) -> Json:
        return self.definition

    @property
    def sets_timers(self) -> bool:
        return True

    @property
    def waits(self) -> bool:
        return True
