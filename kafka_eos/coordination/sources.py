"""Asks the sources of a job which splits there are, where they begin and end; tells them how far the job is.

Sources whose server answers for many at once are asked together. Rule: a source that has no answer yet holds up nobody
else's; it is asked again alone, and what it waits for is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from kafka_eos._util.retry import Patience
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.source import Answer, AskedTogether, Source
from kafka_eos.core.errors import KafkaEosError, Retryable
from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Positions

Answers: TypeAlias = dict[str, Answer]
_Ask: TypeAlias = Callable[[Sequence[str]], Answers]


class Sources:
    """The sources of one job, by name."""

    def __init__(self, sources: Mapping[str, Source[Any]]) -> None:
        self._sources = sources

    def discover(self, ctx: JobContext, known: Mapping[str, Positions | None]) -> Answers:
        """See ``interfaces.Source.discover``; by source the positions, or why there are none now."""

        def together(first: AskedTogether, names: Sequence[str]) -> Sequence[Answer]:
            return first.discover_all(ctx, [(self._sources[name], known[name]) for name in names])

        return self._ask(ctx, list(known), together, lambda name: self._sources[name].discover(ctx, known[name]))

    def ends(self, ctx: JobContext, names: Sequence[str]) -> Answers:
        """See ``interfaces.Source.ends``."""

        def together(first: AskedTogether, names: Sequence[str]) -> Sequence[Answer]:
            return first.ends_all(ctx, [self._sources[name] for name in names])

        return self._ask(ctx, names, together, lambda name: self._sources[name].ends(ctx))

    def tell(
        self, ctx: JobContext, epoch: EpochId, positions: Mapping[str, Positions], patience: Patience
    ) -> dict[str, Exception]:
        """Pass committed positions on; see ``interfaces.Source.completed``. Who could not be told, and why.

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
