"""The sinks of a job, for the coordinator: one committer per scope, and the open output of each.

Rule: sinks with one scope share one committer, and a call waits as long as the sink's server does not respond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import CommitStatus, Committable, Committer, OutputOwner, StagedOutput
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.incarnation import SupportsLossCheck
from kafka_eos.abc.sink import Sink
from kafka_eos.coordination.job_history import History
from kafka_eos.core.errors import ConfigError, RegistryUnavailable, Retryable
from kafka_eos.core.ids import EpochId, JobIdentity
from kafka_eos.core.json_values import Json
from kafka_eos.plan import Plan
from kafka_eos.protocol.commit import COMMIT_MARGIN
from kafka_eos.protocol.output_owners import find_unplanned
from kafka_eos.storage.job_records import Manifest


class SinkCoordinator:
    """The checks of the plan's sinks, and the listing and aborting of their open output."""

    def __init__(self, plan: Plan, ctx: JobContext, history: History, patience: Retrier) -> None:
        self._plan = plan
        self._history = history
        self._patience = patience
        self.committers: dict[str, Committer] = {}
        """Committers by scope."""
        for sink in plan.sinks:
            scope = sink.sink.scope(ctx)
            if scope not in self.committers:
                self.committers[scope] = sink.sink.committer(ctx)

    def check(self, ctx: JobContext) -> list[str]:
        """Check the environment of every sink. Return notices without repetition.

        Raises ConfigError with all required changes, so that several missing topics need only one start. Raises
        Retryable, with advice, for the first sink whose system does not respond.
        """
        several = len(self.committers) > 1 or ctx.settings.get("parallelism", 1) != 1
        margin: Mapping[str, Json] = {"commit_margin": COMMIT_MARGIN if several else 0.0}
        sink_context = replace(ctx, settings={**ctx.settings, **margin})
        notices_by_text: dict[str, list[str]] = {}
        wrong: dict[str, None] = {}
        for sink in self._plan.sinks:
            try:
                for notice in sink.sink.check(sink_context):
                    notices_by_text.setdefault(notice, []).append(sink.name)
            except ConfigError as error:
                wrong[str(error)] = None
            except Retryable as error:
                raise type(error)(f"sink {sink.name!r}: {error}. {_advice(sink.sink, error, sink_context)}") from error
        if wrong:
            raise ConfigError("\n".join(wrong))
        self._expect_one_scope(ctx)
        return [
            f"{notice} (Sinks: {', '.join(names)}.)" if len(names) > 1 else notice
            for notice, names in notices_by_text.items()
        ]

    def _expect_one_scope(self, ctx: JobContext) -> None:
        """Raise ConfigError if two sinks use one target under two scopes: their committers would not know of each
        other."""
        first: dict[str, tuple[str, str]] = {}
        for node in self._plan.sinks:
            if (target := node.sink.get_target_identity()) is not None:
                scope = node.sink.scope(ctx)
                other, known = first.setdefault(target, (node.name, scope))
                if known != scope:
                    raise ConfigError(
                        f"the sinks {other!r} and {node.name!r} write to the same table under two names, {known} and "
                        f"{scope}: a commit of one would count for both. Use the same name in both"
                    )

    def ensure_planned(self, ctx: JobContext, epoch: EpochId, owners: Sequence[tuple[str, OutputOwner]]) -> None:
        """Raise ConfigError if output is for a target that no sink of the plan has, such as a table with other columns.

        ``owners``: the owners of the epoch's output by scope. Raises Retryable if a sink cannot tell its target now.
        """
        targets: dict[str, set[str]] = {}
        for node in self._plan.sinks if any(owner.target is not None for _, owner in owners) else ():
            if (target := node.sink.get_committable_target(ctx)) is not None:
                targets.setdefault(node.sink.scope(ctx), set()).add(target)
        if unplanned := find_unplanned(owners, targets):
            raise ConfigError(
                f"epoch {epoch} of job {ctx.job!r} is decided, but names output that no sink of the "
                f"pipeline wrote: {'; '.join(unplanned)}. Nothing was committed and nothing was "
                "deleted. If the pipeline was changed, run its previous version until it stops by "
                "itself, then change it. If it was not, another program has written to the "
                "checkpoints: restore them from a backup"
            )

    def ensure_output_present(self, ctx: JobContext, last: Manifest, later: Sequence[Committable]) -> None:
        """Raise ConfigError if a sink lacks committed output because an older copy was restored.

        ``last``: the newest epoch with a receipt. ``later``: committables of a decided epoch without one; a system that
        has committed some of them lacks nothing. Raises Retryable if the result is unknown now.
        """
        owner_context, lacking = replace(ctx, identity=JobIdentity(last.identity)), list[str]()
        for scope, committer in self.committers.items():
            some = [each for each in (*last.committables, *last.carried_over) if each.scope == scope]
            if isinstance(committer, SupportsLossCheck) and (some or scope in last.registered_in):
                more = [each for each in later if each.scope == scope]
                if not any(probe.status is CommitStatus.COMMITTED for probe in committer.probe_all(more)):
                    lacking += filter(None, [committer.find_missing_commits(owner_context, last.id, some)])
        if lacking:
            raise ConfigError(
                f"{'; '.join(lacking)}. The checkpoints show that job {ctx.job!r} has finished epoch {last.id}, so "
                "an older copy of the sink or of the checkpoints was restored: continuing would lose rows or write "
                "them twice. Restore the newer copy, or restore both as of the same time. To continue anyway, start "
                "from a savepoint in another directory: kafka-eos savepoint trigger, then --checkpoint-dir, --from "
                "and --take-over"
            )

    def list_staged(self, ctx: JobContext) -> list[StagedOutput]:
        """Return open output of every incarnation of the job name."""
        return [item for committer in self.committers.values() for item in committer.list_staged(ctx)]

    def abort_leftovers(self, ctx: JobContext) -> None:
        """Abort output of earlier terms that no manifest names."""
        for scope, committer in self.committers.items():
            names = self._patience.retry(
                f"abort left-over output in {scope}",
                lambda c=committer: c.abort_leftovers(ctx),  # type: ignore[misc]
            )
            if names:
                self._history.append_event("leftovers-aborted", scope=scope, count=len(names), names=list(names[:20]))
        hit("recovery.aborted")

    def close(self) -> None:
        for committer in self.committers.values():
            committer.close()


def _advice(sink: Sink[Any], error: Retryable, ctx: JobContext) -> str:
    """Return advice for a sink whose system does not respond."""
    if isinstance(error, RegistryUnavailable):
        return "Check that the registry runs at that address and accepts the job's credentials"
    return sink.advice(ctx)
