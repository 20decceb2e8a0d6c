"""Many committables of one epoch are probed, and committed, at the same time, within a bound."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import AtomicCommitter, CommitOutcome, CommitPermit, CommitStatus, Committable, Probe
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.coordination import epochs as commits
from kafka_eos.coordination.epochs import EpochCommitter, Stopwatch
from kafka_eos.core.errors import ConfigError, Fatal, RestartFromCheckpoint, Retryable
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.records import Batch
from kafka_eos.protocol.commit import CommitAuthorized
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest, Receipt
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import MemorySink
from kafka_eos.testing.list_source import ListOrigin
from kafka_eos.testing.memory_sink import MemoryCommitter

EPOCH = EpochId(Epoch(3), Term(1))
PATIENCE = 30.0


class Meeting(MemoryCommitter):
    """Commits of a MemorySink that wait for each other: as many as ``together`` must be under way at once."""

    def __init__(self, sink: MemorySink, together: int, first_alone: int = 1) -> None:
        super().__init__(sink)
        self._meet, self._alone, self._lock = (
            threading.Barrier(together, timeout=PATIENCE),
            first_alone,
            threading.Lock(),
        )
        self.begun: list[str] = []
        self.most = self._running = 0

    def commit(self, permit: CommitPermit, committable: Committable) -> CommitOutcome:
        with self._lock:
            self.begun.append(str(committable.payload["name"]))
            alone = len(self.begun) <= self._alone
            self._running += 1
            self.most = max(self.most, self._running)
        try:
            if not alone:
                self._meet.wait()
            return super().commit(permit, committable)
        finally:
            with self._lock:
                self._running -= 1

    def probe(self, committable: Committable) -> Probe:
        self._meet.wait()
        return super().probe(committable)


def prepared(sink: MemorySink, count: int) -> list[Committable]:
    """So many committables of one epoch, one a subtask."""
    made: list[Committable] = []
    for subtask in range(count):
        writer = sink.writer(TaskContext(JobContext("orders", EPOCH.term, {}), subtask, count, "sums"))
        writer.write(Batch(values=[subtask], origin_rows=range(1), origin=ListOrigin("s", "t", 0, 0, [subtask])))
        made += writer.seal(EPOCH)()
    return made


def finisher(sink: MemorySink, committer: MemoryCommitter, at_once: int) -> EpochCommitter:
    scope = sink.scope(JobContext("orders", EPOCH.term, {}))
    return EpochCommitter(MemoryStorage(), {scope: committer}, Retrier(threading.Event(), print), at_once)


def decided(order: Sequence[int]) -> CommitAuthorized:
    return CommitAuthorized(CommitPermit(EPOCH), tuple(order))


def test_the_most_urgent_goes_alone_and_the_others_together() -> None:
    sink = MemorySink()
    committables = prepared(sink, 5)
    committer = Meeting(sink, together=4)

    outcomes = finisher(sink, committer, 4).commit(committables, decided([3, 0, 1, 2, 4]))

    assert outcomes == [CommitOutcome.COMMITTED] * 5
    assert committer.begun[0] == committables[3].payload["name"]
    assert sink.committed[0] == 3
    assert sorted(sink.committed) == [0, 1, 2, 3, 4]


class Renamed(MemoryCommitter):
    """The system of a sink under another name."""

    def has_prepared(self, committable: Committable) -> bool:
        return committable.scope == "memory:old name"


def test_what_was_prepared_under_another_name_of_a_system_is_finished_there() -> None:
    """As after a change of the bootstrap servers, with an epoch that is not committed yet."""
    sink = MemorySink()
    (committable,) = [replace(each, scope="memory:old name") for each in prepared(sink, 1)]
    renamed = finisher(sink, Renamed(sink), 1)

    assert [probe.status for probe in renamed.probe([committable])] == [CommitStatus.PREPARED]
    assert renamed.commit([committable], decided([0])) == [CommitOutcome.COMMITTED]
    assert sink.committed == [0]
    with pytest.raises(ConfigError, match="no longer has a sink there"):
        renamed.probe([replace(committable, scope="memory:elsewhere")])


class Together(MemoryCommitter, AtomicCommitter):
    """Takes all that an epoch has in one call."""

    def __init__(self, sink: MemorySink) -> None:
        super().__init__(sink)
        self.calls: list[list[str]] = []

    def probe_all(self, committables: Sequence[Committable]) -> Sequence[Probe]:
        self.calls.append([str(each.payload["name"]) for each in committables])
        return [super(Together, self).probe(each) for each in committables]

    def commit_all(self, permit: CommitPermit, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        self.calls.append([str(each.payload["name"]) for each in committables])
        return [super(Together, self).commit(permit, each) for each in committables]


def test_a_committer_that_commits_together_is_asked_once_and_answers_are_in_order() -> None:
    sink, other = MemorySink(), MemorySink()
    mine, (theirs,) = prepared(sink, 3), prepared(other, 1)
    theirs = replace(theirs, scope="elsewhere")
    committer = Together(sink)
    both = {mine[0].scope: committer, "elsewhere": MemoryCommitter(other)}
    several = EpochCommitter(MemoryStorage(), both, Retrier(threading.Event(), print))
    committables = [mine[0], theirs, *mine[1:]]

    probes = several.probe(committables)
    outcomes = several.commit(committables, decided([3, 1, 0, 2]))

    names = [str(each.payload["name"]) for each in mine]
    assert [probe.detail.split()[0] for probe in probes] == [each.payload["name"] for each in committables]
    assert outcomes == [CommitOutcome.COMMITTED] * 4
    assert committer.calls == [names, [names[2], names[0], names[1]]]
    assert (sink.committed, other.committed) == ([2, 0, 1], [0])


def test_no_more_run_at_once_than_is_allowed() -> None:
    sink = MemorySink()
    committables = prepared(sink, 7)
    committer = Meeting(sink, together=2)

    finisher(sink, committer, 2).commit(committables, decided(range(7)))

    assert committer.most == 2


def test_probes_run_together_and_are_answered_in_order() -> None:
    sink = MemorySink()
    committables = prepared(sink, 4)

    probes = finisher(sink, Meeting(sink, together=4), 4).probe(committables)

    assert [probe.detail.split()[0] for probe in probes] == [c.payload["name"] for c in committables]


def test_one_that_fails_does_not_keep_the_others_from_being_committed() -> None:
    sink = MemorySink()
    committables = prepared(sink, 4)

    class Broken(Meeting):
        def commit(self, permit: CommitPermit, committable: Committable) -> CommitOutcome:
            if committable is committables[1]:
                self._meet.wait()
                raise Fatal("nobody can tell")
            if committable is committables[2]:
                self._meet.wait()
                raise Retryable("no answer")
            return super().commit(permit, committable)

    told_to_stop = finisher(sink, Broken(sink, together=3), 3)
    told_to_stop.patience.interrupt()
    with pytest.raises(Fatal, match="nobody can tell"):
        told_to_stop.commit(committables, decided([0, 2, 1, 3]))

    assert sorted(sink.committed) == [0, 3]


def test_if_the_most_urgent_is_lost_nothing_else_is_committed() -> None:
    """Then the epoch can still be revoked as a whole."""
    sink = MemorySink()
    committables = prepared(sink, 3)
    sink.abort("orders", {None}, EPOCH.term.next())

    with pytest.raises(RestartFromCheckpoint):
        finisher(sink, MemoryCommitter(sink), 3).commit(committables, decided(range(3)))

    assert sink.committed == []


def test_two_that_are_left_are_committed_together() -> None:
    sink = MemorySink()
    committables = prepared(sink, 3)

    finisher(sink, Meeting(sink, together=2), 2).commit(committables, decided(range(3)))

    assert sorted(sink.committed) == [0, 1, 2]


class Threads(MemoryCommitter):
    """Notes the thread of each commit."""

    def __init__(self, sink: MemorySink) -> None:
        super().__init__(sink)
        self.seen: list[threading.Thread] = []

    def commit(self, permit: CommitPermit, committable: Committable) -> CommitOutcome:
        self.seen.append(threading.current_thread())
        return super().commit(permit, committable)


@pytest.mark.parametrize(("count", "at_once"), [(1, 16), (2, 16), (4, 1)])
def test_one_at_a_time_needs_no_other_thread(count: int, at_once: int) -> None:
    """Most epochs have one or two committables: a thread for each would cost more than it brings."""
    sink = MemorySink()
    committer = Threads(sink)

    outcomes = finisher(sink, committer, at_once).commit(prepared(sink, count), decided(range(count)))

    assert outcomes == [CommitOutcome.COMMITTED] * count
    assert set(committer.seen) == {threading.current_thread()}
    assert sink.committed == list(range(count))


def manifest_of(committables: Sequence[Committable]) -> Manifest:
    return Manifest(
        job="orders", epoch=3, term=1, created_at=0, plan="", max_key_groups=128, parallelism=1, sources={}, states=(),
        committables=tuple(committables), identity="0123456789ab",
    )  # fmt: skip


def test_an_epoch_without_output_is_committed_as_it_is() -> None:
    sink = MemorySink()
    nothing = finisher(sink, MemoryCommitter(sink), 16)

    assert (nothing.probe([]), nothing.commit([], decided([]))) == ([], [])


def test_a_receipt_says_of_which_epoch_and_what_became_of_its_output() -> None:
    sink = MemorySink()
    finished = finisher(sink, MemoryCommitter(sink), 1)

    finished.write_receipt(manifest_of([]), [CommitOutcome.COMMITTED, CommitOutcome.ALREADY])

    found = records.load(finished.storage, Receipt, paths.receipt_name(EPOCH), "orders")
    assert (found.id, found.outcomes) == (EPOCH, (CommitOutcome.COMMITTED, CommitOutcome.ALREADY))


def test_each_step_passes_a_point_where_a_test_may_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[str] = []
    monkeypatch.setattr(commits, "hit", passed.append)
    sink = MemorySink()
    committables, one_by_one = prepared(sink, 3), finisher(sink, MemoryCommitter(sink), 1)
    one_by_one.probe(committables)
    outcomes = one_by_one.commit(committables, decided(range(3)))
    one_by_one.write_receipt(manifest_of(committables), outcomes)

    between = ["commit.before", "commit.between", "commit.between", "commit.after"]
    assert passed == ["commit.probe", *between, "receipt.before", "receipt.after"]


def test_output_of_a_sink_that_is_no_longer_there_is_named() -> None:
    sink = MemorySink()
    committables = prepared(sink, 1)

    with pytest.raises(ConfigError, match="has uncommitted output in .*Run the previous version"):
        EpochCommitter(MemoryStorage(), {}, Retrier(threading.Event(), print)).probe(committables)


class Telling(MemoryCommitter):
    """Tells of an epoch only at the second time that it is asked to."""

    def __init__(self, sink: MemorySink) -> None:
        super().__init__(sink)
        self.told: list[tuple[int, int]] = []
        """Committables, and rows that were visible then."""

    def announce(self, permit: CommitPermit, committables: Sequence[Committable]) -> None:
        self.told.append((len(committables), len(self._sink.committed)))
        if len(self.told) == 1:
            raise Retryable("not yet")


def test_readers_are_told_of_an_epoch_once_all_of_it_is_committed() -> None:
    """And told again if there was no answer."""
    sink = MemorySink()
    committables, telling = prepared(sink, 3), Telling(sink)

    finisher(sink, telling, 16).commit(committables, decided(range(3)))

    assert telling.told == [(3, 3), (3, 3)]


def test_what_commits_took_is_told_by_sink() -> None:
    sink = MemorySink()
    committables = [replace(each, by_sink={name: 1}) for each, name in zip(prepared(sink, 4), "abab", strict=True)]
    timed = finisher(sink, Meeting(sink, together=3), 3)

    before = time.time()
    timed.commit(committables, decided(range(4)))
    after = time.time()
    told = timed.timer.take()

    assert told.keys() == {"a", "b"}
    assert all(before <= began <= ended <= after for began, ended in told.values())
    assert timed.timer.take() == {}


def test_a_commit_of_no_known_sink_is_told_by_its_scope() -> None:
    sink = MemorySink()
    timed = finisher(sink, MemoryCommitter(sink), 1)
    (one,) = prepared(sink, 1)
    timed.commit([replace(one, by_sink={})], decided([0]))

    assert timed.timer.take().keys() == {one.scope}


def test_the_commits_of_a_sink_took_from_the_first_beginning_to_the_last_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that overlap, and one within the other; what is not committed does not count."""
    one, other = Committable("kafka", {}, 1, {"a": 1, "b": 1}), Committable("kafka", {}, 1, {"b": 1})
    times = iter([1.0, 2.0, 3.0, 9.0, 4.0, 5.0, 6.0])
    monkeypatch.setattr(commits.time, "time", lambda: next(times))
    watch = Stopwatch()

    with watch.measuring([one]), watch.measuring([other, other]):  # from 1 and 2 to 3 and 9
        pass
    with watch.measuring([other]):
        pass
    with pytest.raises(Retryable), watch.measuring([one]):
        raise Retryable("not yet")

    assert watch.take() == {"a": (1.0, 9.0), "b": (1.0, 9.0)}
    assert watch.take() == {}


def test_each_scope_is_told_of_its_own_output_once_all_is_committed() -> None:
    sinks = {name: MemorySink() for name in ("one", "two", "three")}
    committers = {name: Telling(sink) for name, sink in sinks.items()}
    committables = [
        replace(each, scope=name) for name, count in (("one", 2), ("two", 3)) for each in prepared(sinks[name], count)
    ]

    EpochCommitter(MemoryStorage(), dict(committers), Retrier(threading.Event(), print)).commit(
        committables, decided(range(5))
    )

    assert {name: each.told for name, each in committers.items()} == {
        "one": [(2, 2)] * 2, "two": [(3, 3)] * 2, "three": [],
    }  # fmt: skip
