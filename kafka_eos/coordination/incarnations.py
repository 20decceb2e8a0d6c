"""The incarnations of one job's name, as found in the sinks and sources of the plan.

I/O around ``protocol.incarnations``. Rule: an incarnation registers before it writes, and looks for others before and
after that. Of two that start at the same time at least one sees the other. A refused start removes its registration.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import Committer
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.abc.incarnation import (
    IncarnationSign,
    IncarnationState,
    SupportsLossCheck,
    SupportsRegistration,
)
from kafka_eos.abc.source import Source
from kafka_eos.coordination.dependencies import DependencyMonitor
from kafka_eos.core.errors import Bug, ConfigError
from kafka_eos.core.ids import JobIdentity
from kafka_eos.plan import Plan
from kafka_eos.protocol.incarnations import RepetitionRefused, SavepointEpoch, StartAdmitted, StartRefused, admit

_IDLE_CHECK_INTERVAL = 20.0
"""Seconds without an answer from a sink after which even an epoch without output checks the registration there."""


class IncarnationRegistry:
    """The registrations of this incarnation in the job's sinks, and the search for others."""

    def __init__(
        self,
        plan: Plan,
        ctx: JobContext,
        committers: Mapping[str, Committer],
        patience: Retrier,
        home: str,
        dependencies: DependencyMonitor,
    ) -> None:
        self._patience, self._home = patience, home
        self._dependencies = dependencies
        # A sink with a weaker guarantee needs neither a registration nor the permission for one.
        exact = [s.sink for s in plan.sinks if s.sink.guarantee is Guarantee.EXACTLY_ONCE]
        found = {scope: committers[scope] for scope in dict.fromkeys(sink.scope(ctx) for sink in exact)}
        self._registrars: dict[str, SupportsRegistration] = {
            scope: c for scope, c in found.items() if isinstance(c, SupportsRegistration)
        }
        self.verifying_scopes = frozenset(scope for scope, c in found.items() if isinstance(c, SupportsLossCheck))
        """Scopes of the sinks that can report missing commits."""
        self._sources: list[Source[Any]] = [node.source for node in plan.sources]

    @property
    def known_in(self) -> tuple[str, ...]:
        """Return the scopes in which this incarnation is registered once ``register`` or ``begin_new`` has returned."""
        return tuple(sorted(self._registrars))

    def find_all(self, ctx: JobContext) -> list[IncarnationSign]:
        """Return the signs of every incarnation of the job name, including this one."""
        asked: list[SupportsRegistration | Source[Any]] = [*self._registrars.values(), *self._sources]
        return self._patience.retry(
            "list the incarnations of the job's name",
            lambda: [sign for each in asked for sign in each.list_incarnations(ctx)],
        )

    def register(self, ctx: JobContext) -> None:
        """Register this incarnation in every sink; raise Fenced if another one has taken over."""
        for scope in self._registrars:
            self._register_in(ctx, scope)

    def check_idle(self, ctx: JobContext) -> None:
        """Check the registration in each sink that has not answered for some time; raise Fenced as ``register``.

        An idle job thus detects that a sink is gone, or that another incarnation has taken over.
        """
        for scope in self._registrars:
            if self._dependencies.is_quiet(scope, _IDLE_CHECK_INTERVAL):
                self._register_in(ctx, scope)

    def _register_in(self, ctx: JobContext, scope: str) -> None:
        def register() -> None:
            with self._dependencies.watch(scope):
                self._registrars[scope].register(ctx)

        self._patience.retry(f"reach {scope}", register)

    def begin_new(
        self,
        ctx: JobContext,
        successor_of: Collection[JobIdentity],
        take_over: bool,
        not_before: SavepointEpoch | None,
    ) -> list[str]:
        """Register a new incarnation and retire those that it replaces. Return the names of the aborted output.

        Raises ConfigError, which lists the signs, if another incarnation may still run, or output would be repeated.
        """
        self.check_admission(ctx, successor_of, take_over, not_before)
        self.register(ctx)
        succeeds = self.check_admission(ctx, successor_of, take_over, not_before).replaces
        return [name for identity in succeeds for name in self.end(ctx, identity)]

    def end(self, ctx: JobContext, identity: JobIdentity | None) -> list[str]:
        """End another incarnation for good: remove its registrations, then abort its open output. Return the aborted
        names."""
        if identity == ctx.identity:
            raise Bug(f"incarnation {identity} of job {ctx.job!r} cannot retire itself")
        return self._end(ctx, identity)

    def retire(self, ctx: JobContext) -> list[str]:
        """Remove the registrations of this incarnation, whose job was reset. Return the aborted names."""
        return self._end(ctx, ctx.identity)

    def deregister(self, ctx: JobContext, identities: Collection[JobIdentity]) -> None:
        """Remove registrations of incarnations that have written nothing."""
        signs = self.find_all(ctx)
        registered = {sign.identity for sign in signs if sign.state is IncarnationState.ENDED}
        registered -= {sign.identity for sign in signs if sign.state is IncarnationState.OPEN}
        for identity in registered.intersection(identities):
            self._end(ctx, identity)

    def _end(self, ctx: JobContext, identity: JobIdentity | None) -> list[str]:
        ended: list[str] = []
        for scope, committer in self._registrars.items():
            ended += self._patience.retry(
                f"retire incarnation {_named(identity)} in {scope}",
                lambda c=committer: c.retire(ctx, identity),  # type: ignore[misc]
            )
        return ended

    def check_admission(
        self,
        ctx: JobContext,
        successor_of: Collection[JobIdentity],
        take_over: bool,
        not_before: SavepointEpoch | None,
    ) -> StartAdmitted:
        """Check whether this incarnation may start, without changing anything. Raise the same errors as
        ``begin_new``.
        """
        if ctx.identity is None:
            raise Bug(f"job {ctx.job!r} has no identity")
        match admit(ctx.identity, self.find_all(ctx), successor_of, take_over, not_before):
            case StartRefused(signs=signs):
                raise ConfigError(describe_refusal(ctx.job, self._home, signs))
            case RepetitionRefused() as refused:
                raise ConfigError(describe_repetition(ctx.job, refused))
            case StartAdmitted() as proceed:
                return proceed


def describe_refusal(job: str, home: str, signs: Sequence[IncarnationSign]) -> str:
    """Return an explanation of which incarnations prevent a first start, and the remedy."""
    found = "; ".join(_shown(sign) for sign in signs)
    return (
        f"{describe_activity(job, signs)} This start of job {job!r} would begin from scratch, because {home} has no "
        "checkpoint, but another incarnation of that name "
        f"is registered in the same sinks or sources: {found}. Both together would write output twice. If it is the "
        "same job, start it with its original directory (--checkpoint-dir, setting checkpoint_dir). If it is another "
        "pipeline, give one of them another name. kafka-eos doctor lists the open output. If the other directory was "
        "lost or deleted, use --take-over (setting take_over): it aborts the open output of that incarnation, keeps "
        "what it has committed, and reads the input again, from the savepoint (--from) or from the start rule: readers "
        "will see the output of all input that both have read twice"
    )


def describe_activity(job: str, signs: Sequence[IncarnationSign]) -> str:
    """Describe whether another incarnation of the job is running, with its host and process if these are known."""
    ages = [sign.age for sign in signs if sign.age is not None and sign.state is IncarnationState.OPEN]
    place = next((sign.process for sign in signs if sign.process is not None), None)
    who = "" if place is None else f" Its last known process is {place[1]} on {place[0]}."
    if place is not None and place[0] == socket.gethostname():
        if _is_alive(place[1]):
            return f"Job {job!r} is running with another directory: process {place[1]} on this machine ({place[0]})."
        who = f" Its last known process, {place[1]} on this machine, has ended."
    if not ages:
        return f"Another incarnation of job {job!r} has no open output: it has ended or is idle.{who}"
    since = f"the newest of {min(ages):,.0f} s ago"
    return f"Another incarnation of job {job!r} has open output, {since}: it is running or was killed.{who}"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it belongs to another user
    return True


def describe_repetition(job: str, refused: RepetitionRefused) -> str:
    """Return an explanation of which epochs a start from a savepoint would repeat, and the remedy."""
    found = "; ".join(f"{sign.place} has epoch {sign.committed} ({sign.detail})" for sign in refused.signs)
    which = f"epochs {refused.first} to {refused.last}" if refused.first < refused.last else f"epoch {refused.last}"
    return (
        f"job {job!r} would produce the output of {which} a second time: the savepoint (--from) is older than what its "
        f"job has committed since: {found}. To continue without duplicates, take a savepoint of the newest epoch "
        "(kafka-eos stop --savepoint, or kafka-eos savepoint trigger, with the directory of that job) and start from "
        "it. To go back on purpose, use --allow-repeated-output (setting allow_repeated_output): what those epochs "
        "have committed stays, and readers will see their output twice"
    )


def _shown(sign: IncarnationSign) -> str:
    term = "" if sign.term is None else f", term {sign.term}"
    age = "" if sign.age is None else f", {sign.age:,.0f} s old"
    state = " (open)" if sign.state is IncarnationState.OPEN else ""
    committed = "" if sign.committed is None else f", committed up to epoch {sign.committed}"
    return f"incarnation {_named(sign.identity)}{term}{state} in {sign.place}: {sign.detail}{committed}{age}"


def _named(identity: JobIdentity | None) -> str:
    return "without identity" if identity is None else str(identity)
