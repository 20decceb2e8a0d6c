"""The sources of a job: querying their splits, start and end positions, and reporting committed offsets to them.

Sources on one server that supports it are queried together. Rule: a source without an answer yet does not delay the
others; it is queried again alone, and the reason for which it waits is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from kafka_eos._util.retry import Retrier
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.source import PositionsOrRetry, Source, SupportsIdentityCheck
from kafka_eos.coordination.dependencies import DependencyMonitor
from kafka_eos.core.errors import ConfigError, KafkaEosError, Retryable
from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Positions
from kafka_eos.plan import Plan, TableNode
from kafka_eos.plan.validation import find_feedback
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.storage.job_records import Manifest

Answers: TypeAlias = dict[str, PositionsOrRetry]
_Ask: TypeAlias = Callable[[Sequence[str]], Answers]


class GroupedSources:
    """The sources of a job, those of one server queried together."""

    def __init__(self, sources: Mapping[str, Source[Any]], dependencies: DependencyMonitor | None = None) -> None:
        self._sources = sources
        self._dependencies = dependencies or DependencyMonitor()

    def discover(self, ctx: JobContext, known: Mapping[str, Positions | None]) -> Answers:
        """Return by source its positions, or the reason why they are not available now. See ``Source.discover``."""

        def ask(first: Source[Any], names: Sequence[str]) -> Sequence[PositionsOrRetry]:
            return first.discover_all(ctx, [(self._sources[name], known[name]) for name in names])

        return self._ask(ctx, list(known), ask)

    def ends(self, ctx: JobContext, names: Sequence[str]) -> Answers:
        """Return by source its end positions, or the reason. See ``Source.get_end_positions``."""

        def ask(first: Source[Any], names: Sequence[str]) -> Sequence[PositionsOrRetry]:
            return first.get_all_end_positions(ctx, [self._sources[name] for name in names])

        return self._ask(ctx, names, ask)

    def report_offsets(
        self, ctx: JobContext, epoch: EpochId, positions: Mapping[str, Positions], patience: Retrier
    ) -> dict[str, Exception]:
        """Report committed offsets; return the sources that failed, with the error.

        If a server does not respond for one source, its other sources are not tried: each would wait as long. Once the
        attempt ends, no source is tried and none counts as failed.
        """
        failed: dict[str, Exception] = {}
        for group in self._groups(ctx, list(positions)):
            for name in group:
                if patience.is_interrupted:
                    return failed
                try:
                    self._sources[name].notify_committed(ctx, epoch, positions[name])
                except Retryable as error:
                    failed.update(dict.fromkeys(group[group.index(name) :], error))
                    break
                except (KafkaEosError, OSError) as error:
                    failed[name] = error
        return failed

    def _ask(
        self,
        ctx: JobContext,
        names: Sequence[str],
        ask: Callable[[Source[Any], Sequence[str]], Sequence[PositionsOrRetry]],
    ) -> Answers:
        found: Answers = {}
        for group in self._groups(ctx, names):
            try:
                found.update(zip(group, ask(self._sources[group[0]], group), strict=True))
            except Retryable as error:
                found.update(dict.fromkeys(group, error))
            self._record(self.server_of(ctx, group[0]), [found[name] for name in group])
        return found

    def server_of(self, ctx: JobContext, name: str) -> str:
        """Return the name of a source's server, for messages."""
        return self._sources[name].server(ctx) or f"source {name!r}"

    def _record(self, server: str, answers: Sequence[PositionsOrRetry]) -> None:
        """Record whether a server has answered for at least one of its sources."""
        errors = [answer for answer in answers if isinstance(answer, Retryable)]
        if len(errors) < len(answers):
            self._dependencies.record_answer(server)
        else:
            self._dependencies.record_failure(server, str(errors[0]))

    def _groups(self, ctx: JobContext, names: Sequence[str]) -> list[list[str]]:
        """Return groups of sources that one request can query, ordered by their first source."""
        groups: dict[tuple[type, str], list[str]] = {}
        for name in names:
            source = self._sources[name]
            groups.setdefault((type(source), source.scope(ctx)), []).append(name)
        return list(groups.values())


def retry_until_all_answer(patience: Retrier, what: str, names: Sequence[str], ask: _Ask) -> dict[str, Positions]:
    """Query until every source has answered. Raise the errors of ``Retrier.retry``."""
    done: dict[str, Positions] = {}

    def missing() -> None:
        trouble: dict[str, Retryable] = {}
        for name, answer in ask([name for name in names if name not in done]).items():
            if isinstance(answer, Retryable):
                trouble[name] = answer
            else:
                done[name] = answer
        if trouble:
            raise Retryable("; ".join(dict.fromkeys(f"{name}: {error}" for name, error in trouble.items())))

    patience.retry(what, missing)
    return {name: done[name] for name in names}


# ---------------------------------------------------------------- the sources of a job
#
# The sources of a job, for the coordinator: positions to read from, end positions, and committed offsets.
#
# Rule: queries are retried until they are answered, except the split discovery of a running job. Nothing depends on the
# offsets that are reported.


class SourceCoordinator:
    """The lookup of splits, positions and ends of a plan's sources. ``context`` returns that of the current term."""

    def __init__(
        self,
        plan: Plan,
        context: Callable[[], JobContext],
        patience: Retrier,
        dependencies: DependencyMonitor | None = None,
    ) -> None:
        self._plan, self._context = plan, context
        self._nodes = {node.name: node for node in plan.sources}
        self._dependencies = dependencies or DependencyMonitor()
        self._names, self._patience = [source.name for source in plan.sources], patience
        self._sources_by_name = {node.name: node.source for node in plan.sources}
        self._tables = {node.name for node in plan.sources if isinstance(node, TableNode)}
        self._sources = GroupedSources(self._sources_by_name, self._dependencies)
        self._joins, self._first = plan.awaited_sources, plan.awaited_sources.keys() - plan.joins_of_tables.keys()
        self._unreported: frozenset[str] = frozenset()
        """Sources to which the offsets of the last epoch could not be reported."""

    def check(self, newest: Manifest | None) -> list[str]:
        """Check the environment of every source. Return notices; raise ConfigError with all required changes.

        ``newest``: the manifest of the newest decided epoch. A problem that may pass is a notice: the job waits for it
        when it reads.
        """
        notices, wrong = list[str](), dict[str, None]()
        known = {} if newest is None else newest.sources
        for name in self._sources_by_name:
            try:
                notices += [f"source {name!r}: {notice}" for notice in self._checked(name, known.get(name))]
            except ConfigError as error:
                wrong[f"source {name!r}: {error}"] = None
            except Retryable as error:
                notices.append(f"source {name!r} was not checked: {error}")
        if wrong:
            raise ConfigError("\n".join(wrong))
        return notices

    def find_missing(self) -> list[str]:
        """Return the input that sources lack to be read from their start. A source that does not respond is ignored."""
        wrong: dict[str, None] = {}
        for name in self._sources_by_name:
            try:
                self._sources.discover(self._context(), {name: None})
            except ConfigError as error:
                wrong[str(error)] = None
        return list(wrong)

    def _checked(self, name: str, at: Positions | None) -> list[str]:
        source, known = self._sources_by_name[name], None if at is None else bootstrap.connector_positions(at)
        ctx = self._context()
        if (why := find_feedback(self._plan, self._nodes[name], ctx)) is not None:
            raise ConfigError(why)
        return [*source.check(ctx, known), *(source.check_table(ctx) if name in self._tables else ())]

    def resolve_positions(self, known: Mapping[str, Positions | None]) -> dict[str, Positions]:
        """Verify known positions, and look up those of new sources.

        A new table also gets the end positions that it has now, and a source that another one is ``after`` its final
        end:
        see ``protocol.source_dependencies``.
        """
        asked = {name: None if at is None else bootstrap.connector_positions(at) for name, at in known.items()}
        found = retry_until_all_answer(
            self._patience,
            "list the splits of the sources",
            list(asked),
            lambda names: self._sources.discover(self._context(), {name: asked[name] for name in names}),
        )
        awaited = self._joins.keys() & known.keys()
        ends = self._ends({name: found[name] for name in awaited if known[name] is None or name in self._first})
        return found | {name: self._awaited(name, found[name], known[name], ends.get(name, {})) for name in awaited}

    def _awaited(self, name: str, found: Positions, known: Positions | None, ends: Positions) -> Positions:
        """Return the positions of a source that others wait for."""
        if name in self._first:
            return bootstrap.positions_until_end(found, known or {}, ends)
        if known is None:
            return bootstrap.first_positions(found, ends, self._joins[name])
        return bootstrap.resumed_positions(found, known, self._joins[name])

    def discover_splits(self, known: Mapping[str, Positions]) -> dict[str, Positions]:
        """Return new splits with their start positions.

        A source that does not respond now is skipped with a notice. Raises InputLost if a known split cannot be read
        further.
        """
        found: dict[str, Positions] = {}
        asked = {name: bootstrap.connector_positions(splits) for name, splits in known.items()}
        for name, answer in self._sources.discover(self._context(), asked).items():
            if isinstance(answer, Retryable):
                self._patience.notice(f"new splits of {name} could not be discovered: {answer}")
            elif new := {split: at for split, at in answer.items() if split not in known[name]}:
                found[name] = bootstrap.first_positions(new, {}, self._joins[name]) if name in self._joins else new
        return found

    @property
    def verifies_input(self) -> bool:
        """Return whether a source can be checked for replaced input."""
        return any(isinstance(source, SupportsIdentityCheck) for source in self._sources_by_name.values())

    def ensure_same_input(self, read: Mapping[str, Positions]) -> None:
        """Raise InputLost if the input of a source was replaced; retry until every server has answered."""
        ctx, groups = self._context(), dict[tuple[type, str], list[str]]()
        for name, source in self._sources_by_name.items():
            if isinstance(source, SupportsIdentityCheck):
                groups.setdefault((type(source), source.scope(ctx)), []).append(name)
        for names in groups.values():
            first = self._sources_by_name[names[0]]
            assert isinstance(first, SupportsIdentityCheck)
            positions = [(self._sources_by_name[name], bootstrap.connector_positions(read[name])) for name in names]
            verify = partial(self._verify, ctx, first, names[0], positions)
            self._patience.retry(f"verify the input of {', '.join(names)}", verify)

    def _verify(
        self,
        ctx: JobContext,
        first: SupportsIdentityCheck,
        name: str,
        positions: Sequence[tuple[Source[Any], Positions]],
    ) -> None:
        with self._dependencies.watch(self._sources.server_of(ctx, name)):
            first.ensure_same_input(ctx, positions)

    def end_positions(self, known: Mapping[str, Positions]) -> dict[str, Positions]:
        """Return the end of each source: its final end, or the current one. ``known``: the positions of all sources."""
        return self._ends({name: bootstrap.connector_positions(known[name]) for name in self._names})

    def is_bounded(self, known: Mapping[str, Positions]) -> bool:
        """Return whether every source is bounded."""
        return self._bounds({name: bootstrap.connector_positions(known[name]) for name in self._names}).keys() == {
            *self._names
        }

    def _ends(self, known: Mapping[str, Positions]) -> dict[str, Positions]:
        bounds = self._bounds(known)
        asked = [name for name in known if name not in bounds]
        ask = partial(self._sources.ends, self._context())
        return bounds | retry_until_all_answer(self._patience, "read the end positions of the sources", asked, ask)

    def _bounds(self, known: Mapping[str, Positions]) -> dict[str, Positions]:
        """Return the end positions of the bounded sources."""
        ends_by_source = {name: self._sources_by_name[name].bounds(at) for name, at in known.items()}
        return {name: ends for name, ends in ends_by_source.items() if ends is not None}

    def report_offsets(self, manifest: Manifest) -> list[str]:
        """Report committed offsets to the sources; return new failures as messages.

        Failures that already occurred after the previous epoch are not repeated. The next epoch reports the offsets
        again.
        """
        positions = {name: bootstrap.connector_positions(manifest.sources[name]) for name in self._names}
        failed = self._sources.report_offsets(self._context(), manifest.id, positions, self._patience)
        news = [
            f"offsets of {name!r} in epoch {manifest.epoch} are not shown: {error}"
            for name, error in failed.items()
            if name not in self._unreported
        ]
        self._unreported = frozenset(failed)
        return news
