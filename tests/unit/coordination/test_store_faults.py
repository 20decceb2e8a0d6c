"""A job whose store fails at any request, or whose supervisor dies there or is replaced: each output is committed once.

The coordinator is the real one, and so is the store but for its disk; the sink remembers what was committed, in order.
Rule: whoever comes next recovers and goes on to the end of the input, and another start finds nothing to do. What is
kept for good is there: a line of the ledger for each epoch, and the files that tell where its output came from.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("obstore")

from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier
from kafka_eos.abc.committer import Committable, UnstoredCommittable
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.coordination import job_history as history
from kafka_eos.coordination import terms
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.ownership import load_identity_record
from kafka_eos.core.errors import CorruptCheckpoint, Fenced
from kafka_eos.core.ids import EpochId
from kafka_eos.core.records import Batch
from kafka_eos.protocol.lineage import lineage
from kafka_eos.runtime.epoch_reports import EpochContents, RestorePoint
from kafka_eos.storage import epoch_ledger as ledger
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import provenance_compaction as packing
from kafka_eos.storage import provenance_files as provenance
from kafka_eos.storage import retention
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage import verification as verify
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.provenance_files import ProvenanceReader
from kafka_eos.storage.savepoint_files import Savepoint
from kafka_eos.testing import ListSource, MemorySink
from kafka_eos.testing.list_source import ListOrigin
from tests.examples import examples
from tests.limits import set_limits
from tests.store_faults import Crash, Kind, Objects, Requests, every

pytestmark = pytest.mark.limits(
    log_lines_per_segment=2, log_lines_per_object=2, files_per_pack=2, objects_per_delete=1, epochs_per_packing=1
)

JOB = "orders"
SPLIT = "list/0"
KINDS: tuple[Kind, ...] = ("crash", "crash within", "refuse", "lose answer")


class Job:
    """The input, the sink, and what supervisors of the job share."""

    def __init__(self, directory: Path, values: int = 1, retained: int = 1, sink: MemorySink | None = None) -> None:
        self._directory, self.values, self.retained = directory, list(range(1, values + 1)), retained
        self.sink, self.place = sink or MemorySink(), Objects()
        self.start_from: Path | None = None
        self.first = 0
        """Its first epoch: that of a start from a savepoint comes after the savepoint's."""
        pipeline = Pipeline(JOB)
        keyed = pipeline.source(ListSource(self.values), name="numbers").key_by(str)
        keyed.fold(init=int, step=lambda acc, n: acc + n, name="total").sink(self.sink, name="sums")
        self.plan = pipeline.plan()

    def start(self) -> Supervisor:
        return Supervisor(self, self.place.open(), self._directory / secrets.token_hex(4))


class Supervisor:
    """One process that runs the job, an epoch for each value."""

    def __init__(self, job: Job, storage: JobStorage, directory: Path) -> None:
        self.job, self.storage, self._directory = job, storage, directory
        directory.mkdir()
        patience = Retrier(threading.Event(), [].append)
        diary = History(storage, patience.notice)
        given = job.plan, storage, diary, patience, {}, job.retained
        self.coordinator = Coordinator(*given, start_from=job.start_from)

    def run(self) -> None:
        """From the recovery to the end of the input."""
        resumed = self.coordinator.recovery.restore()
        try:
            total = self._restored(resumed)
        except CorruptCheckpoint as error:
            raise OSError from error  # its successor has dropped the file
        for at in range(int(resumed.positions["numbers"][SPLIT]["index"]), len(self.job.values)):
            epoch, total = self.coordinator.ownership.next_epoch(), total + self.job.values[at]
            positions = {"numbers": {SPLIT: {"index": at + 1}}}
            states, committables = self._stored(total), self._prepared(resumed, epoch, total)
            self.coordinator.epochs.commit(
                self.coordinator.epochs.decide(epoch, EpochContents(positions, states, committables))
            )
            self.coordinator.drop_old_epochs()

    def _stored(self, total: int) -> tuple[StateHandle, ...]:
        """One file that all epochs share, and one with the total."""
        refs = []
        for name, content in (("settings.rows", "shared"), ("total.rows", str(total))):
            (self._directory / name).write_text(content)
            refs.append(self.storage.upload(self._directory / name, name))
        return (StateHandle("total", "memory", (0, 127), tuple(refs), ()),)

    def _restored(self, resumed: RestorePoint) -> int:
        for handle in resumed.states:
            self.storage.fetch(handle.files[-1], self._directory / "restored")
        return int((self._directory / "restored").read_text()) if resumed.states else 0

    def _prepared(self, resumed: RestorePoint, epoch: EpochId, value: int) -> tuple[Committable, ...]:
        """The output of an epoch, and a file that tells where it came from."""
        job = JobContext(JOB, resumed.term, {}, resumed.identity)
        writer = self.job.sink.writer(TaskContext(job, 0, 1, "sums"))
        writer.write(Batch(values=[value], origin_rows=range(1), origin=ListOrigin("sums", "numbers", 0, 0, [value])))
        (sealed,) = writer.seal(epoch)()
        content = f"{epoch} {value}".encode()
        ref = FileRef(f"{epoch.epoch}-0", hashlib.sha256(content).hexdigest(), len(content))
        unstored = UnstoredCommittable(sealed.scope, sealed.payload, 1, {"sums": 1}, {}, ref, content)
        return (provenance.store_provenance(self.storage, epoch.epoch, unstored),)


@pytest.fixture(autouse=True)
def _one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_CONCURRENT", 1)


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    return partial(Job, tmp_path)


def _look(storage: JobStorage, first: int = 0) -> frozenset[object]:
    """What is known for good: committed epochs, lines of the ledger and of the history, who the job is.

    ``first``: the first epoch of the job.
    """
    facts = retention.take_inventory(storage, JOB)
    assert all(facts.manifests[epoch] <= facts.stored for epoch in lineage(facts.manifests, facts.bases))
    newest = max((epoch.epoch.n for epoch in facts.receipts & facts.manifests.keys()), default=-1)
    lines, shelf = ledger.read(storage), ProvenanceReader(storage)
    assert {epoch.epoch.n for epoch in (*lines, *facts.manifests)} >= set(range(first, newest + 1)), (
        "an epoch was forgotten"
    )
    for entry in lines.values():
        assert all(shelf.load(kept.ref, entry.id.epoch) for kept in entry.provenance)
    identity = load_identity_record(storage, JOB)
    events = [str(event["event"]) for event in history.read_events(storage)]
    return frozenset([*lines, *range(newest + 1), *enumerate(events), *([] if identity is None else [identity])])


def _ends_well(job: Job) -> None:
    """Somebody goes on to the end, and everything is there once."""
    job.start().run()
    assert job.sink.committed == list(itertools.accumulate(job.values))
    assert not job.sink.prepared and not job.sink.staged
    storage = job.place.open()
    assert len(_look(storage, job.first)) > len(job.values)
    assert load_identity_record(storage, JOB) is not None


@contextmanager
def _noting(what: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(what)
        raise


def test_what_a_reader_sees_between_any_two_requests_never_becomes_less(job: Callable[..., Job]) -> None:
    running = job(values=3)
    seen = [_look(running.place.open())]

    def look() -> None:
        storage = running.place.open()
        seen.append(_look(storage))
        assert seen[-2] <= seen[-1]
        receipts = map(paths.parse_receipt_name, storage.list(paths.RECEIPTS))
        assert frozenset(receipts) <= ledger.read(storage).keys(), "the audit needs their lines"
        assert running.sink.committed == list(itertools.accumulate(running.values))[: len(running.sink.committed)]

    with running.place.reached(requests := Requests(between=look)):
        running.start().run()

    assert requests.count > 50
    _ends_well(running)


def test_a_supervisor_may_fail_at_any_request(job: Callable[..., Job]) -> None:
    for requests in every(*KINDS):
        failing = job()
        with failing.place.reached(requests), suppress(Crash, OSError):
            failing.start().run()
        with _noting(str(requests)):
            _ends_well(failing)


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_supervisor_may_be_replaced_at_any_request(job: Callable[..., Job], epochs: int) -> None:
    """Its successor takes over while it is about to ask for something, and comes to the end before it goes on.

    ``epochs``: those of an earlier process.
    """
    for at in itertools.count(1):
        running, successors = job(epochs + 1), list[None]()
        if epochs:
            ahead = running.values.pop()
            running.start().run()
            running.values.append(ahead)

        def take_over(running: Job = running, successors: list[None] = successors, at: int = at) -> None:
            if requests.count == at - 1 and not successors:
                successors.append(None)
                running.start().run()

        # Whoever gets an OSError asks the store who owns the job.
        with running.place.reached(requests := Requests(between=take_over)), suppress(Fenced, OSError):
            running.start().run()
        with _noting(f"replaced at request {at}"):
            _ends_well(running)
        if not successors:
            break


def _savepoint_of(job: Job, target: Path) -> Savepoint:
    """As of its newest epoch."""
    storage = job.place.open()
    newest = savepoints.newest_committed(storage, JOB)
    savepoint = Savepoint(
        job=JOB,
        id=savepoints.new_id(),
        epoch=newest.epoch,
        term=newest.term,
        created_at=0,
        plan=newest.plan,
        max_key_groups=newest.max_key_groups,
        sources=newest.sources,
        operators=newest.states,
        identity=newest.identity,
    )
    with savepoints.draft_savepoint(target) as draft:
        for ref in savepoint.files:
            storage.fetch(ref, draft.work / ref.name)
            draft.files.upload(draft.work / ref.name, ref.name)
        draft.publish(savepoint)
    return savepoint


def test_a_start_from_a_savepoint_may_fail_at_any_request(tmp_path: Path) -> None:
    """The same command, given again, goes on where it was; the job that the savepoint is of has ended."""
    for number, requests in enumerate(every("crash")):
        before = Job(tmp_path)
        before.start().run()
        job = Job(tmp_path, 2, sink=before.sink)
        job.start_from = tmp_path / f"savepoint-{number}"
        job.first = _savepoint_of(before, job.start_from).epoch + 1
        with job.place.reached(requests), suppress(Crash):
            job.start().run()
        with _noting(str(requests)):
            _ends_well(job)


faults = st.tuples(st.sampled_from([*KINDS, "replace"]), st.integers(1, 120))


@examples(10)
@given(st.data())
def test_whatever_happens_to_a_chain_of_supervisors(data: st.DataObject) -> None:
    """Each fails or is replaced at some request, and so is its successor; limits and the length of the job differ."""
    lines, files, names, epochs, retained = (data.draw(st.integers(1, 3)) for _ in range(5))
    limits = set_limits(
        log_lines_per_segment=lines, files_per_pack=files + 1, objects_per_delete=names, epochs_per_packing=epochs
    )
    with tempfile.TemporaryDirectory() as directory, limits:
        job = Job(Path(directory), data.draw(st.integers(1, 6)), retained)
        _run_all(job, data.draw(st.lists(faults, max_size=4)))
        for _ in range(2):
            _ends_well(job)


def _run_all(job: Job, faults: Sequence[tuple[Any, int]]) -> None:
    """One supervisor after the other, each with its fault; one that is replaced goes on when all others have ended."""
    if not faults:
        return
    (kind, at), *rest = faults
    successors = [rest] if kind == "replace" else []

    def between() -> None:
        if requests.count == at - 1 and successors:
            _run_all(job, successors.pop())

    requests = Requests("crash", 0, between) if kind == "replace" else Requests(kind, at)
    with job.place.reached(requests), suppress(Crash, Fenced, OSError):
        job.start().run()
    if kind != "replace":
        _run_all(job, rest)


def _newest(storage: JobStorage) -> int:
    return savepoints.newest_committed(storage, JOB, settled=False).epoch


def _problems(storage: JobStorage) -> int:
    return -len([*terms.find_missing(terms.gather_from_outside(storage, JOB)), *verify.verify_job(storage, JOB)])


@pytest.mark.parametrize("read", [_newest, _problems])
def test_whoever_reads_while_the_job_goes_on_between_any_two_of_its_requests(
    tmp_path: Path, read: Callable[[JobStorage], int]
) -> None:
    """What was listed is dropped then: an older epoch is not taken for the newest, and nothing for damaged."""
    for at in itertools.count(1):
        job = Job(tmp_path, 3)
        ahead = job.values[2:]
        del job.values[2:]
        job.start().run()
        before = read(job.place.open())
        job.place.lists_at_once = True

        def go_on(job: Job = job, ahead: list[int] = ahead, at: int = at) -> None:
            if requests.count == at - 1 and ahead:
                job.values.append(ahead.pop())
                job.start().run()

        with job.place.reached(requests := Requests(between=go_on)):
            found = read(job.place.open())
        assert before <= found <= read(job.place.open()), at
        if ahead:
            break
    assert at > 2
