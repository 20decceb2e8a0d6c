"""Finish a decided epoch: probe everything, then commit everything, then write the receipt.

Rule: nothing is committed before all committables of the epoch have been probed, and the answer of
``protocol`` is carried out as it is: this module decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafka_eos.checkpoints import manifest as records
from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.coordinator.patience import Patience
from kafka_eos.coordinator.term import now_ms
from kafka_eos.errors import CommittableLost, ConfigError, RestartFromCheckpoint
from kafka_eos.failpoints import hit
from kafka_eos.interfaces import CheckpointStorage, Committable, Committer, Outcome, Probe
from kafka_eos.protocol.commit import Commit


@dataclass(frozen=True, slots=True)
class Finisher:
    """Commits with the plan's committers, by scope."""

    storage: CheckpointStorage
    committers: Mapping[str, Committer]
    patience: Patience

    def probe(self, committables: Sequence[Committable]) -> list[Probe]:
        """Ask about each, in order; waits as long as a server does not answer."""
        probes = [
            self.patience.until_answered(f"probe {c.scope}", lambda c=c: self._committer(c).probe(c))  # type: ignore[misc]
            for c in committables
        ]
        hit("commit.probe")
        return probes

    def commit(self, committables: Sequence[Committable], decision: Commit) -> list[Outcome]:
        """Commit all in the decided order. Returns outcomes in the order of ``committables``.

        Raises RestartFromCheckpoint if one is lost after all: the next recovery probes again and decides.
        """
        outcomes: dict[int, Outcome] = {}
        hit("commit.before")
        for index in decision.order:
            if outcomes:
                hit("commit.between")
            outcomes[index] = self._commit(committables[index], decision)
        hit("commit.after")
        return [outcomes[index] for index in range(len(committables))]

    def _commit(self, committable: Committable, decision: Commit) -> Outcome:
        committer = self._committer(committable)
        try:
            return self.patience.until_answered(
                f"commit {committable.scope}", lambda: committer.commit(decision.permit, committable)
            )
        except CommittableLost as error:
            raise RestartFromCheckpoint(f"epoch {decision.permit.epoch}: {error}") from error

    def write_receipt(self, manifest: Manifest, outcomes: Sequence[Outcome]) -> None:
        """Record that everything of the epoch is committed: the epoch before it is no longer needed."""
        hit("receipt.before")
        records.publish(
            self.storage,
            records.Receipt(
                job=manifest.job,
                epoch=manifest.epoch,
                term=manifest.term,
                created_at=now_ms(),
                outcomes=tuple(outcomes),
            ),
        )
        hit("receipt.after")

    def _committer(self, committable: Committable) -> Committer:
        try:
            return self.committers[committable.scope]
        except KeyError:
            raise ConfigError(
                f"a decided epoch has uncommitted output in {committable.scope!r}, but the pipeline has no sink there "
                "any more. Run the previous version of the pipeline until it stops by itself, then change it."
            ) from None
