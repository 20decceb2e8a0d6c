"""``Pipeline``: a plan with a name, its sources and tables, and the call that runs it.

Rule: the pipeline defines no stream operations, and streams know no engine: they see a ``PlanBuilder``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kafka_eos import abc as interfaces
from kafka_eos import plan
from kafka_eos._util.call_site import location_of, plan_error, user_frame, user_line
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.api.engine import Engine
from kafka_eos.api.plan_builder import PlanBuilder, name_connector
from kafka_eos.api.streams import Stream
from kafka_eos.api.table import Table, check_table
from kafka_eos.core.fault_attribution import ErrorRules
from kafka_eos.core.ids import AppRef
from kafka_eos.core.records import Record
from kafka_eos.plan import OnError
from kafka_eos.runtime.program import find_reference, register

if TYPE_CHECKING:
    from kafka_eos.abc.auditable import SampleStart
    from kafka_eos.testing.preview import Preview

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class Pipeline(PlanBuilder):
    """A named pipeline. ``settings`` are those of ``kafka_eos.config.settings``; given here they take precedence.

    Create it at the top level of a file, or in a function that returns it and is called without arguments.

    ``plan``, ``run`` and ``explain`` raise PlanError and ConfigError; the constructor does not.
    """

    def __init__(self, name: str, **settings: object) -> None:
        frame = user_frame()
        super().__init__(name, location_of(frame))
        self.code_settings: Mapping[str, object] = dict(settings)
        self._module = str(frame.f_globals.get("__name__", ""))
        register(self, frame)

    @property
    def app(self) -> AppRef:
        """Return where other processes of the job find the pipeline: a file, and its name or function there."""
        return find_reference(self, self._where.file)

    def source(
        self,
        source: interfaces.Source[T],
        *,
        name: str | None = None,
        after: Stream[Any] | None = None,
        on_error: OnError = "stop",
        environment_errors: type[Exception] | tuple[type[Exception], ...] = (),
        record_errors: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> Stream[T]:
        """Read ``source``. Its positions are stored under ``name``; default: the name of its topic or table.

        - ``after``: a stream whose bounded source is read to its end first. No record of ``source`` is read until all
          rows of ``after`` are processed, by all workers; event time continues from there. So a topic can follow a
          backfill of files, ``FileSource(…, until="latest")``: union both streams. The start positions of a source are
          fixed at the job's first start, even if it waits.

        ``on_error`` decides about a record that cannot be decoded or processed: ``"stop"`` stops the job at the record;
        ``dead_letter("topic")`` writes it as a dead letter in the same epoch.

        An exception of user code or a codec is attributed to its record, with these exceptions: an OSError, a
        MemoryError, a Retryable or one of ``environment_errors``, or an error caused by one of these, and an
        ImportError. After such an error the job restarts from its last checkpoint. ``record_errors`` are attributed to
        the record in any case, for example a FileNotFoundError, and so is an OSError or a MemoryError about a value.
        """
        name = name_connector("source", source, name)
        first = None if after is None else self._find_awaited_source(after, name)
        self._add_source(plan.SourceNode, source, name, on_error, environment_errors, record_errors, after=first)
        return Stream(self, name, source.value_type)

    def _find_awaited_source(self, after: object, name: str) -> str:
        """Return the source that must end before this one starts. PlanError with the user's line if there is none."""
        if not isinstance(after, Stream) or after._draft is not self:
            raise plan_error(f"source {name!r}: after= is a stream of this pipeline, not {after!r}.")
        above = list(map(self._node, self._sources_of(after._node)))
        if len(above) != 1 or isinstance(above[0], plan.TableNode):
            raise plan_error(
                f"source {name!r}: after= needs a stream of one source, but {after._node!r} comes "
                f"from {', '.join(node.name for node in above)}. Name one source that is not a table: "
                "tables are always read first."
            )
        first: Any = above[0]
        if first.source.bounds({}) is None:
            raise plan_error(
                f"source {name!r} is after {first.name!r}, which has no end, so {name!r} would never "
                f'be read. Give {first.name!r} an end: with until="latest", FileSource and '
                "KafkaSource read what exists at the first start."
            )
        return str(first.name)

    def table(
        self,
        source: interfaces.Source[Record[K, V]],
        *,
        name: str | None = None,
        values: Any = None,
        on_error: OnError = "stop",
        environment_errors: type[Exception] | tuple[type[Exception], ...] = (),
        record_errors: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> Table[K, V]:
        """Return the current value of each key, from the newest record of ``source``, for ``keyed.join`` and
        ``left_join``.

        A record with value None deletes its key. So a compacted topic is ``KafkaSource.records(topic, key=…,
        value=…)``. ``values`` is the type of the records, ``Record[str, Customer]``, if the source does not declare it.
        ``name`` works as in ``source``.

        Before any row of a joined stream is processed, the table is read up to its end positions at the job's first
        start.

        Note: afterwards the table and the streams are read concurrently, so it is not defined which of two values of a
        key a row is joined with. The same always applies to a key that is in two partitions of the topic.
        """
        name = name_connector("table", source, name)
        tp = source.value_type if values is None else values
        check_table(name, tp, source.find_table_obstacle())
        self._add_source(plan.TableNode, source, name, on_error, environment_errors, record_errors)
        stream: Stream[Record[K, V]] = Stream(self, name, tp)
        return Table(self, stream.key_by(lambda record: record.key, name=f"{name}-by-key")._node, tp, name)

    def _add_source(
        self,
        kind: type[plan.SourceNode],
        source: Any,
        name: str,
        on_error: OnError,
        environment_errors: object,
        record_errors: object,
        **parts: Any,
    ) -> None:
        """Add a source node and its dead letter sink."""
        where = user_line()
        rules = ErrorRules(_errors(environment_errors, name), _errors(record_errors, name))
        if both := set(rules.environment) & set(rules.record):
            raise plan_error(
                f"source {name!r}: {both.pop().__name__} is both in environment_errors and in record_errors."
            )
        self._add_node(kind(name=name, code_line=where, source=source, on_error=on_error, attribution=rules, **parts))
        if isinstance(on_error, DeadLetters):
            letters = f"{name}-dead-letters"
            self._add_node(
                plan.SinkNode(
                    name=letters, code_line=where, inputs=(name,), sink=on_error.sink, is_dead_letter_sink=True
                )
            )
        elif on_error != "stop":
            raise plan_error(f'on_error of source {name!r} must be "stop" or dead_letter(...), not {on_error!r}.')

    def run(self, engine: Engine | None = None, *, until_caught_up: bool = False, **settings: object) -> None:
        """Run until stopped (SIGTERM, SIGINT). Raises UserError, Fatal or JobLocked.

        - ``engine``: where to run, e.g. ``SparkEngine(master=...)``; by default the embedded engine on this machine.
        - ``until_caught_up``: stop, with everything committed, when the input that exists at the start is processed.

        In a script (``python orders.py``) it prints the same as ``kafka-eos run``, and an error ends the process in the
        same way: one paragraph and an exit code.
        """
        if self._module == "__main__":
            from kafka_eos.api.run import run_script

            run_script(self, settings, engine, until_caught_up)
            return
        from kafka_eos.config.settings import Settings

        resolved = Settings.resolve(code={**self.code_settings, **settings})
        if engine is not None:
            engine.run(self.plan(), self.app, resolved, until_caught_up=until_caught_up)
            return
        from kafka_eos.embedded.supervisor import run

        run(self.plan(), self.app, resolved, until_caught_up=until_caught_up)

    def explain(self) -> str:
        """Return, as text, the graph, the guarantee of each path with its reason, and the changed settings."""
        from kafka_eos.config.settings import Settings
        from kafka_eos.plan.explain import explain

        return explain(self.plan(), Settings.resolve(code=self.code_settings))

    def preview(
        self,
        records: int = 100,
        *,
        start: SampleStart = "newest",
        inputs: Mapping[str, Sequence[Any]] | None = None,
        **settings: object,
    ) -> Preview:
        """Read some records of each source, commit nothing, and return what every operator makes of them.

        In a notebook the result is a table in which each record expands to its way through the plan; elsewhere print
        it. The pipeline may be defined in a notebook: it runs in this process. ``start``: the ``"newest"`` records, the
        ``"earliest"`` ones, or those from a datetime on. ``inputs``: records to use instead, as of ``run_local``.
        """
        from kafka_eos.abc.context import JobContext
        from kafka_eos.config.settings import Settings
        from kafka_eos.core.ids import Term
        from kafka_eos.testing.preview import preview, sample_inputs

        plan = self.plan()
        if inputs is None:
            resolved = Settings.resolve(code={**self.code_settings, **settings})
            inputs = sample_inputs(plan, JobContext(plan.name, Term(0), resolved.connector_defaults()), records, start)
        return preview(plan, inputs)

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"


def _errors(given: object, source: str) -> tuple[type[Exception], ...]:
    """Return exception classes, given as one or several. Raises PlanError if another object is among them."""
    classes = given if isinstance(given, tuple | list) else (given,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise plan_error(f"source {source!r}: errors are classes of exceptions, not {each!r}.")
    return tuple(classes)
