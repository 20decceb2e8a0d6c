"""The incarnation of a job: in its directory, in what it writes there, and against signs of other incarnations."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import Committable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.incarnation import IncarnationSign, IncarnationState
from kafka_eos.coordination import terms
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.ownership import Ownership, list_identities, load_newest_manifest, new_identity_record
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, Fenced
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.records import Batch
from kafka_eos.runtime.epoch_reports import EpochContents
from kafka_eos.runtime.state import canonical_savepoint as savepoints
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest, TermClaim
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin

Made = Callable[..., Coordinator]


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink()


@pytest.fixture
def on(tmp_path: Path, sink: MemorySink) -> Made:
    """``on("a")``: a coordinator of the one pipeline, as a supervisor makes it that was started in directory ``a``."""

    def made(directory: str, **options: Any) -> Coordinator:
        pipeline = Pipeline("orders")
        pipeline.source(ListSource([1, 2, 3]), name="numbers").sink(sink, name="out")
        storage = LocalStorage(tmp_path / directory / "orders")
        home = str(tmp_path / directory / "orders")
        patience = Retrier(threading.Event(), print)
        return Coordinator(pipeline.plan(), storage, History(storage, print), patience, {}, 3, home=home, **options)

    return made


def prepared(sink: MemorySink, ctx: JobContext, *values: int) -> tuple[Committable, ...]:
    writer = sink.writer(TaskContext(ctx, 0, 1, "out"))
    writer.write(Batch(list(values), range(len(values)), ListOrigin("numbers", "list", 0, 0, list(values))))
    return tuple(writer.seal(EpochId(Epoch(1), ctx.term))())


def decided(coordinator: Coordinator, sink: MemorySink, *values: int) -> Manifest:
    """One more epoch of a job that has recovered, decided and not committed."""
    epoch = coordinator.ownership.next_epoch()
    ctx = coordinator.ownership.load_identity()
    writer = sink.writer(TaskContext(ctx, 0, 1, "out"))
    writer.write(Batch(list(values), range(len(values)), ListOrigin("numbers", "list", 0, 0, list(values))))
    return coordinator.epochs.decide(epoch, EpochContents({"numbers": {}}, (), tuple(writer.seal(epoch)())))


def died(storage: LocalStorage) -> JobIdentity:
    """A start of the directory takes its term, and dies before it has decided anything. Which incarnation it was."""
    identity = new_identity_record("orders").id
    terms.claim(storage, "orders", Term(0), identity)
    return identity


# ---------------------------------------------------------------- in the directory


def test_a_directory_has_one_identity_for_ever(on: Made) -> None:
    first = on("a").recovery.restore()
    again = on("a").recovery.restore()

    assert first.identity == again.identity
    assert again.term > first.term


def test_claim_and_manifest_carry_it(on: Made, tmp_path: Path) -> None:
    resumed = on("a").recovery.restore()

    storage = LocalStorage(tmp_path / "a" / "orders")
    manifest = records.load(storage, Manifest, paths.manifest_name(resumed.base), "orders")
    claim = records.load(storage, TermClaim, paths.claim_name(resumed.term), "orders")
    assert manifest.identity == claim.identity == str(resumed.identity)


def test_a_manifest_of_another_incarnation_is_not_believed(on: Made, tmp_path: Path) -> None:
    """Somebody has copied one directory into another."""
    on("a").recovery.restore()
    (tmp_path / "a" / "orders" / paths.IDENTITY).unlink()
    records.publish(LocalStorage(tmp_path / "a" / "orders"), new_identity_record("orders"))

    with pytest.raises(CorruptCheckpoint, match=r"was decided by incarnation [0-9a-f]{12} of job 'orders'.*mixed"):
        on("a").recovery.restore()


@pytest.mark.parametrize("text", ["", "ABCDEF012345", "0123456789a", "0123456789abc", "../123456789"])
def test_an_identity_is_twelve_hex_digits(text: str) -> None:
    with pytest.raises(ConfigError, match="12 hex digits"):
        JobIdentity(text)


def test_an_identity_without_a_decided_epoch_is_no_start_but_a_loss(on: Made, tmp_path: Path) -> None:
    on("a").recovery.restore()
    storage = LocalStorage(tmp_path / "a" / "orders")
    for directory in (paths.MANIFESTS, paths.RECEIPTS, paths.TERMS):
        storage.delete_all(storage.list(directory))

    with pytest.raises(CorruptCheckpoint, match=r"identity\.json exists.*no decided epoch does"):
        on("a").recovery.restore()


# ---------------------------------------------------------------- against another incarnation


def test_a_start_elsewhere_is_refused_and_says_whose_it_is_and_what_to_do(
    on: Made, sink: MemorySink, tmp_path: Path
) -> None:
    first = on("a")
    identity = first.recovery.restore().identity
    decided(first, sink, 1, 2)

    with pytest.raises(ConfigError) as refused:
        on("b").recovery.restore()

    for part in (str(identity), str(tmp_path / "b" / "orders"), "(open)", "--checkpoint-dir", "--take-over"):
        assert part in str(refused.value)
    assert sink.prepared == [1, 2]


def test_the_refused_start_is_refused_again_and_the_first_goes_on(on: Made, sink: MemorySink) -> None:
    on("a").recovery.restore()
    for _ in range(2):
        with pytest.raises(ConfigError, match="another incarnation of that name"):
            on("b").recovery.restore()

    again = on("a")
    again.recovery.restore()
    again.epochs.commit(decided(again, sink, 1))

    assert sink.committed == [1]


def test_output_without_identity_of_another_directory_refuses_too(on: Made, sink: MemorySink) -> None:
    prepared(sink, JobContext("orders", Term(3), {}), 1)

    with pytest.raises(ConfigError, match="without identity"):
        on("a").recovery.restore()

    assert sink.prepared == [1]


def test_who_takes_over_ends_what_is_open_and_the_other_commits_no_more(on: Made, sink: MemorySink) -> None:
    first = on("a")
    first.recovery.restore()
    decided(first, sink, 1, 2)

    on("b", take_over=True).recovery.restore()

    assert sink.prepared == []
    with pytest.raises(Fenced):
        first.epochs.commit(decided(first, sink, 3))
    with pytest.raises(Fenced, match="took over"):
        on("a").recovery.restore()
    assert sink.committed == []


def test_an_heir_ends_the_incarnation_of_its_savepoint_only_if_nothing_is_wrong_with_it(
    on: Made, sink: MemorySink, tmp_path: Path
) -> None:
    first = on("a")
    resumed = first.recovery.restore()
    manifest = decided(first, sink, 1)
    first.epochs.commit(manifest)
    savepoints.begin_savepoint(LocalStorage(tmp_path / "a" / "orders"), manifest, tmp_path / "sp").write_savepoint()
    shutil.copytree(tmp_path / "sp", tmp_path / "damaged")
    (tmp_path / "damaged" / paths.SAVEPOINT).write_bytes(b"")

    with pytest.raises(CorruptCheckpoint):
        on("b", start_from=tmp_path / "damaged").recovery.restore()
    on("a").recovery.restore()

    heir = on("b", start_from=tmp_path / "sp").recovery.restore()

    assert heir.identity != resumed.identity
    with pytest.raises(Fenced, match="took over"):
        on("a").recovery.restore()


def test_an_older_savepoint_is_refused_with_the_epochs_that_it_would_repeat(
    on: Made, sink: MemorySink, tmp_path: Path
) -> None:
    first = on("a")
    first.recovery.restore()
    older = decided(first, sink, 1)
    first.epochs.commit(older)
    storage = LocalStorage(tmp_path / "a" / "orders")
    savepoints.begin_savepoint(storage, older, tmp_path / "older").write_savepoint()
    for value in (2, 3):
        newest = decided(first, sink, value)
        first.epochs.commit(newest)

    repeated = rf"output of epochs {older.epoch + 1} to {newest.epoch} a second time.*--allow-repeated-output"
    with pytest.raises(ConfigError, match=repeated):
        on("b", start_from=tmp_path / "older").recovery.restore()
    with pytest.raises(ConfigError, match=repeated):
        on("b", start_from=tmp_path / "older", take_over=True).recovery.restore()
    on("a").recovery.restore()

    on("b", start_from=tmp_path / "older", allow_repeated_output=True).recovery.restore()


def test_the_heir_of_an_heir_is_not_stopped_by_the_first_incarnation(
    on: Made, sink: MemorySink, tmp_path: Path
) -> None:
    """What is over stays in sight for a week; it stops nobody."""
    for begun, start_from in (("a", None), ("b", tmp_path / "a.savepoint"), ("c", tmp_path / "b.savepoint")):
        incarnation = on(begun, start_from=start_from)
        incarnation.recovery.restore()
        manifest = decided(incarnation, sink, 1)
        incarnation.epochs.commit(manifest)
        savepoints.begin_savepoint(
            LocalStorage(tmp_path / begun / "orders"), manifest, tmp_path / f"{begun}.savepoint"
        ).write_savepoint()

    assert sink.committed == [1, 1, 1]


def test_taking_over_is_asked_for_once(on: Made, sink: MemorySink) -> None:
    """The setting may stay: it says nothing to a job that has begun."""
    on("a").recovery.restore()
    on("b", take_over=True).recovery.restore()
    on("b").recovery.restore()
    again = on("b", take_over=True)
    again.recovery.restore()
    again.epochs.commit(decided(again, sink, 5))

    assert sink.committed == [5]


def test_an_epoch_that_is_decided_when_another_incarnation_takes_over_is_not_committed(
    on: Made, sink: MemorySink
) -> None:
    """The look at the mark comes after the manifest: whoever took it away has fenced all that was prepared before."""
    first = on("a")
    first.recovery.restore()
    epoch = first.ownership.next_epoch()
    committables = prepared(sink, first.ownership.load_identity(), 1)
    on("b", take_over=True).recovery.restore()

    manifest = first.epochs.decide(epoch, EpochContents({"numbers": {}}, (), committables))
    with pytest.raises(Fenced, match="took over"):
        first.epochs.commit(manifest)
    assert sink.committed == []


def test_only_who_commits_asks_the_sinks_for_the_mark(
    on: Made, sink: MemorySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision is on the main thread of an engine, which must hear signals and workers while brokers are away."""
    first = on("a")
    first.recovery.restore()
    asked: list[list[int]] = []
    hold = sink.register

    def noted(job: str, identity: JobIdentity | None) -> IncarnationState:
        asked.append(list(sink.committed))
        return hold(job, identity)

    monkeypatch.setattr(sink, "register", noted)
    manifest = decided(first, sink, 1)
    assert asked == []

    first.epochs.commit(manifest)

    assert asked == [[]], "once, and before the commit"
    assert sink.committed == [1]


# ---------------------------------------------------------------- two that begin at the same moment


def test_two_that_refuse_each_other_leave_nothing_that_refuses_the_next(
    on: Made, sink: MemorySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both look, both leave their mark, both look again; afterwards either may begin, in its own directory."""
    together, looks, signs = threading.Barrier(2, timeout=30), threading.local(), sink.list_signs

    def in_step(job: str) -> list[IncarnationSign]:
        looks.count = getattr(looks, "count", 0) + 1
        if looks.count > 2:
            return signs(job)
        together.wait()
        found = signs(job)
        together.wait()
        return found

    with monkeypatch.context() as patched, ThreadPoolExecutor(2) as threads:
        patched.setattr(sink, "list_signs", in_step)
        starts = [threads.submit(on(directory).recovery.restore) for directory in ("a", "b")]
        errors = [start.exception() for start in starts]

    assert [type(error) for error in errors] == [ConfigError, ConfigError]
    on("b").recovery.restore()
    with pytest.raises(ConfigError, match="another incarnation of that name"):
        on("a").recovery.restore()
    again = on("b")
    again.recovery.restore()
    again.epochs.commit(decided(again, sink, 1))
    assert sink.committed == [1]


@pytest.mark.parametrize("take_over", [False, True])
def test_a_start_that_died_before_it_decided_may_be_refused_and_begin_later(
    on: Made, sink: MemorySink, tmp_path: Path, take_over: bool
) -> None:
    """Both have died with their marks left, so that each of them refuses the other."""
    for directory in ("a", "b"):
        sink.register("orders", died(LocalStorage(tmp_path / directory / "orders")))

    if take_over:
        on("b", take_over=True).recovery.restore()
    with pytest.raises(ConfigError, match="another incarnation of that name"):
        on("a").recovery.restore()
    on("b").recovery.restore()
    on("a", take_over=True).recovery.restore()


# ---------------------------------------------------------------- several starts of one directory


def test_a_refused_start_that_wakes_up_late_ends_nobody_but_itself(
    on: Made, sink: MemorySink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Incarnation X refuses it; while it waits for its sinks, X ends and another start of its directory runs."""
    x = on("x")
    x.recovery.restore()
    signs, here, reached, go_on = sink.list_signs, threading.current_thread(), threading.Event(), threading.Event()
    looks: list[str] = []

    def away(job: str) -> list[IncarnationSign]:
        if threading.current_thread() is not here:
            looks.append(job)
            if len(looks) == 2:
                reached.set()
                assert go_on.wait(30)
        return signs(job)

    monkeypatch.setattr(sink, "list_signs", away)
    with ThreadPoolExecutor(1) as thread:
        refused = thread.submit(on("a").recovery.restore)
        assert reached.wait(30)
        sink.retire("orders", x.ownership.load_identity().identity)
        successor = on("a")
        successor.recovery.restore()
        manifest = decided(successor, sink, 1, 2)
        go_on.set()
        assert isinstance(refused.exception(30), Fenced)

    successor.epochs.commit(manifest)
    again = on("a")
    again.recovery.restore()
    again.epochs.commit(decided(again, sink, 3))
    assert sink.committed == [1, 2, 3]


def test_a_start_whose_predecessor_died_over_its_withdrawal_begins(on: Made, sink: MemorySink, tmp_path: Path) -> None:
    """The mark was taken away, and the refusal not told; nobody else is to blame for that."""
    sink.retire("orders", died(LocalStorage(tmp_path / "a" / "orders")))

    on("a").recovery.restore()


def test_who_died_between_the_decision_and_its_identity_is_recognised(
    on: Made, sink: MemorySink, tmp_path: Path
) -> None:
    first = on("a")
    first.recovery.restore()
    manifest = decided(first, sink, 1)
    (tmp_path / "a" / "orders" / paths.IDENTITY).unlink()

    assert on("a").ownership.load_identity().identity == first.ownership.load_identity().identity
    assert on("a").recovery.restore().identity == first.ownership.load_identity().identity
    assert (sink.committed, manifest.identity) == ([1], str(first.ownership.load_identity().identity))
    assert (tmp_path / "a" / "orders" / paths.IDENTITY).exists()


# ---------------------------------------------------------------- by the records of the directory


def test_the_newest_epoch_is_that_of_the_highest_number(on: Made, sink: MemorySink, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "a" / "orders")
    assert load_newest_manifest(storage, "orders") is None
    running = on("a")
    running.recovery.restore()
    for _ in range(11):
        running.epochs.commit(manifest := decided(running, sink, 1))
        assert load_newest_manifest(storage, "orders") == manifest


def test_the_starts_before_one_are_those_that_had_an_identity(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "orders")
    starts = [died(storage) for _ in range(3)]
    terms.claim(storage, "orders", Term(0))

    assert list_identities(storage, "orders", [Term(n) for n in range(1, 5)]) == frozenset(starts)


def test_a_manifest_that_a_term_names_and_that_is_gone_is_damage_unless_the_store_is_away(
    on: Made, sink: MemorySink, tmp_path: Path
) -> None:
    running = on("a")
    running.recovery.restore()
    manifest = decided(running, sink, 1)
    running.epochs.commit(manifest)
    root = tmp_path / "a" / "orders"
    ownership = Ownership(LocalStorage(root), "orders", {})
    ownership.identity = new_identity_record("orders")
    ownership.take_term(Term(0))
    (root / paths.manifest_name(manifest.id)).unlink()

    with pytest.raises(CorruptCheckpoint, match=f"{manifest.name} is named by a term record but missing"):
        ownership.load(manifest.id)
    root.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        ownership.load(manifest.id)


def test_an_owner_asks_for_another_term_than_zero_alone(tmp_path: Path) -> None:
    """Before it has one there is nobody whom it could replace."""
    storage = LocalStorage(tmp_path / "orders")
    terms.claim(storage, "orders", Term(0))
    ownership = Ownership(storage, "orders", {})
    ownership.ensure_owner()

    ownership.identity = new_identity_record("orders")
    ownership.take_term(Term(0))
    ownership.ensure_owner()
    terms.claim(storage, "orders", Term(0))
    with pytest.raises(Fenced, match="replaced by term 3"):
        ownership.ensure_owner()
    assert [str(ownership.next_epoch()) for _ in range(2)] == ["0/2", "1/2"]
