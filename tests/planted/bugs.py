"""Bugs to plant into the engine: each breaks one rule, the way it was broken elsewhere or nearly was here.

A bug is a function that replaces parts of ``kafka_eos`` in the process that calls it; ``site/sitecustomize.py``
calls it in every process of a job. Nothing in the engine knows of this.

Rule: a replaced part notes that it ran (``PLANTED_LOG``), so that a bug nobody passed by is not counted as caught.
Where a bug needs a race to do harm, it makes the race certain: what is tested is the checks, not our luck.
"""

from __future__ import annotations

from typing import Any

import kafka_eos.coordination.recovery as recovering
import kafka_eos.coordination.terms as terms
import kafka_eos.storage.job_storage as storage
import kafka_eos.storage.local_files as disk
from kafka_eos.abc.committer import CommitOutcome
from kafka_eos.connectors.files import FileCommitter
from kafka_eos.connectors.kafka.sink.committer import KafkaCommitter
from kafka_eos.coordination.epochs import EpochCommitter, EpochManager
from kafka_eos.coordination.recovery import Recovery
from kafka_eos.core.errors import RestartFromCheckpoint
from kafka_eos.protocol import retention as rules
from kafka_eos.protocol.commit import CommitAuthorized, CommitPermit, EpochRevoked, EpochStuck
from kafka_eos.storage import retention
from tests.planted.planting import bug, instead_of

# ---------------------------------------------------------------- the decision


@bug
def commits_before_the_manifest() -> None:
    """Rule: the published manifest is the decision; nothing is committed before it.

    Precedent: sinks that commit "on flush" and store the offset afterwards: at-least-once with transactions.
    """

    @instead_of(EpochManager, "decide")
    def decide(real: Any, self: Any, epoch: Any, acked: Any) -> Any:
        everything = tuple(range(len(acked.committables)))
        self._committer.commit(acked.committables, CommitAuthorized(CommitPermit(epoch), everything))
        return real(self, epoch, acked)


@bug
def receipt_before_the_commit() -> None:
    """Rule: a receipt says that everything *is* committed.

    Precedent: a checkpoint counted as complete while its commits are under way, and never committed after a restore.
    """

    @instead_of(EpochManager, "carry_out")
    def commit(_real: Any, self: Any, manifest: Any, decision: Any) -> None:
        self._committer.write_receipt(manifest, [CommitOutcome.COMMITTED] * len(manifest.committables))
        self._committer.commit(manifest.committables, decision)


@bug
def no_directory_sync() -> None:
    """Rule: a name is durable only once its directory is synced; a decision must survive a power cut.

    Precedent: the classic of crash-consistency studies: rename or link without fsync of the directory.
    """

    @instead_of(disk, "sync_directory")
    def sync_directory(_real: Any, _path: Any) -> None:
        return None


@bug
def no_term_check_after_publication() -> None:
    """Rule: who has published looks for a newer term before the first commit.

    Precedent: a leader that woke from a long pause and acted on a lease that had passed on.
    """

    @instead_of(terms, "ensure_newest")
    def check(_real: Any, _storage: Any, _term: Any) -> None:
        return None


# ---------------------------------------------------------------- recovery


@bug
def unfinished_epoch_is_skipped() -> None:
    """Rule: a decided epoch without a receipt is finished, never only resumed from.

    Precedent: "restoring from commit phase not yet implemented", logged, and success returned.
    """

    @instead_of(Recovery, "_unfinished")
    def unfinished(_real: Any, self: Any, found: Any) -> Any:
        self.ownership.write_base(found.newest, "planted")
        return self.ownership.load(found.newest)


@bug
def lost_committable_is_passed_over() -> None:
    """Rule: output that cannot be committed is never taken for committed.

    Precedent: a knob that turns a commit failure after the transaction timeout into a line in the log.
    """

    @instead_of(recovering, "decide_unfinished")
    def settle(_real: Any, unfinished: Any, probes: Any, _damage: Any, _margin: Any) -> Any:
        return CommitAuthorized(CommitPermit(unfinished.newest), tuple(range(len(probes))))

    @instead_of(EpochCommitter, "_commit")
    def commit(real: Any, self: Any, some: Any, decision: Any) -> Any:
        try:
            return real(self, some, decision)
        except RestartFromCheckpoint:
            return [CommitOutcome.ALREADY] * len(some)


@bug
def revokes_beside_a_committed_sibling() -> None:
    """Rule: an epoch of which anything is committed cannot be revoked: going back would double that.

    Precedent: several sinks that roll back one by one, each by what it alone knows.
    """

    @instead_of(recovering, "decide_unfinished")
    def settle(real: Any, *facts: Any) -> Any:
        decision = real(*facts)
        return EpochRevoked(decision.epoch, decision.reason) if isinstance(decision, EpochStuck) else decision

    @instead_of(Recovery, "_abort_revoked")
    def ensure_lost(_real: Any, _self: Any, _manifest: Any) -> None:
        return None


@bug
def orphans_are_not_aborted() -> None:
    """Rule: what no manifest knows is undone before a new attempt writes.

    Precedent: dangling transactions after a restore, which block every read_committed consumer of the topic.
    """
    for committer in (KafkaCommitter, FileCommitter):

        @instead_of(committer, "abort_leftovers")
        def abort_orphans(_real: Any, _self: Any, _ctx: Any) -> tuple[str, ...]:
            return ()


# ---------------------------------------------------------------- storage


@bug
def early_garbage_collection() -> None:
    """Rule: epoch n-1 stays whole until n has its receipt, for n may still be revoked.

    Precedent: retention that counts completed snapshots, where "completed" comes before "committed".
    """

    @instead_of(EpochManager, "decide")
    def decide(real: Any, self: Any, epoch: Any, acked: Any) -> Any:
        manifest = real(self, epoch, acked)
        stored = retention.take_inventory(self._storage, manifest.job)
        older = [rules.DeleteManifest(m) for m in stored.manifests if m != manifest.id]
        retention.delete_planned(
            self._storage, [*older, *map(rules.DeleteFile, stored.stored - manifest.files)], lambda: None
        )
        return manifest


@bug
def files_go_with_the_first_manifest() -> None:
    """Rule: a state file goes only after every manifest that names it.

    Precedent: incremental checkpoints whose shared files were counted by the checkpoint that first uploaded them.
    """

    @instead_of(rules, "plan_deletions")
    def plan(real: Any, facts: Any, keep: int) -> tuple[rules.Deletion, ...]:
        objects = real(facts, keep)
        dropped = [m for m in facts.manifests if rules.DeleteManifest(m) in objects]
        files = frozenset().union(*(facts.manifests[m] for m in dropped))
        return tuple(dict.fromkeys([*objects, *map(rules.DeleteFile, files & facts.stored)]))


@bug
def checksums_are_not_verified() -> None:
    """Rule: state is believed only if every byte is what was written.

    Precedent: stores that trust the length of a file; a flipped bit becomes a plausible number.
    """

    @instead_of(storage, "ensure_matches")
    def expect(_real: Any, _ref: Any, _found: Any) -> None:
        return None
