"""``Pipeline``: a plan by name, the sources that its streams begin with, and what runs it.

Rule: the pipeline knows no verb, and the streams know no engine: to them it is a ``Draft``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kafka_eos import abc as interfaces
from kafka_eos import plan
from kafka_eos._util.call_site import line_of, mistake, user_frame, user_line
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.api.plan_builder import Draft
from kafka_eos.api.streams import Stream
from kafka_eos.api.table import Table, check_table
from kafka_eos.core.fault_attribution import Attribution
from kafka_eos.core.ids import AppRef
from kafka_eos.core.records import Record
from kafka_eos.plan import OnError, Plan
from kafka_eos.runtime.program import home, register

if TYPE_CHECKING:
    from kafka_eos.config.settings import Settings
    from kafka_eos.coordination.status_file import Observer

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


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


class Pipeline(Draft):
    """A named pipeline. ``settings`` are those of ``kafka_eos.config.settings``; given here they win over everything.

    Raises PlanError and ConfigError from ``plan``, ``run`` and ``explain``, not from the constructor.
    """

    def __init__(self, name: str, **settings: object) -> None:
        frame = user_frame()
        super().__init__(name, line_of(frame))
        self.code_settings: Mapping[str, object] = dict(settings)
        self._module = str(frame.f_globals.get("__name__", ""))
        register(self, self._module)

    @property
    def app(self) -> AppRef:
        """The file that has the pipeline, and its name; other processes of the job load it from there."""
        return AppRef(home(self, self._where.file), self.name)

    def source(
        self,
        source: interfaces.Source[T],
        *,
        name: str,
        after: Stream[Any] | None = None,
        on_error: OnError = "stop",
        environment_errors: type[Exception] | tuple[type[Exception], ...] = (),
        record_errors: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> Stream[T]:
        """Read ``source``. ``after``: a stream whose source is read to its end first, and has one.

        No record of ``source`` is read before all rows of that one are processed, in whichever worker; and event time
        goes on from where they left it. So a backfill of files, ``FileSource(…, until="latest")``, goes on with a
        topic: union both streams. Where a source begins is fixed at the job's first start, also if it waits.

        ``on_error``: what happens to a record that cannot be decoded or processed.

        ``"stop"`` stops the job at the record; ``dead_letter("topic")`` writes it aside in the same epoch.

        A record is to blame for what user code and codecs raise on it, unless that is, or was caused by, an OSError, a
        MemoryError, a Retryable or one of ``environment_errors``, or is an ImportError: then the job goes back to its
        last checkpoint and tries again. ``record_errors`` are the record's all the same, for example a
        FileNotFoundError.
        """
        first = None if after is None else self._first(after, name)
        self._read(plan.Source, source, name, on_error, environment_errors, record_errors, after=first)
        return Stream(self, name, getattr(source, "value_type", None))

    def _first(self, after: object, name: str) -> str:
        """The source that is read before the one of that name. PlanError with the user's line if none can be."""
        if not isinstance(after, Stream) or after._draft is not self:
            raise mistake(f"source {name!r}: after= is a stream of this pipeline, not {after!r}.")
        above = list(map(self._node, self._sources_of(after._node)))
        if len(above) != 1 or isinstance(above[0], plan.Table):
            raise mistake(
                f"source {name!r}: after= is a stream of one source, and {after._node!r} is of "
                f"{', '.join(node.name for node in above)}. Name one source that is no table: tables are read first "
                "anyway."
            )
        first: Any = above[0]
        if not isinstance(first.source, interfaces.Bounded) or first.source.bounds({}) is None:
            raise mistake(
                f"source {name!r} is after {first.name!r}, which has no end, so it would never be read. Give that one "
                'an end: until="latest" of FileSource and KafkaSource reads what is there at the first start.'
            )
        return str(first.name)

    def table(
        self,
        source: interfaces.Source[Record[K, V]],
        *,
        name: str,
        values: Any = None,
        on_error: OnError = "stop",
        environment_errors: type[Exception] | tuple[type[Exception], ...] = (),
        record_errors: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> Table[K, V]:
        """What each key has now, by the newest record of ``source`` with it; for ``keyed.join`` and ``left_join``.

        A record with value None takes away what its key has. So a compacted topic is
        ``KafkaSource.records(topic, key=…, value=…)``. ``values`` is the type of the records,
        ``Record[str, Customer]``, if the source does not know it.

        The table is read up to where it ends at the job's first start, before any row of a stream that is joined with
        it. The trap: from then on it is read beside the streams, so which of two values of a key a row meets is chance;
        and so it is always for a key that is in two partitions of the topic.
        """
        tp = getattr(source, "value_type", None) if values is None else values
        check_table(name, tp, skips=getattr(source, "skips", False), several=getattr(source, "several", False))
        self._read(plan.Table, source, name, on_error, environment_errors, record_errors)
        stream: Stream[Record[K, V]] = Stream(self, name, tp)
        return Table(self, stream.key_by(lambda record: record.key, name=f"{name}-by-key")._node, tp, name)

    def _read(
        self,
        kind: type[plan.Source],
        source: Any,
        name: str,
        on_error: OnError,
        environment_errors: object,
        record_errors: object,
        **parts: Any,
    ) -> None:
        """Add a node that reads, and one for its dead letters."""
        where = user_line()
        said = Attribution(_errors(environment_errors, name), _errors(record_errors, name))
        if both := set(said.environment) & set(said.record):
            raise mistake(f"source {name!r}: {both.pop().__name__} is both in environment_errors and in record_errors.")
        self._add(kind(name=name, where=where, source=source, on_error=on_error, attribution=said, **parts))
        if isinstance(on_error, DeadLetters):
            letters = f"{name}-dead-letters"
            self._add(plan.Sink(name=letters, where=where, inputs=(name,), sink=on_error.sink, dead_letters=True))
        elif on_error != "stop":
            raise mistake(f'on_error of source {name!r} must be "stop" or dead_letter(...), not {on_error!r}.')

    def run(self, engine: Engine | None = None, *, until_caught_up: bool = False, **settings: object) -> None:
        """Run until stopped (SIGTERM, SIGINT). Raises UserError, Fatal or JobLocked.

        ``engine``: where to run, e.g. ``SparkEngine(master=...)``; default is the embedded engine, on this machine.
        ``until_caught_up``: end, with everything committed, when the input that is there at the start is processed.

        In a script (``python orders.py``) it shows what ``kafka-eos run`` shows, and an error ends the process in the
        same way: one paragraph and an exit code.
        """
        if self._module == "__main__":
            from kafka_eos.api.run import run_script

            run_script(self, settings, None if engine is None else engine.run, until_caught_up)
            return
        from kafka_eos.config.settings import Settings

        resolved = Settings.resolve(code={**self.code_settings, **settings})
        if engine is not None:
            engine.run(self.plan(), self.app, resolved, until_caught_up=until_caught_up)
            return
        from kafka_eos.embedded.supervisor import run

        run(self.plan(), self.app, resolved, until_caught_up=until_caught_up)

    def explain(self) -> str:
        """Graph, guarantee of each path with its reason, and every setting with its origin, as text."""
        from kafka_eos.config.settings import Settings
        from kafka_eos.plan.explain import explain

        return explain(self.plan(), Settings.resolve(code=self.code_settings))

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"


def _errors(given: object, source: str) -> tuple[type[Exception], ...]:
    """Exception classes, one or several. PlanError if something else is among them."""
    classes = given if isinstance(given, tuple | list) else (given,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise mistake(f"source {source!r}: errors are classes of exceptions, not {each!r}.")
    return tuple(classes)
