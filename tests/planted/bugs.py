"""Bugs to plant into the engine: each breaks one rule, the way it was broken elsewhere or nearly was here.

A bug is a function that replaces parts of ``kafka_eos`` in the process that calls it; ``site/sitecustomize.py``
calls it in every process of a job. Nothing in the engine knows of this.

Rule: a replaced part notes that it ran (``PLANTED_LOG``), so that a bug nobody passed by is not counted as caught.
Where a bug needs a race to do harm, it makes the race certain: what is tested is the checks, not our luck.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any

import kafka_eos.checkpoints.files as disk
import kafka_eos.checkpoints.storage as storage
import kafka_eos.connectors.kafka.sink as kafka_sink
import kafka_eos.connectors.kafka.staging as staging
import kafka_eos.connectors.kafka.writer as kafka_writer
import kafka_eos.coordinator.coordinator as coordinating
import kafka_eos.coordinator.term as terms
from kafka_eos.checkpoints import paths, retention
from kafka_eos.connectors.files import FileCommitter, FileWriter
from kafka_eos.connectors.kafka.committer import KafkaCommitter
from kafka_eos.connectors.kafka.pool import Warm, WarmPool
from kafka_eos.connectors.kafka.reader import KafkaReader
from kafka_eos.coordinator.commits import Finisher
from kafka_eos.coordinator.coordinator import Coordinator
from kafka_eos.errors import KafkaEosError, RestartFromCheckpoint
from kafka_eos.interfaces import Outcome
from kafka_eos.protocol.commit import Commit, CommitPermit, Revoke, Stop
from kafka_eos.state.backends import KeyedStateBackend
from kafka_eos.state.values import CachedValueState

Bug = Callable[[], None]
BUGS: dict[str, Bug] = {}


def bug(plant: Bug) -> Bug:
    BUGS[plant.__name__] = plant
    return plant


def instead_of(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Replace a function of a class or module; the new one is called with the real one and then its arguments."""
    real = getattr(owner, name)

    def replace(bad: Callable[..., Any]) -> None:
        @functools.wraps(real)
        def planted(*args: Any, **kwargs: Any) -> Any:
            _reached(name)
            return bad(real, *args, **kwargs)

        setattr(owner, name, planted)

    return replace


@functools.cache
def _reached(name: str) -> None:
    with open(os.environ["PLANTED_LOG"], "a", encoding="utf-8") as log:
        log.write(f"{name}\n")


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    """Make a race certain: wait until the other side has done its part, or has nothing to do."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)


# ---------------------------------------------------------------- the decision


@bug
def commits_before_the_manifest() -> None:
    """Rule: the published manifest is the decision; nothing is committed before it.

    Precedent: sinks that commit "on flush" and store the offset afterwards: at-least-once with transactions.
    """

    @instead_of(Coordinator, "decide")
    def decide(real: Any, self: Any, epoch: Any, acked: Any) -> Any:
        everything = tuple(range(len(acked.committables)))
        self._finisher.commit(acked.committables, Commit(CommitPermit(epoch), everything))
        return real(self, epoch, acked)


@bug
def receipt_before_the_commit() -> None:
    """Rule: a receipt says that everything *is* committed.

    Precedent: a checkpoint counted as complete while its commits are under way, and never committed after a restore.
    """

    @instead_of(Coordinator, "_commit")
    def commit(_real: Any, self: Any, manifest: Any, decision: Any) -> None:
        self._finisher.write_receipt(manifest, [Outcome.COMMITTED] * len(manifest.committables))
        self._finisher.commit(manifest.committables, decision)


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

    @instead_of(terms, "check")
    def check(_real: Any, _storage: Any, _term: Any) -> None:
        return None


# ---------------------------------------------------------------- recovery


@bug
def unfinished_epoch_is_skipped() -> None:
    """Rule: a decided epoch without a receipt is finished, never only resumed from.

    Precedent: "restoring from commit phase not yet implemented", logged, and success returned.
    """

    @instead_of(Coordinator, "_unfinished")
    def unfinished(_real: Any, self: Any, found: Any) -> Any:
        self._rebase(found.newest, "planted")
        return self._load(found.newest)


@bug
def lost_committable_is_passed_over() -> None:
    """Rule: output that cannot be committed is never taken for committed.

    Precedent: a knob that turns a commit failure after the transaction timeout into a line in the log.
    """

    @instead_of(coordinating, "settle")
    def settle(_real: Any, unfinished: Any, probes: Any, _damage: Any, _margin: Any) -> Any:
        return Commit(CommitPermit(unfinished.newest), tuple(range(len(probes))))

    @instead_of(Finisher, "_commit")
    def commit(real: Any, self: Any, committable: Any, decision: Any) -> Outcome:
        try:
            return real(self, committable, decision)
        except RestartFromCheckpoint:
            return Outcome.ALREADY


@bug
def revokes_beside_a_committed_sibling() -> None:
    """Rule: an epoch of which anything is committed cannot be revoked: going back would double that.

    Precedent: several sinks that roll back one by one, each by what it alone knows.
    """

    @instead_of(coordinating, "settle")
    def settle(real: Any, *facts: Any) -> Any:
        decision = real(*facts)
        return Revoke(decision.epoch, decision.reason) if isinstance(decision, Stop) else decision

    @instead_of(Coordinator, "_ensure_lost")
    def ensure_lost(_real: Any, _self: Any, _manifest: Any) -> None:
        return None


@bug
def orphans_are_not_aborted() -> None:
    """Rule: what no manifest knows is undone before a new attempt writes.

    Precedent: dangling transactions after a restore, which block every read_committed consumer of the topic.
    """
    for committer in (KafkaCommitter, FileCommitter):

        @instead_of(committer, "abort_orphans")
        def abort_orphans(_real: Any, _self: Any, _ctx: Any) -> tuple[str, ...]:
            return ()


# ---------------------------------------------------------------- storage


@bug
def early_garbage_collection() -> None:
    """Rule: epoch n-1 stays whole until n has its receipt, for n may still be revoked.

    Precedent: retention that counts completed snapshots, where "completed" comes before "committed".
    """

    @instead_of(Coordinator, "decide")
    def decide(real: Any, self: Any, epoch: Any, acked: Any) -> Any:
        manifest = real(self, epoch, acked)
        stored = retention.gather(self._storage, manifest.job)
        older = [paths.manifest_name(m) for m in stored.manifests if m != manifest.id]
        retention.apply(self._storage, [*older, *map(paths.shared_name, stored.stored - manifest.files)])
        return manifest


@bug
def files_go_with_the_first_manifest() -> None:
    """Rule: a state file goes only after every manifest that names it.

    Precedent: incremental checkpoints whose shared files were counted by the checkpoint that first uploaded them.
    """

    @instead_of(retention, "plan")
    def plan(real: Any, facts: Any, keep: int, *rest: Any) -> tuple[str, ...]:
        names = real(facts, keep, *rest)
        dropped = [m for m in facts.manifests if paths.manifest_name(m) in names]
        files = frozenset().union(*(facts.manifests[m] for m in dropped))
        return tuple(dict.fromkeys([*names, *map(paths.shared_name, files & facts.stored)]))


@bug
def checksums_are_not_verified() -> None:
    """Rule: state is believed only if every byte is what was written.

    Precedent: stores that trust the length of a file; a flipped bit becomes a plausible number.
    """

    @instead_of(storage, "_expect")
    def expect(_real: Any, _ref: Any, _found: Any) -> None:
        return None


# ---------------------------------------------------------------- the barrier


@bug
def position_one_too_far() -> None:
    """Rule: a position is where to read *next*. Precedent: offsets committed as "last read" and read as "next"."""
    _shift_positions(+1)


@bug
def position_one_too_early() -> None:
    """Rule: a position is past every record that was returned. Precedent: the same off-by-one, the other way."""
    _shift_positions(-1)


def _shift_positions(by: int) -> None:
    @instead_of(KafkaReader, "positions")
    def positions(real: Any, self: Any) -> Any:
        return {split: {**at, "offset": max(0, at["offset"] + by)} for split, at in real(self).items()}


@bug
def positions_of_a_later_moment() -> None:
    """Rule: positions are those of the barrier, not of the moment when the checkpoint is written.

    Precedent: a consumer's live position (or dict) handed to the asynchronous part of a snapshot.
    """
    given: dict[str, Any] = {}

    @instead_of(KafkaReader, "positions")
    def positions(real: Any, self: Any) -> Any:
        given.update(real(self))
        return given

    real_positions = KafkaReader.positions.__wrapped__  # type: ignore[attr-defined]

    @instead_of(KafkaReader, "poll")
    def poll(real: Any, self: Any, *args: Any) -> Any:
        batch = real(self, *args)
        given.update(real_positions(self))
        return batch


@bug
def state_cache_is_not_flushed() -> None:
    """Rule: a snapshot holds all updates before the barrier, those in the write-behind cache too.

    Precedent: changelogs and stores that were checkpointed before the cache in front of them was flushed.
    """

    @instead_of(KeyedStateBackend, "snapshot")
    def snapshot(real: Any, self: Any, epoch: Any) -> Any:
        states, self._open = self._open, {}
        try:
            return real(self, epoch)
        finally:
            self._open = states


@bug
def updates_of_one_batch_are_lost() -> None:
    """Rule: a row sees the state that the row before it left. Precedent: vectorised look-ups, read once a batch."""

    class Stale(dict[Any, Any]):
        def __init__(self, live: Any) -> None:
            super().__init__(live)
            self._live = live

        def __setitem__(self, key: Any, value: Any) -> None:
            self._live[key] = value

    @instead_of(CachedValueState, "view")
    def view(real: Any, self: Any, keys: Any) -> Any:
        return Stale(real(self, keys))


@bug
def barrier_misses_one_sink() -> None:
    """Rule: every sink is cut at the same row. Here files are cut when they are prepared, a little later.

    Precedent: sinks that roll their file in the asynchronous phase and take rows of the next epoch along.
    """

    @instead_of(FileWriter, "seal")
    def seal(real: Any, self: Any, epoch: Any) -> Any:
        def late() -> Any:
            before = _records(self)
            _wait(lambda: _records(self) > before, 0.5)
            return real(self, epoch)()

        return late

    def _records(writer: Any) -> int:
        segment = writer._segment
        return 0 if segment is None else segment.records


# ---------------------------------------------------------------- the transaction


@bug
def producer_is_reused() -> None:
    """Rule: one producer instance carries one transaction: only then does (id, epoch) name it for ever.

    Precedent: commits by another process under a producer that goes on writing with the same id and epoch.
    """

    @instead_of(WarmPool, "take")
    def take(real: Any, self: Any, seconds: float) -> Any:
        if not hasattr(self, "only"):
            self.only = real(self, seconds)
        return self.only

    @instead_of(WarmPool, "release")
    def release(_real: Any, _self: Any, _used: Any) -> None:
        return None

    @instead_of(Warm, "begin")
    def begin(real: Any, self: Any) -> None:
        if not hasattr(self, "begun"):
            self.begun = True
            real(self)

    writes: list[Any] = []

    @instead_of(kafka_writer.StagedWriter, "write")
    def write(real: Any, self: Any, batch: Any) -> None:
        real(self, batch)
        writes.append(batch)

    @instead_of(staging.EpochOutput, "prepare")
    def prepare(real: Any, self: Any, *args: Any) -> Any:
        before = len(writes)
        _wait(lambda: len(writes) > before, 0.5)
        self.warm.producer.flush(10)
        return real(self, *args)


@bug
def failed_deliveries_are_ignored() -> None:
    """Rule: an epoch is prepared only if every record was acknowledged.

    Precedent: delivery reports nobody reads, and the client's errors caught and logged around produce and flush.
    """

    @contextmanager
    def ignored(what: str) -> Any:
        with suppress(Exception):
            yield

    def until_done(call: Any, seconds: float, what: str) -> None:
        with suppress(KafkaEosError):
            real_until_done(call, min(seconds, 5.0), what)

    real_until_done = staging.until_done
    staging.kafka_errors = kafka_writer.kafka_errors = ignored  # type: ignore[assignment]
    staging.until_done = until_done

    @instead_of(staging.EpochOutput, "check")
    def check(_real: Any, _self: Any) -> None:
        return None


@bug
def prepared_without_a_flush() -> None:
    """Rule: what is prepared has reached the broker. Here rows are still in the client when the epoch is committed.

    Precedent: flush() that returned while records were pending, and a checkpoint that went on.
    """
    kafka_sink._DEFAULTS = {**kafka_sink._DEFAULTS, "linger.ms": 5000}

    @instead_of(staging.EpochOutput, "flush")
    def flush(_real: Any, _self: Any, final: bool) -> None:
        return None


@bug
def next_epoch_overtakes() -> None:
    """Rule: a row of n+1 is produced only after all rows of n were acknowledged: two producers keep no order.

    Every other epoch's rows stay in its client until the first rows of the next are at the broker.
    Precedent: pools of transactional producers that switch at the barrier without waiting.
    """
    kafka_sink._DEFAULTS = {**kafka_sink._DEFAULTS, "linger.ms": 5000}
    turns: dict[int, int] = {}
    arrived: set[int] = set()

    @instead_of(staging.Stage, "enter")
    def enter(real: Any, self: Any, turn: int, topic: str) -> Any:
        before, prepared = self._open, self._prepared
        self._open, self._prepared = {t: out for t, out in before.items() if t == turn}, []
        try:
            output = real(self, turn, topic)
        finally:
            self._open, self._prepared = {**before, **self._open}, prepared
        turns[id(output)] = turn
        return output

    @instead_of(kafka_writer.StagedWriter, "write")
    def write(real: Any, self: Any, batch: Any) -> None:
        real(self, batch)
        if self._turn % 2 and self._staged is not None:
            self._staged.warm.producer.flush(10)
            arrived.add(self._turn)

    @instead_of(staging.EpochOutput, "prepare")
    def prepare(real: Any, self: Any, *args: Any) -> Any:
        turn = turns[id(self)]
        if turn % 2 == 0:
            _wait(lambda: turn + 1 in arrived, 0.5)
        return real(self, *args)
