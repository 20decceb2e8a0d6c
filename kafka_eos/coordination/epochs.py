"""The epochs of a term: each is decided, then committed, then old ones are dropped.

Rule: the publication of the manifest is the decision, and the check for a newer term comes between the decision and the
first commit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence, Set

from kafka_eos.abc.committer import Committable, Probe
from kafka_eos.coordination import terms
from kafka_eos.coordination.commits import Finisher
from kafka_eos.coordination.dead_letter_counts import Refusals
from kafka_eos.coordination.incarnations import Lives
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.ownership import Ownership
from kafka_eos.core.errors import RestartFromCheckpoint
from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Json
from kafka_eos.plan import Plan
from kafka_eos.protocol.commit import COMMIT_MARGIN, Commit, Revoke, Stop, authorize
from kafka_eos.runtime.epoch_reports import Acked, Finished
from kafka_eos.runtime.state import broadcast_copies as copies
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.storage import job_records as records
from kafka_eos.storage.epoch_ledger import EpochLedger
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage


class Epochs:
    """Decides and finishes. ``refusals``: the books of dead letters; without them nobody counts."""

    def __init__(
        self,
        plan: Plan,
        storage: JobStorage,
        ownership: Ownership,
        lives: Lives,
        finisher: Finisher,
        history: History,
        ledger: EpochLedger,
        refusals: Refusals | None,
    ) -> None:
        self._plan, self._storage, self._ownership, self._lives = plan, storage, ownership, lives
        self._finisher, self._history, self._ledger, self._refusals = finisher, history, ledger, refusals
        self._before: Manifest | None = None
        """The epoch before the one that is decided next."""

    def go_on_from(self, manifest: Manifest) -> None:
        """The next epoch that is decided follows this one."""
        self._before = manifest

    def decide(self, epoch: EpochId, acked: Acked) -> Manifest:
        """Publish the manifest: after this the epoch has happened.

        Raises Fenced if a newer term is there; TooManyDeadLetters, or PlanError for copies of broadcast state that
        differ, if the epoch must not happen. Asks no sink: engines call it on their main thread.
        """
        copies.expect_same(acked.states)
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
            identity=self._ownership.identity.identity,
            known_in=self._lives.known_in,
            remembered=_remembered(self._before, acked.committables, self._lives.remembering),
        )
        records.publish(self._storage, manifest)
        self._ownership.check()
        if self._refusals is not None:
            self._refusals.decided()
        self.go_on_from(manifest)
        return manifest

    def probe(self, manifest: Manifest) -> list[Probe]:
        """What became of each of the epoch's committables."""
        return self._finisher.probe(manifest.committables)

    def finish(self, manifest: Manifest) -> Finished:
        """Commit a decided epoch, and write its receipt.

        Raises Fenced if another life of the job's name took over; RestartFromCheckpoint if the epoch cannot be
        committed as it is: recovery then decides what becomes of it.
        """
        if manifest.committables:
            self._lives.hold(self._ownership.context)
        probes = self.probe(manifest)
        match authorize(manifest.id, probes, COMMIT_MARGIN):
            case Commit() as decision:
                self._finisher.watch.take()
                self.commit(manifest, decision)
                return Finished(
                    min((probe.expires_in for probe in probes), default=math.inf),
                    min((probe.timeout for probe in probes), default=math.inf),
                    self._finisher.watch.take(),
                )
            case Revoke(reason=reason) | Stop(reason=reason):
                raise RestartFromCheckpoint(f"epoch {manifest.id} cannot be committed: {reason}")

    def commit(self, manifest: Manifest, decision: Commit) -> None:
        """Carry out what was decided of the epoch's committables, and write its receipt."""
        outcomes = self._finisher.commit(manifest.committables, decision)
        totals: Counter[str] = Counter()
        for committable in manifest.committables:
            totals[committable.scope] += committable.records
        # Before the receipt, so that the audit has the lines of every epoch with one. If they fail the receipt follows.
        self._ledger.committed(manifest)
        self._history.write(
            "committed",
            epoch=manifest.epoch,
            term=manifest.term,
            records=dict[str, Json](totals),
            outcomes=[outcome.value for outcome in outcomes],
        )
        self._finisher.write_receipt(manifest, outcomes)


def _remembered(
    before: Manifest | None, committables: Sequence[Committable], remembering: Set[str]
) -> tuple[Committable, ...]:
    """What an epoch with these committables remembers of the one before it; what only tells of records is left out."""
    if before is None:
        return ()
    silent = remembering - {each.scope for each in committables}
    known = (*before.committables, *before.remembered)
    return tuple(Committable(each.scope, each.payload, each.records) for each in known if each.scope in silent)
