"""One job's epochs, from recovery to receipt. Both engines drive it; it knows neither workers nor tasks.

Each method gathers facts, asks ``protocol`` and carries out the answer. It is synchronous and meant for one
caller at a time. Rule: the publication of the manifest is the decision, and the check for a newer term comes
between the decision and the first commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kafka_eos.checkpoints import manifest as records
from kafka_eos.checkpoints import paths, retention, verify
from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.checkpoints.storage import JobStorage
from kafka_eos.coordinator import origin
from kafka_eos.coordinator import term as terms
from kafka_eos.coordinator.commits import Finisher
from kafka_eos.coordinator.handover import Acked, Resumed
from kafka_eos.coordinator.history import History
from kafka_eos.coordinator.patience import Patience
from kafka_eos.errors import CommittableLost, CorruptCheckpoint, Fenced, RestartFromCheckpoint, Retryable
from kafka_eos.failpoints import hit
from kafka_eos.ids import Epoch, EpochId, Term
from kafka_eos.interfaces import (
    AttemptCommitter,
    Committer,
    InFlight,
    JobContext,
    Json,
    Positions,
    Probe,
    Source,
    Staged,
    Standing,
    StateHandle,
)
from kafka_eos.plan import Plan
from kafka_eos.protocol.commit import Commit, Revoke, Stop, authorize
from kafka_eos.protocol.recovery import Facts, Fresh, Settled, Superseded, Unfinished, next_epoch, resolve, settle
from kafka_eos.state.keygroups import MAX_KEY_GROUPS

COMMIT_MARGIN = 10.0
"""Seconds before its timeout at which a prepared committable is no longer trusted to outlive its siblings."""

DISCOVERY_INTERVAL = 5.0
"""Seconds between two searches of a running job for new splits."""


class Coordinator:
    """Holds the term of one job. ``recover`` first; then ``decide`` and ``finish`` for each epoch."""

    def __init__(
        self,
        plan: Plan,
        storage: JobStorage,
        history: History,
        patience: Patience,
        connector_settings: Mapping[str, Json],
        retained: int,
        *,
        start_from: Path | None = None,
        allow_dropped_state: bool = False,
        held: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        """``held``: files that somebody still copies, whatever retention thinks of them."""
        self._start_from, self._allow_dropped, self._held = start_from, allow_dropped_state, held
        self._plan, self._storage, self._history, self._patience = plan, storage, history, patience
        self._settings, self._retained = connector_settings, retained
        self._context = JobContext(plan.name, Term(0), connector_settings)
        self._committers: dict[str, Committer] = {}
        for sink in plan.sinks:
            scope = sink.sink.scope(self._context)
            if scope not in self._committers:
                self._committers[scope] = sink.sink.committer(self._context)
        self._finisher = Finisher(storage, self._committers, patience)
        self._next = Epoch(0)

    @property
    def term(self) -> Term:
        return self._context.term

    def check(self) -> list[str]:
        """Let every sink check the environment. Returns notices; raises ConfigError with what to change."""
        return [notice for sink in self._plan.sinks for notice in sink.sink.check(self._context)]

    def staged(self) -> list[Staged]:
        """What any term of the job has open in any sink."""
        return [item for committer in self._committers.values() for item in committer.staged(self._context)]

    # ------------------------------------------------------------ recovery

    def recover(self) -> Resumed:
        """Take the job over and bring it to a settled state.

        Raises Fenced, CorruptCheckpoint, CommittableLost, InputLost, ConfigError; Interrupted when told to stop.
        """
        facts = self._take_over(Term(0))
        if missing := terms.missing(facts):
            raise CorruptCheckpoint(
                f"{', '.join(missing)}: missing, though later records are there. Restore from a copy."
            )
        self._next = next_epoch(facts)
        resumption = resolve(facts, self.term)
        if self._start_from is not None and isinstance(resumption, Settled | Unfinished):
            self._ensure_same_origin(self._start_from)
        match resumption:
            case Superseded(by=newer):
                raise Fenced(f"term {self.term} was replaced by term {newer} while it was starting")
            case Fresh():
                self._outlive()
                manifest = self._begin()
            case Settled(newest=newest):
                manifest = self._settled(newest)
            case Unfinished() as unfinished:
                manifest = self._unfinished(unfinished)
        self._abort_orphans()
        # First: a start that is refused must not have decided where new sources begin.
        states, in_flight = self._claimed(manifest)
        manifest = self._with_new_sources(manifest)
        self._history.write("recovered", epoch=manifest.epoch, term=self.term.n)
        return Resumed(self.term, manifest.id, self._next, states, self._positions(manifest), in_flight)

    def _take_over(self, above: Term) -> Facts:
        term = terms.claim(self._storage, self._plan.name, above)
        self._context = JobContext(self._plan.name, term, self._settings)
        hit("recovery.claimed")
        return terms.gather(self._storage, self._plan.name)

    def _outlive(self) -> None:
        """Let a first start count as newer than what an earlier life of the job, now deleted, has left open."""
        left = self._patience.until_answered("look for open output", self.staged)
        if left and (newest := max(item.term for item in left)) >= self.term:
            self._take_over(newest)

    def _begin(self) -> Manifest:
        """Nothing was ever decided: decide epoch 0, the start positions, before anything is read."""
        if self._start_from is not None:
            return self._begin_from(origin.Start.read(self._start_from))
        self._storage.delete(paths.ORIGIN)  # of a start with a savepoint that did not get as far as epoch 0
        self._rebase(None, "first start")
        positions = {source.name: self._discover(source.name, None) for source in self._plan.sources}
        return self._first(Acked(positions, (), ()))

    def _begin_from(self, start: origin.Start) -> Manifest:
        """As ``_begin``, with the positions and the state of a savepoint."""
        savepoint, what = start.savepoint, f"savepoint {start.path}"
        self._drop(what, start.unclaimed(self._plan))
        states, in_flight = start.bring(self._storage, self._plan)
        # The sinks may know the savepoint's job: what they have of it must look older than what they get now.
        self._next = max(self._next, Epoch(savepoint.epoch).next())
        if self.term <= Term(savepoint.term):
            self._take_over(Term(savepoint.term))
        self._rebase(None, f"first start, from {what}")
        names, known = [source.name for source in self._plan.sources], savepoint.sources
        positions = {name: self._discover(name, known.get(name)) for name in names}
        return self._first(Acked(positions, states, (), in_flight), savepoint=savepoint.id)

    def _first(self, acked: Acked, **facts: Json) -> Manifest:
        began: dict[str, Json] = {
            name: {str(split): at for split, at in splits.items()} for name, splits in acked.positions.items()
        }
        self._history.write("began", term=self.term.n, positions=began, **facts)
        manifest = self.decide(self.next_epoch(), acked)
        self.finish(manifest)
        return manifest

    def _with_new_sources(self, manifest: Manifest) -> Manifest:
        """Decide where sources begin that the pipeline did not have, before they are read, as ``_begin`` does.

        Otherwise "latest" would be asked again after a crash, and what came in between would never be read.
        """
        new = {
            source.name: self._discover(source.name, None)
            for source in self._plan.sources
            if source.name not in manifest.sources
        }
        if not new:
            return manifest
        extended = self.decide(
            self.next_epoch(),
            Acked({**manifest.sources, **new}, manifest.states, (), manifest.in_flight, manifest.parallelism),
        )
        self.finish(extended)
        return extended

    def _ensure_same_origin(self, start_from: Path) -> None:
        if unread := origin.ensure_same(self._storage, self._plan.name, start_from):
            self._history.write("origin-unread", path=str(start_from), reason=unread)

    def _settled(self, newest: EpochId) -> Manifest:
        hit("recovery.resolved")
        manifest = self._whole(newest)
        hit("recovery.verified")
        self._rebase(newest, "newest epoch is committed")
        return manifest

    def _unfinished(self, unfinished: Unfinished) -> Manifest:
        hit("recovery.resolved")
        manifest = self._load(unfinished.newest)
        damage = [str(problem) for problem in verify.verify_files(self._storage, manifest)]
        hit("recovery.verified")
        probes = self._finisher.probe(manifest.committables)
        hit("recovery.probed")
        match settle(unfinished, probes, damage, COMMIT_MARGIN):
            case Commit() as decision:
                self._commit(manifest, decision)
                hit("recovery.committed")
                self._rebase(manifest.id, "newest epoch was decided; its commits are finished")
                return manifest
            case Revoke(epoch=epoch, reason=reason):
                assert unfinished.previous is not None  # settle turns a revocation without one into Stop
                previous = self._whole(unfinished.previous)
                self._ensure_lost(manifest)
                self._rebase(previous.id, f"epoch {epoch} revoked: {reason}")
                self._history.write("revoked", epoch=epoch.epoch.n, term=epoch.term.n, reason=reason)
                return previous
            case Stop(epoch=epoch, reason=reason):
                raise CommittableLost(
                    f"epoch {epoch} of job {self._plan.name!r} was decided but cannot be completed: {reason}. Its "
                    f"input is {manifest.sources}. Nothing was skipped; see docs/operations.md, 'a lost committable'."
                )

    def _ensure_lost(self, manifest: Manifest) -> None:
        """Abort what a revoked epoch has prepared, before its revocation is written.

        A supervisor that was replaced may hold a permit for it still, and would commit what this term does again.
        Raises CommittableLost if it was faster.
        """
        probes = self._patience.until_answered(f"abort epoch {manifest.id}", lambda: self._aborted(manifest))
        if committed := [probe.detail for probe in probes if probe.standing is Standing.COMMITTED]:
            raise CommittableLost(
                f"epoch {manifest.id} of job {self._plan.name!r} was committed in part while it was revoked: "
                f"{', '.join(committed)}. Nothing was skipped; see docs/operations.md, 'a lost committable'."
            )

    def _aborted(self, manifest: Manifest) -> list[Probe]:
        """Probes of an epoch after aborting it. Raises Retryable while something of it is still prepared."""
        self._abort_orphans()
        probes = self._finisher.probe(manifest.committables)
        if open_ := [probe.detail for probe in probes if probe.standing is Standing.PREPARED]:
            raise Retryable(f"still prepared: {', '.join(open_)}")
        return probes

    def _whole(self, epoch: EpochId) -> Manifest:
        """The manifest of a committed epoch, with all its state at hand."""
        manifest = self._load(epoch)
        if problems := verify.verify_files(self._storage, manifest):
            raise CorruptCheckpoint(
                f"epoch {epoch} is committed, but its state is damaged: {'; '.join(map(str, problems))}. Restore "
                f"the named objects from a copy of {paths.SHARED}/; going back further would double its output."
            )
        return manifest

    def _load(self, epoch: EpochId) -> Manifest:
        try:
            return records.load(self._storage, Manifest, paths.manifest_name(epoch), self._plan.name)
        except FileNotFoundError:
            raise CorruptCheckpoint(f"{paths.manifest_name(epoch)} is named by a term record but missing") from None

    def _rebase(self, base: EpochId | None, reason: str) -> None:
        terms.write_base(self._storage, self._plan.name, self.term, base, reason)
        hit("recovery.based")

    def abort_left_over(self) -> None:
        """Abort what attempts of this term have open and no manifest names, and fence the producers of the term.

        Only while nothing of the term runs and every decided epoch is finished: what comes next needs new producers.
        """
        self._abort_orphans(JobContext(self._plan.name, self.term.next(), self._settings))

    def abort_attempts(self, owners: Sequence[int]) -> None:
        """Abort what attempts that ended within this term have open; everything decided of them is committed."""
        for scope, committer in self._committers.items():
            if isinstance(committer, AttemptCommitter):
                for owner in owners:
                    self._patience.until_answered(
                        f"abort what attempt {owner} left in {scope}",
                        lambda c=committer, o=owner: c.abort_attempt(self._context, o),  # type: ignore[misc]
                    )

    def _abort_orphans(self, context: JobContext | None = None) -> None:
        for scope, committer in self._committers.items():
            names = self._patience.until_answered(
                f"abort orphans in {scope}",
                lambda c=committer: c.abort_orphans(context or self._context),  # type: ignore[misc]
            )
            if names:
                self._history.write("aborted", scope=scope, count=len(names), names=list(names[:20]))
        hit("recovery.aborted")

    def _positions(self, manifest: Manifest) -> dict[str, Positions]:
        return {
            source.name: self._discover(source.name, manifest.sources[source.name]) for source in self._plan.sources
        }

    def _claimed(self, manifest: Manifest) -> tuple[tuple[StateHandle, ...], tuple[InFlight, ...]]:
        """State and rows under way that the plan goes on with. ConfigError if something would be left without leave."""
        gone = origin.unclaimed(self._plan, manifest.states, manifest.sources, manifest.in_flight)
        self._drop(f"epoch {manifest.id}", gone)
        return origin.claimed(self._plan, manifest.states, manifest.in_flight)

    def _drop(self, what: str, names: Sequence[str]) -> None:
        """Go on without what is stored under names that the plan has not, if allowed; else ConfigError."""
        if names and not self._allow_dropped:
            raise origin.refusal(what, names)
        if names:
            self._history.write("dropped", what=what, names=list(names))

    # ------------------------------------------------------------ sources

    def discover(self, known: Mapping[str, Positions]) -> dict[str, Positions]:
        """Splits that are not in ``known`` yet, by source, with where to start them.

        Raises Retryable if a server does not answer, InputLost if a known split cannot be read on.
        """
        found = {name: self._source(name).discover(self._context, positions) for name, positions in known.items()}
        return {
            name: new
            for name, positions in found.items()
            if (new := {split: at for split, at in positions.items() if split not in known[name]})
        }

    def ends(self) -> dict[str, Positions]:
        """Where each source ends now."""
        return {
            source.name: self._patience.until_answered(
                f"ask for the end of {source.name}",
                lambda s=source.source: s.ends(self._context),  # type: ignore[misc]
            )
            for source in self._plan.sources
        }

    def _discover(self, name: str, known: Positions | None) -> Positions:
        return self._patience.until_answered(
            f"look up the splits of {name}", lambda: self._source(name).discover(self._context, known)
        )

    def _source(self, name: str) -> Source[Any]:
        return next(node.source for node in self._plan.sources if node.name == name)

    # ------------------------------------------------------------ epochs

    @property
    def following(self) -> Epoch:
        """The number that ``next_epoch`` will give."""
        return self._next

    def next_epoch(self) -> EpochId:
        """A fresh id for the next checkpoint of this term."""
        epoch = EpochId(self._next, self.term)
        self._next = self._next.next()
        return epoch

    def decide(self, epoch: EpochId, acked: Acked) -> Manifest:
        """Publish the manifest: after this the epoch has happened. Raises Fenced if a newer term is there."""
        manifest = Manifest(
            job=self._plan.name,
            epoch=epoch.epoch.n,
            term=epoch.term.n,
            created_at=terms.now_ms(),
            plan=self._plan.fingerprint,
            max_key_groups=MAX_KEY_GROUPS,
            parallelism=acked.parallelism,
            sources=dict(acked.positions),
            states=acked.states,
            committables=acked.committables,
            in_flight=acked.in_flight,
        )
        records.publish(self._storage, manifest)
        terms.check(self._storage, self.term)
        return manifest

    def finish(self, manifest: Manifest, *, sweep: bool = True) -> None:
        """Commit a decided epoch, write its receipt, drop what is no longer needed.

        Without ``sweep`` nothing is dropped: files of an epoch that is on its way are named by no manifest yet.

        Raises RestartFromCheckpoint if it cannot be committed as it is: recovery then decides what becomes of it.
        """
        probes = self._finisher.probe(manifest.committables)
        match authorize(manifest.id, probes, COMMIT_MARGIN):
            case Commit() as decision:
                self._commit(manifest, decision)
            case Revoke(reason=reason) | Stop(reason=reason):
                raise RestartFromCheckpoint(f"epoch {manifest.id} cannot be committed: {reason}")
        if sweep:
            self.drop_old()

    def drop_old(self) -> None:
        """Drop epochs, and their files, that are not retained. Only while no epoch stores files. Raises Fenced."""
        # Whoever took over may store files that this term has never heard of.
        owned = partial(terms.check, self._storage, self.term)
        retention.retain(self._storage, self._plan.name, self._retained, owned, self._held())

    def tell_sources(self, manifest: Manifest) -> None:
        """Pass committed positions on to lag tools. Raises Retryable if one could not be told."""
        for source in self._plan.sources:
            source.source.completed(self._context, manifest.id, manifest.sources[source.name])

    def _commit(self, manifest: Manifest, decision: Commit) -> None:
        outcomes = self._finisher.commit(manifest.committables, decision)
        totals: Counter[str] = Counter()
        for committable in manifest.committables:
            totals[committable.scope] += committable.records
        self._history.write(
            "committed",
            epoch=manifest.epoch,
            term=manifest.term,
            records=dict[str, Json](totals),
            outcomes=[outcome.value for outcome in outcomes],
        )
        self._finisher.write_receipt(manifest, outcomes)

    def ensure_owner(self) -> None:
        """Raise Fenced if a newer term was claimed: whoever took over must not be taken over by us again."""
        if self.term > Term(0):
            terms.check(self._storage, self.term)

    def interrupt(self) -> None:
        """Let no call wait for a server any longer: it raises Interrupted instead. May come from any thread."""
        self._patience.interrupt()

    def close(self) -> None:
        """Close the committers."""
        for committer in self._committers.values():
            committer.close()
