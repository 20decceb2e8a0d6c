"""A store that fails at any request, or whose process dies there: nothing that was acknowledged is ever missing.

Each operation is begun once for each request that it makes, which then fails (see ``store_faults``). A reader looks at
the store before every request, after the fault, and when the operation was done again to its end: what it sees never
becomes less. Rule: limits are so small that an operation needs several segments, packs, batches and files.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

pytest.importorskip("obstore")
pytest.importorskip("pyarrow")

from checkpoint_samples import JOB, MANIFEST, SAVEPOINT

from kafka_eos.abc.committer import UnstoredCommittable
from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.storage import epoch_ledger as ledger
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import provenance_compaction as packing
from kafka_eos.storage import provenance_files as provenance
from kafka_eos.storage import retention
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.epoch_ledger import EpochLedger
from kafka_eos.storage.job_records import Manifest, Receipt, TermBase, TermClaim, publish
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.provenance_compaction import ProvenancePacker
from kafka_eos.storage.provenance_files import ProvenanceReader
from kafka_eos.storage.upload_batch import UploadBatch
from tests.store_faults import CRASHES, ERRORS, Crash, Directory, FileSystem, Objects, Place, Requests, every

pytestmark = pytest.mark.limits(
    log_lines_per_segment=2, log_lines_per_object=2, log_segment_bytes=10, files_per_pack=2, objects_per_delete=2
)

View: TypeAlias = Any
"""What a reader sees: a set, or a tuple whose end grows."""
MakePlace: TypeAlias = Callable[[], Place]


@pytest.fixture(params=["directory", "objects", "file system"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> MakePlace:
    """Makes empty places of one kind."""
    serial = iter(range(100_000))

    def make() -> Place:
        if request.param == "objects":
            return Objects()
        return (Directory if request.param == "directory" else FileSystem)(tmp_path / str(next(serial)))

    return make


@pytest.fixture(autouse=True)
def _one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_CONCURRENT", 1)


def grown(before: View, now: View) -> bool:
    """Is everything there still that was there before, and in its order?"""
    return before <= now if isinstance(before, frozenset) else now[: len(before)] == before


@dataclass(frozen=True)
class Operation:
    """``run`` is done by a process that begins, as often as it takes; ``view`` is what a reader makes of the store."""

    prepare: Callable[[JobStorage], object]
    run: Callable[[JobStorage], object]
    view: Callable[[JobStorage], View]

    def check(self, make: MakePlace) -> None:
        """A reader sees it grow, and it survives a fault at each of its requests."""
        complete = self._watched(make())
        for requests in every(*CRASHES, *ERRORS):
            self._check_fault(make(), requests, complete)

    def _watched(self, place: Place) -> View:
        """What there is to see in the end, once a reader has looked before each request."""
        with place.reached(Requests()):
            self.prepare(place.open())
            storage, reader = place.open(), place.open()
        seen = [self.view(reader)]

        def look() -> None:
            seen.append(self.view(reader))
            assert grown(seen[-2], seen[-1])

        with place.reached(Requests(between=look)):
            self.run(storage)
        look()
        assert seen[-1] != seen[0]
        return seen[-1]

    def _check_fault(self, place: Place, requests: Requests, complete: View) -> None:
        with place.reached(Requests()):
            self.prepare(place.open())
            storage, reader = place.open(), place.open()
            before = self.view(reader)
        with place.reached(requests), suppress(Crash, OSError):
            self.run(storage)
        with place.reached(Requests()):
            at_fault = self.view(reader)
            assert grown(before, at_fault), requests
            self.run(storage if requests.kind in ERRORS else place.open())
            at_end = self.view(reader)
        assert grown(at_fault, at_end) and at_end == complete, requests


# ---------------------------------------------------------------- one object


NAMES = tuple(paths.receipt_name(EpochId(Epoch(number), Term(1))) for number in range(5))


def _publish(storage: JobStorage, names: Sequence[str]) -> None:
    for name in names:
        with suppress(FileExistsError):
            storage.publish(name, name.encode())


def _published(storage: JobStorage) -> View:
    names = storage.list(paths.RECEIPTS)
    assert all(storage.read(name) == name.encode() for name in names)
    return frozenset(names)


def test_objects_are_there_whole_or_not_at_all(place: MakePlace) -> None:
    Operation(
        prepare=lambda storage: _publish(storage, NAMES[:1]),
        run=lambda storage: _publish(storage, NAMES[1:3]),
        view=_published,
    ).check(place)


def test_only_what_is_named_is_deleted_and_in_the_end_all_of_it(place: MakePlace) -> None:
    gone = frozenset(NAMES[1:4])
    Operation(
        prepare=lambda storage: _publish(storage, NAMES),
        run=lambda storage: storage.delete_all(NAMES[1:4]),
        view=lambda storage: (gone - _published(storage)) | (_published(storage) - gone),
    ).check(place)


def _private(path: Path, content: bytes) -> Path:
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    ("place", "mode"),
    [("directory", 0o600), ("directory", 0o644), ("objects", 0o600), ("file system", 0o600)],
    indirect=["place"],
)
def test_files_are_stored_whole_or_not_at_all(place: MakePlace, tmp_path: Path, mode: int) -> None:
    """In a directory a private file is linked, and any other copied."""
    refs = [FileRef("1.rows", hashlib.sha256(content).hexdigest(), len(content)) for content in (b"rows", b"more")]

    def upload(storage: JobStorage, content: bytes) -> None:
        path = _private(tmp_path / "state", content)
        path.chmod(mode)
        storage.upload(path, "1.rows")

    def stored(storage: JobStorage) -> View:
        found = frozenset(map(paths.parse_shared_name, storage.list(paths.SHARED)))
        for ref in (ref for ref in refs if ref.sha256 in found):
            storage.check_content(ref)
        return found

    Operation(
        prepare=lambda storage: upload(storage, b"rows"),
        run=lambda storage: upload(storage, b"more"),
        view=stored,
    ).check(place)


@pytest.mark.parametrize("place", ["directory", "objects", "file system"], indirect=True)
def test_packs_are_stored_whole_or_not_at_all(place: MakePlace, tmp_path: Path) -> None:
    contents = (b"rows of all", b"more")

    def store(storage: JobStorage, content: bytes) -> None:
        batch = UploadBatch(storage)
        for part in (content[:2], content[2:]):
            batch.add(_private(tmp_path / "1.sst", part))
        batch.store()

    def stored(storage: JobStorage) -> View:
        for content in contents:
            ref = FileRef("pack", hashlib.sha256(content).hexdigest(), len(content))
            if paths.shared_name(ref.sha256) in storage.list(paths.SHARED):
                storage.check_content(ref)
        return frozenset(storage.list(paths.SHARED))

    Operation(
        prepare=lambda storage: store(storage, contents[0]),
        run=lambda storage: store(storage, contents[1]),
        view=stored,
    ).check(place)


# ---------------------------------------------------------------- logs


LINES = tuple(f"line {number}" for number in range(7))
BEFORE = 3
"""Lines of an earlier process."""


def _write(storage: JobStorage, lines: tuple[str, ...]) -> None:
    for line in lines:
        storage.append(paths.HISTORY, line)
    storage.compress_logs()


def _lines(storage: JobStorage) -> View:
    """Whole lines; one that is torn stays alone on its line."""
    return tuple(line for line in storage.lines(paths.HISTORY) if line in LINES)


@pytest.mark.parametrize("place", ["directory", "objects"], indirect=True)
def test_a_log_that_is_cut_in_segments_and_compressed(place: MakePlace) -> None:
    """Of the line that failed nobody knows whether it is there: its process, or the next one, may write it again."""
    for requests in every(*CRASHES, "refuse within", "lose answer"):
        here, done = place(), BEFORE
        with here.reached(Requests()):
            _write(here.open(), LINES[:BEFORE])
            storage = here.open()
        with here.reached(requests), suppress(Crash, OSError):
            for line in LINES[BEFORE:]:
                storage.append(paths.HISTORY, line)
                done += 1
            storage.compress_logs()
        with here.reached(Requests()):
            assert _lines(here.open())[:done] == LINES[:done], requests
            assert len(_lines(here.open())) <= done + 1, requests
            _write(storage if requests.kind in ERRORS else here.open(), LINES[done:])
            found = _lines(here.open())
        twice = (*LINES[: done + 1], *LINES[done:])
        assert found in (LINES, twice), requests


@pytest.mark.parametrize("place", ["directory", "objects"], indirect=True)
@pytest.mark.parametrize("count", [3, len(LINES) - BEFORE])
def test_a_log_that_is_written_and_compressed_between_any_two_requests_of_its_reader(
    place: MakePlace, count: int
) -> None:
    """Also within a listing, as long as that does not take longer than two segments do."""
    for at in itertools.count(1):
        here, left = place(), [LINES[BEFORE : BEFORE + count]]
        if isinstance(here, Objects):
            here.lists_at_once = count > 3
        with here.reached(Requests()):
            writer, reader = here.open(), here.open()
            _write(writer, LINES[:BEFORE])

        def write(writer: JobStorage = writer, left: list[tuple[str, ...]] = left, at: int = at) -> None:
            if requests.count == at - 1 and left:
                _write(writer, left.pop())

        with here.reached(requests := Requests(between=write)):
            found = _lines(reader)
        assert grown(LINES[:BEFORE], found) and grown(found, LINES), at
        if left:
            break
    assert at > 2


@pytest.mark.parametrize("versions", [1, 2])
def test_a_segment_that_was_removed_is_an_error_and_no_shorter_log(versions: int) -> None:
    place = Objects()
    _write(storage := place.open(), LINES[:2])

    def remove() -> None:
        if requests.count == 3:  # it has looked for a file that was copied, and has listed
            storage.delete_all(storage.list("history")[-versions:])

    with place.reached(requests := Requests(between=remove)), pytest.raises(FileNotFoundError):
        storage.lines(paths.HISTORY)


# ---------------------------------------------------------------- provenance


def _provenance(number: int) -> tuple[Epoch, FileRef, bytes]:
    content = b"of epoch %d" % number
    return Epoch(number), FileRef(f"{number}-0", hashlib.sha256(content).hexdigest(), len(content)), content


def _store_and_pack(storage: JobStorage, numbers: range) -> None:
    for epoch, ref, content in map(_provenance, numbers):
        provenance.store_provenance(storage, epoch, UnstoredCommittable("kafka", {}, 1, {}, {}, ref, content))
    ProvenancePacker(storage, [].append).pack()


def _found_provenance(storage: JobStorage) -> View:
    names = storage.list(paths.PROVENANCE)
    shelf, found = ProvenanceReader(storage), set[int]()
    for number in range(6 if names else 0):
        epoch, ref, content = _provenance(number)
        with suppress(CorruptCheckpoint):
            assert shelf.load(ref, epoch) == content
            found.add(number)
    return frozenset(found)


def test_files_of_provenance_and_packs_of_packs() -> None:
    Operation(
        prepare=lambda storage: _store_and_pack(storage, range(3)),
        run=lambda storage: _store_and_pack(storage, range(3, 6)),
        view=_found_provenance,
    ).check(Objects)


# ---------------------------------------------------------------- ledger and retention


def _epoch(storage: JobStorage, tmp_path: Path, number: int) -> Manifest:
    """An epoch is decided, with a file of its own and one that all epochs share, and committed."""
    contents = (b"shared by all", b"of epoch %d" % number)
    refs = [storage.upload(_private(tmp_path / "state", each), f"{n}.rows") for n, each in enumerate(contents)]
    handle = StateHandle("total", "memory", (0, 127), tuple(refs), ())
    manifest = msgspec.structs.replace(MANIFEST, epoch=number, term=1, states=(handle,))
    for record in (manifest, Receipt(job=JOB, epoch=number, term=1, created_at=0, outcomes=())):
        with suppress(FileExistsError):
            publish(storage, record)
    return manifest


def _job(storage: JobStorage) -> View:
    """The committed epochs, and those of the ledger: whatever retention has dropped is there, and the rest is whole."""
    facts = retention.take_inventory(storage, JOB)
    assert all(files <= facts.stored for files in facts.manifests.values())
    newest = max(epoch.epoch.n for epoch in facts.receipts & facts.manifests.keys())
    told = {epoch.epoch.n for epoch in ledger.read(storage)}
    assert told | {epoch.epoch.n for epoch in facts.manifests} >= set(range(newest + 1))
    return frozenset(told) | frozenset({f"committed {number}" for number in range(newest + 1)})


def _begin_job(storage: JobStorage, tmp_path: Path) -> None:
    publish(storage, TermClaim(job=JOB, term=1, host="h", pid=1, at=0))
    publish(storage, TermBase(job=JOB, term=1, resumed=None, reason="fresh", at=0))
    _commit(storage, tmp_path, range(2))


def _commit(storage: JobStorage, tmp_path: Path, epochs: range) -> EpochLedger:
    written = EpochLedger(storage, JOB, [].append)
    for number in epochs:
        written.write_epoch(_epoch(storage, tmp_path, number))
    return written


def test_lines_of_the_ledger_and_old_epochs_that_are_dropped(tmp_path: Path) -> None:
    def run(storage: JobStorage) -> None:
        written = _commit(storage, tmp_path, range(2, 3))
        retention.apply_retention(storage, JOB, 1, lambda: None, record=written.make_durable)

    Operation(lambda storage: _begin_job(storage, tmp_path), run, _job).check(Objects)


# ---------------------------------------------------------------- savepoints


def _make_savepoint(target: Path) -> None:
    with savepoints.draft_savepoint(target) as draft:
        ref = draft.files.upload(_private(draft.work / "rows", b"rows of a savepoint"), "1.rows")
        handle = StateHandle("total", "memory", (0, 127), (ref,), ())
        draft.publish(msgspec.structs.replace(SAVEPOINT, operators=(handle,)))


@pytest.mark.parametrize("made", [False, True], ids=["while it is made", "while it is dropped"])
def test_a_savepoint_is_there_whole_or_not_at_all_and_what_was_begun_goes_with_the_next_one(
    tmp_path: Path, made: bool
) -> None:
    for number, requests in enumerate(every(*CRASHES, *ERRORS)):
        here = Directory(tmp_path / str(number))
        here.root.mkdir()
        target, another = here.root / "savepoints" / "one", here.root / "savepoints" / "two"
        with here.reached(Requests()):
            if made:
                _make_savepoint(target)
        with here.reached(requests), suppress(Crash, OSError):
            savepoints.delete_savepoint(target) if made else _make_savepoint(target)
        with here.reached(Requests()):
            assert not target.exists() or savepoints.find_damage(target) == [], requests
            if target.exists():
                savepoints.delete_savepoint(target)
            _make_savepoint(another)
        assert list(another.parent.iterdir()) == [another], requests
