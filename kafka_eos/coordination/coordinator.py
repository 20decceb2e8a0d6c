"""The coordinator of one job's epochs, from recovery to receipt. Both engines use it; it knows neither workers nor
tasks.

It is synchronous and serves one caller at a time. ``ownership`` holds the identity and the term; ``recovery`` finishes
decided epochs and starts a new job; ``epochs`` decides and commits; ``sources`` and ``sinks`` query the connectors.
Each gathers facts, calls ``protocol`` and carries out the decision. Callers use these parts directly; the coordinator
itself does what needs several of them.
Rule: decided epochs are finished before anything else is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import StagedOutput
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.state import InFlightRows, StateHandle
from kafka_eos.coordination import identity as identities
from kafka_eos.coordination import savepoint_start as origin
from kafka_eos.coordination.dead_letter_counts import DeadLetterMonitor
from kafka_eos.coordination.dependencies import DependencyMonitor
from kafka_eos.coordination.epochs import EpochCommitter, EpochManager
from kafka_eos.coordination.incarnations import IncarnationRegistry
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.ownership import Ownership
from kafka_eos.coordination.recovery import FirstStart, NothingDecided, Recovery, Reporter, StateFiles
from kafka_eos.coordination.sinks import SinkCoordinator
from kafka_eos.coordination.sources import SourceCoordinator
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import JobIdentity, Term
from kafka_eos.core.json_values import Json
from kafka_eos.plan import Plan
from kafka_eos.protocol import retention as rules
from kafka_eos.runtime.epoch_reports import EpochContents, RestorePoint
from kafka_eos.storage import job_records as records
from kafka_eos.storage import retention
from kafka_eos.storage.epoch_ledger import EpochLedger
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.provenance_compaction import ProvenancePacker

DISCOVERY_INTERVAL = 5.0
"""Seconds between two searches of a running job for new splits."""


class Coordinator:
    """The coordinator of one job in one term. Call ``recover`` first; then ``epochs`` decides and commits."""

    def __init__(
        self,
        plan: Plan,
        storage: JobStorage,
        history: History,
        patience: Retrier,
        connector_settings: Mapping[str, Json],
        retained: int,
        *,
        start_from: Path | None = None,
        allow_dropped_state: bool = False,
        allow_repeated_output: bool = False,
        take_over: bool = False,
        home: str = "its directory",
        held: Callable[[], frozenset[str]] = frozenset,
        refusals: DeadLetterMonitor | None = None,
        dependencies: DependencyMonitor | None = None,
    ) -> None:
        """Create a coordinator without a term.

        ``home``: the location of the storage, for messages. ``held``: files that are being copied, which retention must
        keep.
        ``take_over``: a job without checkpoints may end other incarnations of its name. ``refusals``: the monitor of
        dead letters; without it they are not counted. ``dependencies``: where answers of servers are recorded.
        """
        dependencies = dependencies or DependencyMonitor()
        self._plan = plan
        self._storage = storage
        self._history = history
        self._patience = patience
        self._settings = connector_settings
        self._retained = retained
        self._pinned_files = held
        self._start_from = start_from
        self._allow_dropped = allow_dropped_state
        self._allow_repeated = allow_repeated_output
        self._take_over = take_over
        self.ownership = Ownership(storage, plan.name, connector_settings, refusals, dependencies, home)
        self.sources = SourceCoordinator(plan, lambda: self._context, patience, dependencies)
        self._outputs = SinkCoordinator(plan, self._context, history, patience)
        committers = self._outputs.committers
        self._lives = IncarnationRegistry(plan, self._context, committers, patience, home, dependencies)
        finisher = EpochCommitter(storage, committers, patience, dependencies=dependencies)
        self._ledger = EpochLedger(storage, plan.name, patience.notice)
        self._packer = ProvenancePacker(storage, patience.notice)
        self.epochs = EpochManager(
            plan, storage, self.ownership, self._lives, finisher, history, self._ledger, refusals
        )
        self._stored = StateFiles(storage, self.ownership.ensure_owner)

    @property
    def _context(self) -> JobContext:
        return self.ownership.context

    def check(self) -> list[str]:
        """Check the environment of every source and sink. Return notices; raise ConfigError with all required changes.

        If a sink needs a change, sources that have read nothing are looked up too: recovery, which would report what
        they lack, is not reached.
        """
        newest = identities.load_newest_manifest(self._storage, self._plan.name)
        known_in = frozenset(() if newest is None else newest.registered_in)
        try:
            notices = self._outputs.check(replace(self._context, written_scopes=known_in))
        except ConfigError as error:
            required = [str(error), *(self.sources.find_missing() if newest is None else ())]
            # A topic that is written and read is missing once.
            raise ConfigError("\n".join(dict.fromkeys("\n".join(required).split("\n")))) from error
        return [*notices, *self.sources.check(newest)]

    def list_staged(self) -> list[StagedOutput]:
        """List output of this incarnation that is still open."""
        return [item for item in self.list_all_staged() if self._context.owns(item.identity)]

    def list_all_staged(self) -> list[StagedOutput]:
        """List open output of every incarnation of the job name."""
        return self._outputs.list_staged(self._context)

    def end_incarnation(self, identity: JobIdentity | None) -> list[str]:
        """End another incarnation of the job name for good, and abort its open output. Return the aborted names."""
        return self._lives.end(self._context, identity)

    def retire(self) -> list[str]:
        """Retire this incarnation once it has no open output. Return the names of output that was aborted meanwhile."""
        return self._lives.retire(self._context)

    # ------------------------------------------------------------ recovery

    def recover(self) -> RestorePoint:
        """Take over the job: complete decided epochs, then prepare to continue from the newest one.

        Raises the errors of ``complete_decided``, and InputLost. Errors raised after ``complete_decided`` do not undo
        its effects.
        """
        match self.complete_decided():
            case NothingDecided(successor_of=successor_of):
                manifest = self._start_first_time(successor_of)
            case Manifest() as manifest:
                self._ensure_same_origin()
        self.epochs.continue_from(manifest)
        self._abort_leftovers()
        self._stored.ensure_complete(manifest)
        # Select the state first: a start that is refused must not have decided where new sources begin.
        states, in_flight = self._select_state(manifest)
        origin.ensure_tables_come_first(self._plan, manifest.sources, in_flight)
        origin.ensure_joins_know_their_tables(self._plan, manifest.sources, states)
        manifest = self._with_new_sources(manifest)
        identity, term = self.ownership.identity.id, self.ownership.term
        positions = self.sources.resolve_positions(
            {source.name: manifest.sources[source.name] for source in self._plan.sources}
        )
        self._history.append_event("recovered", epoch=manifest.epoch, term=term.n, identity=identity.text)
        return RestorePoint(identity, term, manifest.id, self.ownership.next_number, states, positions, in_flight)

    def verify_state(self, resumed: RestorePoint, notice: Callable[[str], None]) -> None:
        """Compare every byte of the restored state with its checksum; report progress to ``notice``.

        This is for an engine whose tasks all run on this machine; elsewhere each task verifies the files that it opens.
        Raises CorruptCheckpoint with the name of every damaged object, and Interrupted on a stop.
        """
        report_progress = Reporter("verified", notice, lambda: self._patience.ensure_running("verify the state"))
        self._stored.ensure_intact(
            resumed.base, records.index_files(resumed.states, resumed.in_flight), report_progress
        )
        hit("recovery.verified")

    def complete_decided(self, after: Term | None = None) -> Manifest | NothingDecided:
        """Take a term, and complete or revoke the decided epoch. See ``Recovery.complete``."""
        return Recovery(
            self._storage,
            self.ownership,
            self._lives,
            self._outputs,
            self.epochs,
            self._stored,
            self._history,
            self._patience,
        ).complete(after)

    def abort_open_output(self, after: Term | None = None) -> Manifest | NothingDecided:
        """Complete the decided epoch and abort all other output. Return and raise as ``complete_decided`` does.

        ``after``: the term in which this process has failed. Raises Fenced if it was replaced: it must not fence
        its successor, however long it was paused.
        """
        decided = self.complete_decided(after)
        self._abort_leftovers()
        return decided

    def abort_own_leftovers(self) -> None:
        """Abort output that lost attempts of this term left open, and fence their producers.

        Call it only while no task of the term runs and every decided epoch is finished: later tasks need new producers.
        """
        self._outputs.abort_leftovers(replace(self._context, term=self.ownership.term.next()))

    def _start_first_time(self, successor_of: frozenset[JobIdentity]) -> Manifest:
        return FirstStart(
            self._plan,
            self._storage,
            self.ownership,
            self._lives,
            self.sources,
            self.epochs,
            self._history,
            successor_of,
            self._take_over,
            self._allow_dropped,
            self._allow_repeated,
        ).begin(self._start_from)

    def _abort_leftovers(self) -> None:
        """Abort output of earlier terms that no manifest names."""
        self._outputs.abort_leftovers(self._context)

    def _with_new_sources(self, manifest: Manifest) -> Manifest:
        """Decide the start positions of new sources before they are read, as a first start does.

        Otherwise a restart after a crash would resolve "latest" again, and skip the records that arrived in between.
        """
        names = [source.name for source in self._plan.sources if source.name not in manifest.sources]
        new = self.sources.resolve_positions(dict.fromkeys(names))
        if not new:
            return manifest
        extended = self.epochs.decide(
            self.ownership.next_epoch(),
            EpochContents({**manifest.sources, **new}, manifest.states, (), manifest.in_flight, manifest.parallelism),
        )
        self.epochs.commit(extended)
        return extended

    def _ensure_same_origin(self) -> None:
        """Ensure that a job with checkpoints continues from the savepoint that it is started with."""
        start = self._start_from
        if start is not None and (unread := origin.ensure_same_savepoint(self._storage, self._plan.name, start)):
            self._history.append_event("origin-unread", path=str(start), reason=unread)

    def _select_state(self, manifest: Manifest) -> tuple[tuple[StateHandle, ...], tuple[InFlightRows, ...]]:
        """Return the state and in-flight rows that the plan uses.

        Raises ConfigError if state would be dropped without permission, or has other window definitions than the plan.
        """
        origin.ensure_same_definitions(self._plan, manifest.states)
        gone = origin.find_unused(self._plan, manifest.states, manifest.sources, manifest.in_flight)
        origin.drop_unused(self._history, self._allow_dropped, f"epoch {manifest.id}", gone)
        return origin.select_used(self._plan, manifest.states, manifest.in_flight)

    def drop_old_epochs(self) -> None:
        """Delete epochs that are not retained, and pack provenance files.

        Call it only while no epoch stores files. Raises Fenced.
        """
        # A supervisor that took over may store files that this term does not know.
        gone = retention.apply_retention(
            self._storage,
            self._plan.name,
            self._retained,
            self.ownership.ensure_newest_term,
            self._pinned_files(),
            self._ledger.make_durable,
        )
        self._packer.on_epochs_dropped(sum(isinstance(each, rules.DeleteManifest) for each in gone))

    def interrupt(self) -> None:
        """Make every call that waits for a server raise Interrupted instead. Thread-safe."""
        self._patience.interrupt()

    def close(self) -> None:
        """Close the committers."""
        self._outputs.close()
