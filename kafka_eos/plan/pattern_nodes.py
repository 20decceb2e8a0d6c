"""The node of ``match``: sequences of rows of a key.

Rule: the pattern, without its functions, is stored with the rows that wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from kafka_eos.abc.codec import Codec
from kafka_eos.core.json_values import Json
from kafka_eos.plan.nodes import Node
from kafka_eos.plan.pattern import Pattern


class PatternNode(Node, frozen=True, kw_only=True):
    """Matches a pattern in the rows of each key.

    ``timed_out``: the tag of sequences that timed out, whose values ``on_timeout`` computes. ``late``: the tag of late
    rows.
    """

    kind: ClassVar[str] = "pattern"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    pattern: Pattern[Any]
    fn: Callable[[Any, Any], Any]
    key_codec: Codec[Any]
    value_codec: Codec[Any]
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
    def waits_for_event_time(self) -> bool:
        return True
