"""Asks the sources of a job which splits there are, where they begin and end; tells them how far the job is.

Sources whose server answers for many at once are asked together. Rule: a source that has no answer yet holds up nobody
else's; it is asked again alone, and what it waits for is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from kafka_eos._util.retry import Patience
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.source import Answer, AskedTogether, Bounded, CheckedSource, LastingSource, Source
from kafka_eos.core.errors import ConfigError, KafkaEosError, Retryable
from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Positions
from kafka_eos.plan import Plan, Table
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.storage.job_records import Manifest

Answers: TypeAlias = dict[str, Answer]
_Ask: TypeAlias = Callable[[Sequence[str]], Answers]


class Sources:
    """The sources of one job, by name."""

    def __init__(self, sources: Mapping[str, Source[Any]]) -> None:
        self._sources = sources

    def discover(self, ctx: JobContext, known: Mapping[str, Positions | None]) -> Answers:
        """See ``abc.Source.discover``; by source the positions, or why there are none now."""

        def together(first: AskedTogether, names: Sequence[str]) -> Sequence[Answer]:
            return first.discover_all(ctx, [(self._sources[name], known[name]) for name in names])

        return self._ask(ctx, list(known), together, lambda name: self._sources[name].discover(ctx, known[name]))

    def ends(self, ctx: JobContext, names: Sequence[str]) -> Answers:
        """See ``abc.Source.ends``."""

        def together(first: AskedTogether, names: Sequence[str]) -> Sequence[Answer]:
            return first.ends_all(ctx, [self._sources[name] for name in names])

        return self._ask(ctx, names, together, lambda name: self._sources[name].ends(ctx))

    def tell(
        self, ctx: JobContext, epoch: EpochId, positions: Mapping[str, Positions], patience: Patience
    ) -> dict[str, Exception]:
        """Pass committed positions on; see ``abc.Source.completed``. Who could not be told, and why.

        The first of a server that has no answer now speaks for the rest: each would wait for as long. Nobody waits once
        the job is told to stop.
        """
        failed: dict[str, Exception] = {}
        for group in self._groups(ctx, list(positions)):
            for name in group:
                try:
                    patience.ensure_not_told_to_stop("show the offsets")
                    self._sources[name].completed(ctx, epoch, positions[name])
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
        together: Callable[[AskedTogether, Sequence[str]], Sequence[Answer]],
        alone: Callable[[str], Positions],
    ) -> Answers:
        found: Answers = {}
        for group in self._groups(ctx, names):
            first = self._sources[group[0]]
            try:
                if isinstance(first, AskedTogether):
                    found.update(zip(group, together(first, group), strict=True))
                else:
                    found[group[0]] = alone(group[0])
            except Retryable as error:
                found.update(dict.fromkeys(group, error))
        return found

    def _groups(self, ctx: JobContext, names: Sequence[str]) -> list[list[str]]:
        """Those that one request can ask, in the order of their first."""
        groups: dict[object, list[str]] = {}
        for name in names:
            source = self._sources[name]
            key = (type(source), source.scope(ctx)) if isinstance(source, AskedTogether) else name
            groups.setdefault(key, []).append(name)
        return list(groups.values())


def until_all_answer(patience: Patience, what: str, names: Sequence[str], ask: _Ask) -> dict[str, Positions]:
    """The answers of all ``names``: those that have none are asked again. Raises what ``until_answered`` does."""
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

    patience.until_answered(what, missing)
    return {name: done[name] for name in names}


# ---------------------------------------------------------------- the sources of a job
#
# The sources of a job as the coordinator sees them: where to read on, where they end, how far the job is.
#
# Rule: what they are asked is waited for, but for a search while the job runs; nothing rests on what they are told.


class Inputs:
    """The sources of a plan."""

    def __init__(self, plan: Plan, patience: Patience) -> None:
        self._names, self._patience = [source.name for source in plan.sources], patience
        self._asked = {node.name: node.source for node in plan.sources}
        self._tables = {node.name for node in plan.sources if isinstance(node, Table)}
        self._sources = Sources(self._asked)
        self._joins, self._first = plan.awaited, plan.awaited.keys() - plan.joins_of_tables.keys()
        self._untold: frozenset[str] = frozenset()
        """Sources whose progress could not be told after the last epoch."""

    def check(self, ctx: JobContext, newest: Manifest | None) -> list[str]:
        """Let every source check the environment. Returns notices; raises ConfigError with all that is to be changed.

        ``newest``: of the newest epoch that is decided.

        What cannot be told now is a notice: the job waits for it when it reads.
        """
        told, wrong = list[str](), dict[str, None]()
        known = {} if newest is None else newest.sources
        for name in self._asked:
            try:
                told += [f"source {name!r}: {notice}" for notice in self._checked(name, ctx, known.get(name))]
            except ConfigError as error:
                wrong[f"source {name!r}: {error}"] = None
            except Retryable as error:
                told.append(f"source {name!r} was not checked: {error}")
        if wrong:
            raise ConfigError("\n".join(wrong))
        return told

    def _checked(self, name: str, ctx: JobContext, at: Positions | None) -> list[str]:
        source, known = self._asked[name], None if at is None else bootstrap.plain(at)
        told = list(source.check(ctx, known)) if isinstance(source, CheckedSource) else []
        if name in self._tables and isinstance(source, LastingSource):
            told += source.check_table(ctx)
        return told

    def look_up(self, ctx: JobContext, known: Mapping[str, Positions | None]) -> dict[str, Positions]:
        """Of these sources, whose positions are verified, or looked up where they have none.

        Those of a table that has none get the ends that it has now, and those of a source that another one is after the
        end that it has for good: see ``protocol.source_dependencies``.
        """
        asked = {name: None if at is None else bootstrap.plain(at) for name, at in known.items()}
        found = until_all_answer(
            self._patience,
            "look up the splits of the sources",
            list(asked),
            lambda names: self._sources.discover(ctx, {name: asked[name] for name in names}),
        )
        awaited = self._joins.keys() & known.keys()
        ends = self._ends(ctx, {name: found[name] for name in awaited if known[name] is None or name in self._first})
        return found | {name: self._awaited(name, found[name], known[name], ends.get(name, {})) for name in awaited}

    def _awaited(self, name: str, found: Positions, known: Positions | None, ends: Positions) -> Positions:
        """The positions of a source that others wait for."""
        if name in self._first:
            return bootstrap.ending(found, known or {}, ends)
        if known is None:
            return bootstrap.begun(found, ends, self._joins[name])
        return bootstrap.resumed(found, known, self._joins[name])

    def new_splits(self, ctx: JobContext, known: Mapping[str, Positions]) -> dict[str, Positions]:
        """Splits that are not in ``known`` yet, by source, with where to start them.

        A source that nobody can answer for now is left out, with a notice. Raises InputLost if a known split cannot be
        read on.
        """
        found: dict[str, Positions] = {}
        asked = {name: bootstrap.plain(splits) for name, splits in known.items()}
        for name, answer in self._sources.discover(ctx, asked).items():
            if isinstance(answer, Retryable):
                self._patience.notice(f"could not look for new splits of {name}: {answer}")
            elif new := {split: at for split, at in answer.items() if split not in known[name]}:
                found[name] = bootstrap.begun(new, {}, self._joins[name]) if name in self._joins else new
        return found

    def ends(self, ctx: JobContext, known: Mapping[str, Positions]) -> dict[str, Positions]:
        """Where each source ends: for good if it does, else now. ``known``: the positions of all."""
        return self._ends(ctx, {name: bootstrap.plain(known[name]) for name in self._names})

    def end_for_good(self, known: Mapping[str, Positions]) -> bool:
        """Have all sources an end of their own?"""
        return self._bounds({name: bootstrap.plain(known[name]) for name in self._names}).keys() == {*self._names}

    def _ends(self, ctx: JobContext, known: Mapping[str, Positions]) -> dict[str, Positions]:
        bounds = self._bounds(known)
        asked = [name for name in known if name not in bounds]
        ask = partial(self._sources.ends, ctx)
        return bounds | until_all_answer(self._patience, "ask where the sources end", asked, ask)

    def _bounds(self, known: Mapping[str, Positions]) -> dict[str, Positions]:
        """Of the sources that end for good."""
        told = {
            name: source.bounds(at) for name, at in known.items() if isinstance(source := self._asked[name], Bounded)
        }
        return {name: ends for name, ends in told.items() if ends is not None}

    def tell(self, ctx: JobContext, manifest: Manifest) -> list[str]:
        """Pass committed positions on to lag tools. The next epoch tells again what failed.

        Returns, in words, what could not be told; what failed after the last epoch too is not repeated.
        """
        positions = {name: bootstrap.plain(manifest.sources[name]) for name in self._names}
        failed = self._sources.tell(ctx, manifest.id, positions, self._patience)
        news = [
            f"offsets of {name!r} in epoch {manifest.epoch} are not shown: {error}"
            for name, error in failed.items()
            if name not in self._untold
        ]
        self._untold = frozenset(failed)
        return news
