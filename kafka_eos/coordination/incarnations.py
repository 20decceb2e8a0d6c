"""The lives of one job's name, as the sinks and sources of the plan tell of them.

I/O around ``protocol.incarnations``. Rule: a life leaves its mark before it writes, and looks for others before and
after; of two that begin at the same moment at least one sees the other. One that is refused takes its mark away again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kafka_eos._util.retry import Patience
from kafka_eos.abc.committer import Committer
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.abc.incarnation import HoldsLife, Life, LifeState, Remembers, TellsLives
from kafka_eos.abc.source import Source
from kafka_eos.core.errors import Bug, ConfigError
from kafka_eos.core.ids import JobIdentity
from kafka_eos.plan import Plan
from kafka_eos.protocol.incarnations import Proceed, Refuse, admit


class Lives:
    """``committers`` by scope; ``home`` is the job's directory, for people."""

    def __init__(self, plan: Plan, ctx: JobContext, committers: Mapping[str, Committer], patience: Patience, home: str):
        self._patience, self._home = patience, home
        # A sink that promises less needs no mark, nor the rights to leave one.
        exact = [s.sink for s in plan.sinks if s.sink.guarantee is Guarantee.EXACTLY_ONCE]
        found = {scope: committers[scope] for scope in dict.fromkeys(sink.scope(ctx) for sink in exact)}
        self._held: dict[str, HoldsLife] = {scope: c for scope, c in found.items() if isinstance(c, HoldsLife)}
        self.remembering = frozenset(scope for scope, c in found.items() if isinstance(c, Remembers))
        """Scopes of the sinks that tell for good whether they have what was committed."""
        sources: list[Source[Any]] = [node.source for node in plan.sources]
        self._sources = [source for source in sources if isinstance(source, TellsLives)]

    @property
    def known_in(self) -> tuple[str, ...]:
        """Scopes of the sinks that know this life once ``hold`` or ``enter`` has returned."""
        return tuple(sorted(self._held))

    def signs(self, ctx: JobContext) -> list[Life]:
        """Every sign of any life of the name, this one's included."""
        asked: list[TellsLives] = [*self._held.values(), *self._sources]
        return self._patience.until_answered(
            "look for other lives of the job's name", lambda: [sign for each in asked for sign in each.lives(ctx)]
        )

    def hold(self, ctx: JobContext) -> None:
        """Leave the mark of this life in every sink. Raises Fenced if another life took one of them away."""
        for scope, committer in self._held.items():
            self._patience.until_answered(f"reach {scope}", lambda c=committer: c.hold(ctx))  # type: ignore[misc]

    def enter(self, ctx: JobContext, heir_of: Collection[JobIdentity | None], take_over: bool) -> list[str]:
        """Begin a life that has decided nothing yet; end those that it succeeds. Returns what was ended, by name.

        Raises ConfigError, which says whose signs there are, if another life may go on.
        """
        self.admitted(ctx, heir_of, take_over)
        self.hold(ctx)
        succeeds = self.admitted(ctx, heir_of, take_over).succeeds
        return [name for identity in succeeds for name in self.end(ctx, identity)]

    def end(self, ctx: JobContext, identity: JobIdentity | None) -> list[str]:
        """End another life for good: take its marks away, then undo what it has open. Returns names."""
        if identity == ctx.identity:
            raise Bug(f"life {identity} of job {ctx.job!r} cannot end itself")
        return self._end(ctx, identity)

    def withdraw(self, ctx: JobContext, lives: Collection[JobIdentity]) -> None:
        """End those of these lives that have left a mark and nothing else: nobody goes on with them."""
        signs = self.signs(ctx)
        marked = {sign.identity for sign in signs if sign.state is LifeState.ENDED}
        marked -= {sign.identity for sign in signs if sign.state is LifeState.OPEN}
        for identity in marked.intersection(lives):
            self._end(ctx, identity)

    def _end(self, ctx: JobContext, identity: JobIdentity | None) -> list[str]:
        ended: list[str] = []
        for scope, committer in self._held.items():
            ended += self._patience.until_answered(
                f"end life {_named(identity)} in {scope}",
                lambda c=committer: c.succeed(ctx, identity),  # type: ignore[misc]
            )
        return ended

    def admitted(self, ctx: JobContext, heir_of: Collection[JobIdentity | None], take_over: bool) -> Proceed:
        """Look for other lives, and do nothing yet. Raises as ``enter``."""
        if ctx.identity is None:
            raise Bug(f"job {ctx.job!r} has no identity")
        match admit(ctx.identity, self.signs(ctx), heir_of, take_over):
            case Refuse(signs=signs):
                raise ConfigError(refusal(ctx.job, self._home, signs))
            case Proceed() as proceed:
                return proceed


def refusal(job: str, home: str, signs: Sequence[Life]) -> str:
    """Whose signs stop a start in the empty directory ``home``, and what to do about it."""
    found = "; ".join(_shown(sign) for sign in signs)
    return (
        f"job {job!r} would begin anew, because nothing was ever decided in {home}, but another life of that name has "
        f"left signs in the same sinks or sources: {found}. Both together would write output twice. If it is the same "
        f"job, start it with the directory that it had (--checkpoint-dir, setting checkpoint_dir); if it is another "
        "pipeline, give one of them another name; kafka-eos doctor shows what is open. If the other directory is lost "
        "or was deleted on purpose: --take-over (setting take_over) ends what that life has open, keeps what it has "
        "committed, and reads the input from the savepoint (--from), or else from the start rule again"
    )


def _shown(sign: Life) -> str:
    term = "" if sign.term is None else f", term {sign.term}"
    age = "" if sign.age is None else f", {sign.age:,.0f} s old"
    state = " (open)" if sign.state is LifeState.OPEN else ""
    return f"life {_named(sign.identity)}{term}{state} in {sign.place}: {sign.detail}{age}"


def _named(identity: JobIdentity | None) -> str:
    return "without identity" if identity is None else str(identity)
