"""The user's way to write a plan: ``Pipeline``, ``Stream``, ``KeyedStream``.

A verb adds one node to the pipeline and returns a new stream; streams never change, so a stream may be used twice.
Building runs nothing of the user's code except ``init`` of a fold (to learn the type of its state).

Rule: a mistake is reported with the line of the user's file, at the verb if it can be seen there, else by ``plan``.
"""

from __future__ import annotations

import copy
import linecache
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, overload

from kafka_eos import interfaces, plan
from kafka_eos.aggregates import Aggregate, count, top
from kafka_eos.aggregates.rows import Aggregation, Rows
from kafka_eos.app import register
from kafka_eos.attribution import Attribution
from kafka_eos.errors import ConfigError, PlanError
from kafka_eos.ids import AppRef, token
from kafka_eos.interfaces import (
    Contents,
    Days,
    DeadLetters,
    Early,
    RowCount,
    Session,
    Sliding,
    Ttl,
    Tumbling,
    WatermarkStrategy,
    Window,
    Windowed,
    session,
)
from kafka_eos.operators.duplicates import Deduplicate, Distinct
from kafka_eos.operators.functions import OutputTag, ProcessFunction
from kafka_eos.operators.process import defines
from kafka_eos.operators.windows.contents import all_elements, folding, reducing, windowed
from kafka_eos.plan import DerivedNameWarning, KeyBy, Node, OnError, Plan, Where
from kafka_eos.plan.callables import expect_no_coroutines
from kafka_eos.schemas import Counted, KeyCodec, WindowedCodec, state_codec, wire_codec
from kafka_eos.schemas.types import checked_class, element, returned

if TYPE_CHECKING:
    from kafka_eos.coordinator.status import Observer
    from kafka_eos.settings import Settings

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")
A = TypeVar("A")
R = TypeVar("R")

_Assigner: TypeAlias = Tumbling | Early | Sliding | Days | Session | RowCount

_KEY = KeyCodec()
_MAIN = "main"
"""Stands for the output of an operator where others stand for its side outputs; no tag has that name."""


class Engine(Protocol):
    """What runs pipelines; see ``kafka_eos.spark.SparkEngine``."""

    def run(
        self,
        plan: Plan,
        app: AppRef,
        settings: Settings,
        /,
        *,
        observers: tuple[Observer, ...] = (),
        until_caught_up: bool = False,
    ) -> None:
        """Run until stopped, or until the input that is there at the start is processed.

        Tasks load the pipeline from ``app``. ``observers`` hear every event of the job.
        """


class Pipeline:
    """A named pipeline. ``settings`` are those of ``kafka_eos.settings``; given here they win over everything.

    Raises PlanError and ConfigError from ``plan``, ``run`` and ``explain``, not from the constructor.
    """

    def __init__(self, name: str, **settings: object) -> None:
        frame = _user_frame()
        self.name = name
        self.code_settings: Mapping[str, object] = dict(settings)
        self._module = str(frame.f_globals.get("__name__", ""))
        self._where = _where(frame)
        self._nodes: list[Node] = []
        self._derived: Counter[str] = Counter()
        self._types: dict[str, Any] = {}
        """What is known of the values that each node makes."""
        self._tags: dict[str, tuple[OutputTag[Any], ...]] = {}
        """Side outputs, by the node that takes the main one."""
        self._replaced: set[str] = set()
        """``key_by`` nodes whose work partial folds do; those that nobody else reads are not in the plan."""
        register(self, self._module)

    @property
    def app(self) -> AppRef:
        """The file that made the pipeline, and its name; other processes of the job load it from there."""
        return AppRef(Path(self._where.file).absolute(), self.name)

    def source(
        self,
        source: interfaces.Source[T],
        *,
        name: str,
        on_error: OnError = "stop",
        environment_errors: type[Exception] | tuple[type[Exception], ...] = (),
        record_errors: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> Stream[T]:
        """Read ``source``. ``on_error``: what happens to a record that cannot be decoded or processed.

        ``"stop"`` stops the job at the record; ``dead_letter("topic")`` writes it aside in the same epoch.

        A record is to blame for what user code and codecs raise on it, unless that is, or was caused by, an OSError, a
        MemoryError, a Retryable or one of ``environment_errors``: then the job goes back to its last checkpoint and
        tries again. ``record_errors`` are the record's all the same, for example a FileNotFoundError.
        """
        where = _where(_user_frame())
        said = Attribution(_errors(environment_errors, name, where), _errors(record_errors, name, where))
        if both := set(said.environment) & set(said.record):
            raise PlanError(f"source {name!r}: {both.pop().__name__} is both in environment_errors and in "
                            f"record_errors.\n  {where}")  # fmt: skip
        self._add(plan.Source(name=name, where=where, source=source, on_error=on_error, attribution=said))
        if isinstance(on_error, DeadLetters):
            letters = f"{name}-dead-letters"
            self._add(plan.Sink(name=letters, where=where, inputs=(name,), sink=on_error.sink, dead_letters=True))
        elif on_error != "stop":
            raise PlanError(f'on_error of source {name!r} must be "stop" or dead_letter(...), not {on_error!r}.\n'
                            f"  {where}")  # fmt: skip
        return Stream(self, name, getattr(source, "value_type", None))

    def plan(self) -> Plan:
        """The plan so far, validated. Raises PlanError that quotes the line to change."""
        read = {name for node in self._nodes for name in node.inputs}
        nodes = (node for node in self._nodes if node.name in read or node.name not in self._replaced)
        built = plan.with_forwards(Plan(self.name, tuple(nodes), self._where).validate(), self._codec).validate()
        for node in built.nodes:
            if node.stateful and node.derived:
                warnings.warn(
                    f"state of {node.kind} {node.name!r} is stored under a name that depends on its position; "
                    f"give it a name of its own ({node.where})",
                    DerivedNameWarning,
                    stacklevel=2,
                )
        return built

    def run(self, engine: Engine | None = None, *, until_caught_up: bool = False, **settings: object) -> None:
        """Run until stopped (SIGTERM, SIGINT). Raises UserError, Fatal or JobLocked.

        ``engine``: where to run, e.g. ``SparkEngine(master=...)``; default is the embedded engine, on this machine.
        ``until_caught_up``: end, with everything committed, when the input that is there at the start is processed.

        In a script (``python orders.py``) it shows what ``kafka-eos run`` shows, and an error ends the process in the
        same way: one paragraph and an exit code.
        """
        if self._module == "__main__":
            from kafka_eos.terminal.running import run_script

            run_script(self, settings, None if engine is None else engine.run, until_caught_up)
            return
        from kafka_eos.settings import Settings

        resolved = Settings.resolve(code={**self.code_settings, **settings})
        if engine is not None:
            engine.run(self.plan(), self.app, resolved, until_caught_up=until_caught_up)
            return
        from kafka_eos.embedded import run

        run(self.plan(), self.app, resolved, until_caught_up=until_caught_up)

    def explain(self) -> str:
        """Graph, guarantee of each path with its reason, and every setting with its origin, as text."""
        from kafka_eos.explain import explain
        from kafka_eos.settings import Settings

        return explain(self.plan(), Settings.resolve(code=self.code_settings))

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"

    def _add(self, node: Node) -> None:
        self._nodes.append(node)

    def _codec(self, node: str) -> interfaces.ListCodec[Any]:
        """For values that stay in their worker: most are never written, so it is no mistake not to say how."""
        tp = self._types[node]
        try:
            return wire_codec(tp)
        except PlanError:
            return wire_codec(Any)  # refuses the first value that is written and would come back as another one

    def _combined(self, name: str) -> KeyBy:
        """The ``key_by`` of that name, whose work a partial fold will do for one of its readers."""
        self._replaced.add(name)
        return self._key_by(name)

    def _key_by(self, name: str) -> KeyBy:
        node = next(node for node in self._nodes if node.name == name)
        assert isinstance(node, KeyBy)  # a keyed stream begins with one
        return node

    def _inputs(self, name: str) -> tuple[str, ...]:
        """What a node reads."""
        return next(node.inputs for node in self._nodes if node.name == name)

    def _name(self, given: str | None, kind: str) -> tuple[str, bool]:
        """The given name, or one made of the kind and its number; and whether it was made."""
        self._derived[kind] += 1
        return (f"{kind}-{self._derived[kind]}", True) if given is None else (given, False)


class _Upstream:
    """A pipeline, the node whose output this is, and the type of its values where it is known."""

    def __init__(self, pipeline: Pipeline, node: str, tp: Any = None) -> None:
        self._pipeline, self._node, self._type = pipeline, node, tp
        pipeline._types[node] = tp

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._pipeline.name!r}, {self._node!r})"

    @property
    def _inner(self) -> Any:
        """The type of the values, to be part of another one; None if it is not known, or only as a codec."""
        is_codec = not isinstance(self._type, type) and hasattr(self._type, "decode")
        return None if is_codec else self._type

    def _grow(self, kind: type[Node], name: str | None, **parts: Any) -> str:
        """Add a node below this one; returns its name."""
        self._expect_functions(kind.kind, fn=parts.get("fn"))
        given, derived = self._pipeline._name(name, kind.kind)
        parts.setdefault("inputs", (self._node,))
        self._pipeline._add(kind(name=given, where=_where(_user_frame()), derived=derived, **parts))
        return given

    def _parted(self, node: str, tp: Any, tags: Sequence[OutputTag[Any]]) -> Stream[Any]:
        """The output of ``node``, with a stream for each of its side outputs where it has some."""
        if not tags:
            return Stream(self._pipeline, node, tp)
        where = _where(_user_frame())
        main, *others = _beside(node, tags, where)
        self._pipeline._tags[main] = tuple(tags)
        for name, tag in zip((main, *others), (None, *tags), strict=True):
            tagged = None if tag is None else tag.name
            self._pipeline._add(plan.SideOutput(name=name, where=where, inputs=(node,), tag=tagged))
        return Stream(self._pipeline, main, tp)

    def _expect_functions(self, verb: str, **functions: object) -> None:
        """PlanError with the user's line if one of them is asynchronous."""
        _quoted(lambda: expect_no_coroutines(verb, **functions))

    def _stored(self, tp: Any) -> interfaces.Codec[Any]:
        """The codec of a state. PlanError with the user's line if its type cannot be stored."""
        return _quoted(lambda: state_codec(tp))

    def _rows(
        self,
        aggregates: Sequence[Aggregate[Any, Any, Any]],
        named: Mapping[str, Aggregate[Any, Any, Any]],
        out: type[Any] | None,
        key: str,
        *numbers: str,
    ) -> tuple[Aggregation, Rows]:
        """Aggregates of a keyed stream, and rows of them: behind the key, and fields that hold whole numbers."""

        def made() -> tuple[Aggregation, Rows]:
            parts = Aggregation.of_all(aggregates, named, self._inner, [key, *numbers])
            of_key = returned(self._pipeline._key_by(self._node).fn)
            return parts, Rows(parts, {key: of_key, **dict.fromkeys(numbers, int)}, out)

        return _quoted(made)

    def _wire(self, values: Any) -> interfaces.ListCodec[Any]:
        """The codec in which this stream's values change subtasks."""
        return _quoted(lambda: wire_codec(self._type if values is None else values))


class Stream(_Upstream, Generic[T]):
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
        return Stream(self._pipeline, self._grow(plan.Map, name, fn=fn), returned(fn))

    def with_timestamps(
        self, fn: Callable[[T], int] | None = None, *, name: str | None = None, watermarks: WatermarkStrategy
    ) -> Stream[T]:
        """Give each value its event time, and the stream watermarks: right behind a source, for timers further down.

        ``fn`` tells the time of a value, in milliseconds since the Unix epoch; without it, it is that of the record.
        ``watermarks``: ``bounded(seconds)`` if records of a partition may be so much out of order, ``monotonic()`` if
        they are in order. Event time goes on when all partitions have; one that is silent holds it back, unless the
        strategy is told ``.with_idleness(seconds)``. ``generated(…)`` is a strategy of your own.
        """
        if (generator := watermarks.generator) is not None:
            self._expect_functions("generated", on_event=generator.on_event, watermark=generator.watermark)
            self._stored(generator.state)
        source = self._node
        while inputs := self._pipeline._inputs(source):
            source = inputs[0]
        given = f"{source}-timestamps" if name is None else name
        parts = {"fn": fn, "strategy": watermarks, "source": source}
        return Stream(self._pipeline, self._grow(plan.Timestamps, given, **parts), self._type)

    def filter(self, fn: Callable[[T], object], *, name: str | None = None) -> Stream[T]:
        """Keep the values for which ``fn`` is true."""
        return Stream(self._pipeline, self._grow(plan.Filter, name, fn=fn), self._type)

    def flat_map(self, fn: Callable[[T], Iterable[U]], *, name: str | None = None) -> Stream[U]:
        """One value in, any number out. A value that fails half-way gives none."""
        return Stream(self._pipeline, self._grow(plan.FlatMap, name, fn=fn), element(returned(fn)))

    def map_batches(self, fn: Callable[[list[T]], list[U]], *, name: str | None = None) -> Stream[U]:
        """Many values in, as many out, in order: for functions that are only fast on many.

        Where one batch ends and the next begins is not fixed, so the result must not depend on it. If ``fn`` raises
        it is called again with halves, until the records at fault stand alone.
        """
        return Stream(self._pipeline, self._grow(plan.MapBatches, name, fn=fn), element(returned(fn)))

    def key_by(
        self, fn: Callable[[T], K], *, name: str | None = None, values: Any = None, local: bool = False
    ) -> KeyedStream[K, T]:
        """Give each value a key: str, int of 64 bits, bytes, or a tuple of these. Other keys refuse the record.

        All values of a key go to one worker. ``local=True`` keeps them where they are: you vouch that all records of
        a key are in one partition, of every source, and that partitions of the same number hold the same keys. The
        trap: if that is not so, a key has several states, and after a change of parallelism one of them is refused.
        """
        node = self._grow(plan.KeyBy, name, fn=fn, key_codec=_KEY, values=self._wire(values), local=local)
        return KeyedStream(self._pipeline, node, self._type if values is None else values)

    def rebalance(self, *, name: str | None = None, values: Any = None) -> Stream[T]:
        """Spread the values evenly over all workers; order is kept only between those that take the same way."""
        return self._exchange(plan.Exchange, name, values, how=plan.Partitioning.REBALANCE)

    def broadcast(self, *, name: str | None = None, values: Any = None) -> Stream[T]:
        """Give every value to all workers: what follows happens once in each of them."""
        return self._exchange(plan.Exchange, name, values, how=plan.Partitioning.BROADCAST)

    def forward(self, *, name: str | None = None, values: Any = None) -> Stream[T]:
        """Keep the values in their worker and in their order: what follows waits for its barriers behind a queue.

        Where a stream with an exchange and one without come together in a ``union``, the plan has one by itself. Write
        it to give a type that is not known there, or a name.
        """
        return self._exchange(plan.Forward, name, values)

    def _exchange(self, kind: type[Node], name: str | None, values: Any, **parts: Any) -> Stream[T]:
        node = self._grow(kind, name, values=self._wire(values), **parts)
        return Stream(self._pipeline, node, self._type if values is None else values)

    def iterate(
        self, body: Callable[[Stream[T]], tuple[Stream[T], Stream[U]]], *, name: str, values: Any = None
    ) -> Stream[U]:
        """A loop: ``body`` gets the stream of new and returning values, and gives back two: those that go round
        again, and those that leave.

        State in the loop is exactly-once as everywhere: rows that are on their way round belong to the checkpoint. The
        trap: a body that always sends something back never ends, and no bounded run (``--until-caught-up``) of it does.
        """
        head = Stream[T](self._pipeline, self._grow(plan.Loop, name), self._type if values is None else values)
        back, out = body(head)
        back._grow(plan.Feedback, f"{name}-feedback", to=name, values=back._wire(values))
        return out

    def union(self, *others: Stream[T], name: str | None = None) -> Stream[T]:
        """All values of these streams; order is kept within each stream, not between them."""
        for other in others:
            if other._pipeline is not self._pipeline:
                raise PlanError(f"union of streams of two pipelines, {self._pipeline.name!r} and "
                                f"{other._pipeline.name!r}; make both in one.\n  {_where(_user_frame())}")  # fmt: skip
        inputs = (self._node, *(other._node for other in others))
        tp = self._type if all(other._type == self._type for other in others) else None
        return Stream(self._pipeline, self._grow(plan.Union, name, inputs=inputs), tp)

    def side_output(self, tag: OutputTag[U]) -> Stream[U]:
        """What the ``ProcessFunction`` right before emits to ``tag``: a stream of its own, like any other.

        Each tag that a function declares must be read by somebody, as its output must.
        """
        declared = self._pipeline._tags.get(self._node, ())
        if tag not in declared:
            known = f"it declares {', '.join(map(str, declared))}" if declared else "no side outputs are declared there"
            raise PlanError(f"{tag} is no side output of {self._node!r}; {known}. Take it right behind .process(...) "
                            "of a function that names it in side_outputs."
                            f"\n  {_where(_user_frame())}")  # fmt: skip
        above = self._pipeline._inputs(self._node)[0]
        return Stream(self._pipeline, f"{above}-{tag.name}", tag.tp)

    def sink(self, sink: interfaces.Sink[T], *, name: str) -> None:
        """Write the stream to ``sink``. The stream may have other readers too."""
        self._grow(plan.Sink, name, sink=sink)

    if not TYPE_CHECKING:

        def __getattr__(self, verb: str) -> Any:
            if verb in ("fold", "reduce", "aggregate", "process", "window", "deduplicate", "distinct", "sessionize"):
                raise PlanError(f".{verb}(...) keeps state for a key, and this stream has none; "
                                f"put .key_by(...) before it.\n  {_where(_user_frame())}")  # fmt: skip
            raise AttributeError(f"a Stream has no {verb!r}")


class KeyedStream(_Upstream, Generic[K, T]):
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
        self._expect_functions("fold", init=init, step=step, emit=emit, merge=merge)
        tp = checked_class(type(init())) if state is None else state
        given = {"init": init, "step": step, "merge": merge}
        return Stream(self._pipeline, self._fold(name, given, emit, tp, ttl), None if emit is None else returned(emit))

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
        ``kafka_eos.aggregates``. ``out`` is a class of yours for the rows (a model, a Struct, a dataclass); ``key``
        how the field of the key is called.

        It is a ``fold``: ``ttl`` is the same there, and with ``merge=True`` it has two phases, and one row for every
        key and epoch. Other than for a fold you need not vouch for anything: all aggregates can be merged.
        """
        parts, rows = self._rows(aggregates, named, out, key)
        given = {"init": parts.create, "step": parts.add, "merge": parts.merge if merge else None}

        def emit(of: Any, acc: Any) -> Any:
            return rows.row((of,), acc)

        node = self._fold(name, given, emit, parts.accumulator, ttl, by_time=parts.by_time)
        return Stream(self._pipeline, node, rows.known)

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
        stored: dict[str, Any] = {"key_codec": _KEY, "entry_codec": Counted(state_codec(tp)), "ttl": ttl}
        parts = {**given, **stored, "emit": emit, "by_time": by_time}
        if given["merge"] is None:
            return self._grow(plan.Fold, name, **parts)
        fold, derived = self._pipeline._name(name, plan.Fold.kind)
        self._partly(f"{fold}-partial", values=wire_codec(tp), by_time=by_time, **given)
        place: dict[str, Any] = {"where": _where(_user_frame()), "inputs": (f"{fold}-partial",), "derived": derived}
        self._pipeline._add(plan.Fold(name=fold, **parts, **place))
        return fold

    def _partly(self, name: str, **given: Any) -> None:
        """Add the first phase of a fold. It does the work of the ``key_by``, left out if nobody else reads that."""
        key_by = self._pipeline._combined(self._node)
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
        tp = self._type if state is None else state
        codec = Counted(state_codec(tp))
        node = self._grow(plan.Reduce, name, fn=fn, key_codec=_KEY, entry_codec=codec, ttl=ttl)
        return Stream(self._pipeline, node, tp)

    def process(
        self, function: ProcessFunction[K, T, U] | type[ProcessFunction[K, T, U]], *, name: str | None = None
    ) -> Stream[U]:
        """Run your own ``ProcessFunction``: a class, or an object of which each session gets a copy.

        One that defines ``on_timer`` needs ``with_timestamps`` behind every source of the stream. What it emits to the
        tags that it declares comes out at ``side_output(tag)`` of the stream that this returns.
        """
        self._expect_functions(
            "process",
            process=function.process,
            open=getattr(function, "open", None),
            on_timer=getattr(function, "on_timer", None),
            on_processing_timer=getattr(function, "on_processing_timer", None),
        )
        return self._processed(function, name, element(returned(function.process)))

    def deduplicate(self, *, name: str | None = None, within: float, late: OutputTag[T] | None = None) -> Stream[T]:
        """Values of a key that are less than ``within`` seconds from one that has passed are dropped.

        Which of several passes is the one that comes first. Nothing is left of a key when event time has gone on by
        twice that. A value that comes later than ``within`` goes to the side output ``late``, or without one where the
        source's ``on_error`` says, because nobody knows any more. Needs ``with_timestamps`` behind every source.
        """
        if not 0.001 <= within < float("inf"):
            raise PlanError(f"deduplicate looks back for a millisecond or more, not for {within} seconds.\n  "
                            f"{_where(_user_frame())}")  # fmt: skip
        return self._processed(Deduplicate[K, T](round(within * 1000), late), name, self._type)

    def distinct(self, *, name: str | None = None, ttl: Ttl | None) -> Stream[T]:
        """The first value of each key.

        The trap: ``ttl=None`` keeps a row for every key for ever. With a time to live, a key is forgotten that long
        after its first value, and the next one is a first one again.
        """
        return self._processed(Distinct[K, T](ttl), name, self._type)

    def _processed(
        self, function: ProcessFunction[K, T, U] | type[ProcessFunction[K, T, U]], name: str | None, tp: Any
    ) -> Stream[U]:
        factory = function if isinstance(function, type) else lambda: copy.deepcopy(function)
        timers = {"timers": defines(function, "on_timer")}
        timers["processing_timers"] = defines(function, "on_processing_timer")
        node = self._grow(plan.Process, name, factory=factory, key_codec=_KEY, **timers)
        return self._parted(node, tp, function.side_outputs)

    def window(
        self,
        assigner: _Assigner,
        *,
        lateness: float = 0,
        late: OutputTag[T] | None = None,
    ) -> WindowedStream[K, T]:
        """Windows for each key; what becomes of them is said by the verb that follows.

        ``assigner``: ``tumbling``, ``sliding``, ``session`` or ``days``; ``rows`` and ``global_`` are windows without
        time, to which the rest does not apply. A window has its result when event time has come to its end. With
        ``lateness`` it takes rows for so many seconds more, and each of these makes the result again. A row that comes
        later goes to the side output ``late``, or without one where the source's ``on_error`` says: it is never
        silently away. Needs ``with_timestamps`` behind every source of the stream.
        """
        if not 0 <= lateness < float("inf"):
            raise PlanError(f"a window takes late rows for 0 seconds or more, not for {lateness}.\n  "
                            f"{_where(_user_frame())}")  # fmt: skip
        if isinstance(assigner, RowCount) and (lateness or late is not None):
            raise PlanError(f"{assigner}: they know no time, so no row is late; leave out lateness= and late=.\n  "
                            f"{_where(_user_frame())}")  # fmt: skip
        return WindowedStream(self._pipeline, self._node, self._type, assigner, round(lateness * 1000), late)

    def sessionize(
        self, *, name: str | None = None, gap: float, late: OutputTag[T] | None = None
    ) -> Stream[Windowed[K, list[T]]]:
        """The sessions of each key: values less than ``gap`` seconds apart, as a list in the order of event time.

        A session is over ``gap`` seconds behind its last value, and nothing is left of it then; ``late`` as in
        ``window``. The trap: all values of a session are state until then. Where sums will do, aggregate
        ``window(session(gap))``.
        """
        return self.window(_quoted(lambda: session(gap=gap)), late=late)._listed(name)


class WindowedStream(_Upstream, Generic[K, T]):
    """Values with a key and windows. Verbs here say what a window holds of its rows, and what comes out of it.

    Give each a name: state is stored under it.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        node: str,
        tp: Any,
        assigner: _Assigner,
        lateness: int,
        late: OutputTag[T] | None,
    ) -> None:
        super().__init__(pipeline, node, tp)
        self._assigner, self._lateness, self._late = assigner, lateness, late

    def reduce(self, fn: Callable[[T, T], T], *, name: str | None = None, state: Any = None) -> Stream[Windowed[K, T]]:
        """The values of a window, made one by ``fn``: in any order, and in parts.

        ``state`` and the trap are those of ``KeyedStream.reduce``.
        """
        self._expect_functions("reduce", fn=fn)
        tp = self._type if state is None else state
        codec = state_codec(tp)
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
        self._expect_functions("fold", init=init, step=step, emit=emit, merge=merge)
        if merge is None and (isinstance(self._assigner, Session) or self._assigner.shared):
            raise PlanError(f"{self._assigner}: parts of a window are put together, so .fold(...) needs merge=, which "
                            f"makes one accumulator of two.\n  {_where(_user_frame())}")  # fmt: skip
        tp = checked_class(type(init())) if state is None else state
        codec = state_codec(tp)
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

        ``aggregate(count(), total=sum_(lambda o: o.amount))``; see ``kafka_eos.aggregates``. ``out`` is a class of
        yours for the rows; ``key``, ``start`` and ``end`` are how it calls these fields.
        """
        parts, rows = self._rows(aggregates, named, out, key, start, end)

        def emit(of: Any, window: Window, acc: Any) -> list[Any]:
            return [rows.row((of, window.start, window.end), acc)]

        codec = state_codec(parts.accumulator)
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
        self._expect_functions("process", fn=fn)
        codec = state_codec(self._type if state is None else state)
        contents = all_elements(fn, codec, numbered=isinstance(self._assigner, RowCount))
        return self._windowed(name, contents, element(returned(fn)))

    def top_n(self, n: int, *, name: str | None = None, by: Callable[[T], Any]) -> Stream[Windowed[K, list[T]]]:
        """The ``n`` values of a window for which ``by`` is greatest, the greatest first: ``kafka_eos.aggregates.top``.

        A window keeps that many values, and no others.
        """
        self._expect_functions("top_n", by=by)
        best = _quoted(lambda: top(n, by).of(self._inner))
        return self._aggregated(name, best, lambda window, values: values)

    def rate(self, *, name: str | None = None) -> Stream[Windowed[K, float]]:
        """How many values a second a key has in a window; one without values has no result."""
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

        codec = state_codec(part.accumulator)
        contents = folding(part.create, part.add, part.merge, emit, codec, by_time=part.by_time)
        of = part.returns if tp is None else tp
        return self._windowed(name, contents, WindowedCodec(state_codec(of), of))

    def _listed(self, name: str | None) -> Stream[Windowed[K, list[T]]]:
        """All values of a window."""
        values: Any = list if self._inner is None else list[self._inner]  # type: ignore[name-defined]
        contents = all_elements(windowed, state_codec(self._type))
        return self._windowed(name, contents, WindowedCodec(state_codec(values), values))

    def _windowed(self, name: str | None, contents: Contents, tp: Any) -> Stream[Any]:
        if isinstance(self._assigner, RowCount):
            parts: dict[str, Any] = {"assigner": self._assigner, "contents": contents}
            return Stream(self._pipeline, self._grow(plan.CountedWindows, name, key_codec=_KEY, **parts), tp)
        late = () if self._late is None else (self._late,)
        given: dict[str, Any] = {"assigner": self._assigner, "contents": contents, "lateness": self._lateness}
        given["late"] = None if self._late is None else self._late.name
        return self._parted(self._grow(plan.Windows, name, key_codec=_KEY, **given), tp, late)


def _user_frame() -> FrameType:
    """The nearest caller outside this file."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    assert frame is not None
    return frame


def _quoted(call: Callable[[], R]) -> R:
    """What ``call`` gives. A PlanError of it gets the user's line."""
    try:
        return call()
    except PlanError as error:
        raise PlanError(f"{error}\n  {_where(_user_frame())}") from None


def _where(frame: FrameType) -> Where:
    file, line = frame.f_code.co_filename, frame.f_lineno
    return Where(file, line, linecache.getline(file, line, frame.f_globals).strip())


def _beside(node: str, tags: Sequence[OutputTag[Any]], where: Where) -> list[str]:
    """Names of the nodes that part the outputs of ``node``, the main one first. PlanError if a tag is not usable."""
    names = [_MAIN]
    for tag in tags:
        if not isinstance(tag, OutputTag):
            raise PlanError(f"side outputs of {node!r} are of OutputTag(name, type), not {tag!r}.\n  {where}")
        try:
            names.append(token(tag.name, "side output"))
        except ConfigError as error:
            raise PlanError(f"{error}\n  {where}") from None
    if len(set(names)) < len(names):
        raise PlanError(f"two side outputs of {node!r} have one name, or one is named {_MAIN!r}, which is its output: "
                        f"{', '.join(names[1:])}.\n  {where}")  # fmt: skip
    return [f"{node}-{name}" for name in names]


def _errors(given: object, source: str, where: Where) -> tuple[type[Exception], ...]:
    """Exception classes, one or several. PlanError if something else is among them."""
    classes = given if isinstance(given, tuple | list) else (given,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise PlanError(f"source {source!r}: errors are classes of exceptions, not {each!r}.\n  {where}")
    return tuple(classes)
