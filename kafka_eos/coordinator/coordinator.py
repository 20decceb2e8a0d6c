"""One job's epochs, from recovery to receipt. Both engines drive it; it knows neither workers nor tasks.

Each method gathers facts, asks ``protocol`` and carries out the answer. It is synchronous and meant for one
caller at a time. Rule: the publication of the manifest is the decision, and the check for a newer term comes
between the decision and the first commit. What is decided is finished before anything else is looked at: recovery
opens one manifest for that and reads no state file, so its time does not grow with the state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from kafka_eos.checkpoints import manifest as records
from kafka_eos.checkpoints import outages, paths, retention
from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.checkpoints.storage import JobStorage
from kafka_eos.coordinator import identity as identities
from kafka_eos.coordinator import origin
from kafka_eos.coordinator import term as terms
from kafka_eos.coordinator.commits import Finisher
from kafka_eos.coordinator.handover import Acked, Resumed
from kafka_eos.coordinator.history import History
from kafka_eos.coordinator.lives import Lives
from kafka_eos.coordinator.patience import Patience
from kafka_eos.coordinator.progress import Reporter
from kafka_eos.coordinator.refusals import Refusals
from kafka_eos.coordinator.sources import Sources, until_all_answer
from kafka_eos.coordinator.stored import StoredState
from kafka_eos.errors import (
    CommittableLost,
    ConfigError,
    CorruptCheckpoint,
    Fenced,
    RestartFromCheckpoint,
    Retryable,
)
from kafka_eos.failpoints import hit
from kafka_eos.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.interfaces import (
    Committer,
    InFlight,
    JobContext,
    Json,
    Positions,
    Probe,
    Staged,
    Standing,
    StateHandle,
)
from kafka_eos.plan import Plan
from kafka_eos.protocol.commit import COMMIT_MARGIN, Commit, Revoke, Stop, authorize, undecidable
from kafka_eos.protocol.recovery import Facts, Fresh, Settled, Superseded, Unfinished, next_epoch, resolve, settle
from kafka_eos.state.keygroups import MAX_KEY_GROUPS

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
        take_over: bool = False,
        home: str = "its directory",
        held: Callable[[], frozenset[str]] = frozenset,
        refusals: Refusals | None = None,
    ) -> None:
        """``home``: where the storage is, for people. ``held``: files that somebody still copies, whatever retention
        thinks of them. ``take_over``: a job that begins anew may end other lives of its name.

        ``refusals``: the books of dead letters; without them nobody counts.
        """
        self._refusals = refusals
        self._untold: frozenset[str] = frozenset()
        """Sources whose progress could not be told after the last epoch."""
        self._start_from, self._allow_dropped, self._held = start_from, allow_dropped_state, held
        self._plan, self._storage, self._history, self._patience = plan, storage, history, patience
        self._settings, self._retained = connector_settings, retained
        self._context = JobContext(plan.name, Term(0), connector_settings)
        self._committers: dict[str, Committer] = {}
        for sink in plan.sinks:
            scope = sink.sink.scope(self._context)
            if scope not in self._committers:
                self._committers[scope] = sink.sink.committer(self._context)
        self._sources = Sources({node.name: node.source for node in plan.sources})
        self._finisher = Finisher(storage, self._committers, patience)
        self._take_over = take_over
        self._heir_of: frozenset[JobIdentity] = frozenset()
        """Starts of this directory that have decided nothing; none once something is decided."""
        self._lives = Lives(plan, self._context, self._committers, patience, home)
        self._stored = StoredState(storage, self.ensure_owner)
        self._next = Epoch(0)

    @property
    def term(self) -> Term:
        return self._context.term

    def check(self) -> list[str]:
        """Let every sink check the environment. Returns notices, each once; raises ConfigError with what to change."""
        several = len(self._committers) > 1 or self._settings.get("parallelism", 1) != 1
        margin: Mapping[str, Json] = {"commit_margin": COMMIT_MARGIN if several else 0.0}
        context = replace(self._context, settings={**self._settings, **margin})
        said_by: dict[str, list[str]] = {}
        for sink in self._plan.sinks:
            for notice in sink.sink.check(context):
                said_by.setdefault(notice, []).append(sink.name)
        return [
            f"{notice} (Sinks: {', '.join(names)}.)" if len(names) > 1 else notice for notice, names in said_by.items()
        ]

    def recognise(self) -> JobContext:
        """Who the job is: by its directory as long as no term is taken, which is what a tool needs that only looks."""
        if self.term == Term(0):
            self._context = identities.context(self._storage, self._plan.name, self._settings)
        return self._context

    def staged(self) -> list[Staged]:
        """What any term of this life has open in any sink."""
        return [item for item in self.staged_by_all() if self._context.owns(item.identity)]

    def staged_by_all(self) -> list[Staged]:
        """What any life of the job's name has open in any sink."""
        return [item for committer in self._committers.values() for item in committer.staged(self._context)]

    def end_life(self, identity: JobIdentity | None) -> list[str]:
        """End another life of the job's name for good, and undo what it has open. Returns names."""
        return self._lives.end(self._context, identity)

    # ------------------------------------------------------------ recovery

    def recover(self) -> Resumed:
        """Take the job over: complete what is decided, then make ready to go on from there.

        Raises as ``complete``, and InputLost. What is raised after ``complete`` leaves untouched what that did.
        """
        manifest = self.complete()
        if manifest is None:
            manifest = self._begin()
        elif self._start_from is not None:
            self._ensure_same_origin(self._start_from)
        self.abort_orphans()
        self._stored.ensure_complete(manifest)
        # First: a start that is refused must not have decided where new sources begin.
        states, in_flight = self._claimed(manifest)
        manifest = self._with_new_sources(manifest)
        identity, positions = self._identity.id, self._positions(manifest)
        self._history.write("recovered", epoch=manifest.epoch, term=self.term.n, identity=identity.text)
        return Resumed(identity, self.term, manifest.id, self._next, states, positions, in_flight)

    def verify_state(self, resumed: Resumed, notice: Callable[[str], None]) -> None:
        """Compare every byte of the state that is gone on with to its checksum; ``notice`` hears how far that is.

        For an engine whose tasks are all on this machine; where they are not, each verifies the files that it opens.
        Raises CorruptCheckpoint, with the name of every damaged object; Interrupted when told to stop.
        """
        told = Reporter("verified", notice, lambda: self._patience.ensure_not_told_to_stop("verify the state"))
        self._stored.ensure_whole(resumed.base, records.named_files(resumed.states, resumed.in_flight), told)
        hit("recovery.verified")

    def leave_nothing_open(self) -> None:
        """Complete what is decided and abort the rest; nothing is made ready to go on. Raises as ``complete``."""
        self.complete()
        self.abort_orphans()

    def complete(self) -> Manifest | None:
        """Take a term, and finish or revoke what is decided; the epoch to go on from, or None if there is none yet.

        Raises Fenced, CorruptCheckpoint, CommittableLost, ConfigError; Interrupted when told to stop.
        """
        known = identities.find(self._storage, self._plan.name)
        self._identity = known or identities.new(self._plan.name)
        facts = self._take_term(Term(0))
        if missing := terms.missing(facts):
            raise CorruptCheckpoint(
                f"{', '.join(missing)}: missing, though later records are there. Restore from a copy."
            )
        self._next = next_epoch(facts)
        resumption = resolve(facts, self.term)
        if isinstance(resumption, Settled | Unfinished):
            if known is None:
                self._recognise_by(resumption.newest)
            self._lives.hold(self._context)
        match resumption:
            case Superseded(by=newer):
                raise Fenced(f"term {self.term} was replaced by term {newer} while it was starting")
            case Fresh() if known is not None:
                # An older version wrote it before anything was decided: other starts may go by the same identity.
                identities.forget(self._storage)
                return self.complete()
            case Fresh():
                self._heir_of = identities.earlier(self._storage, self._plan.name, facts.claims - {self.term})
                return None
            case Settled(newest=newest):
                manifest = self._settled(newest)
            case Unfinished() as unfinished:
                manifest = self._unfinished(unfinished)
        if known is None:
            identities.keep(self._storage, self._identity)
        return manifest

    def _recognise_by(self, newest: EpochId) -> None:
        """The job is the life that decided this epoch: it ended before it had written that down.

        It is written with the base record of this term, from which on that epoch counts for good. Only a life that no
        manifest names is written at once: all that recover at this moment must go by the same one.
        """
        manifest = self._read(newest)
        identity = identities.of(manifest, self._identity)
        self._identity = identity if manifest.identity is not None else identities.keep(self._storage, identity)
        self._context = identities.context_of(self._identity, self.term, self._settings)

    def _take_term(self, above: Term) -> Facts:
        term = terms.claim(self._storage, self._plan.name, above, self._identity.id)
        self._context = identities.context_of(self._identity, term, self._settings)
        hit("recovery.claimed")
        return terms.settled(self._storage, self._plan.name, term)

    def _begin(self) -> Manifest:
        """Nothing was ever decided: decide epoch 0, the start positions, before anything is read.

        First the base record: what an earlier start of this directory still decides must not count any more when its
        life is ended here.
        """
        self._rebase(None, "first start" if self._start_from is None else f"first start, from {self._start_from}")
        if self._start_from is not None:
            return self._begin_from(origin.Start.read(self._start_from))
        self._enter(frozenset())
        self._storage.delete(paths.ORIGIN)  # of a start with a savepoint that did not get as far as epoch 0
        positions = self._discovered({source.name: None for source in self._plan.sources})
        return self._first(Acked(positions, (), ()))

    def _enter(self, heir_of: frozenset[JobIdentity | None]) -> None:
        """Raises ConfigError if another life of the job's name may go on."""
        with self._withdrawn_if_refused():
            ended = self._lives.enter(self._context, heir_of | self._heir_of, self._take_over)
        if ended:
            self._history.write("took-over", term=self.term.n, count=len(ended), names=list(ended[:20]))

    @contextmanager
    def _withdrawn_if_refused(self) -> Iterator[None]:
        """A start that is refused has decided nothing. Its mark would refuse the others, and theirs this one, for ever.

        The mark is that of this start alone: nobody goes on with it, whoever has started in this directory since. The
        same holds for the starts before it here, which may have died.
        """
        try:
            yield
        except (ConfigError, Fenced):
            self._lives.withdraw(self._context, {self._identity.id, *self._heir_of})
            self.ensure_owner()  # the other life may be that of a newer supervisor of this directory
            raise

    def _begin_from(self, start: origin.Start) -> Manifest:
        """As ``_begin``, with the positions and the state of a savepoint."""
        savepoint, what = start.savepoint, f"savepoint {start.path}"
        self._drop(what, start.unclaimed(self._plan))
        with self._withdrawn_if_refused():
            self._lives.admitted(self._context, start.heir_of | self._heir_of, self._take_over)
        states, in_flight = start.bring(self._storage, self._plan)
        # The sinks may know the savepoint's job: what they have of it must look older than what they get now.
        self._next = max(self._next, Epoch(savepoint.epoch).next())
        if self.term <= Term(savepoint.term):
            self._take_term(Term(savepoint.term))
            self._rebase(None, f"first start, from {what}")
        self._enter(start.heir_of)  # now that nothing is wrong with the savepoint: the life that it is of ends here
        names, known = [source.name for source in self._plan.sources], savepoint.sources
        positions = self._discovered({name: known.get(name) for name in names})
        return self._first(Acked(positions, states, (), in_flight), savepoint=savepoint.id)

    def _first(self, acked: Acked, **facts: Json) -> Manifest:
        began: dict[str, Json] = {
            name: {str(split): at for split, at in splits.items()} for name, splits in acked.positions.items()
        }
        self._history.write("began", term=self.term.n, identity=self._identity.identity, positions=began, **facts)
        manifest = self.decide(self.next_epoch(), acked)
        identities.keep(self._storage, self._identity)
        self.finish(manifest)
        return manifest

    def _with_new_sources(self, manifest: Manifest) -> Manifest:
        """Decide where sources begin that the pipeline did not have, before they are read, as ``_begin`` does.

        Otherwise "latest" would be asked again after a crash, and what came in between would never be read.
        """
        new = self._discovered(
            {source.name: None for source in self._plan.sources if source.name not in manifest.sources}
        )
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
        manifest = self._load(newest)
        self._rebase(newest, "newest epoch is committed")
        return manifest

    def _unfinished(self, unfinished: Unfinished) -> Manifest:
        hit("recovery.resolved")
        manifest = self._load(unfinished.newest)
        damage = self._stored.missing(manifest)
        hit("recovery.looked")
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
                previous = self._load(unfinished.previous)
                # Nothing is to be committed, so nothing waits for this; and the way back is the last one there is.
                self._stored.ensure_whole(previous.id, records.named_files(previous.states, previous.in_flight))
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
        Raises CommittableLost if it was faster, or nobody can tell.
        """
        probes = self._patience.until_answered(f"abort epoch {manifest.id}", lambda: self._aborted(manifest))
        if doubt := undecidable(probes):
            raise CommittableLost(
                f"epoch {manifest.id} of job {self._plan.name!r} could not be revoked: {doubt}. Nothing was skipped; "
                "see docs/operations.md, 'a lost committable'."
            )
        if committed := [probe.detail for probe in probes if probe.standing is Standing.COMMITTED]:
            raise CommittableLost(
                f"epoch {manifest.id} of job {self._plan.name!r} was committed in part while it was revoked: "
                f"{', '.join(committed)}. Nothing was skipped; see docs/operations.md, 'a lost committable'."
            )

    def _aborted(self, manifest: Manifest) -> list[Probe]:
        """Probes of an epoch after aborting it. Raises Retryable while something of it is still prepared."""
        self.abort_orphans()
        probes = self._finisher.probe(manifest.committables)
        if open_ := [probe.detail for probe in probes if probe.standing is Standing.PREPARED]:
            raise Retryable(f"still prepared: {', '.join(open_)}")
        return probes

    def _load(self, epoch: EpochId) -> Manifest:
        return records.expect_life(self._read(epoch), self._identity)

    def _read(self, epoch: EpochId) -> Manifest:
        try:
            return records.load(self._storage, Manifest, paths.manifest_name(epoch), self._plan.name)
        except FileNotFoundError:
            self.ensure_owner()  # a store that went away meanwhile looks empty
            raise CorruptCheckpoint(f"{paths.manifest_name(epoch)} is named by a term record but missing") from None

    def _rebase(self, base: EpochId | None, reason: str) -> None:
        terms.write_base(self._storage, self._plan.name, self.term, base, reason)
        if self._refusals is not None:
            self._refusals.goes_on_from(base)
        hit("recovery.based")

    def abort_left_over(self) -> None:
        """Abort what attempts of this term have open and no manifest names, and fence the producers of the term.

        Only while nothing of the term runs and every decided epoch is finished: what comes next needs new producers.
        """
        self.abort_orphans(replace(self._context, term=self.term.next()))

    def abort_orphans(self, context: JobContext | None = None) -> None:
        """Abort what terms before this one (or before that of ``context``) have open and no manifest names."""
        for scope, committer in self._committers.items():
            names = self._patience.until_answered(
                f"abort orphans in {scope}",
                lambda c=committer: c.abort_orphans(context or self._context),  # type: ignore[misc]
            )
            if names:
                self._history.write("aborted", scope=scope, count=len(names), names=list(names[:20]))
        hit("recovery.aborted")

    def _positions(self, manifest: Manifest) -> dict[str, Positions]:
        return self._discovered({source.name: manifest.sources[source.name] for source in self._plan.sources})

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

        A source that nobody can answer for now is left out, with a notice. Raises InputLost if a known split cannot be
        read on.
        """
        found: dict[str, Positions] = {}
        for name, answer in self._sources.discover(self._context, known).items():
            if isinstance(answer, Retryable):
                self._patience.notice(f"could not look for new splits of {name}: {answer}")
            elif new := {split: at for split, at in answer.items() if split not in known[name]}:
                found[name] = new
        return found

    def ends(self) -> dict[str, Positions]:
        """Where each source ends now."""
        names = [source.name for source in self._plan.sources]
        ask = partial(self._sources.ends, self._context)
        return until_all_answer(self._patience, "ask where the sources end", names, ask)

    def _discovered(self, known: Mapping[str, Positions | None]) -> dict[str, Positions]:
        """Of these sources, whose positions are verified, or looked up where they have none."""
        return until_all_answer(
            self._patience,
            "look up the splits of the sources",
            list(known),
            lambda names: self._sources.discover(self._context, {name: known[name] for name in names}),
        )

    # ------------------------------------------------------------ epochs

    def next_epoch(self) -> EpochId:
        """A fresh id for the next checkpoint of this term."""
        epoch = EpochId(self._next, self.term)
        self._next = self._next.next()
        return epoch

    def decide(self, epoch: EpochId, acked: Acked) -> Manifest:
        """Publish the manifest: after this the epoch has happened.

        Raises Fenced if a newer term is there; TooManyDeadLetters if the epoch must not happen. Asks no sink: engines
        call it on their main thread.
        """
        if self._refusals is not None:
            self._refusals.deciding(epoch, acked.tally)
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
            identity=self._identity.identity,
        )
        records.publish(self._storage, manifest)
        terms.check(self._storage, self.term)
        if self._refusals is not None:
            self._refusals.decided()
        return manifest

    def finish(self, manifest: Manifest) -> None:
        """Commit a decided epoch, and write its receipt.

        Raises Fenced if another life of the job's name took over; RestartFromCheckpoint if the epoch cannot be
        committed as it is: recovery then decides what becomes of it.
        """
        if manifest.committables:
            self._lives.hold(self._context)
        probes = self._finisher.probe(manifest.committables)
        match authorize(manifest.id, probes, COMMIT_MARGIN):
            case Commit() as decision:
                self._commit(manifest, decision)
            case Revoke(reason=reason) | Stop(reason=reason):
                raise RestartFromCheckpoint(f"epoch {manifest.id} cannot be committed: {reason}")

    def drop_old(self) -> None:
        """Drop epochs, and their files, that are not retained. Only while no epoch stores files. Raises Fenced."""
        # Whoever took over may store files that this term has never heard of.
        owned = partial(terms.check, self._storage, self.term)
        retention.retain(self._storage, self._plan.name, self._retained, owned, self._held())

    def tell_sources(self, manifest: Manifest) -> list[str]:
        """Pass committed positions on to lag tools: nothing rests on it. The next epoch tells again what failed.

        Returns, in words, what could not be told; what failed after the last epoch too is not repeated.
        """
        positions = {source.name: manifest.sources[source.name] for source in self._plan.sources}
        failed = self._sources.tell(self._context, manifest.id, positions, self._patience)
        news = [
            f"offsets of {name!r} in epoch {manifest.epoch} are not shown: {error}"
            for name, error in failed.items()
            if name not in self._untold
        ]
        self._untold = frozenset(failed)
        return news

    def _commit(self, manifest: Manifest, decision: Commit) -> None:
        outcomes = self._finisher.commit(manifest.committables, decision)
        totals: Counter[str] = Counter()
        for committable in manifest.committables:
            totals[committable.scope] += committable.records
        # Before the receipt, so that the audit has the line of every epoch with one. If it fails the receipt follows.
        self._history.write(
            "committed",
            epoch=manifest.epoch,
            term=manifest.term,
            records=dict[str, Json](totals),
            outcomes=[outcome.value for outcome in outcomes],
        )
        self._finisher.write_receipt(manifest, outcomes)

    def until_owner(self, patience: Patience, known: Term, after: BaseException) -> None:
        """Wait until the store, which must know of term ``known``, says who owns the job; ``after``: why it is asked.

        Raises Fenced if it is another one, Interrupted when told to stop.
        """

        def ask() -> None:
            terms.expect(self._storage, known)
            self.ensure_owner()

        what = f"ask the checkpoint store who owns the job, after this: {after}"
        patience.until_answered(what, lambda: outages.answered(ask))

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
