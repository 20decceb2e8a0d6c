"""Two streams into one operator: ``connect``, and the verbs behind it.

Rule: which stream a row is of is told by the way that it has come, so nobody tags values, and each keeps its type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar, overload

from kafka_eos import plan
from kafka_eos._util.call_site import mistake, quoted, user_line
from kafka_eos.api.broadcast_input import Broadcast
from kafka_eos.api.plan_builder import Draft
from kafka_eos.api.process_function_checks import expect_process_function
from kafka_eos.api.stream_base import Upstream
from kafka_eos.api.streams import KeyedStream, Stream
from kafka_eos.api.table import Table, key_class
from kafka_eos.codecs import KeyCodec
from kafka_eos.codecs.type_inspection import element, returned
from kafka_eos.plan import Join, Node
from kafka_eos.plan.broadcast_functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from kafka_eos.plan.process_functions import CoProcessFunction, OutputTag
from kafka_eos.plan.window_assigners import Days, Early, Session, Sliding, Tumbling, interval

K = TypeVar("K")
L = TypeVar("L")
R = TypeVar("R")
U = TypeVar("U")

_Assigner: TypeAlias = Tumbling | Early | Sliding | Days | Session
_KEY = KeyCodec()


@overload
def connect(
    left: KeyedStream[K, L], right: KeyedStream[K, R], *, name: str | None = None
) -> ConnectedStreams[K, L, R]: ...


@overload
def connect(
    left: KeyedStream[K, L], right: Broadcast[R], *, name: str | None = None
) -> KeyedBroadcastConnected[K, L, R]: ...


@overload
def connect(left: Stream[L], right: Broadcast[R], *, name: str | None = None) -> BroadcastConnected[L, R]: ...


def connect(left: Any, right: Any, *, name: str | None = None) -> Any:
    """Two streams into one operator, each with its own type. What becomes of them is said by the verb that follows.

    Both with keys: rows of a key come to one worker and one state, and event time is the lesser of both streams'. The
    second one ``.broadcast()``: all workers have all of its rows, and event time is that of the first.
    """
    if left._draft is not right._draft:
        names = f"{left._draft.name!r} and {right._draft.name!r}"
        raise mistake(f"connect of streams of two pipelines, {names}; make both in one.")
    if left._node == right._node:
        raise mistake(
            "connect of a stream with itself: its rows would come once for both; write its .key_by(...) twice."
        )
    if isinstance(right, Broadcast) and not isinstance(left, Broadcast):
        kind = KeyedBroadcastConnected if isinstance(left, KeyedStream) else BroadcastConnected
        return kind(left, right, name)
    if not (isinstance(left, KeyedStream) and isinstance(right, KeyedStream)):
        raise mistake(
            "connect is of two streams with keys, or of a stream and a .broadcast(), "
            f"not of {left!r} and {right!r}.{_instead(left, right)}"
        )
    _expect_same_keys(left, right)
    node = left._grow(plan.Connect, name, inputs=(left._node, right._node))
    return ConnectedStreams(left._draft, node, left._type, right._type)


def _instead(left: object, right: object) -> str:
    """What to do where two streams cannot be connected."""
    if isinstance(left, Table) or isinstance(right, Table):
        return (
            " All of a table comes to all workers with table.broadcast(); keyed.join(table, fn) looks up a row by key."
        )
    if isinstance(left, Broadcast):
        return " What is broadcast comes second, and only one of both is."
    if isinstance(left, Stream) or isinstance(right, Stream):
        return " Put .key_by(...) behind both."
    return ""


def _expect_same_keys(left: KeyedStream[Any, Any], right: KeyedStream[Any, Any]) -> None:
    """PlanError with the user's line if no key of one stream can be a key of the other."""
    one, other = (key_class(returned(side._draft._key_by(side._node).fn)) for side in (left, right))
    if one is not None and other is not None and one is not other:
        raise mistake(
            f"keys of {left!r} are {one.__name__}, and those of {right!r} {other.__name__}: no two rows would ever "
            "have one key. Let both .key_by(...) give the same."
        )


class ConnectedStreams(Upstream, Generic[K, L, R]):
    """Two streams that share their keys. Give each verb a name: state is stored under it."""

    def __init__(self, draft: Draft, node: str, left: Any, right: Any) -> None:
        super().__init__(draft, node)
        self._left, self._right = left, right

    def process(
        self,
        function: CoProcessFunction[K, L, R, U] | type[CoProcessFunction[K, L, R, U]],
        *,
        name: str | None = None,
    ) -> Stream[U]:
        """Run your own ``CoProcessFunction``: a class, or an object of which each session gets a copy.

        Timers and side outputs as for ``KeyedStream.process``. Rows of a key are in order within each stream; the trap:
        which stream's comes first is chance, unless you wait for event time with a timer.
        """
        node = self._runs(plan.CoProcess, function, name)
        made = element(returned(function.process_left))
        return Stream(self._draft, node, made if made == element(returned(function.process_right)) else None)

    def interval_join(
        self,
        fn: Callable[[L, R], U],
        *,
        name: str | None = None,
        lower: float,
        upper: float,
        unmatched_left: OutputTag[L] | None = None,
        unmatched_right: OutputTag[R] | None = None,
        late_left: OutputTag[L] | None = None,
        late_right: OutputTag[R] | None = None,
    ) -> Stream[U]:
        """``fn(left, right)`` for each two rows of a key of which the second is ``lower`` to ``upper`` seconds later.

        Less than 0 is earlier; both ends are included. A pair comes when event time has come to the later of its rows.
        Rows that are in no pair go to the side outputs ``unmatched_left`` and ``unmatched_right``, as soon as none can
        come for them any more; without a tag they are dropped. A row that comes when event time has passed it goes to
        ``late_left`` or ``late_right``, or without one where the source's ``on_error`` says. Both streams need
        ``with_timestamps``. The trap: what ``fn`` raises stops the job, because there are two records to blame.
        """
        near = quoted(lambda: interval(lower=lower, upper=upper))
        tags = (unmatched_left, unmatched_right), (late_left, late_right)
        return self._joined(plan.IntervalJoin, fn, name, *tags, interval=near)

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
        """``fn(left, right)`` for each two rows of a key that are in one window.

        ``assigner``: ``tumbling``, ``sliding``, ``days``, or ``session``, which is of the rows of both streams. Pairs
        come when event time has come to the window's end, those of overlapping windows once for each. Rows of a window
        in which the other stream has none go to the side outputs ``unmatched_left`` and ``unmatched_right``; without a
        tag they are dropped. A row whose windows are all over goes to ``late_left`` or ``late_right``, or without one
        where the source's ``on_error`` says. Both streams need ``with_timestamps``. The trap: a window has as many
        pairs as the product of its rows.
        """
        if isinstance(assigner, Early) or not isinstance(assigner, _Assigner):
            kinds = "tumbling (without early=), sliding, sessions or days"
            raise mistake(f"{assigner}: streams are joined in windows that are {kinds}.")
        tags = (unmatched_left, unmatched_right), (late_left, late_right)
        return self._joined(plan.WindowJoin, fn, name, *tags, assigner=assigner)

    def _joined(
        self,
        kind: type[Join],
        fn: Callable[[L, R], U],
        name: str | None,
        unmatched: tuple[OutputTag[Any] | None, ...],
        late: tuple[OutputTag[Any] | None, ...],
        **parts: Any,
    ) -> Stream[U]:
        tags = [tag for tag in (*unmatched, *late) if tag is not None]
        values = self._stored(self._left), self._stored(self._right)
        node = self._grow(
            kind, name, fn=fn, key_codec=_KEY, values=values, unmatched=_names(unmatched), late=_names(late), **parts
        )
        return Stream(self._draft, self._draft._part(node, tags), returned(fn))


class _WithBroadcast(Upstream):
    """A stream and what is broadcast beside it."""

    def __init__(self, left: Upstream, right: Broadcast[Any], name: str | None) -> None:
        super().__init__(left._draft, left._node, left._type)
        self._right, self._name = right, name

    def _met(self, kind: type[Node], name: str | None) -> tuple[str, bool, str]:
        """The name of the function's node, whether it is made up, and the node where both streams meet."""
        given, derived = self._draft._name(name, kind.kind)
        met = f"{given}-broadcast" if self._name is None else self._name
        parts: dict[str, Any] = {"inputs": (self._node, self._right._node), "table": self._right._table}
        parts |= {"where": user_line(), "derived": derived and self._name is None}
        self._draft._add(plan.BroadcastConnect(name=met, **parts))
        return given, derived, met


class KeyedBroadcastConnected(_WithBroadcast, Generic[K, L, R]):
    """A stream with keys, and one that all workers have."""

    def process(
        self,
        function: KeyedBroadcastProcessFunction[K, L, R, U] | type[KeyedBroadcastProcessFunction[K, L, R, U]],
        *,
        name: str | None = None,
    ) -> Stream[U]:
        """Run your own ``KeyedBroadcastProcessFunction``: a class, or an object of which each session gets a copy.

        State of keys, timers and side outputs as for ``KeyedStream.process``. What ``process_broadcast`` makes of the
        second stream is stored as the operator ``<name>-broadcast``, or under the name that ``connect`` was given.
        """
        quoted(lambda: expect_process_function(plan.KeyedBroadcastProcess, function))
        given, derived, met = self._met(plan.KeyedBroadcastProcess, name)
        node = self._runs(plan.KeyedBroadcastProcess, function, given, inputs=(met,), derived=derived)
        return Stream(self._draft, node, element(returned(function.process)))


class BroadcastConnected(_WithBroadcast, Generic[L, R]):
    """A stream without keys, and one that all workers have."""

    def process(
        self,
        function: BroadcastProcessFunction[L, R, U] | type[BroadcastProcessFunction[L, R, U]],
        *,
        name: str | None = None,
    ) -> Stream[U]:
        """Run your own ``BroadcastProcessFunction``: a class, or an object of which each session gets a copy.

        Rows of the stream stay in their worker. What ``process_broadcast`` makes of the second stream is stored as the
        operator ``<name>-broadcast``, or under the name that ``connect`` was given.
        """
        factory = self._made_by(function, plan.BroadcastProcess, ("process", "process_broadcast"))
        given, derived, met = self._met(plan.BroadcastProcess, name)
        node = self._grow(plan.BroadcastProcess, given, factory=factory, inputs=(met,), derived=derived)
        return Stream(self._draft, self._draft._part(node, function.side_outputs), element(returned(function.process)))


def _names(tags: tuple[OutputTag[Any] | None, ...]) -> tuple[str | None, ...]:
    for tag in tags:
        if not isinstance(tag, OutputTag | None):
            raise mistake(f"side outputs of a join are of OutputTag(name, type), not {tag!r}.")
    return tuple(None if tag is None else tag.name for tag in tags)
