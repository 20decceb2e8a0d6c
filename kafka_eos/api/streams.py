"""Streams, and the verbs that people write pipelines with: plain ones, with a key, and with windows.

A verb adds one node to the draft of the pipeline and returns a new stream; streams never change, so a stream may be
used twice. Building runs nothing of the user's code except ``init`` of a fold (to learn the type of its state).

Rule: a mistake is reported with the line of the user's file, at the verb if it can be seen there, else by ``plan``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, overload

from kafka_eos import abc as interfaces
from kafka_eos import plan
from kafka_eos._util.call_site import mistake, quoted, user_line
from kafka_eos.abc.state import Ttl
from kafka_eos.api.aggregates import Aggregate, count, top
from kafka_eos.api.async_map import RETRIED, asked
from kafka_eos.api.broadcast_input import Broadcast
from kafka_eos.api.plan_builder import Draft
from kafka_eos.api.stream_base import Upstream
from kafka_eos.api.table import Table, VersionedTable
from kafka_eos.api.window_functions import all_elements, folding, reducing, since_a_result, windowed
from kafka_eos.codecs import Counted, KeyCodec, Maybe, WindowedCodec
from kafka_eos.codecs.type_inspection import checked_class, element, returned, without_none
from kafka_eos.core.windows import Window, Windowed
from kafka_eos.plan import Node
from kafka_eos.plan.deduplication import Deduplicate, Distinct
from kafka_eos.plan.function_checks import expect_iterables, present
from kafka_eos.plan.pattern import Pattern
from kafka_eos.plan.process_functions import OutputTag, ProcessFunction
from kafka_eos.plan.retries import Breaker, Retries
from kafka_eos.plan.triggers import OnClock, OnCount, Trigger
from kafka_eos.plan.watermarks import WatermarkStrategy
from kafka_eos.plan.window_assigners import Days, Early, RowCount, Session, Sliding, Tumbling, milliseconds, session
from kafka_eos.plan.window_contents import Contents

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")
A = TypeVar("A")
V = TypeVar("V")

_Assigner: TypeAlias = Tumbling | Early | Sliding | Days | Session | RowCount

_KEY = KeyCodec()
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
"""Verbs of streams with keys, for who calls one on another stream."""


class Stream(Upstream, Generic[T]):
    """Values of type ``T`` on their way. Verbs return new streams.

    Every verb takes what it works with first, and the ``name`` of its node as a keyword. Functions are ordinary ones: a
    verb raises PlanError for a coroutine function.

    After a failure records are processed again from the last checkpoint, and what the failed attempt made is thrown
    away; so a function need not be deterministic, but what it does outside (a call, a file) happens again. A function
    that raises refuses its record (see ``on_error``); to have the whole attempt repeated instead, raise ``Retryable``.

    With several workers rows stay in the worker that read them until ``key_by``, ``rebalance`` or ``broadcast``. There
    they are encoded by their type: the one given as ``values=``, else what the source or the annotated result of the
    last function says, else only plain values (str, numbers, lists, dicts …) may pass. So they are at a ``forward``
    that has to be written: into a checkpoint that holds rows on their way, or to the next stage of a Spark job.
    """

    def map(self, fn: Callable[[T], U], *, name: str | None = None) -> Stream[U]:
        """One value in, one value out."""
        return Stream(self._draft, self._grow(plan.Map, name, fn=fn), returned(fn))

    def with_timestamps(
        self, fn: Callable[[T], int] | None = None, *, name: str | None = None, watermarks: WatermarkStrategy
    ) -> Stream[T]:
        """Give each value its event time, and the stream watermarks: right behind a source, for timers further down.

        ``fn`` tells the time of a value, in milliseconds since the Unix epoch; without it, it is that of the record.
        ``watermarks``: ``bounded(seconds)`` if records of a partition may be so much out of order, ``monotonic()`` if
        they are in order. Event time goes on when all partitions have; one that is silent holds it back, unless the
        strategy is told ``.with_idleness(seconds)``. ``generated(…)`` is a strategy of your own.
        """
        source = self._draft._source_of(self._node)
        node = self._timed(fn, watermarks, source, f"{source}-timestamps" if name is None else name)
        return Stream(self._draft, node, self._type)

    def filter(self, fn: Callable[[T], object], *, name: str | None = None) -> Stream[T]:
        """Keep the values for which ``fn`` is true."""
        return Stream(self._draft, self._grow(plan.Filter, name, fn=fn), self._type)

    def flat_map(self, fn: Callable[[T], Iterable[U]], *, name: str | None = None) -> Stream[U]:
        """One value in, any number out. A value that fails half-way gives none."""
        return Stream(self._draft, self._grow(plan.FlatMap, name, fn=fn), element(returned(fn)))

    def map_batches(self, fn: Callable[[list[T]], list[U]], *, name: str | None = None) -> Stream[U]:
        """Many values in, as many out, in order: for functions that are only fast on many.

        Where one batch ends and the next begins is not fixed, so the result must not depend on it. If ``fn`` raises
        it is called again with halves, until the records at fault stand alone.
        """
        return Stream(self._draft, self._grow(plan.MapBatches, name, fn=fn), element(returned(fn)))

    @overload
    def async_map(
        self,
        fn: Callable[[T], Coroutine[Any, Any, U]],
        *,
        name: str | None = None,
        ordered: bool = True,
        capacity: int = 100,
        timeout: float = 30.0,
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
        timeout: float = 30.0,
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
        timeout: float = 30.0,
        retries: Retries | None = None,
        retry_on: tuple[type[Exception], ...] = RETRIED,
        breaker: Breaker | None = None,
        failed: OutputTag[T] | None = None,
        values: Any = None,
    ) -> Stream[Any]:
        """One value in, one value out, from a service: up to ``capacity`` requests at a time, in each worker.

        ``fn`` is a coroutine function, or an ordinary one, which waits in a thread. A try takes ``timeout`` seconds at
        most. An error of ``retry_on`` is tried again as ``retries`` says, and counted by ``breaker``. A value whose
        last try has failed goes to the side output ``failed``, or without one where the source's ``on_error`` says.
        ``ordered=False`` hands answers on as they come. Values that wait are in every checkpoint, written by their
        type (``values``, as in ``key_by``), and after a failure the service is asked again: each answer enters once.
        The traps: the service may be asked more than once; and ``fn`` leaves its value as it is.
        """
        rules: dict[str, Any] = {"capacity": capacity, "timeout": timeout, "retry_on": retry_on}
        rules |= {"retries": retries, "breaker": breaker}
        node = asked(self, plan.AsyncMap, name, failed, values, rules, fn=fn, ordered=ordered)
        return Stream(self._draft, node, returned(fn))

    def key_by(
        self, fn: Callable[[T], K], *, name: str | None = None, values: Any = None, local: bool = False
    ) -> KeyedStream[K, T]:
        """Give each value a key: str, int of 64 bits, bytes, or a tuple of these. Other keys refuse the record.

        All values of a key go to one worker. ``local=True`` keeps them where they are: you vouch that all records of
        a key are in one partition, of every source, and that partitions of the same number hold the same keys. The
        trap: if that is not so, a key has several states, and after a change of parallelism one of them is refused.
        """
        node = self._grow(plan.KeyBy, name, fn=fn, key_codec=_KEY, values=self._wire(values), local=local)
        return KeyedStream(self._draft, node, self._type if values is None else values)

    def rebalance(self, *, name: str | None = None, values: Any = None) -> Stream[T]:
        """Spread the values evenly over all workers; order is kept only between those that take the same way."""
        return self._exchange(plan.Exchange, name, values, how=plan.Partitioning.REBALANCE)

    def broadcast(self, *, name: str | None = None, values: Any = None) -> BroadcastStream[T]:
        """Give every value to all workers: what follows happens once in each of them.

        ``connect(stream, rules.broadcast())`` lets a function of ``stream`` know all of them in every worker.
        """
        copied = self._exchange(plan.Exchange, name, values, how=plan.Partitioning.BROADCAST)
        return BroadcastStream(self._draft, copied._node, copied._type)

    def forward(self, *, name: str | None = None, values: Any = None) -> Stream[T]:
        """Keep the values in their worker and in their order: what follows waits for its barriers behind a queue.

        Where a stream with an exchange and one without come together in a ``union``, the plan has one by itself. Write
        it to give a type that is not known there, or a name.
        """
        return self._exchange(plan.Forward, name, values)

    def _exchange(self, kind: type[Node], name: str | None, values: Any, **parts: Any) -> Stream[T]:
        node = self._grow(kind, name, values=self._wire(values), **parts)
        return Stream(self._draft, node, self._type if values is None else values)

    def iterate(
        self, body: Callable[[Stream[T]], tuple[Stream[T], Stream[U]]], *, name: str, values: Any = None
    ) -> Stream[U]:
        """A loop: ``body`` gets the stream of new and returning values, and gives back two: those that go round
        again, and those that leave.

        State in the loop is exactly-once as everywhere: rows that are on their way round belong to the checkpoint. The
        trap: a body that always sends something back never ends, and no bounded run (``--until-caught-up``) of it does.
        """
        head = Stream[T](self._draft, self._grow(plan.Loop, name), self._type if values is None else values)
        back, out = body(head)
        back._grow(plan.Feedback, f"{name}-feedback", to=name, values=back._wire(values))
        return out

    def union(self, *others: Stream[T], name: str | None = None) -> Stream[T]:
        """All values of these streams; order is kept within each stream, not between them."""
        for other in others:
            if other._draft is not self._draft:
                names = f"{self._draft.name!r} and {other._draft.name!r}"
                raise mistake(f"union of streams of two pipelines, {names}; make both in one.")
        inputs = (self._node, *(other._node for other in others))
        tp = self._type if all(other._type == self._type for other in others) else None
        return Stream(self._draft, self._grow(plan.Union, name, inputs=inputs), tp)

    def side_output(self, tag: OutputTag[U]) -> Stream[U]:
        """What the ``ProcessFunction`` right before emits to ``tag``: a stream of its own, like any other.

        Each tag that a function declares must be read by somebody, as its output must.
        """
        return Stream(self._draft, self._draft._side_output(self._node, tag), tag.tp)

    def sink(self, sink: interfaces.Sink[T], *, name: str) -> None:
        """Write the stream to ``sink``. The stream may have other readers too."""
        self._grow(plan.Sink, name, sink=sink)

    if not TYPE_CHECKING:

        def __getattr__(self, verb: str) -> Any:
            if verb in _KEYED:
                raise mistake(
                    f".{verb}(...) keeps state for a key, and this stream has none; put .key_by(...) before it."
                )
            raise AttributeError(f"a Stream has no {verb!r}")


class BroadcastStream(Stream[T], Broadcast[T]):
    """Values that come to all workers. What its verbs make happens once in each of them."""


class KeyedStream(Upstream, Generic[K, T]):
    """Values with a key. Verbs here keep state for each key, in the checkpoint of every epoch.

    Give each a name: state is stored under it.
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
        """An accumulator a key; one output for every input: ``emit(key, accumulator)``, or that pair.

        ``state`` is the accumulator's type. Without it, it is the class that ``init`` gives if that is a model, a
        Struct or a dataclass; else only plain values (str, numbers, lists, dicts …) can be stored, and what would
        come back different is refused. The trap: ``step`` must return a new accumulator and leave the old one as it
        is, because outputs that were emitted before may still refer to it.

        With ``merge`` each worker sums up what it reads, and only accumulators go to the owner of the key, once an
        epoch: for skewed keys, and wherever there are fewer keys than records. Then there is one output for every key
        and *epoch* in which it had input, with the value at the epoch's end. You vouch that records may be summed up
        in parts, in any order: ``merge(fold(a), fold(b))`` equals ``fold(a + b)``, each part begun with ``init``.

        With ``ttl`` a key's accumulator is gone that time after its last input, and the next one begins with ``init``.
        """
        self._expect_functions("fold", init=init, step=step, **present(emit=emit, merge=merge))
        tp = checked_class(type(init())) if state is None else state
        given = {"init": init, "step": step, "merge": merge}
        return Stream(self._draft, self._fold(name, given, emit, tp, ttl), None if emit is None else returned(emit))

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
        """Aggregates of the values of each key, as one row for every input: the key, and a field for each of them.

        ``aggregate(count(), total=sum_(lambda o: o.amount))`` gives rows with ``key``, ``count`` and ``total``; see
        ``kafka_eos.api.aggregates``. ``out`` is a class of yours for the rows (a model, a Struct, a dataclass); ``key``
        how the field of the key is called.

        It is a ``fold``: ``ttl`` is the same there, and with ``merge=True`` it has two phases, and one row for every
        key and epoch. Other than for a fold you need not vouch for anything: all aggregates can be merged.
        """
        parts, rows = self._rows(aggregates, named, out, key)
        given = {"init": parts.create, "step": parts.add, "merge": parts.merge if merge else None}

        def emit(of: Any, acc: Any) -> Any:
            return rows.row((of,), acc)

        node = self._fold(name, given, emit, parts.accumulator, ttl, by_time=parts.by_time)
        return Stream(self._draft, node, rows.known)

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
        """Add a fold in one phase, or in two if ``given`` has ``merge``; returns its name."""
        self._expect_ttl(ttl)
        stored: dict[str, Any] = {"key_codec": _KEY, "entry_codec": Counted(self._stored(tp)), "ttl": ttl}
        parts = {**given, **stored, "emit": emit, "by_time": by_time}
        if given["merge"] is None:
            return self._grow(plan.Fold, name, **parts)
        fold, derived = self._draft._name(name, plan.Fold.kind)
        self._partly(f"{fold}-partial", values=self._sent(tp), by_time=by_time, **given)
        place: dict[str, Any] = {"where": user_line(), "inputs": (f"{fold}-partial",), "derived": derived}
        self._draft._add(plan.Fold(name=fold, **parts, **place))
        return fold

    def _partly(self, name: str, **given: Any) -> None:
        """Add the first phase of a fold. It does the work of the ``key_by``, left out if nobody else reads that."""
        key_by = self._draft._combined(self._node)
        key: dict[str, Any] = {"fn": key_by.fn, "key_codec": key_by.key_codec, "local": key_by.local}
        self._grow(plan.PartialFold, name, inputs=key_by.inputs, **key, **given)

    def reduce(
        self,
        fn: Callable[[T, T], T],
        *,
        name: str | None = None,
        state: Any = None,
        ttl: Ttl | None = None,
    ) -> Stream[T]:
        """The key's values reduced so far, for every input.

        ``state`` is the type of the values, if the stream does not know it or it is to be stored as another one; see
        ``fold``. The trap is that of ``fold``: ``fn`` must return a new value and leave its two arguments as they are.
        With ``ttl`` what a key has is gone that time after its last input, and the next value is a first one again.
        """
        self._expect_ttl(ttl)
        tp = self._type if state is None else state
        codec = Counted(self._stored(tp))
        node = self._grow(plan.Reduce, name, fn=fn, key_codec=_KEY, entry_codec=codec, ttl=ttl)
        return Stream(self._draft, node, tp)

    def process(
        self, function: ProcessFunction[K, T, U] | type[ProcessFunction[K, T, U]], *, name: str | None = None
    ) -> Stream[U]:
        """Run your own ``ProcessFunction``: a class, or an object of which each session gets a copy.

        One that defines ``on_timer`` needs ``with_timestamps`` behind every source of the stream. What it emits to the
        tags that it declares comes out at ``side_output(tag)`` of the stream that this returns. For two streams over
        one state, see ``connect``.
        """
        node = self._runs(plan.Process, function, name)
        return Stream(self._draft, node, element(returned(function.process)))

    def deduplicate(self, *, name: str | None = None, within: float, late: OutputTag[T] | None = None) -> Stream[T]:
        """Values of a key that are less than ``within`` seconds from one that has passed are dropped.

        Which of several passes is the one that comes first. Nothing is left of a key when event time has gone on by
        twice that. A value that comes later than ``within`` goes to the side output ``late``, or without one where the
        source's ``on_error`` says, because nobody knows any more. Needs ``with_timestamps`` behind every source.
        """
        self._expect_tags(late=late)
        back = quoted(lambda: milliseconds(within, "within="))
        return self._processed(Deduplicate[K, T](back, late), name, self._type)

    def distinct(self, *, name: str | None = None, ttl: Ttl | None) -> Stream[T]:
        """The first value of each key.

        The trap: ``ttl=None`` keeps a row for every key for ever. With a time to live, a key is forgotten that long
        after its first value, and the next one is a first one again.
        """
        self._expect_ttl(ttl)
        return self._processed(Distinct[K, T](ttl), name, self._type, grows=ttl is None)

    def _processed(
        self,
        function: ProcessFunction[K, T, U] | type[ProcessFunction[K, T, U]],
        name: str | None,
        tp: Any,
        *,
        grows: bool = False,
    ) -> Stream[U]:
        return Stream(self._draft, self._runs(plan.Process, function, name, grows=grows), tp)

    def window(
        self,
        assigner: _Assigner,
        *,
        trigger: Trigger | None = None,
        lateness: float = 0,
        late: OutputTag[T] | None = None,
        ttl: Ttl | None = None,
    ) -> WindowedStream[K, T]:
        """Windows for each key; what becomes of them is said by the verb that follows.

        ``assigner``: ``tumbling``, ``sliding``, ``session`` or ``days``; ``rows`` and ``global_`` are windows without
        time, to which the rest does not apply. A window has its result when event time has come to its end. With
        ``trigger``, ``on_count(n)`` or ``on_clock(every=seconds)``, it has others before that, of what it holds then;
        ``.purging()`` lets go of the rows with each, and is not for windows with ``lateness``. With
        ``lateness`` it takes rows for so many seconds more, and each of these makes the result again. A row that comes
        later goes to the side output ``late``, or without one where the source's ``on_error`` says: it is never
        silently away. Needs ``with_timestamps`` behind every source of the stream.

        ``ttl`` is for ``rows`` and ``global_``, which do not end with time: what a key has is gone that time after its
        last row, and the next one is its first again. Without it what unfinished windows hold stays for ever.
        """
        if not isinstance(assigner, _Assigner):
            raise mistake(
                "window is of tumbling(seconds=...), sliding(...), session(gap=...), days(...), rows(...) or "
                f"global_(...), not of {assigner!r:.80}{': are its brackets missing?' if callable(assigner) else ''}"
            )
        self._expect_tags(late=late)
        late_for = quoted(lambda: milliseconds(lateness, "lateness=", 0))
        if isinstance(assigner, RowCount) and (lateness or late is not None):
            raise mistake(f"{assigner}: they know no time, so no row is late; leave out lateness= and late=.")
        self._expect_ttl(ttl)
        if ttl is not None and not isinstance(assigner, RowCount):
            raise mistake(f"{assigner}: event time ends them, and nothing is left of them then; leave out ttl=.")
        if trigger is not None:
            self._check_trigger(assigner, trigger, lateness)
        return WindowedStream(self._draft, self._node, self._type, assigner, late_for, late, trigger, ttl)

    @staticmethod
    def _check_trigger(assigner: _Assigner, trigger: Trigger, lateness: float) -> None:
        if not isinstance(trigger, OnCount | OnClock):
            raise mistake(
                f"trigger= is on_count(n) or on_clock(every=seconds), with .purging() behind it if you like, not "
                f"{trigger!r}: are its brackets missing?"
            )
        if isinstance(assigner, RowCount):
            raise mistake(f"{assigner}: they have results by number of rows already; leave out trigger=.")
        shared = not isinstance(assigner, Session) and assigner.shared
        if isinstance(trigger, OnCount) and shared:
            raise mistake(
                f"{assigner}: a row is in several windows, so on_count would have a result of each of them at once; "
                "use tumbling(seconds=…), days(…), session(…), or on_clock."
            )
        if trigger.purges and (shared or isinstance(assigner, Session)):
            raise mistake(
                f"{assigner}: what one result lets go of belongs to others too, so .purging() is for "
                "tumbling(seconds=…) and days(…)."
            )
        if trigger.purges and lateness:
            raise mistake(
                "with lateness= a window keeps its rows behind its end, and each late one makes its result again, so "
                "no row would be in one result only: leave out .purging() or lateness=; late=tag catches late rows."
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
        """``fn(key, rows)`` for each sequence of rows of a key that ``pattern`` describes; ``rows`` are lists by stage.

        A match comes when event time has come to its last row. Sequences whose time is up before they are whole go to
        the side output ``timed_out``, as what ``on_timeout(key, rows)`` makes of the rows that they had; without it
        they are dropped. A row that comes when event time has passed it goes to ``late``, or without one where the
        source's ``on_error`` says. Needs ``with_timestamps`` behind every source of the stream. The trap: what ``fn``
        raises stops the job, because there are several records to blame.
        """
        if not isinstance(pattern, Pattern):
            raise mistake(f"match is of a Pattern, Pattern[Row].begin(...), not of {pattern!r}.")
        if pattern.limit is None:
            raise mistake(f"{pattern}: nothing bounds what is stored; say how long it may take: .within(minutes=…)")
        if (timed_out is None) != (on_timeout is None):
            raise mistake("timed_out= and on_timeout= are given together: where they go, and what is made of the rows.")
        self._expect_tags(timed_out=timed_out, late=late)
        wheres = {f"stage {stage.name!r}": stage.where for stage in pattern.stages}
        self._expect_functions("match", fn=fn, **present(on_timeout=on_timeout), **wheres)
        tags = [tag for tag in (timed_out, late) if tag is not None]
        given: dict[str, Any] = {"pattern": pattern, "on_timeout": on_timeout, "values": self._stored(self._type)}
        given |= {"timed_out": getattr(timed_out, "name", None), "late": getattr(late, "name", None)}
        node = self._grow(plan.Patterns, name, fn=fn, key_codec=_KEY, **given)
        return Stream(self._draft, self._draft._part(node, tags), returned(fn))

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
        timeout: float = 30.0,
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
        timeout: float = 30.0,
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
        timeout: float = 30.0,
        retries: Retries | None = None,
        retry_on: tuple[type[Exception], ...] = RETRIED,
        breaker: Breaker | None = None,
        failed: OutputTag[T] | None = None,
        state: Any = None,
    ) -> Stream[Any]:
        """``join(value, answer)`` for each value, where ``answer`` is what a service says of its key: ``fn(key)``.

        Of each key only one request is made at a time, and its answer is kept as state for as long as ``cache`` says,
        so values that come meanwhile ask nobody. ``state`` is the type of answers, if ``fn`` is not annotated with it;
        None is an answer like any other, an error is none and is not kept: all values that wait for it fail. The rest
        is as in ``Stream.async_map``. The traps: an answer may be as old as ``cache``; ``join`` leaves it as it is.
        """
        if join is None or cache is None:
            raise mistake(
                "on a stream with keys async_map asks for the key, and keeps its answer: async_map(fn, join, "
                "cache=Ttl(seconds)), with fn(key) and join(value, answer). To ask for each value put it before "
                ".key_by(...)."
            )
        if not isinstance(cache, Ttl):
            raise mistake(f"cache= is how long an answer is kept, Ttl(seconds), not {cache!r}.")
        key_by = self._draft._key_by(self._node)
        if key_by.local:
            raise mistake(
                f"{key_by.kind} {key_by.name!r} is local=True, and rows that wait for answers go to whoever has their "
                "key after a restart, which nobody would know there. Leave local=True out."
            )
        self._expect_functions("async_map", join=join)
        rules: dict[str, Any] = {"capacity": capacity, "timeout": timeout, "retry_on": retry_on}
        rules |= {"retries": retries, "breaker": breaker}
        answers = self._stored(without_none(returned(fn)) if state is None else state)
        kept: dict[str, Any] = {"key_codec": _KEY, "answers": answers, "cache": cache, "join": join}
        node = asked(self, plan.CachedAsyncMap, name, failed, None, rules, fn=fn, ordered=ordered, **kept)
        return Stream(self._draft, node, returned(join))

    def join(self, table: Table[K, V], fn: Callable[[T, V], U], *, name: str | None = None) -> Stream[U]:
        """``fn(value, row)`` for each value whose key the table has a row for; others are dropped.

        The table is as it was when the job began, or newer: see ``Pipeline.table``. Event time is that of this stream.
        """
        return self._looked_up("join", table, fn, name, unmatched=False)

    def left_join(self, table: Table[K, V], fn: Callable[[T, V | None], U], *, name: str | None = None) -> Stream[U]:
        """As ``join``, with all values: ``fn(value, None)`` for those whose key the table has nothing for."""
        return self._looked_up("left_join", table, fn, name, unmatched=True)

    def _looked_up(
        self, verb: str, table: Table[K, V], fn: Callable[..., U], name: str | None, *, unmatched: bool
    ) -> Stream[U]:
        if isinstance(table, VersionedTable):
            raise mistake(
                f"{table!r} has event times: {verb}_as_of looks it up; {verb} takes pipeline.table(...) as it is, "
                "without with_timestamps."
            )
        if not isinstance(table, Table):
            raise mistake(
                f"{verb} is with a table, pipeline.table(...), not {table!r}; two streams are joined behind "
                "connect(left, right)."
            )
        table._check(self, self._draft._key_by(self._node).fn)
        given, derived = self._draft._name(name, plan.TableJoin.kind)
        both = self._grow(plan.Lookup, f"{given}-lookup", inputs=(self._node, table._node))
        self._expect_functions(verb, fn=fn)
        parts: dict[str, Any] = {"name": given, "derived": derived, "where": user_line(), "inputs": (both,)}
        codecs: dict[str, Any] = {"key_codec": _KEY, "value": self._stored(table._values)}
        looked_up: dict[str, Any] = {"table": table._name, "keys": table._keys}
        self._draft._add(plan.TableJoin(fn=fn, unmatched=unmatched, **looked_up, **codecs, **parts))
        return Stream(self._draft, given, returned(fn))

    def join_as_of(
        self,
        table: VersionedTable[K, V],
        fn: Callable[[T, V], U],
        *,
        name: str | None = None,
        late: OutputTag[T] | None = None,
    ) -> Stream[U]:
        """``fn(value, row)`` for each value whose key the table had a row for at its time; others are dropped.

        A value waits until event time, of this stream and the table, has come to its time. So what it meets does not
        depend on which of them is ahead. One that comes when event time has passed it goes to the side output
        ``late``, or without one where the source's ``on_error`` says; a late row of the table, where the table's says.
        Both need ``with_timestamps``. The trap: what ``fn`` raises stops the job.
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
        """As ``join_as_of``, with all values: ``fn(value, None)`` where the table had nothing for the key then."""
        return self._looked_up_as_of("left_join_as_of", table, fn, name, late, outer=True)

    def _looked_up_as_of(
        self,
        verb: str,
        table: VersionedTable[K, V],
        fn: Callable[..., U],
        name: str | None,
        late: OutputTag[T] | None,
        *,
        outer: bool,
    ) -> Stream[U]:
        if not isinstance(table, VersionedTable):
            raise mistake(
                f"{verb} is with a table that has event times, not {table!r}: "
                "pipeline.table(...).with_timestamps(watermarks=...)."
            )
        table._check(self, self._draft._key_by(self._node).fn)
        self._expect_tags(late=late)
        given, derived = self._draft._name(name, plan.AsOfJoin.kind)
        both = self._grow(plan.Connect, f"{given}-lookup", inputs=(self._node, table._node))
        self._expect_functions(verb, fn=fn)
        parts: dict[str, Any] = {"name": given, "derived": derived, "where": user_line(), "inputs": (both,)}
        codecs: dict[str, Any] = {"key_codec": _KEY}
        codecs["values"] = self._stored(self._type), Maybe(self._stored(table._values))
        tags = () if late is None else (late,)
        late_ones = (None if late is None else late.name, None)
        self._draft._add(plan.AsOfJoin(table=table._name, fn=fn, outer=outer, late=late_ones, **codecs, **parts))
        return Stream(self._draft, self._draft._part(given, tags), returned(fn))

    def sessionize(
        self, *, name: str | None = None, gap: float, late: OutputTag[T] | None = None
    ) -> Stream[Windowed[K, list[T]]]:
        """The sessions of each key: values less than ``gap`` seconds apart, as a list in the order of event time.

        A session is over ``gap`` seconds behind its last value, and nothing is left of it then; ``late`` as in
        ``window``. The trap: all values of a session are state until then. Where sums will do, aggregate
        ``window(session(gap))``.
        """
        return self.window(session(gap=gap), late=late)._listed(name)


class WindowedStream(Upstream, Generic[K, T]):
    """Values with a key and windows. Verbs here say what a window holds of its rows, and what comes out of it.

    Give each a name: state is stored under it.
    """

    def __init__(
        self,
        draft: Draft,
        node: str,
        tp: Any,
        assigner: _Assigner,
        lateness: int,
        late: OutputTag[T] | None,
        trigger: Trigger | None,
        ttl: Ttl | None,
    ) -> None:
        super().__init__(draft, node, tp)
        self._assigner, self._lateness, self._late, self._trigger = assigner, lateness, late, trigger
        self._ttl = ttl

    def reduce(self, fn: Callable[[T, T], T], *, name: str | None = None, state: Any = None) -> Stream[Windowed[K, T]]:
        """The values of a window, made one by ``fn``: in any order, and in parts.

        ``state`` and the trap are those of ``KeyedStream.reduce``.
        """
        self._expect_functions("reduce", fn=fn)
        tp = self._type if state is None else state
        codec = self._stored(tp)
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
        """An accumulator a window; one output when it is over: ``emit(key, window, accumulator)``, or ``Windowed``.

        ``state`` is its type, as for ``KeyedStream.fold``. ``merge`` puts two of them together; windows that share
        parts, and sessions, need it. You vouch that rows may be added in any order, and in parts. The trap: ``step``
        and ``merge`` return a new accumulator and leave the old ones as they are.
        """
        self._expect_functions("fold", init=init, step=step, **present(emit=emit, merge=merge))
        if merge is None and (isinstance(self._assigner, Session) or self._assigner.shared):
            raise mistake(
                f"{self._assigner}: parts of a window are put together, so .fold(...) needs merge=, which makes one "
                "accumulator of two."
            )
        tp = checked_class(type(init())) if state is None else state
        codec = self._stored(tp)
        if emit is None:
            return self._windowed(name, folding(init, step, merge, windowed, codec), WindowedCodec(codec, tp))

        def emitted(key: Any, window: Window, acc: Any) -> list[Any]:
            return [emit(key, window, acc)]

        return self._windowed(name, folding(init, step, merge, emitted, codec), returned(emit))

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
        """Aggregates of the values of a window, as one row when it is over: key, start, end, and a field for each.

        ``aggregate(count(), total=sum_(lambda o: o.amount))``; see ``kafka_eos.api.aggregates``. ``out`` is a class of
        yours for the rows; ``key``, ``start`` and ``end`` are how it calls these fields.
        """
        parts, rows = self._rows(aggregates, named, out, key, start, end)

        def emit(of: Any, window: Window, acc: Any) -> list[Any]:
            return [rows.row((of, window.start, window.end), acc)]

        codec = self._stored(parts.accumulator)
        contents = folding(parts.create, parts.add, parts.merge, emit, codec, by_time=parts.by_time)
        return self._windowed(name, contents, rows.known)

    def process(
        self, fn: Callable[[K, Window, list[T]], Iterable[U]], *, name: str | None = None, state: Any = None
    ) -> Stream[U]:
        """``fn(key, window, values)`` gives the outputs of a window, of all that it has: in the order of event time.

        Of one time they come in the order of partition and offset, so it is the same in every run. All values of a
        window are state, and each checkpoint stores those of every window that has got some. ``state`` is the type of
        the values, if the stream does not know it.
        """
        quoted(lambda: expect_iterables("process", fn=fn))
        codec = self._stored(self._type if state is None else state)
        contents = all_elements(fn, codec, numbered=isinstance(self._assigner, RowCount))
        return self._windowed(name, contents, element(returned(fn)))

    def top_n(self, n: int, *, name: str | None = None, by: Callable[[T], Any]) -> Stream[Windowed[K, list[T]]]:
        """The ``n`` values of a window for which ``by`` is greatest, the greatest first:
        ``kafka_eos.api.aggregates.top``.

        A window keeps that many values, and no others.
        """
        self._expect_functions("top_n", by=by)
        best = quoted(lambda: top(n, by).of(self._inner))
        return self._aggregated(name, best, lambda window, values: values)

    def rate(self, *, name: str | None = None) -> Stream[Windowed[K, float]]:
        """How many values a second a key has in a window; one without values has no result.

        PlanError for ``rows`` and ``global_``, which know no seconds.
        """
        if isinstance(self._assigner, RowCount):
            raise mistake(f"{self._assigner}: they know no seconds, so there is no rate; use tumbling(seconds=...).")
        return self._aggregated(name, count(), lambda window, n: n * 1000 / (window.end - window.start), float)

    def _aggregated(
        self,
        name: str | None,
        part: Aggregate[T, Any, Any],
        result: Callable[[Window, Any], Any],
        tp: Any = None,
    ) -> Stream[Any]:
        """``result`` of a window and what ``part`` gives for it; of type ``tp``, or of that of ``part``."""

        def emit(key: Any, window: Window, acc: Any) -> Sequence[Any]:
            return windowed(key, window, result(window, part.result(acc)))

        codec = self._stored(part.accumulator)
        contents = folding(part.create, part.add, part.merge, emit, codec, by_time=part.by_time)
        of = part.returns if tp is None else tp
        return self._windowed(name, contents, WindowedCodec(self._stored(of), of))

    def _listed(self, name: str | None) -> Stream[Windowed[K, list[T]]]:
        """All values of a window."""
        values: Any = list if self._inner is None else list[self._inner]  # type: ignore[name-defined]
        contents = all_elements(windowed, self._stored(self._type))
        return self._windowed(name, contents, WindowedCodec(self._stored(values), values))

    def _windowed(self, name: str | None, contents: Contents, tp: Any) -> Stream[Any]:
        if isinstance(self._assigner, RowCount):
            parts: dict[str, Any] = {"assigner": self._assigner, "contents": contents, "ttl": self._ttl}
            return Stream(self._draft, self._grow(plan.CountedWindows, name, key_codec=_KEY, **parts), tp)
        late = () if self._late is None else (self._late,)
        if isinstance(self._trigger, OnCount):
            contents = since_a_result(contents)
        given: dict[str, Any] = {"assigner": self._assigner, "contents": contents, "lateness": self._lateness}
        given["trigger"] = self._trigger
        given["late"] = None if self._late is None else self._late.name
        node = self._grow(plan.Windows, name, key_codec=_KEY, **given)
        return Stream(self._draft, self._draft._part(node, late), tp)
