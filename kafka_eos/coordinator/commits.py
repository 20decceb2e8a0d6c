"""Finish a decided epoch: probe everything, then commit everything, then write the receipt.

Rule: nothing is committed before all committables of the epoch have been probed, and the answer of
``protocol`` is carried out as it is: this module decides nothing. Probes, and commits, of several committables run
at the same time, and one that fails does not keep the others from their answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from kafka_eos.checkpoints import manifest as records
from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.coordinator.patience import Interrupted, Patience
from kafka_eos.coordinator.term import now_ms
from kafka_eos.errors import CommittableLost, ConfigError, RestartFromCheckpoint
from kafka_eos.failpoints import hit
from kafka_eos.interfaces import Announces, CheckpointStorage, Committable, Committer, Outcome, Probe
from kafka_eos.protocol.commit import Commit

T = TypeVar("T")

AT_ONCE = 16
"""Committables that are probed, or committed, at the same time."""


@dataclass(frozen=True, slots=True)
class Finisher:
    """Commits with the plan's committers, by scope; at most ``at_once`` requests are on their way."""

    storage: CheckpointStorage
    committers: Mapping[str, Committer]
    patience: Patience
    at_once: int = AT_ONCE

    def probe(self, committables: Sequence[Committable]) -> list[Probe]:
        """What became of each, in their order; waits as long as a server does not answer."""
        probes = self._all([partial(self._probe, committable) for committable in committables])
        hit("commit.probe")
        return probes

    def commit(self, committables: Sequence[Committable], decision: Commit) -> list[Outcome]:
        """Commit all, begun in the decided order. Returns outcomes in the order of ``committables``.

        The first, which is the most urgent, goes alone: should it be lost after all, nothing else of the epoch is
        committed, and the epoch can be revoked. Raises RestartFromCheckpoint if one is lost: the next recovery probes
        again and decides.
        """
        hit("commit.before")
        first, rest = decision.order[:1], decision.order[1:]
        outcomes = {index: self._commit(committables[index], decision) for index in first}
        outcomes |= zip(rest, self._all([partial(self._another, committables[i], decision) for i in rest]), strict=True)
        hit("commit.after")
        self._announce(committables, decision)
        return [outcomes[index] for index in range(len(committables))]

    def _announce(self, committables: Sequence[Committable], decision: Commit) -> None:
        for scope in dict.fromkeys(committable.scope for committable in committables):
            committer = self.committers[scope]
            if isinstance(committer, Announces):
                some = [committable for committable in committables if committable.scope == scope]
                announce = partial(committer.announce, decision.permit, some)
                self.patience.until_answered(f"announce epoch {decision.permit.epoch} in {scope}", announce)

    def _all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """The results of all, begun in this order. Raises what one has raised, once every one has ended."""
        if len(calls) < 2 or self.at_once == 1:
            return [call() for call in calls]
        with ThreadPoolExecutor(min(self.at_once, len(calls)), thread_name_prefix="finish") as pool:
            running = [pool.submit(call) for call in calls]
        failures = [error for each in running if (error := each.exception()) is not None]
        # That one was told to stop waiting says less than what another one knows.
        for error in sorted(failures, key=lambda error: isinstance(error, Interrupted)):
            raise error
        return [each.result() for each in running]

    def _probe(self, committable: Committable) -> Probe:
        committer = self._committer(committable)
        return self.patience.until_answered(f"probe {committable.scope}", lambda: committer.probe(committable))

    def _another(self, committable: Committable, decision: Commit) -> Outcome:
        hit("commit.between")
        return self._commit(committable, decision)

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
