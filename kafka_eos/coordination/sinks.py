"""The sinks of a job as the coordinator sees them: one committer a scope, and what each has open.

Rule: sinks with one scope share one committer, and whoever asks one waits as long as its server does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import Patience
from kafka_eos.abc.committer import Committable, Committer, Staged, Standing, probed
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.guarantee import Advises, OneScope
from kafka_eos.abc.incarnation import Remembers
from kafka_eos.abc.sink import Sink
from kafka_eos.coordination.job_history import History
from kafka_eos.core.errors import ConfigError, RegistryAway, Retryable
from kafka_eos.core.ids import JobIdentity
from kafka_eos.core.json_values import Json
from kafka_eos.plan import Plan
from kafka_eos.protocol.commit import COMMIT_MARGIN
from kafka_eos.storage.job_records import Manifest


class Outputs:
    """The committers of a plan's sinks."""

    def __init__(self, plan: Plan, ctx: JobContext, history: History, patience: Patience) -> None:
        self._plan, self._history, self._patience = plan, history, patience
        self.committers: dict[str, Committer] = {}
        """By scope."""
        for sink in plan.sinks:
            scope = sink.sink.scope(ctx)
            if scope not in self.committers:
                self.committers[scope] = sink.sink.committer(ctx)

    def check(self, ctx: JobContext) -> list[str]:
        """Let every sink check the environment. Returns notices, each once.

        Raises ConfigError with all that is to be changed: nobody starts once for each missing topic. Raises Retryable,
        with advice, of the first sink whose system does not answer.
        """
        several = len(self.committers) > 1 or ctx.settings.get("parallelism", 1) != 1
        margin: Mapping[str, Json] = {"commit_margin": COMMIT_MARGIN if several else 0.0}
        told = replace(ctx, settings={**ctx.settings, **margin})
        said_by: dict[str, list[str]] = {}
        wrong: dict[str, None] = {}
        for sink in self._plan.sinks:
            try:
                for notice in sink.sink.check(told):
                    said_by.setdefault(notice, []).append(sink.name)
            except ConfigError as error:
                wrong[str(error)] = None
            except Retryable as error:
                raise type(error)(f"sink {sink.name!r}: {error}. {_advice(sink.sink, error, told)}") from error
        if wrong:
            raise ConfigError("\n".join(wrong))
        self._expect_one_scope(ctx)
        return [
            f"{notice} (Sinks: {', '.join(names)}.)" if len(names) > 1 else notice for notice, names in said_by.items()
        ]

    def _expect_one_scope(self, ctx: JobContext) -> None:
        """ConfigError if two sinks call one thing by two names: two committers would not know of each other there."""
        first: dict[str, tuple[str, str]] = {}
        for node in self._plan.sinks:
            if isinstance(node.sink, OneScope):
                scope = node.sink.scope(ctx)
                other, known = first.setdefault(node.sink.identity(), (node.name, scope))
                if known != scope:
                    raise ConfigError(
                        f"the sinks {other!r} and {node.name!r} write to the same table under two names, {known} and "
                        f"{scope}: what one of them has committed would count for both. Give both the same name"
                    )

    def expect_remembered(self, ctx: JobContext, last: Manifest, later: Sequence[Committable]) -> None:
        """ConfigError if a system lacks what this life has finished there, or has more: an older copy was put back.

        ``last``: the newest epoch with a receipt. ``later``: what an epoch without one has promised; a system that has
        committed some of it lacks nothing. Raises Retryable if nobody can tell now.
        """
        told, lacking = replace(ctx, identity=JobIdentity(last.identity)), list[str]()
        for scope, committer in self.committers.items():
            some = [each for each in (*last.committables, *last.remembered) if each.scope == scope]
            if isinstance(committer, Remembers) and (some or scope in last.known_in):
                more = [each for each in later if each.scope == scope]
                if not any(probe.standing is Standing.COMMITTED for probe in probed(committer, more)):
                    lacking += filter(None, [committer.lacks(told, last.id, some)])
        if lacking:
            raise ConfigError(
                f"{'; '.join(lacking)}. By its checkpoints job {ctx.job!r} has finished epoch {last.id}, so an older "
                "copy was put back, of the one or of the other: to go on would lose rows, or write them twice. Bring "
                "the newer one back, or put both back to one time. To go on all the same, begin with a savepoint in "
                "another directory: kafka-eos savepoint trigger, and then --checkpoint-dir, --from and --take-over"
            )

    def staged(self, ctx: JobContext) -> list[Staged]:
        """What any life of the job's name has open in any sink."""
        return [item for committer in self.committers.values() for item in committer.staged(ctx)]

    def abort_orphans(self, ctx: JobContext) -> None:
        """Abort what terms before that of ``ctx`` have open and no manifest names."""
        for scope, committer in self.committers.items():
            names = self._patience.until_answered(
                f"abort orphans in {scope}",
                lambda c=committer: c.abort_orphans(ctx),  # type: ignore[misc]
            )
            if names:
                self._history.write("aborted", scope=scope, count=len(names), names=list(names[:20]))
        hit("recovery.aborted")

    def close(self) -> None:
        for committer in self.committers.values():
            committer.close()


def _advice(sink: Sink[Any], error: Retryable, ctx: JobContext) -> str:
    """What to look at when the system of a sink does not answer."""
    if isinstance(error, RegistryAway):
        return "Check that the registry runs at that address and lets this job in"
    return sink.advice(ctx) if isinstance(sink, Advises) else "Check that its system runs there and lets this job in"
