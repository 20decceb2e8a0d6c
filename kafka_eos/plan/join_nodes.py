"""Nodes that join two streams, or a stream with a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kafka_eos.abc.codec import Codec
from kafka_eos.core.json_values import Json
from kafka_eos.plan.nodes import Node
from kafka_eos.plan.window_assigners import Interval, Paned, Session, defined


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Node):
    """Two streams, joined in event time. Its input is a ``Connect``; pairs have one for each of its streams.

    ``values``: codecs of stored rows. ``unmatched``: the tags of rows that were in no pair. ``late``: of rows that came
    when all was over; those of a stream without one are refused.
    """

    kind: ClassVar[str] = "join"
    stateful: ClassVar[bool] = True
    keyed: ClassVar[bool] = True

    fn: Callable[[Any, Any], Any]
    key_codec: Codec[Any]
    values: tuple[Codec[Any], Codec[Any]]
    unmatched: tuple[str | None, str | None] = (None, None)
    late: tuple[str | None, str | None] = (None, None)

    @property
    def sets_timers(self) -> bool:
        return True

    @property
    def waits(self) -> bool:
        return True

    def seen(self, side: int, value: Any) -> Any:
        """What of a row is joined and stored."""
        return value

    def made(self, left: Any, right: Any) -> Sequence[Any]:
        """What comes out of two rows that belong together."""
        return (self.fn(left, right),)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalJoin(Join):
    """Rows whose times are near each other: ``interval`` says how far one of the second stream is behind the other."""

    kind: ClassVar[str] = "interval-join"

    interval: Interval

    @property
    def definition(self) -> Json:
        asked = [name for name, tag in zip(("left", "right"), self.unmatched, strict=True) if tag is not None]
        return {**defined(self.interval), "unmatched": list[Json](asked)}


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowJoin(Join):
    """Rows that are in one window."""

    kind: ClassVar[str] = "window-join"

    assigner: Paned | Session

    @property
    def definition(self) -> Json:
        return defined(self.assigner)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOfJoin(Join):
    """Each row of a stream with what a table had for its key at its time. The second stream are the table's rows.

    ``table``: its name. ``outer``: rows of keys that it had nothing for are given to ``fn`` too, with None.
    """

    kind: ClassVar[str] = "as-of-join"

    table: str
    outer: bool

    @property
    def definition(self) -> Json:
        return {"as-of": self.table}

    def seen(self, side: int, value: Any) -> Any:
        return value.value if side else value

    def made(self, left: Any, right: Any) -> Sequence[Any]:
        return () if right is None and not self.outer else (self.fn(left, right),)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoin(Node):
    """Each row of a stream with what a table has for its key. Its input is a ``Lookup``; it waits for no time.

    ``table``: its name. ``value``: the codec of what is stored for a key. ``keys``: the class of its keys, if it is
    known. ``unmatched``: rows of keys that the table does not have are given to ``fn`` too, with None.
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
