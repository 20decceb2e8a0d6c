"""Two streams as inputs of one operator: ``connect``, and the operations on its result.

Rule: the path of a row identifies its stream, so values need no tags, and each stream keeps its type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar, overload

from kafka_eos import plan
from kafka_eos._util.call_site import call_quoting_user, plan_error, user_line
from kafka_eos.api.broadcast_input import Broadcast
from kafka_eos.api.plan_builder import PlanBuilder
from kafka_eos.api.process_function_checks import expect_process_function
from kafka_eos.api.stream_base import BaseStream
from kafka_eos.api.streams import KeyedStream, Stream
from kafka_eos.api.table import Table, key_class
from kafka_eos.codecs import KeyCodec
from kafka_eos.codecs.type_inspection import get_element_type, get_return_type
from kafka_eos.core.durations import Seconds
from kafka_eos.plan import JoinNode, Node
from kafka_eos.plan.broadcast_functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from kafka_eos.plan.process_functions import CoProcessFunction, OutputTag
from kafka_eos.plan.window_assigners import (
    DayWindows,
    EarlyTumblingWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    interval,
)

K = TypeVar("K")
L = TypeVar("L")
R = TypeVar("R")
U = TypeVar("U")

_Assigner: TypeAlias = TumblingWindows | EarlyTumblingWindows | SlidingWindows | DayWindows | SessionWindows
_KEY = KeyCodec()


@overload
def connect(
    left: KeyedStream[K, L], right: KeyedStream[K, R], *, name: str | None = None
) -> ConnectedStreams[K, L, R]: ...


@overload
def connect(
    left: KeyedStream[K, L], right: Broadcast[R], *, name: str | None = None
) -> KeyedBroadcastConnectedStream[K, L, R]: ...


@overload
def connect(left: Stream[L], right: Broadcast[R], *, name: str | None = None) -> BroadcastConnectedStream[L, R]: ...


def connect(left: Any, right: Any, *, name: str | None = None) -> Any:
    """Connect two streams, each with its own type, for one operator. The next operation defines how they are combined.

    If both are keyed, all rows of a key go to one worker and share its state; the watermark is the lower one of both
    streams. If the second one is ``.broadcast()``, all workers receive all of its rows, and the watermark is that of
    the first stream.
    """
    if left._draft is not right._draft:
        names = f"{left._draft.name!r} and {right._draft.name!r}"
        raise plan_error(f"connect: the streams belong to two pipelines, {names}; create both in one.")
    if left._node == right._node:
        raise plan_error(
            "connect: both inputs are the same stream, so each row would arrive only once; "
            "call .key_by(...) for each input."
        )
    if isinstance(right, Broadcast) and not isinstance(left, Broadcast):
        kind = KeyedBroadcastConnectedStream if isinstance(left, KeyedStream) else BroadcastConnectedStream
        return kind(left, right, name)
    if not (isinstance(left, KeyedStream) and isinstance(right, KeyedStream)):
        raise plan_error(
            f"connect needs two streams with keys, or a stream and a .broadcast(), not {left!r} "
            f"and {right!r}.{_instead(left, right)}"
        )
    _expect_same_keys(left, right)
    node = left._append_node(plan.ConnectNode, name, inputs=(left._node, right._node))
    return ConnectedStreams(left._draft, node, left._type, right._type)


def _instead(left: object, right: object) -> str:
    """Return a remedy for two streams that cannot be connected."""
    if isinstance(left, Table) or isinstance(right, Table):
        return " table.broadcast() sends the whole table to all workers; keyed.join(table, fn) looks up a row by key."
    if isinstance(left, Broadcast):
        return " Exactly one of the two can be a .broadcast(), and it must be the argument of connect."
    if isinstance(left, Stream) or isinstance(right, Stream):
        return " Put .key_by(...) behind both."
    return ""


def _expect_same_keys(left: KeyedStream[Any, Any], right: KeyedStream[Any, Any]) -> None:
    """Raise PlanError with the user's line if no key of one stream can be a key of the other."""
    one, other = (key_class(get_return_type(side._draft._key_by(side._node).fn)) for side in (left, right))
    if one is not None and other is not None and one is not other:
        raise plan_error(
            f"keys of {left!r} are {one.__name__}, but those of {right!r} are {other.__name__}, "
            "so no keys would ever be equal. Let both .key_by(...) return the same type."
        )


class ConnectedStreams(BaseStream, Generic[K, L, R]):
    """Two keyed streams that share their keys. Name each operation: its state is stored under that name."""

    def __init__(self, draft: PlanBuilder, node: str, left: Any, right: Any) -> None:
        super().__init__(draft, node)
        self._left, self._right = left, right

    def process(
        self,
        function: CoProcessFunction[K, L, R, U] | type[CoProcessFunction[K, L, R, U]],
        *,
        name: str | None = None,
    ) -> Stream[U]:
        """Run your own ``CoProcessFunction``: a class, or an object that each session copies.

        Timers and side outputs work as in ``KeyedStream.process``. Rows of a key are in order within each stream.

        Note: the order between the two streams is not defined, unless you wait for event time with a timer.
        """
        node = self._append_process(plan.CoProcessNode, function, name)
        made = get_element_type(get_return_type(function.process_left))
        return Stream(
            self._draft, node, made if made == get_element_type(get_return_type(function.process_right)) else None
        )

    def interval_join(
        self,
        fn: Callable[[L, R], U],
        *,
        name: str | None = None,
        lower: Seconds,
        upper: Seconds,
        unmatched_left: OutputTag[L] | None = None,
        unmatched_right: OutputTag[R] | None = None,
        late_left: OutputTag[L] | None = None,
        late_right: OutputTag[R] | None = None,
    ) -> Stream[U]:
        """Join two rows of a key if the second is ``lower`` to ``upper`` seconds later than the first: ``fn(left,
        right)``.

        Negative bounds mean earlier; both bounds are included. A pair is emitted when the watermark reaches its later
        row. An unmatched row goes to the side output ``unmatched_left`` or ``unmatched_right`` once no match can
        arrive; without a tag it is dropped. A late row goes to ``late_left`` or ``late_right``, or, without a tag, to
        the source's ``on_error``. Both streams need ``with_timestamps``.

        Note: an exception from ``fn`` stops the job, because two records may be to blame.
        """
        near = call_quoting_user(lambda: interval(lower=lower, upper=upper))
        tags = (unmatched_left, unmatched_right), (late_left, late_right)
        return self._joined(plan.IntervalJoinNode, fn, name, *tags, interval=near)

    def window_join(
        self,
        assigner: _Assigner,
        fn: Callable[[L, R], U],
        *,
        name: str | None = None,
        unmatched_left: OutputTag[L] | None = None,
        unmatched_right: OutputTag[R] | None = None,
        late_left: OutputTag[L] | None = None,
        late_right: OutputTag[R] | None = None,
    ) -> Stream[U]:
        """Join each two rows of a key that are in the same window: ``fn(left, right)``.

        ``assigner`` is ``tumbling``, ``sliding``, ``days``, or ``session``, which covers the rows of both streams.
        Pairs are emitted when the watermark passes the window's end; with overlapping windows, once per window. Rows of
        a window without rows of the other stream go to the side output ``unmatched_left`` or ``unmatched_right``;
        without a tag they are dropped. A row whose windows are all closed goes to ``late_left`` or ``late_right``, or,
        without a tag, to the source's ``on_error``. Both streams need ``with_timestamps``.

        Note: the number of pairs of a window is the product of the row counts of both streams.
        """
        if isinstance(assigner, EarlyTumblingWindows) or not isinstance(assigner, _Assigner):
            kinds = "tumbling (without early=), sliding, sessions or days"
            raise plan_error(f"{assigner}: streams are joined in windows that are {kinds}.")
        tags = (unmatched_left, unmatched_right), (late_left, late_right)
        return self._joined(plan.WindowJoinNode, fn, name, *tags, assigner=assigner)

    def _joined(
        self,
        kind: type[JoinNode],
        fn: Callable[[L, R], U],
        name: str | None,
        unmatched: tuple[OutputTag[Any] | None, ...],
        late: tuple[OutputTag[Any] | None, ...],
        **parts: Any,
    ) -> Stream[U]:
        tags = [tag for tag in (*unmatched, *late) if tag is not None]
        values = self._state_codec(self._left), self._state_codec(self._right)
        node = self._append_node(
            kind,
            name,
            fn=fn,
            key_codec=_KEY,
            value_codec=values,
            unmatched=_names(unmatched),
            late=_names(late),
            **parts,
        )
        return Stream(self._draft, self._draft._add_side_outputs(node, tags), get_return_type(fn))


class _BroadcastConnection(BaseStream):
    """A stream connected with a broadcast stream."""

    def __init__(self, left: BaseStream, right: Broadcast[Any], name: str | None) -> None:
        super().__init__(left._draft, left._node, left._type)
        self._right, self._name = right, name

    def _met(self, kind: type[Node], name: str | None) -> tuple[str, bool, str]:
        """Add the node where both streams meet; return the name of the function's node, whether it was generated,
        and that node."""
        given, derived = self._draft._name(name, kind.kind)
        met = f"{given}-broadcast" if self._name is None else self._name
        parts: dict[str, Any] = {"inputs": (self._node, self._right._node), "table": self._right._table}
        parts |= {"code_line": user_line(), "has_generated_name": derived and self._name is None}
        self._draft._add_node(plan.BroadcastConnectNode(name=met, **parts))
        return given, derived, met


class KeyedBroadcastConnectedStream(_BroadcastConnection, Generic[K, L, R]):
    """A keyed stream connected with a broadcast stream."""

    def process(
        self,
        function: KeyedBroadcastProcessFunction[K, L, R, U] | type[KeyedBroadcastProcessFunction[K, L, R, U]],
        *,
        name: str | None = None,
    ) -> Stream[U]:
        """Run your own ``KeyedBroadcastProcessFunction``: a class, or an object that each session copies.

        Keyed state, timers and side outputs work as in ``KeyedStream.process``. State that ``process_broadcast``
        derives from the second stream is stored as the operator ``<name>-broadcast``, or under the name given to
        ``connect``.
        """
        call_quoting_user(lambda: expect_process_function(plan.KeyedBroadcastNode, function))
        given, derived, met = self._met(plan.KeyedBroadcastNode, name)
        node = self._append_process(plan.KeyedBroadcastNode, function, given, inputs=(met,), has_generated_name=derived)
        return Stream(self._draft, node, get_element_type(get_return_type(function.process)))


class BroadcastConnectedStream(_BroadcastConnection, Generic[L, R]):
    """A stream connected with a broadcast stream, as in Flink."""

    def process(
        self,
        function: BroadcastProcessFunction[L, R, U] | type[BroadcastProcessFunction[L, R, U]],
        *,
        name: str | None = None,
    ) -> Stream[U]:
        """Run your own ``BroadcastProcessFunction``: a class, or an object that each session copies.

        Rows of the stream stay in their worker. State that ``process_broadcast`` derives from the second stream is
        stored as the operator ``<name>-broadcast``, or under the name given to ``connect``.
        """
        factory = self._made_by(function, plan.BroadcastProcessNode, ("process", "process_broadcast"))
        given, derived, met = self._met(plan.BroadcastProcessNode, name)
        node = self._append_node(
            plan.BroadcastProcessNode, given, factory=factory, inputs=(met,), has_generated_name=derived
        )
        return Stream(
            self._draft,
            self._draft._add_side_outputs(node, function.side_outputs),
            get_element_type(get_return_type(function.process)),
        )


def _names(tags: tuple[OutputTag[Any] | None, ...]) -> tuple[str | None, ...]:
    for tag in tags:
        if not isinstance(tag, OutputTag | None):
            raise plan_error(f"a side output of a join must be OutputTag(name, type), not {tag!r}.")
    return tuple(None if tag is None else tag.name for tag in tags)
