"""One job's epochs, from recovery to receipt. Both engines drive it; it knows neither workers nor tasks.

It is synchronous and meant for one caller at a time. Who the start is, is in ``ownership``; what is decided is finished
by ``recovery``; a job begins in ``first_start``; ``epochs`` decides and commits; ``inputs`` and ``outputs`` ask sources
and sinks. Each gathers facts, asks ``protocol`` and carries out the answer.

Rule: what is decided is finished before anything else is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import Patience
from kafka_eos.abc.committer import Staged
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.state import InFlight, StateHandle
from kafka_eos.coordination import identity as identities
from kafka_eos.coordination import savepoint_start as origin
from kafka_eos.coordination.dead_letter_counts import Refusals
from kafka_eos.coordination.epochs import Epochs, Finisher
from kafka_eos.coordination.incarnations import Lives
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.ownership import Ownership
from kafka_eos.coordination.recovery import FirstStart, Recovery, Reporter, StoredState, Undecided
from kafka_eos.coordination.sinks import Outputs
from kafka_eos.coordination.sources import Inputs
from kafka_eos.core.ids import EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json, Positions
from kafka_eos.plan import Plan
from kafka_eos.protocol import retention as rules
from kafka_eos.runtime.epoch_reports import Acked, Finished, Resumed
from kafka_eos.storage import job_records as records
from kafka_eos.storage import retention
from kafka_eos.storage.epoch_ledger import EpochLedger
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.provenance_compaction import Packer

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
        self._plan, self._storage, self._history, self._patience = plan, storage, history, patience
        self._settings, self._retained, self._held = connector_settings, retained, held
        self._start_from, self._allow_dropped, self._take_over = start_from, allow_dropped_state, take_over
        self._ownership = Ownership(storage, plan.name, connector_settings, refusals)
        self._inputs = Inputs(plan, patience)
        self._outputs = Outputs(plan, self._context, history, patience)
        committers = self._outputs.committers
        self._lives = Lives(plan, self._context, committers, patience, home)
        finisher = Finisher(storage, committers, patience)
        self._ledger = EpochLedger(storage, plan.name, patience.notice)
        self._packer = Packer(storage, patience.notice)
        self._epochs = Epochs(plan, storage, self._ownership, self._lives, finisher, history, self._ledger, refusals)
        self._stored = StoredState(storage, self._ownership.ensure)

    @property
    def term(self) -> Term:
        return self._ownership.term

    @property
    def _context(self) -> JobContext:
        return self._ownership.context

    def check(self) -> list[str]:
        """Let every source and sink check the environment. Returns notices; raises ConfigError with what to change."""
        newest = identities.newest(self._storage, self._plan.name)
        known_in = frozenset(() if newest is None else newest.known_in)
        told = self._outputs.check(replace(self._context, known_in=known_in))
        return [*told, *self._inputs.check(self._context, newest)]

    def recognise(self) -> JobContext:
        """See ``Ownership``."""
        return self._ownership.recognise()

    def staged(self) -> list[Staged]:
        """What any term of this life has open in any sink."""
        return [item for item in self.staged_by_all() if self._context.owns(item.identity)]

    def staged_by_all(self) -> list[Staged]:
        """What any life of the job's name has open in any sink."""
        return self._outputs.staged(self._context)

    def end_life(self, identity: JobIdentity | None) -> list[str]:
        """End another life of the job's name for good, and undo what it has open. Returns names."""
        return self._lives.end(self._context, identity)

    # ------------------------------------------------------------ recovery

    def recover(self) -> Resumed:
        """Take the job over: complete what is decided, then make ready to go on from there.

        Raises as ``complete``, and InputLost. What is raised after ``complete`` leaves untouched what that did.
        """
        match self.complete():
            case Undecided(heir_of=heir_of):
                manifest = self._begun(heir_of)
            case Manifest() as manifest:
                self._ensure_same_origin()
        self._epochs.go_on_from(manifest)
        self._abort_orphans()
        self._stored.ensure_complete(manifest)
        # First: a start that is refused must not have decided where new sources begin.
        states, in_flight = self._claimed(manifest)
        origin.ensure_tables_come_first(self._plan, manifest.sources, in_flight)
        origin.ensure_joins_know_their_tables(self._plan, manifest.sources, states)
        manifest = self._with_new_sources(manifest)
        identity = self._ownership.identity.id
        positions = self._inputs.look_up(
            self._context, {source.name: manifest.sources[source.name] for source in self._plan.sources}
        )
        self._history.write("recovered", epoch=manifest.epoch, term=self.term.n, identity=identity.text)
        return Resumed(identity, self.term, manifest.id, self._ownership.next, states, positions, in_flight)

    def verify_state(self, resumed: Resumed, notice: Callable[[str], None]) -> None:
        """Compare every byte of the state that is gone on with to its checksum; ``notice`` hears how far that is.

        For an engine whose tasks are all on this machine; where they are not, each verifies the files that it opens.
        Raises CorruptCheckpoint, with the name of every damaged object; Interrupted when told to stop.
        """
        told = Reporter("verified", notice, lambda: self._patience.ensure_not_told_to_stop("verify the state"))
        self._stored.ensure_whole(resumed.base, records.named_files(resumed.states, resumed.in_flight), told)
        hit("recovery.verified")

    def complete(self) -> Manifest | Undecided:
        """The first phase alone; see ``Recovery``."""
        return Recovery(
            self._storage,
            self._ownership,
            self._lives,
            self._outputs,
            self._epochs,
            self._stored,
            self._history,
            self._patience,
        ).complete()

    def leave_nothing_open(self) -> None:
        """Complete what is decided and abort the rest; nothing is made ready to go on. Raises as ``complete``."""
        self.complete()
        self._abort_orphans()

    def abort_left_over(self) -> None:
        """Abort what attempts of this term have open and no manifest names, and fence the producers of the term.

        Only while nothing of the term runs and every decided epoch is finished: what comes next needs new producers.
        """
        self._outputs.abort_orphans(replace(self._context, term=self.term.next()))

    def _begun(self, heir_of: frozenset[JobIdentity]) -> Manifest:
        return FirstStart(
            self._plan,
            self._storage,
            self._ownership,
            self._lives,
            self._inputs,
            self._epochs,
            self._history,
            heir_of,
            self._take_over,
            self._allow_dropped,
        ).begin(self._start_from)

    def _abort_orphans(self) -> None:
        """Abort what terms before this one have open and no manifest names."""
        self._outputs.abort_orphans(self._context)

    def _with_new_sources(self, manifest: Manifest) -> Manifest:
        """Decide where sources begin that the pipeline did not have, before they are read, as a first start does.

        Otherwise "latest" would be asked again after a crash, and what came in between would never be read.
        """
        names = [source.name for source in self._plan.sources if source.name not in manifest.sources]
        new = self._inputs.look_up(self._context, dict.fromkeys(names))
        if not new:
            return manifest
        extended = self.decide(
            self.next_epoch(),
            Acked({**manifest.sources, **new}, manifest.states, (), manifest.in_flight, manifest.parallelism),
        )
        self.finish(extended)
        return extended

    def _ensure_same_origin(self) -> None:
        """Of a job that has begun, if it is told to begin with a savepoint."""
        start = self._start_from
        if start is not None and (unread := origin.ensure_same(self._storage, self._plan.name, start)):
            self._history.write("origin-unread", path=str(start), reason=unread)

    def _claimed(self, manifest: Manifest) -> tuple[tuple[StateHandle, ...], tuple[InFlight, ...]]:
        """State and rows under way that the plan goes on with.

        ConfigError if something would be left without leave, or is held for other windows than the plan has.
        """
        origin.ensure_same_definitions(self._plan, manifest.states)
        gone = origin.unclaimed(self._plan, manifest.states, manifest.sources, manifest.in_flight)
        origin.drop(self._history, self._allow_dropped, f"epoch {manifest.id}", gone)
        return origin.claimed(self._plan, manifest.states, manifest.in_flight)

    # ------------------------------------------------------------ epochs

    def next_epoch(self) -> EpochId:
        """A fresh id for the next checkpoint of this term."""
        return self._ownership.next_epoch()

    def decide(self, epoch: EpochId, acked: Acked) -> Manifest:
        """See ``Epochs``."""
        return self._epochs.decide(epoch, acked)

    def finish(self, manifest: Manifest) -> Finished:
        """See ``Epochs``."""
        return self._epochs.finish(manifest)

    def drop_old(self) -> None:
        """Drop epochs, and their files, that are not retained; what is kept of them for ever is packed.

        Only while no epoch stores files. Raises Fenced.
        """
        # Whoever took over may store files that this term has never heard of.
        gone = retention.retain(
            self._storage, self._plan.name, self._retained, self._ownership.check, self._held(), self._ledger.keep
        )
        self._packer.forgotten(sum(isinstance(each, rules.Manifest) for each in gone))

    # ------------------------------------------------------------ sources

    def discover(self, known: Mapping[str, Positions]) -> dict[str, Positions]:
        """See ``Inputs.new_splits``."""
        return self._inputs.new_splits(self._context, known)

    def ends(self, known: Mapping[str, Positions]) -> dict[str, Positions]:
        """See ``Inputs.ends``."""
        return self._inputs.ends(self._context, known)

    def end_for_good(self, known: Mapping[str, Positions]) -> bool:
        """See ``Inputs.end_for_good``."""
        return self._inputs.end_for_good(known)

    def tell_sources(self, manifest: Manifest) -> list[str]:
        """See ``Inputs.tell``."""
        return self._inputs.tell(self._context, manifest)

    # ------------------------------------------------------------ ownership

    def until_owner(self, patience: Patience, known: Term, after: BaseException) -> None:
        """See ``Ownership.until_sure``."""
        self._ownership.until_sure(patience, known, after)

    def ensure_owner(self) -> None:
        """See ``Ownership.ensure``."""
        self._ownership.ensure()

    def interrupt(self) -> None:
        """Let no call wait for a server any longer: it raises Interrupted instead. May come from any thread."""
        self._patience.interrupt()

    def close(self) -> None:
        """Close the committers."""
        self._outputs.close()
