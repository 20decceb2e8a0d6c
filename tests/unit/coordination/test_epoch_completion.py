"""Completing a decided epoch is the first phase of recovery: it reads no state file, and nothing later undoes it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.incarnation import SupportsLossCheck
from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.coordination import job_history as history
from kafka_eos.coordination import terms
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.dead_letter_counts import DeadLetterMonitor
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.ownership import Ownership
from kafka_eos.coordination.state_files import StateFiles
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, Fenced, InputLost, TooManyDeadLetters
from kafka_eos.core.ids import EpochId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.core.record_preview import RecordExcerpt
from kafka_eos.core.records import Batch, RecordCounts, Rejection
from kafka_eos.runtime.epoch_reports import EpochContents
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin
from kafka_eos.testing.memory_sink import MemoryCommitter

JOB = "orders"
INSIDE = RecordExcerpt.of(-1, None, None, (), "ValueError: bad")


class Watched(LocalStorage):
    """Notes, in order, what is published and which state files are looked at or read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.log: list[str] = []
        self.fails = ""
        """``before`` or ``after`` it publishes a manifest."""
        self._lock = threading.Lock()

    def _note(self, what: str) -> None:
        with self._lock:
            self.log.append(what)

    def publish(self, name: str, data: bytes) -> None:
        fails = self.fails if name.startswith(paths.MANIFESTS) else ""
        if fails != "before":
            super().publish(name, data)
        if fails:
            raise OSError(errno.EIO, "the store is away")
        self._note(name.split("/")[0])

    def check_content(self, ref: FileRef) -> None:
        self._note("read")
        super().check_content(ref)

    def check_size(self, ref: FileRef) -> None:
        self._note("looked")
        super().check_size(ref)


class World:
    """A job whose sink is in memory and whose state is two files, on a real directory."""

    def __init__(self, directory: Path) -> None:
        self.root, self._made = directory / JOB, directory
        self.sink, self.said = MemorySink(), list[str]()
        self.source: ListSource = ListSource([1, 2, 3])
        self.storage = Watched(self.root)

    def coordinator(self, refusals: DeadLetterMonitor | None = None) -> Coordinator:
        pipeline = Pipeline(JOB)
        keyed = pipeline.source(self.source, name="numbers").key_by(str)
        keyed.fold(init=int, step=lambda acc, n: acc + n, name="total").sink(self.sink, name="sums")
        patience = Retrier(threading.Event(), self.said.append)
        self.storage = Watched(self.root)
        diary = History(self.storage, self.said.append)
        return Coordinator(pipeline.plan(), self.storage, diary, patience, {}, 3, refusals=refusals)

    def state(self, *contents: str) -> tuple[StateHandle, ...]:
        files = []
        for number, content in enumerate(contents):
            path = self._made / f"state-{number}"
            path.write_text(content)
            files.append(LocalStorage(self.root).upload(path, path.name))
        return (StateHandle("total", "memory", (0, 127), tuple(files), ()),)

    def decided(self, coordinator: Coordinator, value: str, *contents: str, letters: int = 0) -> Manifest:
        """One more epoch is decided, with this output and this state; nothing of it is committed."""
        epoch, tally = coordinator.ownership.next_epoch(), RecordCounts({"numbers": 10})
        for number in range(letters):
            tally.add_rejection("numbers", Rejection(f"numbers/0/{number}", "total", "ValueError: bad", INSIDE))
        committables = self.prepared(epoch, value)
        return coordinator.epochs.decide(
            epoch, EpochContents({"numbers": {}}, self.state(*contents), committables, tally=tally)
        )

    def prepared(self, epoch: EpochId, value: str, subtask: int = 0) -> tuple[Committable, ...]:
        job = replace(Ownership(LocalStorage(self.root), JOB, {}).load_identity(), term=epoch.term)
        writer = self.sink.writer(TaskContext(job, subtask, 2, "sums"))
        origin = ListOrigin("sums", "numbers", 0, 0, [value])
        writer.write(Batch(values=[value], origin_rows=range(1), origin=origin))
        return tuple(writer.seal(epoch)())

    def dies(self) -> Manifest:
        """A coordinator that committed one epoch dies between the decision and the commits of the next."""
        first = self.coordinator()
        first.recovery.restore()
        first.epochs.commit(self.decided(first, "one", "a", "b"))
        return self.decided(first, "two", "c", "d")

    def stored(self, manifest: Manifest) -> Path:
        return self.root / paths.shared_name(min(manifest.files))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def _alter(path: Path) -> None:
    """Another content of the same size, under a new inode: stored files may be linked elsewhere."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(bytes([data[0] ^ 1, *data[1:]]))


def test_no_state_file_is_read_before_the_receipt(world: World) -> None:
    world.dies()
    second = world.coordinator()

    resumed = second.recovery.restore()
    before_the_receipt = world.storage.log[: world.storage.log.index(paths.RECEIPTS)]
    read_in_recovery = world.storage.log.count("read")
    second.recovery.verify_state(resumed, world.said.append)

    assert before_the_receipt == [paths.TERMS, "looked", "looked"]
    assert (read_in_recovery, world.storage.log.count("read")) == (0, 2)
    assert world.sink.committed == ["one", "two"]


def test_damage_that_only_the_checksum_shows_is_found_after_the_commit(world: World) -> None:
    """What is decided stays done; the job names the object, and goes on once that is restored."""
    decided = world.dies()
    victim = world.stored(decided)
    whole = victim.read_bytes()
    _alter(victim)

    second = world.coordinator()
    resumed = second.recovery.restore()
    with pytest.raises(CorruptCheckpoint, match=victim.name):
        second.recovery.verify_state(resumed, world.said.append)

    assert world.sink.committed == ["one", "two"]
    assert (world.root / paths.receipt_name(decided.id)).exists()
    victim.unlink()
    victim.write_bytes(whole)
    third = world.coordinator()
    third.recovery.verify_state(third.recovery.restore(), world.said.append)
    assert world.sink.committed == ["one", "two"]


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"longer than it was")])
def test_a_file_that_is_missing_or_of_another_size_revokes_what_is_not_committed(
    world: World, damage: Callable[[Path], object]
) -> None:
    damage(world.stored(world.dies()))

    second = world.coordinator()
    resumed = second.recovery.restore()

    assert world.sink.committed == ["one"]
    assert resumed.base.epoch.n == 1
    assert "revoked" in [event["event"] for event in history.read_events(world.storage)]


@pytest.mark.parametrize("published", [True, False])
def test_dead_letters_count_when_only_the_recovery_learns_that_their_epoch_was_decided(
    world: World, published: bool
) -> None:
    """The store fails when the manifest is published: before, or after so that only its answer is lost."""
    told: list[Any] = []
    refusals = DeadLetterMonitor("20", 1000, lambda event, **facts: told.append(facts), [].append)
    first = world.coordinator(refusals)
    first.recovery.restore()
    for value in ("one", "two"):
        first.epochs.commit(world.decided(first, value, value, letters=8))
    world.storage.fails = "after" if published else "before"
    with pytest.raises(OSError, match="away"):
        world.decided(first, "three", "e", letters=4)
    second = world.coordinator(refusals)
    second.recovery.restore()

    totals = [facts["total"]["numbers"]["total"] for facts in told]
    if published:
        assert totals == [8, 16, 20]
        with pytest.raises(TooManyDeadLetters, match="21 of "):
            world.decided(second, "four", "g", letters=1)
    else:
        assert totals == [8, 16]
        second.epochs.commit(world.decided(second, "three", "e", letters=4))


@pytest.mark.parametrize("revoked", [True, False])
def test_dead_letters_of_an_epoch_that_was_undone_do_not_count(world: World, revoked: bool) -> None:
    """Its input is read again, and refused again: the limit is one for both, and so is what is said of the run."""
    told: list[Any] = []
    refusals = DeadLetterMonitor("5", 1000, lambda event, **facts: told.append(facts), [].append)
    first = world.coordinator(refusals)
    first.recovery.restore()
    first.epochs.commit(world.decided(first, "one", "a", letters=1))
    decided = world.decided(first, "two", "c", letters=3)
    if revoked:
        world.stored(decided).unlink()

    second = world.coordinator(refusals)
    second.recovery.restore()
    totals = [facts["total"]["numbers"]["total"] for facts in told]
    if revoked:
        second.epochs.commit(world.decided(second, "two", "c", letters=3))
        assert totals == [1, 4, 1]
        assert told[2]["counts"] == {}
        third = world.coordinator(refusals)
        third.recovery.restore()
    else:
        assert totals == [1, 4]
        third = second
    with pytest.raises(TooManyDeadLetters, match="6 of "):
        world.decided(third, "three", "e", letters=2)


def test_a_missing_file_does_not_keep_the_rest_of_a_half_committed_epoch_from_its_commit(world: World) -> None:
    first = world.coordinator()
    first.recovery.restore()
    epoch = first.ownership.next_epoch()
    half = world.prepared(epoch, "one")
    rest = world.prepared(epoch, "two", subtask=1)
    decided = first.epochs.decide(epoch, EpochContents({"numbers": {}}, world.state("a"), (*half, *rest)))
    world.sink.commit(str(half[0].payload["name"]))
    world.stored(decided).unlink()

    with pytest.raises(CorruptCheckpoint, match="missing"):
        world.coordinator().recovery.restore()

    assert world.sink.committed == ["one", "two"]
    assert (world.root / paths.receipt_name(decided.id)).exists()


def test_an_epoch_is_not_revoked_in_favour_of_one_that_is_damaged(world: World) -> None:
    """The way back is the last one: before it is taken, every byte of the epoch before is read."""
    decided = world.dies()
    world.stored(decided).unlink()
    for path in (world.root / paths.SHARED).iterdir():
        if path.name not in decided.files:
            _alter(path)

    with pytest.raises(CorruptCheckpoint, match="damaged"):
        world.coordinator().recovery.restore()

    assert world.sink.committed == ["one"]
    assert world.sink.prepared == ["two"], "a person may still restore the file and commit it"


def test_a_store_that_is_away_is_not_taken_for_one_that_lost_its_files(world: World) -> None:
    first = world.coordinator()
    first.recovery.restore()
    manifest = world.decided(first, "one", "a")
    world.root.rename(world.root.with_name("away"))

    with pytest.raises(OSError, match="No such file"):
        StateFiles(world.storage, first.ownership.ensure_owner).find_missing(manifest)


def test_what_fails_in_the_second_phase_leaves_the_first_as_it_is(world: World) -> None:
    world.dies()

    class Gone(ListSource):
        def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
            raise InputLost("retention passed it")

    world.source = Gone([1, 2, 3])
    with pytest.raises(InputLost):
        world.coordinator().recovery.restore()

    assert world.sink.committed == ["one", "two"]
    assert world.sink.prepared == []


@pytest.mark.limits(log_segment_bytes=8 << 20)
def test_a_diary_that_cannot_be_written_costs_no_receipt_and_is_said_once(world: World) -> None:
    coordinator = world.coordinator()
    coordinator.recovery.restore()
    (world.root / paths.HISTORY).unlink()
    (world.root / paths.HISTORY).mkdir()

    for value in ("one", "two"):
        manifest = world.decided(coordinator, value)
        coordinator.epochs.commit(manifest)
        assert (world.root / paths.receipt_name(manifest.id)).exists()

    assert world.sink.committed == ["one", "two"]
    assert len([text for text in world.said if "cannot be written" in text]) == 1, world.said
    (world.root / paths.HISTORY).rmdir()
    coordinator.epochs.commit(world.decided(coordinator, "three"))
    assert [event["event"] for event in history.read_events(world.storage)] == ["committed"]


def test_a_group_that_may_not_be_written_ends_nothing(world: World) -> None:
    class Refused(ListSource):
        def notify_committed(self, ctx: JobContext, epoch: EpochId, positions: Positions) -> None:
            raise ConfigError("no right to write the group")

    world.source = Refused([1, 2, 3])
    coordinator = world.coordinator()
    coordinator.recovery.restore()
    manifest = world.decided(coordinator, "one")
    coordinator.epochs.commit(manifest)

    (said,) = coordinator.sources.report_offsets(manifest)

    assert "no right to write the group" in said
    assert coordinator.sources.report_offsets(manifest) == [], "said once"


def test_a_system_is_asked_for_the_newest_output_that_it_has_had_before_a_term_changes_anything(world: World) -> None:
    """Also if its committer keeps no registrations, and epochs after the manifest with that output is gone."""
    asked: list[tuple[int, Sequence[Committable]]] = []

    class Remembering(SupportsLossCheck, MemoryCommitter):
        def find_missing_commits(
            self, ctx: JobContext, newest: EpochId, committables: Sequence[Committable]
        ) -> str | None:
            asked.append((newest.epoch.n, committables))
            return None if len(asked) == 1 else "it has nothing"

    class Sink(MemorySink):
        def committer(self, ctx: JobContext) -> MemoryCommitter:
            return Remembering(self)

    world.sink = Sink()
    first = world.coordinator()
    first.recovery.restore()
    manifest = world.decided(first, "one")
    first.epochs.commit(manifest)
    for _ in range(5):
        first.epochs.commit(first.epochs.decide(first.ownership.next_epoch(), EpochContents({"numbers": {}}, (), ())))
        first.drop_old_epochs()
    assert not (world.root / manifest.name).exists()

    world.coordinator().recovery.restore()
    with pytest.raises(ConfigError, match="it has nothing.*has finished epoch 6/1"):
        world.coordinator().recovery.restore()

    output = [(each.scope, each.payload) for each in manifest.committables]
    assert [(n, [(each.scope, each.payload) for each in some]) for n, some in asked] == [(6, output)] * 2


def test_dead_letters_of_an_epoch_that_a_replaced_supervisor_decides_are_not_told_by_it(world: World) -> None:
    """Whether the epoch counts is for its successor to say."""
    told: list[Any] = []
    refusals = DeadLetterMonitor("none", 1000, lambda event, **facts: told.append(facts), [].append)
    first = world.coordinator(refusals)
    first.recovery.restore()
    terms.claim(world.storage, JOB, Term(0))

    with pytest.raises(Fenced, match="another supervisor took over this job"):
        world.decided(first, "one", "a", letters=1)
    assert told == []
