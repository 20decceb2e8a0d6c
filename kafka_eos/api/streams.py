"""Streams, and the operations with which a pipeline is written: plain, keyed and windowed.

An operation adds one node to the plan under construction and returns a new stream. Streams never change, so a stream
may be used twice. Building runs no user code except ``init`` of a fold, to learn the type of its state.

Rule: an error quotes the line of the user's file: in the operation if the error can be detected there, else in
``plan``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

from kafka_eos import abc as interfaces
from kafka_eos import plan
from kafka_eos._util.call_site import call_quoting_user, plan_error, user_line
from kafka_eos.abc.state import Ttl
from kafka_eos.api.aggregates import Aggregate, count, top
from kafka_eos.api.async_map import RETRIED, add_async_map
from kafka_eos.api.broadcast_input import Broadcast
from kafka_eos.api.plan_builder import PlanBuilder, name_connector
from kafka_eos.api.stream_base import BaseStream
from kafka_eos.api.table import Table, VersionedTable
from kafka_eos.api.window_functions import all_elements, count_since_result, folding, reducing, windowed
from kafka_eos.codecs import CountedCodec, KeyCodec, OptionalCodec, WindowedCodec
from kafka_eos.codecs.field_access import read_field
from kafka_eos.codecs.type_inspection import (
    can_be,
    get_element_type,
    get_instance_class,
    get_return_type,
    type_name,
    without_none,
)
from kafka_eos.core.durations import Seconds
from kafka_eos.core.windows import Window, Windowed
from kafka_eos.plan import Node
from kafka_eos.plan.deduplication import DeduplicateFunction, DistinctFunction
from kafka_eos.plan.function_checks import drop_none, expect_iterables
from kafka_eos.plan.pattern import Pattern
from kafka_eos.plan.process_functions import OutputTag, ProcessFunction
from kafka_eos.plan.retries import Breaker, Retries
from kafka_eos.plan.triggers import ClockTrigger, CountTrigger, WindowTrigger
from kafka_eos.plan.watermarks import WatermarkStrategy
from kafka_eos.plan.window_assigners import (
    DayWindows,
    EarlyTumblingWindows,
    RowCountWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    milliseconds,
    session,
)
from kafka_eos.plan.window_contents import WindowContents

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")
A = TypeVar("A")
V = TypeVar("V")

_Assigner: TypeAlias = (
    TumblingWindows | EarlyTumblingWindows | SlidingWindows | DayWindows | SessionWindows | RowCountWindows
)

_KEY = KeyCodec()
_KEY_TYPES = str | int | bytes | tuple[Any, ...]
_KEYED = frozenset(
    (
        "fold",
        "reduce",
        "aggregate",
        "process",
        "window",
        "deduplicate",
        "distinct",
        "sessionize",
        "match",
        "join",
        "left_join",
        "join_as_of",
        "left_join_as_of",
    )
)
"""Operations of keyed streams, for the error when one is called on another stream."""


class Stream(BaseStream, Generic[T]):
    """A stream of values of type ``T``. Operations return new streams.

    Every operation takes its function or object first, and the ``name`` of its node as a keyword. Functions are
    ordinary ones: an operation raises PlanError for a coroutine function. Durations are numbers of seconds or
    timedeltas.

    After a failure, records are processed again from the last checkpoint, and the output of the failed attempt is
    discarded. So a function need not be deterministic, but its side effects (a call, a file) happen again. A function
    that raises rejects its record (see ``on_error``). To repeat the whole attempt instead, raise ``Retryable``.

    With several workers, rows stay in the worker that read them until ``key_by``, ``rebalance`` or ``broadcast``, which
    encode rows by their type. The type is ``values=``, else that of the source or of the annotated result of the last
    function; without one, only plain values (str, numbers, lists, dicts …) are accepted. The same applies to a
    ``forward`` whose rows are written into a checkpoint with in-flight rows.
    """

    def map(self, fn: Callable[[T], U], *, name: str | None = None) -> Stream[U]:
        """Apply ``fn`` to each value: one value in, one value out."""
        return Stream(self._draft, self._append_node(plan.MapNode, name, fn=fn), get_return_type(fn))

    def with_timestamps(
        self, fn: Callable[[T], int] | None = None, *, name: str | None = None, watermarks: WatermarkStrategy
    ) -> Stream[T]:
        """Assign event times to the values and watermarks to the stream. Use it right behind a source.

        ``fn`` returns the time of a value, in milliseconds since the Unix epoch; by default it is the record's
        timestamp. ``watermarks`` is ``bounded(seconds)`` if records of a partition may be out of order by that much, or
        ``monotonic()`` if they are in order. The watermark advances when all partitions have advanced. An idle
        partition holds it back, unless the strategy has ``.with_idleness(seconds)``. ``generated(…)`` is a strategy of
        your own.
        """
        source = self._draft._source_of(self._node)
        node = self._append_timestamps(fn, watermarks, source, f"{source}-timestamps" if name is None else name)
        return Stream(self._draft, node, self._type)

    def filter(self, fn: Callable[[T], object], *, name: str | None = None) -> Stream[T]:
        """Keep the values for which ``fn`` returns true."""
        return Stream(self._draft, self._append_node(plan.FilterNode, name, fn=fn), self._type)

    def flat_map(self, fn: Callable[[T], Iterable[U]], *, name: str | None = None) -> Stream[U]:
        """Apply ``fn`` to each value: one value in, any number out.

        If ``fn`` fails halfway, the value has no output.
        """
        return Stream(
            self._draft, self._append_node(plan.FlatMapNode, name, fn=fn), get_element_type(get_return_type(fn))
        )

    def map_batches(self, fn: Callable[[list[T]], list[U]], *, name: str | None = None) -> Stream[U]:
        """Apply ``fn`` to lists of values: as many out as in, in order. For functions that are efficient only on many
        values.

        The boundaries of a batch are not fixed, so the result must not depend on them. If ``fn`` raises, it is called
        again with halves of the batch, until the failing records are isolated.
        """
        return Stream(
            self._draft, self._append_node(plan.MapBatchesNode, name, fn=fn), get_element_type(get_return_type(fn))
        )

    @overload
    def async_map(
        self,
        fn: Callable[[T], Coroutine[Any, Any, U]],
        *,
        name: str | None = None,
        ordered: bool = True,
        capacity: int = 100,
        timeout: Seconds = 30.0,
        retries: Retries | None = None,
        retry_on: tuple[type[Exception], ...] = RETRIED,
        breaker: Breaker | None = None,
        failed: OutputTag[T] | None = None,
        values: Any = None,
    ) -> Stream[U]: ...

    @overload
    def async_map(
        self,
        fn: Callable[[T], U],
        *,
        name: str | None = None,
        ordered: bool = True,
        capacity: int = 100,
        timeout: Seconds = 30.0,
        retries: Retries | None = None,
        retry_on: tuple[type[Exception], ...] = RETRIED,
        breaker: Breaker | None = None,
        failed: OutputTag[T] | None = None,
        values: Any = None,
    ) -> Stream[U]: ...

    def async_map(
        self,
        fn: Callable[[T], Any],
        *,
        name: str | None = None,
        ordered: bool = True,
        capacity: int = 100,
        timeout: Seconds = 30.0,
        retries: Retries | None = None,
        retry_on: tuple[type[Exception], ...] = RETRIED,
        breaker: Breaker | None = None,
        failed: OutputTag[T] | None = None,
        values: Any = None,
    ) -> Stream[Any]:
        """Call a service for each value: one value in, one value out, with up to ``capacity`` requests at a time per
        worker.

        ``fn`` is a coroutine function, or an ordinary one, which waits in a thread. An attempt takes at most
        ``timeout`` seconds. An error of ``retry_on`` is retried according to ``retries`` and counted by ``breaker``. A
        value whose last attempt failed goes to the side output ``failed``, or, without a tag, to the source's
        ``on_error``. ``ordered=False`` emits responses in order of arrival. Every checkpoint contains the waiting
        values, encoded by their type (``values``, as in ``key_by``). After a failure the requests are sent again, and
        each response is used once.

        Note: the service may receive a request more than once; ``fn`` must not modify its value.
        """
        rules: dict[str, Any] = {"capacity": capacity, "timeout": timeout, "retry_on": retry_on}
        rules |= {"retries": retries, "breaker": breaker}
        node = add_async_map(self, plan.AsyncMapNode, name, failed, values, rules, fn=fn, ordered=ordered)
        return Stream(self._draft, node, get_return_type(fn))

    @overload
    def key_by(
        self, fn: str, *, name: str | None = None, values: Any = None, local: bool = False
    ) -> KeyedStream[Any, T]: ...

    @overload
    def key_by(
        self, fn: Callable[[T], K], *, name: str | None = None, values: Any = None, local: bool = False
    ) -> KeyedStream[K, T]: ...

    def key_by(
        self, fn: str | Callable[[T], Any], *, name: str | None = None, values: Any = None, local: bool = False
    ) -> KeyedStream[Any, T]:
        """Give each value a key: str, 64-bit int, bytes, or a tuple of these. Any other key rejects the record.

        ``fn`` returns the key of a value, or is the name of the field that has it: ``key_by("user")``.

        All values of a key go to one worker. ``local=True`` keeps them in the worker that read them. With it you
        guarantee that all records of a key are in one partition, in every source, and that partitions of the same
        number hold the same keys.

        Note: if this guarantee does not hold, a key has several states, and after a change of parallelism one of them
        is refused.
        """
        node = self._append_node(
            plan.KeyByNode,
            name,
            fn=self._key_function(fn),
            key_codec=_KEY,
            value_codec=self._exchange_codec(values),
            local=local,
        )
        return KeyedStream(self._draft, node, self._type if values is None else values)

    def _key_function(self, fn: str | Callable[[T], Any]) -> Callable[[T], Any]:
        """Return the function that returns keys. Raises PlanError with the user's line if it is a field that values do
        not have, or that cannot be a key."""
        if not isinstance(fn, str):
            return fn
        read = call_quoting_user(lambda: read_field(fn, self._value_type))
        if not can_be(get_return_type(read), _KEY_TYPES):
            raise plan_error(
                f"key_by({fn!r}): the field is of type {type_name(get_return_type(read))}, and keys are str, int, "
                "bytes, or tuples of these. Give a function that returns one."
            )
        return read

    def rebalance(self, *, name: str | None = None, values: Any = None) -> Stream[T]:
        """Distribute the values evenly over all workers.

        Order is kept only among values between the same two workers.
        """
        return self._exchange(plan.ExchangeNode, name, values, strategy=plan.Partitioning.REBALANCE)

    def broadcast(self, *, name: str | None = None, values: Any = None) -> BroadcastStream[T]:
        """Send every value to all workers: the operations that follow run once in each of them.

        ``connect(stream, rules.broadcast())`` gives a function of ``stream`` access to all of these values in every
        worker.
        """
        copied = self._exchange(plan.ExchangeNode, name, values, strategy=plan.Partitioning.BROADCAST)
        return BroadcastStream(self._draft, copied._node, copied._type)

    def forward(self, *, name: str | None = None, values: Any = None) -> Stream[T]:
        """Keep the values in their worker and in order, but put a queue between this operation and the next.

        If a stream with an exchange and one without meet in a ``union``, the plan adds a forward by itself. Use it to
        declare a type that is not known there, or a name.
        """
        return self._exchange(plan.ForwardNode, name, values)

    def _exchange(self, kind: type[Node], name: str | None, values: Any, **parts: Any) -> Stream[T]:
        node = self._append_node(kind, name, value_codec=self._exchange_codec(values), **parts)
        return Stream(self._draft, node, self._type if values is None else values)

    def iterate(
        self, body: Callable[[Stream[T]], tuple[Stream[T], Stream[U]]], *, name: str, values: Any = None
    ) -> Stream[U]:
        """Add a loop. ``body`` receives the new and returning values, and returns two streams: values to feed back,
        and results.

        State in the loop is exactly-once, as elsewhere: in-flight rows of the loop belong to the checkpoint.

        Note: a body that always feeds something back never ends, so no bounded run (``--until-caught-up``) of it ends.
        """
        head = Stream[T](self._draft, self._append_node(plan.LoopNode, name), self._type if values is None else values)
        back, out = body(head)
        back._append_node(plan.FeedbackNode, f"{name}-feedback", to=name, value_codec=back._exchange_codec(values))
        return out

    def union(self, *others: Stream[T], name: str | None = None) -> Stream[T]:
        """Merge the streams. Order is kept within each stream, not between them."""
        for other in others:
            if other._draft is not self._draft:
                names = f"{self._draft.name!r} and {other._draft.name!r}"
                raise plan_error(f"union: the streams belong to two pipelines, {names}; create both in one.")
        inputs = (self._node, *(other._node for other in others))
        tp = self._type if all(other._type == self._type for other in others) else None
        return Stream(self._draft, self._append_node(plan.UnionNode, name, inputs=inputs), tp)

    def side_output(self, tag: OutputTag[U]) -> Stream[U]:
        """Return the side output ``tag`` of the ``ProcessFunction`` right before, as a stream.

        Each tag that a function declares must be read, just as its main output must.
        """
        return Stream(self._draft, self._draft._side_output(self._node, tag), tag.tp)

    def sink(self, sink: interfaces.Sink[T], *, name: str | None = None) -> None:
        """Write the stream to ``sink``. The stream may have other readers too.

        Its output is stored under ``name``; default: the name of its topic, or of its table with ``-table``.
        """
        self._append_node(plan.SinkNode, name_connector("sink", sink, name), sink=sink)

    if not TYPE_CHECKING:

        def __getattr__(self, operation: str) -> Any:
            if operation in _KEYED:
                raise plan_error(
                    f".{operation}(...) keeps state per key, but this stream has no key; put .key_by(...) before it."
                )
            raise AttributeError(f"a Stream has no {operation!r}")


class BroadcastStream(Stream[T], Broadcast[T]):
    """A stream that all workers receive. Operations on it run once in each worker."""


class KeyedStream(BaseStream, Generic[K, T]):
    """A stream of values with keys. Its operations keep state per key, which every checkpoint contains.

    Name each operation: its state is stored under that name.
    """

    @overload
    def fold(
        self,
        *,
        name: str | None = None,
        init: Callable[[], A],
        step: Callable[[A, T], A],
        merge: Callable[[A, A], A] | None = None,
        state: Any = None,
        ttl: Ttl | None = None,
    ) -> Stream[tuple[K, A]]: ...

    @overload
    def fold(
        self,
        *,
        name: str | None = None,
        init: Callable[[], A],
        step: Callable[[A, T], A],
        emit: Callable[[K, A], U],
        merge: Callable[[A, A], A] | None = None,
        state: Any = None,
        ttl: Ttl | None = None,
    ) -> Stream[U]: ...

    def fold(
        self,
        *,
        name: str | None = None,
        init: Callable[[], Any],
        step: Callable[[Any, T], Any],
        emit: Callable[[Any, Any], Any] | None = None,
        merge: Callable[[Any, Any], Any] | None = None,
        state: Any = None,
        ttl: Ttl | None = None,
    ) -> Stream[Any]:
        """Fold the values of each key into an accumulator. Each input emits ``emit(key, accumulator)``, by default the
        pair.

        ``state`` is the accumulator's type. By default it is the class of ``init()`` if that is a model, a Struct or a
        dataclass. Otherwise only plain values (str, numbers, lists, dicts …) can be stored, and a value that would be
        decoded differently is rejected.

        Note: ``step`` must return a new accumulator and leave the old one unchanged, because emitted outputs may still
        refer to it.

        With ``merge``, each worker folds the values that it reads, and sends only accumulators to the owner of the key,
        once per epoch. Use it for skewed keys, and if there are fewer keys than records. It emits one output per key
        and *epoch* with input, with the accumulator at the end of the epoch. With it you guarantee that records may be
        folded in parts, in any order: ``merge(fold(a), fold(b))`` equals ``fold(a + b)``, each part started with
        ``init``.

        With ``ttl`` a key's accumulator expires that time after its last input, and the next one starts with ``init``.
        """
        self._expect_functions("fold", init=init, step=step, **drop_none(emit=emit, merge=merge))
        tp = get_instance_class(type(init())) if state is None else state
        given = {"init": init, "step": step, "merge": merge}
        return Stream(
            self._draft, self._fold(name, given, emit, tp, ttl), None if emit is None else get_return_type(emit)
        )

    @overload
    def aggregate(
        self,
        *aggregates: Aggregate[T, Any, Any],
        name: str | None = None,
        out: type[U],
        key: str = "key",
        merge: bool = False,
        ttl: Ttl | None = None,
        **named: Aggregate[T, Any, Any],
    ) -> Stream[U]: ...

    @overload
    def aggregate(
        self,
        *aggregates: Aggregate[T, Any, Any],
        name: str | None = None,
        out: None = None,
        key: str = "key",
        merge: bool = False,
        ttl: Ttl | None = None,
        **named: Aggregate[T, Any, Any],
    ) -> Stream[Any]: ...

    def aggregate(
        self,
        *aggregates: Aggregate[T, Any, Any],
        name: str | None = None,
        out: type[Any] | None = None,
        key: str = "key",
        merge: bool = False,
        ttl: Ttl | None = None,
        **named: Aggregate[T, Any, Any],
    ) -> Stream[Any]:
        """Aggregate the values of each key. Each input emits one row: the key, and a field per aggregate.

        ``aggregate(agg.count(), total=agg.sum("amount"))`` emits rows with ``key``, ``count`` and ``total``;
        see ``agg``. ``out`` is your class for the rows (a model, a Struct, a dataclass); ``key`` is the name of its key
        field.

        It is a ``fold``: ``ttl`` works the same, and with ``merge=True`` it has two phases, and one row per key and
        epoch. Unlike a fold it needs no guarantee from you: all aggregates can be merged.
        """
        parts, rows = self._rows(aggregates, named, out, key)
        given = {"init": parts.create, "step": parts.add, "merge": parts.merge if merge else None}

        def emit(of: Any, acc: Any) -> Any:
            return rows.row((of,), acc)

        node = self._fold(name, given, emit, parts.accumulator, ttl, by_time=parts.needs_event_time)
        return Stream(self._draft, node, rows.codec_type)

    def _fold(
        self,
        name: str | None,
        given: Mapping[str, Any],
        emit: Callable[[Any, Any], Any] | None,
        tp: Any,
        ttl: Ttl | None,
        *,
        by_time: bool = False,
    ) -> str:
        """Add a fold in one phase, or in two if ``given`` has ``merge``; return its name."""
        self._expect_ttl(ttl)
        stored: dict[str, Any] = {"key_codec": _KEY, "entry_codec": CountedCodec(self._state_codec(tp)), "ttl": ttl}
        parts = {**given, **stored, "emit": emit, "by_time": by_time}
        if given["merge"] is None:
            return self._append_node(plan.FoldNode, name, **parts)
        fold, derived = self._draft._name(name, plan.FoldNode.kind)
        self._add_partial_fold(f"{fold}-partial", value_codec=self._sent(tp), by_time=by_time, **given)
        place: dict[str, Any] = {
            "code_line": user_line(),
            "inputs": (f"{fold}-partial",),
            "has_generated_name": derived,
        }
        self._draft._add_node(plan.FoldNode(name=fold, **parts, **place))
        return fold

    def _add_partial_fold(self, name: str, **given: Any) -> None:
        """Add the first phase of a fold. It replaces the ``key_by``, which is omitted if no other node reads it."""
        key_by = self._draft._replace_key_by(self._node)
        key: dict[str, Any] = {"fn": key_by.fn, "key_codec": key_by.key_codec, "local": key_by.local}
        self._append_node(plan.PartialFoldNode, name, inputs=key_by.inputs, **key, **given)

    def reduce(
        self,
        fn: Callable[[T, T], T],
        *,
        name: str | None = None,
        state: Any = None,
        ttl: Ttl | None = None,
    ) -> Stream[T]:
        """Reduce the values of each key with ``fn``; emit the result so far for every input.

        ``state`` is the type of the values, if the stream does not declare it or it is to be stored as another one; see
        ``fold``. With ``ttl`` a key's value expires that time after its last input, and the next value is a first one
        again.

        Note: ``fn`` must return a new value and leave both arguments unchanged.
        """
        self._expect_ttl(ttl)
        tp = self._type if state is None else state
        codec = CountedCodec(self._state_codec(tp))
        node = self._append_node(plan.ReduceNode, name, fn=fn, key_codec=_KEY, entry_codec=codec, ttl=ttl)
        return Stream(self._draft, node, tp)

    def process(
        self, function: ProcessFunction[K, T, U] | type[ProcessFunction[K, T, U]], *, name: str | None = None
    ) -> Stream[U]:
        """Run your own ``ProcessFunction``: a class, or an object that each session copies.

        A function with ``on_timer`` needs ``with_timestamps`` behind every source of the stream. Values that it emits
        to its declared tags are read with ``side_output(tag)`` of the returned stream. For two streams that share
        state, see ``connect``.
        """
        node = self._append_process(plan.ProcessNode, function, name)
        return Stream(self._draft, node, get_element_type(get_return_type(function.process)))

    def deduplicate(self, *, name: str | None = None, within: Seconds, late: OutputTag[T] | None = None) -> Stream[T]:
        """Drop values of a key that are less than ``within`` seconds from one that was emitted.

        Of several such values, the first to arrive is emitted. The state of a key is dropped when the watermark has
        advanced by twice ``within``. A value that arrives later than ``within`` goes to the side output ``late``, or,
        without a tag, to the source's ``on_error``, because duplicates of it are no longer known. Needs
        ``with_timestamps`` behind every source.
        """
        self._expect_tags(late=late)
        back = call_quoting_user(lambda: milliseconds(within, "within="))
        return self._processed(DeduplicateFunction[K, T](back, late), name, self._type)

    def distinct(self, *, name: str | None = None, ttl: Ttl | None) -> Stream[T]:
        """Emit the first value of each key.

        Note: ``ttl=None`` stores a row for every key forever. With a time to live, a key is forgotten that long after
        its first value, and the next value is a first one again.
        """
        self._expect_ttl(ttl)
        return self._processed(DistinctFunction[K, T](ttl), name, self._type, grows=ttl is None)

    def _processed(
        self,
        function: ProcessFunction[K, T, U] | type[ProcessFunction[K, T, U]],
        name: str | None,
        tp: Any,
        *,
        grows: bool = False,
    ) -> Stream[U]:
        return Stream(self._draft, self._append_process(plan.ProcessNode, function, name, grows=grows), tp)

    def window(
        self,
        assigner: _Assigner,
        *,
        trigger: WindowTrigger | None = None,
        lateness: Seconds = 0,
        late: OutputTag[T] | None = None,
        ttl: Ttl | None = None,
    ) -> WindowedStream[K, T]:
        """Group the values of each key into windows. The next operation defines their result.

        ``assigner`` is ``tumbling``, ``sliding``, ``session`` or ``days``. ``rows`` and ``global_`` are windows without
        event time, to which only ``ttl`` applies. A window emits its result when the watermark passes its end. A
        ``trigger``, ``on_count(n)`` or ``on_clock(every=seconds)``, emits earlier results of its current contents.
        ``.purging()`` clears the window after each result, and cannot be combined with ``lateness``. With ``lateness``,
        a window accepts late rows for so many seconds, and emits its result again for each of them. Later rows go to
        the side output ``late``, or, without a tag, to the source's ``on_error``: none is dropped silently. Needs
        ``with_timestamps`` behind every source of the stream.

        ``ttl`` is for ``rows`` and ``global_``, which do not end with time. The state of a key expires that time after
        its last row, and the next row is its first one again. Without it, unfinished windows are stored forever.
        """
        if not isinstance(assigner, _Assigner):
            raise plan_error(
                "window must be tumbling(seconds=...), sliding(...), session(gap=...), days(...), rows(...) or "
                f"global_(...), not {assigner!r:.80}{': are its brackets missing?' if callable(assigner) else ''}"
            )
        self._expect_tags(late=late)
        late_for = call_quoting_user(lambda: milliseconds(lateness, "lateness=", 0))
        if isinstance(assigner, RowCountWindows) and (lateness or late is not None):
            raise plan_error(f"{assigner}: these windows do not use time, so no row is late; omit lateness= and late=.")
        self._expect_ttl(ttl)
        if ttl is not None and not isinstance(assigner, RowCountWindows):
            raise plan_error(f"{assigner}: these windows are removed when event time ends them; omit ttl=.")
        if trigger is not None:
            self._check_trigger(assigner, trigger, lateness)
        return WindowedStream(self._draft, self._node, self._type, assigner, late_for, late, trigger, ttl)

    @staticmethod
    def _check_trigger(assigner: _Assigner, trigger: WindowTrigger, lateness: Seconds) -> None:
        if not isinstance(trigger, CountTrigger | ClockTrigger):
            raise plan_error(
                f"trigger= is on_count(n) or on_clock(every=seconds), with .purging() behind it if you like, not "
                f"{trigger!r}: are its brackets missing?"
            )
        if isinstance(assigner, RowCountWindows):
            raise plan_error(f"{assigner}: these windows already emit results by number of rows; omit trigger=.")
        shared = not isinstance(assigner, SessionWindows) and assigner.is_shared
        if isinstance(trigger, CountTrigger) and shared:
            raise plan_error(
                f"{assigner}: a row is in several windows, so on_count would emit a result of each of them at once; "
                "use tumbling(seconds=…), days(…), session(…), or on_clock."
            )
        if trigger.purges and (shared or isinstance(assigner, SessionWindows)):
            raise plan_error(
                f"{assigner}: rows belong to several windows, so .purging() would remove them from "
                "other results too; it needs tumbling(seconds=…) or days(…)."
            )
        if trigger.purges and lateness:
            raise plan_error(
                "with lateness= a window keeps its rows after its end and emits its result again for "
                "each late row, so a row would be in several results: omit .purging() or lateness=; "
                "late=tag receives late rows."
            )

    def match(
        self,
        pattern: Pattern[T],
        fn: Callable[[K, dict[str, list[T]]], U],
        *,
        name: str | None = None,
        timed_out: OutputTag[V] | None = None,
        on_timeout: Callable[[K, dict[str, list[T]]], V] | None = None,
        late: OutputTag[T] | None = None,
    ) -> Stream[U]:
        """Emit ``fn(key, rows)`` for each sequence of rows of a key that matches ``pattern``; ``rows`` are lists by
        stage.

        A match is emitted when the watermark reaches its last row. A sequence that times out before it is complete goes
        to the side output ``timed_out``, as the result of ``on_timeout(key, rows)``; without a tag it is dropped. A
        late row goes to ``late``, or, without a tag, to the source's ``on_error``. Needs ``with_timestamps`` behind
        every source of the stream.

        Note: an exception from ``fn`` stops the job, because several records may be to blame.
        """
        if not isinstance(pattern, Pattern):
            raise plan_error(f"match takes a Pattern, Pattern[Row].begin(...) (got {pattern!r}).")
        if pattern.limit is None:
            raise plan_error(
                f"{pattern}: the stored rows would be unbounded; limit the duration of a match with .within(minutes=…)"
            )
        if (timed_out is None) != (on_timeout is None):
            raise plan_error(
                "timed_out= and on_timeout= must be given together: the side output, and the "
                "function that computes its values."
            )
        self._expect_tags(timed_out=timed_out, late=late)
        wheres = {f"stage {stage.name!r}": stage.where for stage in pattern.stages}
        self._expect_functions("match", fn=fn, **drop_none(on_timeout=on_timeout), **wheres)
        tags = [tag for tag in (timed_out, late) if tag is not None]
        given: dict[str, Any] = {
            "pattern": pattern,
            "on_timeout": on_timeout,
            "value_codec": self._state_codec(self._type),
        }
        given["timed_out"] = None if timed_out is None else timed_out.name
        given["late"] = None if late is None else late.name
        node = self._append_node(plan.PatternNode, name, fn=fn, key_codec=_KEY, **given)
        return Stream(self._draft, self._draft._add_side_outputs(node, tags), get_return_type(fn))

    @overload
    def async_map(
        self,
        fn: Callable[[K], Coroutine[Any, Any, A]],
        join: Callable[[T, A], U],
        *,
        name: str | None = None,
        cache: Ttl,
        ordered: bool = True,
        capacity: int = 100,
        timeout: Seconds = 30.0,
        retries: Retries | None = None,
        retry_on: tuple[type[Exception], ...] = RETRIED,
        breaker: Breaker | None = None,
        failed: OutputTag[T] | None = None,
        state: Any = None,
    ) -> Stream[U]: ...

    @overload
    def async_map(
        self,
        fn: Callable[[K], A],
        join: Callable[[T, A], U],
        *,
        name: str | None = None,
        cache: Ttl,
        ordered: bool = True,
        capacity: int = 100,
        timeout: Seconds = 30.0,
        retries: Retries | None = None,
        retry_on: tuple[type[Exception], ...] = RETRIED,
        breaker: Breaker | None = None,
        failed: OutputTag[T] | None = None,
        state: Any = None,
    ) -> Stream[U]: ...

    def async_map(
        self,
        fn: Callable[[K], Any],
        join: Callable[[T, Any], Any] | None = None,
        *,
        name: str | None = None,
        cache: Ttl | None = None,
        ordered: bool = True,
        capacity: int = 100,
        timeout: Seconds = 30.0,
        retries: Retries | None = None,
        retry_on: tuple[type[Exception], ...] = RETRIED,
        breaker: Breaker | None = None,
        failed: OutputTag[T] | None = None,
        state: Any = None,
    ) -> Stream[Any]:
        """Call a service for the key of each value, ``fn(key)``, and emit ``join(value, response)``.

        Only one request per key is in progress at a time. Its response is stored as state for as long as ``cache``
        says, so values that arrive meanwhile need no request. ``state`` is the type of responses, if ``fn`` has no
        annotation for it. None is a response like any other. An error is not stored: all values that wait for it fail.
        All else is as in ``Stream.async_map``.

        Note: a response may be as old as ``cache``; ``join`` must not modify it.
        """
        if join is None or cache is None:
            raise plan_error(
                "on a stream with keys, async_map requests each key once and caches the response: "
                "async_map(fn, join, cache=Ttl(seconds)), with fn(key) and join(value, response). To "
                "send a request per value, call it before .key_by(...)."
            )
        if not isinstance(cache, Ttl):
            raise plan_error(f"cache must be a Ttl(seconds), the time for which a response is kept, not {cache!r}.")
        key_by = self._draft._key_by(self._node)
        if key_by.local:
            raise plan_error(
                f"{key_by.kind} {key_by.name!r} is local=True, but after a restart rows that wait for "
                "responses go to the owner of their key, which is unknown with local=True. Omit "
                "local=True."
            )
        self._expect_functions("async_map", join=join)
        rules: dict[str, Any] = {"capacity": capacity, "timeout": timeout, "retry_on": retry_on}
        rules |= {"retries": retries, "breaker": breaker}
        answers = self._state_codec(without_none(get_return_type(fn)) if state is None else state)
        kept: dict[str, Any] = {"key_codec": _KEY, "answers": answers, "cache": cache, "join": join}
        node = add_async_map(self, plan.CachedAsyncMapNode, name, failed, None, rules, fn=fn, ordered=ordered, **kept)
        return Stream(self._draft, node, get_return_type(join))

    def join(self, table: Table[K, V], fn: Callable[[T, V], U], *, name: str | None = None) -> Stream[U]:
        """Emit ``fn(value, row)`` for each value whose key has a row in the table; drop the others.

        The table is as it was when the job began, or newer: see ``Pipeline.table``. Event time is that of this stream.
        """
        return self._add_table_join("join", table, fn, name, unmatched=False)

    def left_join(self, table: Table[K, V], fn: Callable[[T, V | None], U], *, name: str | None = None) -> Stream[U]:
        """Like ``join``, but keep all values: ``fn(value, None)`` for those whose key has no row in the table."""
        return self._add_table_join("left_join", table, fn, name, unmatched=True)

    def _add_table_join(
        self, operation: str, table: Table[K, V], fn: Callable[..., U], name: str | None, *, unmatched: bool
    ) -> Stream[U]:
        if isinstance(table, VersionedTable):
            raise plan_error(
                f"{table!r} has event times: {operation}_as_of looks it up; {operation} needs "
                "pipeline.table(...) without with_timestamps."
            )
        if not isinstance(table, Table):
            raise plan_error(
                f"{operation} takes a table, pipeline.table(...), not {table!r}; join two streams with "
                "connect(left, right)."
            )
        table._check(self, self._draft._key_by(self._node).fn)
        given, derived = self._draft._name(name, plan.TableJoinNode.kind)
        both = self._append_node(plan.TableConnectNode, f"{given}-lookup", inputs=(self._node, table._node))
        self._expect_functions(operation, fn=fn)
        parts: dict[str, Any] = {
            "name": given,
            "has_generated_name": derived,
            "code_line": user_line(),
            "inputs": (both,),
        }
        codecs: dict[str, Any] = {"key_codec": _KEY, "value": self._state_codec(table._values)}
        looked_up: dict[str, Any] = {"table": table._name, "keys": table._keys}
        self._draft._add_node(plan.TableJoinNode(fn=fn, unmatched=unmatched, **looked_up, **codecs, **parts))
        return Stream(self._draft, given, get_return_type(fn))

    def join_as_of(
        self,
        table: VersionedTable[K, V],
        fn: Callable[[T, V], U],
        *,
        name: str | None = None,
        late: OutputTag[T] | None = None,
    ) -> Stream[U]:
        """Emit ``fn(value, row)`` for each value whose key had a row in the table at the value's time; drop the
        others.

        A value waits until the watermark, of this stream and the table, reaches its time. So the result does not depend
        on which of them is ahead. A late value goes to the side output ``late``, or, without a tag, to the source's
        ``on_error``; a late row of the table goes to the ``on_error`` of the table. Both need ``with_timestamps``.

        Note: an exception from ``fn`` stops the job.
        """
        return self._looked_up_as_of("join_as_of", table, fn, name, late, outer=False)

    def left_join_as_of(
        self,
        table: VersionedTable[K, V],
        fn: Callable[[T, V | None], U],
        *,
        name: str | None = None,
        late: OutputTag[T] | None = None,
    ) -> Stream[U]:
        """Like ``join_as_of``, but keep all values: ``fn(value, None)`` if the table had no row for the key then."""
        return self._looked_up_as_of("left_join_as_of", table, fn, name, late, outer=True)

    def _looked_up_as_of(
        self,
        operation: str,
        table: VersionedTable[K, V],
        fn: Callable[..., U],
        name: str | None,
        late: OutputTag[T] | None,
        *,
        outer: bool,
    ) -> Stream[U]:
        if not isinstance(table, VersionedTable):
            raise plan_error(
                f"{operation} takes a table that has event times (got {table!r}): "
                "pipeline.table(...).with_timestamps(watermarks=...)."
            )
        table._check(self, self._draft._key_by(self._node).fn)
        self._expect_tags(late=late)
        given, derived = self._draft._name(name, plan.AsOfJoinNode.kind)
        both = self._append_node(plan.ConnectNode, f"{given}-lookup", inputs=(self._node, table._node))
        self._expect_functions(operation, fn=fn)
        parts: dict[str, Any] = {
            "name": given,
            "has_generated_name": derived,
            "code_line": user_line(),
            "inputs": (both,),
        }
        codecs: dict[str, Any] = {"key_codec": _KEY}
        codecs["value_codec"] = self._state_codec(self._type), OptionalCodec(self._state_codec(table._values))
        tags = () if late is None else (late,)
        late_ones = (None if late is None else late.name, None)
        self._draft._add_node(
            plan.AsOfJoinNode(table=table._name, fn=fn, outer=outer, late=late_ones, **codecs, **parts)
        )
        return Stream(self._draft, self._draft._add_side_outputs(given, tags), get_return_type(fn))

    def sessionize(
        self, *, name: str | None = None, gap: Seconds, late: OutputTag[T] | None = None
    ) -> Stream[Windowed[K, list[T]]]:
        """Group the values of each key into sessions: values less than ``gap`` seconds apart, in order of event time.

        A session ends ``gap`` seconds after its last value; its state is dropped then. ``late`` works as in ``window``.

        Note: all values of a session are state until it ends. If aggregates suffice, aggregate
        ``window(session(gap))``.
        """
        return self.window(session(gap=gap), late=late)._listed(name)


class WindowedStream(BaseStream, Generic[K, T]):
    """A stream of keyed values in windows. Its operations define a window's contents and its result.

    Name each operation: its state is stored under that name.
    """

    def __init__(
        self,
        draft: PlanBuilder,
        node: str,
        tp: Any,
        assigner: _Assigner,
        lateness: int,
        late: OutputTag[T] | None,
        trigger: WindowTrigger | None,
        ttl: Ttl | None,
    ) -> None:
        super().__init__(draft, node, tp)
        self._assigner = assigner
        self._lateness = lateness
        self._late = late
        self._trigger = trigger
        self._ttl = ttl

    def reduce(self, fn: Callable[[T, T], T], *, name: str | None = None, state: Any = None) -> Stream[Windowed[K, T]]:
        """Reduce the values of a window to one with ``fn``: in any order, and in parts.

        ``state`` and the note are those of ``KeyedStream.reduce``.
        """
        self._expect_functions("reduce", fn=fn)
        tp = self._type if state is None else state
        codec = self._state_codec(tp)
        return self._windowed(name, reducing(fn, codec), WindowedCodec(codec, tp))

    @overload
    def fold(
        self,
        *,
        name: str | None = None,
        init: Callable[[], A],
        step: Callable[[A, T], A],
        merge: Callable[[A, A], A] | None = None,
        state: Any = None,
    ) -> Stream[Windowed[K, A]]: ...

    @overload
    def fold(
        self,
        *,
        name: str | None = None,
        init: Callable[[], A],
        step: Callable[[A, T], A],
        emit: Callable[[K, Window, A], U],
        merge: Callable[[A, A], A] | None = None,
        state: Any = None,
    ) -> Stream[U]: ...

    def fold(
        self,
        *,
        name: str | None = None,
        init: Callable[[], Any],
        step: Callable[[Any, Any], Any],
        emit: Callable[[Any, Window, Any], Any] | None = None,
        merge: Callable[[Any, Any], Any] | None = None,
        state: Any = None,
    ) -> Stream[Any]:
        """Fold the values of a window. At its end, emit ``emit(key, window, accumulator)``, by default a ``Windowed``.

        ``state`` is the accumulator's type, as for ``KeyedStream.fold``. ``merge`` combines two accumulators; sliding
        windows and sessions need it. With it you guarantee that rows may be added in any order, and in parts.

        Note: ``step`` and ``merge`` must return a new accumulator and leave the old ones unchanged.
        """
        self._expect_functions("fold", init=init, step=step, **drop_none(emit=emit, merge=merge))
        if merge is None and (isinstance(self._assigner, SessionWindows) or self._assigner.is_shared):
            raise plan_error(
                f"{self._assigner}: these windows are assembled from parts, so .fold(...) needs merge=, "
                "which combines two accumulators."
            )
        tp = get_instance_class(type(init())) if state is None else state
        codec = self._state_codec(tp)
        if emit is None:
            return self._windowed(name, folding(init, step, merge, windowed, codec), WindowedCodec(codec, tp))

        def emitted(key: Any, window: Window, acc: Any) -> list[Any]:
            return [emit(key, window, acc)]

        return self._windowed(name, folding(init, step, merge, emitted, codec), get_return_type(emit))

    @overload
    def aggregate(
        self,
        *aggregates: Aggregate[T, Any, Any],
        name: str | None = None,
        out: type[U],
        key: str = "key",
        start: str = "start",
        end: str = "end",
        **named: Aggregate[T, Any, Any],
    ) -> Stream[U]: ...

    @overload
    def aggregate(
        self,
        *aggregates: Aggregate[T, Any, Any],
        name: str | None = None,
        out: None = None,
        key: str = "key",
        start: str = "start",
        end: str = "end",
        **named: Aggregate[T, Any, Any],
    ) -> Stream[Any]: ...

    def aggregate(
        self,
        *aggregates: Aggregate[T, Any, Any],
        name: str | None = None,
        out: type[Any] | None = None,
        key: str = "key",
        start: str = "start",
        end: str = "end",
        **named: Aggregate[T, Any, Any],
    ) -> Stream[Any]:
        """Aggregate the values of a window. At its end, emit one row: key, start, end, and a field per aggregate.

        ``aggregate(agg.count(), total=agg.sum("amount"))``; see ``agg``. ``out`` is your class
        for the rows; ``key``, ``start`` and ``end`` are the names of its fields.
        """
        parts, rows = self._rows(aggregates, named, out, key, start, end)

        def emit(of: Any, window: Window, acc: Any) -> list[Any]:
            return [rows.row((of, window.start, window.end), acc)]

        codec = self._state_codec(parts.accumulator)
        contents = folding(parts.create, parts.add, parts.merge, emit, codec, by_time=parts.needs_event_time)
        return self._windowed(name, contents, rows.codec_type)

    def process(
        self, fn: Callable[[K, Window, list[T]], Iterable[U]], *, name: str | None = None, state: Any = None
    ) -> Stream[U]:
        """Emit the outputs of ``fn(key, window, values)`` for each window; ``values`` are in the order of event time.

        Values with equal times are in the order of partition and offset, so the order is the same in every run. All
        values of a window are state, and each checkpoint stores those of every window that received some. ``state`` is
        the type of the values, if the stream does not declare it.
        """
        call_quoting_user(lambda: expect_iterables("process", fn=fn))
        codec = self._state_codec(self._type if state is None else state)
        contents = all_elements(fn, codec, numbered=isinstance(self._assigner, RowCountWindows))
        return self._windowed(name, contents, get_element_type(get_return_type(fn)))

    def top_n(self, n: int, *, name: str | None = None, by: str | Callable[[T], Any]) -> Stream[Windowed[K, list[T]]]:
        """Emit the ``n`` values of a window with the highest ``by``, highest first; see ``agg.top``.

        A window stores only that many values.
        """
        if not isinstance(by, str):
            self._expect_functions("top_n", by=by)
        best = call_quoting_user(lambda: top(n, by).for_type(self._value_type))
        return self._aggregated(name, best, lambda window, values: values)

    def rate(self, *, name: str | None = None) -> Stream[Windowed[K, float]]:
        """Emit the number of values per second of each key and window; a window without values has no result.

        Raises PlanError for ``rows`` and ``global_``, whose windows have no duration.
        """
        if isinstance(self._assigner, RowCountWindows):
            raise plan_error(
                f"{self._assigner}: these windows have no duration, so they have no rate; use tumbling(seconds=...)."
            )
        return self._aggregated(name, count(), lambda window, n: n * 1000 / (window.end - window.start), float)

    def _aggregated(
        self,
        name: str | None,
        part: Aggregate[T, Any, Any],
        result: Callable[[Window, Any], Any],
        tp: Any = None,
    ) -> Stream[Any]:
        """Emit ``result`` of a window and its ``part``; of type ``tp``, or of the type of ``part``."""

        def emit(key: Any, window: Window, acc: Any) -> Sequence[Any]:
            return windowed(key, window, result(window, part.result(acc)))

        codec = self._state_codec(part.accumulator)
        contents = folding(part.create, part.add, part.merge, emit, codec, by_time=part.needs_event_time)
        of = part.returns if tp is None else tp
        return self._windowed(name, contents, WindowedCodec(self._state_codec(of), of))

    def _listed(self, name: str | None) -> Stream[Windowed[K, list[T]]]:
        """Emit all values of a window as a list."""
        values: Any = list if self._value_type is None else list[self._value_type]  # type: ignore[name-defined]
        contents = all_elements(windowed, self._state_codec(self._type))
        return self._windowed(name, contents, WindowedCodec(self._state_codec(values), values))

    def _windowed(self, name: str | None, contents: WindowContents, tp: Any) -> Stream[Any]:
        if isinstance(self._assigner, RowCountWindows):
            parts: dict[str, Any] = {"assigner": self._assigner, "contents": contents, "ttl": self._ttl}
            return Stream(self._draft, self._append_node(plan.CountWindowNode, name, key_codec=_KEY, **parts), tp)
        late = () if self._late is None else (self._late,)
        if isinstance(self._trigger, CountTrigger):
            contents = count_since_result(contents)
        given: dict[str, Any] = {"assigner": self._assigner, "contents": contents, "lateness": self._lateness}
        given["trigger"] = self._trigger
        given["late"] = None if self._late is None else self._late.name
        node = self._append_node(plan.WindowNode, name, key_codec=_KEY, **given)
        return Stream(self._draft, self._draft._add_side_outputs(node, late), tp)
