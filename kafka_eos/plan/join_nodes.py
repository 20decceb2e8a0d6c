"""Nodes that join two streams, or a stream with a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from kafka_eos.abc.codec import Codec
from kafka_eos.core.json_values import Json
from kafka_eos.plan.nodes import Node
from kafka_eos.plan.window_assigners import JoinInterval, PanedAssigner, SessionWindows, describe_window


class JoinNode(Node, frozen=True, kw_only=True):
    """Base of joins of two streams in event time.

    Its input is a ``ConnectNode``; pairs of values hold one for each of its streams. ``value_codec``: codecs of stored
    rows. ``unmatched``: the tags of rows without a match. ``late``: the tags of late rows; those of a stream without
    one are rejected.
    """

    kind: ClassVar[str] = "join"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    fn: Callable[[Any, Any], Any]
    key_codec: Codec[Any]
    value_codec: tuple[Codec[Any], Codec[Any]]
    unmatched: tuple[str | None, str | None] = (None, None)
    late: tuple[str | None, str | None] = (None, None)

    @property
    def sets_timers(self) -> bool:
        return True

    @property
    def waits_for_event_time(self) -> bool:
        return True

    def extract_stored(self, side: int, value: Any) -> Any:
        """Return the part of a row that is joined and stored."""
        return value

    def join_rows(self, left: Any, right: Any) -> Sequence[Any]:
        """Make the outputs of two matching rows."""
        return (self.fn(left, right),)


class IntervalJoinNode(JoinNode, frozen=True, kw_only=True):
    """Joins rows whose event times are within an interval."""

    kind: ClassVar[str] = "interval-join"

    interval: JoinInterval

    @property
    def definition(self) -> Json:
        asked = [name for name, tag in zip(("left", "right"), self.unmatched, strict=True) if tag is not None]
        return {**describe_window(self.interval), "unmatched": list[Json](asked)}


class WindowJoinNode(JoinNode, frozen=True, kw_only=True):
    """Joins rows in the same window."""

    kind: ClassVar[str] = "window-join"

    assigner: PanedAssigner | SessionWindows

    @property
    def definition(self) -> Json:
        return describe_window(self.assigner)


class AsOfJoinNode(JoinNode, frozen=True, kw_only=True):
    """Joins each row with the table's version at its event time. The second stream carries the table's rows.

    ``table``: its name. ``outer``: rows of keys without a version are passed to ``fn`` too, with None.
    """

    kind: ClassVar[str] = "as-of-join"

    table: str
    outer: bool

    @property
    def definition(self) -> Json:
        return {"as-of": self.table}

    def extract_stored(self, side: int, value: Any) -> Any:
        return value.value if side else value

    def join_rows(self, left: Any, right: Any) -> Sequence[Any]:
        return () if right is None and not self.outer else (self.fn(left, right),)


class TableJoinNode(Node, frozen=True, kw_only=True):
    """Joins each row with the table's current value of its key.

    Its input is a ``TableConnectNode``; it does not wait for event time. ``table``: its name. ``value``: the codec of a
    key's stored row. ``keys``: the class of its keys, if known. ``unmatched``: rows of keys that the table does not
    have are passed to ``fn`` too, with None.
    """

    kind: ClassVar[str] = "table-join"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    table: str
    fn: Callable[[Any, Any], Any]
    key_codec: Codec[Any]
    value: Codec[Any]
    unmatched: bool
    keys: type[Any] | None = None

    @property
    def definition(self) -> Json:
        return {"table": self.table}
