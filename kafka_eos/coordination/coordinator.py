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
from pathlib import Path

from msgspec.structs import replace

from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import StagedOutput
from kafka_eos.abc.context import JobContext
from kafka_eos.coordination.dead_letter_counts import DeadLetterMonitor
from kafka_eos.coordination.dependencies import DependencyMonitor
from kafka_eos.coordination.epochs import EpochCommitter, EpochManager
from kafka_eos.coordination.incarnations import IncarnationRegistry
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.ownership import Ownership, load_newest_manifest
from kafka_eos.coordination.recovery import NothingDecided, Recovery, StartOptions
from kafka_eos.coordination.sinks import SinkCoordinator
from kafka_eos.coordination.sources import SourceCoordinator
from kafka_eos.coordination.state_files import StateFiles
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import JobIdentity, Term
from kafka_eos.core.json_values import Json
from kafka_eos.plan import Plan
from kafka_eos.protocol import retention as rules
from kafka_eos.storage import retention
from kafka_eos.storage.epoch_ledger import EpochLedger
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.provenance_compaction import ProvenancePacker

DISCOVERY_INTERVAL = 5.0
"""Seconds between two searches of a running job for new splits."""


class Coordinator:
    """The coordinator of one job in one term. Call ``recovery.restore`` first; then ``epochs`` decides and commits."""

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
        self._patience = patience
        self._settings = connector_settings
        self._retained = retained
        self._pinned_files = held
        self._manifest_files = retention.ManifestFiles(storage, plan.name)
        self.ownership = Ownership(storage, plan.name, connector_settings, refusals, dependencies, home)
        self.sources = SourceCoordinator(plan, lambda: self._context, patience, dependencies)
        self._outputs = SinkCoordinator(plan, self._context, history, patience)
        committers = self._outputs.committers
        self._incarnations = IncarnationRegistry(plan, self._context, committers, patience, home, dependencies)
        committer = EpochCommitter(storage, committers, patience, dependencies=dependencies)
        self._ledger = EpochLedger(storage, plan.name, patience.notice)
        self._packer = ProvenancePacker(storage, patience.notice)
        self.epochs = EpochManager(
            plan, storage, self.ownership, self._incarnations, committer, history, self._ledger, refusals
        )
        self.recovery = Recovery(
            plan,
            storage,
            self.ownership,
            self._incarnations,
            self.sources,
            self._outputs,
            self.epochs,
            committer,
            StateFiles(storage, self.ownership.ensure_owner),
            history,
            patience,
            StartOptions(start_from, take_over, allow_dropped_state, allow_repeated_output),
        )

    @property
    def _context(self) -> JobContext:
        return self.ownership.context

    def check(self) -> list[str]:
        """Check the environment of every source and sink. Return notices; raise ConfigError with all required changes.

        If a sink needs a change, sources that have read nothing are looked up too: recovery, which would report what
        they lack, is not reached.
        """
        newest = load_newest_manifest(self._storage, self._plan.name)
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
        return self._incarnations.end(self._context, identity)

    def retire(self) -> list[str]:
        """Retire this incarnation once it has no open output. Return the names of output that was aborted meanwhile."""
        return self._incarnations.retire(self._context)

    def abort_open_output(self, after: Term | None = None) -> Manifest | NothingDecided:
        """Complete the decided epoch and abort all other output. Return and raise as ``Recovery.complete`` does.

        ``after``: the term in which this process has failed. Raises Fenced if it was replaced: it must not fence
        its successor, however long it was paused.
        """
        decided = self.recovery.complete(after)
        self._outputs.abort_leftovers(self._context)
        return decided

    def abort_own_leftovers(self) -> None:
        """Abort output that workers of this term left open, and fence their producers.

        Call it only when no worker of the term runs and every decided epoch is finished.
        """
        self._outputs.abort_leftovers(replace(self._context, term=self.ownership.term.next()))

    def abort_late_leftovers(self) -> None:
        """Abort output that workers of earlier terms have opened since recovery, and fence all their producers.

        Workers of this term are not affected. Raises Retryable if a sink's server does not respond.
        """
        if any(item.term < self.ownership.term for item in self.list_staged()):
            self._outputs.abort_leftovers(self._context)

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
            self._manifest_files,
        )
        self._packer.on_epochs_dropped(sum(isinstance(each, rules.DeleteManifest) for each in gone))

    def interrupt(self) -> None:
        """Make every call that waits for a server raise Interrupted instead. Thread-safe."""
        self._patience.interrupt()

    def close(self) -> None:
        """Close the committers."""
        self._outputs.close()
