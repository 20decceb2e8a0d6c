"""The contract of every checkpoint storage, on each: races, kills, damage, lost answers.

S3 is a real server: versitygw if it was built (see ``s3_server``), or the address in TEST_S3; without either, those
cases are skipped. ``pyarrow`` is a directory that is used
through pyarrow.fs as a cluster's file system would be.
"""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from kafka_eos.core.limits import LIMITS

sys.path.insert(0, str(Path(__file__).parent))

import s3_server
import storage_writer

from kafka_eos.abc.committer import UnstoredCommittable
from kafka_eos.abc.storage import FileRef
from kafka_eos.coordination import terms
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, Fenced, Retryable
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import object_store as objects
from kafka_eos.storage import provenance_files as provenance
from kafka_eos.storage import retention
from kafka_eos.storage.job_storage import JobStorage, LocalStorage
from kafka_eos.storage.provenance_files import ProvenanceReader
from kafka_eos.storage.remote_storage import RemoteStorage
from kafka_eos.storage.rolling_log import LocalLog
from kafka_eos.storage.storage_factory import open_storage
from kafka_eos.storage.upload_batch import UploadBatch
from tests.marks import campaign

MIB = 1 << 20


def manifest(number: int) -> str:
    return paths.manifest_name(EpochId(Epoch(number), Term(1)))


@dataclass
class Place:
    """One storage, how another process opens it, and how its bytes are damaged behind its back."""

    where: str
    storage: JobStorage
    overwrite: Callable[[str, bytes], None]


@pytest.fixture(scope="session")
def s3_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with s3_server.reachable(tmp_path_factory.mktemp("s3")) as port:
        yield port


@pytest.fixture
def s3(request: pytest.FixtureRequest) -> str:
    """The address of an empty prefix of a real server."""
    pytest.importorskip("obstore")
    prefix = f"test-{secrets.token_hex(6)}"
    if given := s3_server.given():
        bucket, _, options = given.partition("?")
        return f"{bucket}/{prefix}?{options}"
    return s3_server.address(request.getfixturevalue("s3_port"), prefix)


@pytest.fixture(params=["local", "pyarrow", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    root = tmp_path / "store"
    if request.param == "local":
        return Place(str(root), LocalStorage(root), lambda name, data: _overwrite(root / name, data))
    if request.param == "pyarrow":
        pytest.importorskip("pyarrow")
        where = f"pyarrow:{root}"
        content = root / "job"
        return Place(where, storage_writer.open_for(where),
                     lambda name, data: _overwrite(content / name / "content", data))  # fmt: skip
    uri = request.getfixturevalue("s3")
    store = objects.connect(uri)
    return Place(uri, open_storage(uri), lambda name, data: store.put(name, [data], len(data)))


def _overwrite(path: Path, data: bytes) -> None:
    path.write_bytes(data)


class Writer:
    """A process that writes into a place."""

    def __init__(self, where: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, storage_writer.__file__, where],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def tell(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def writers(where: str, count: int) -> Iterator[list[Writer]]:
    with ExitStack() as stack:
        started = []
        for _ in range(count):
            started.append(Writer(where))
            stack.callback(started[-1].end)
        assert [writer.hear() for writer in started] == ["ready"] * count
        yield started


# ------------------------------------------------------------------ publishing


def test_of_eight_processes_exactly_one_publishes_in_each_of_fifty_rounds(place: Place) -> None:
    with writers(place.where, 8) as racing:
        for number in range(50):
            for index, writer in enumerate(racing):
                writer.tell(f"race {manifest(number)} {index}")
            for writer in racing:
                assert writer.hear() == "begun"
            won = [index for index, writer in enumerate(racing) if writer.hear() == "won"]

            assert len(won) == 1, f"round {number}"
            assert place.storage.read(manifest(number)) == str(won[0]).encode() * 1000

    assert list(place.storage.list(paths.MANIFESTS)) == [manifest(number) for number in range(50)]


def test_of_sixteen_threads_exactly_one_publishes_even_the_same_bytes(place: Place) -> None:
    for number in range(20):
        won, start = [], threading.Barrier(16)

        def publish(number: int = number, won: list[int] = won, start: threading.Barrier = start) -> None:
            start.wait()
            try:
                place.storage.publish(manifest(number), b"equal")
            except FileExistsError:
                return
            won.append(1)

        threads = [threading.Thread(target=publish) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(won) == 1, f"round {number}"


def test_what_is_listed_is_whole_at_any_moment(place: Place) -> None:
    size, torn, seen = 4 * MIB, [], 0
    with writers(place.where, 1) as (writer,):
        for number in range(8):
            writer.tell(f"publish {manifest(number)} {size}")
            assert writer.hear() == "begun"
            done = threading.Thread(target=writer.hear)
            done.start()
            while done.is_alive():
                for name in place.storage.list(paths.MANIFESTS):
                    seen += 1
                    if place.storage.read(name) != storage_writer.content(name, size):
                        torn.append(name)

    assert not torn
    assert len(place.storage.list(paths.MANIFESTS)) == 8
    assert seen > 0


@pytest.mark.parametrize("what", ["publish", campaign("upload")])
def test_a_writer_that_is_killed_leaves_nothing_that_looks_complete(place: Place, tmp_path: Path, what: str) -> None:
    size, cut = 12 * MIB, 0
    for number in range(25):
        name = manifest(number)
        data = storage_writer.content(name, size)
        (tmp_path / str(number)).write_bytes(data)
        stored = name if what == "publish" else paths.shared_name(hashlib.sha256(data).hexdigest())
        with writers(place.where, 1) as (writer,):
            writer.tell(f"publish {name} {size}" if what == "publish" else f"upload x.sst {tmp_path / str(number)}")
            assert writer.hear() == "begun"
            threading.Event().wait(number * 0.003)  # another point of the write each time
            writer.end()
        if stored in place.storage.list(stored.partition("/")[0]):
            assert place.storage.read(stored) == data
        else:
            cut += 1
        (tmp_path / str(number)).unlink()
        if cut >= 8 and number >= 12:
            break

    assert cut > 0, "no kill came in time"
    place.storage.prepare_run()
    place.storage.publish(manifest(99), b"goes on")
    assert place.storage.read(manifest(99)) == b"goes on"


def test_a_start_proves_that_nothing_is_replaced_and_may_be_repeated(place: Place) -> None:
    for _ in range(3):
        place.storage.prepare_run()
    for directory in paths.DIRECTORIES:
        assert list(place.storage.list(directory)) == []


# ------------------------------------------------------------------ names


def test_more_names_than_one_page_are_listed_in_order(place: Place) -> None:
    names = [manifest(number) for number in range(1100)]
    done = threading.Semaphore(0)

    def publish(part: list[str]) -> None:
        for name in part:
            place.storage.publish(name, b"x")
        done.release()

    for index in range(8):
        threading.Thread(target=publish, args=(names[index::8],)).start()
    for _ in range(8):
        done.acquire()

    assert list(place.storage.list(paths.MANIFESTS)) == names
    assert list(place.storage.list(paths.RECEIPTS)) == []


def test_a_deleted_name_is_gone_and_free(place: Place) -> None:
    place.storage.publish(manifest(1), b"one")
    place.storage.delete(manifest(1))
    place.storage.delete(manifest(1))

    assert list(place.storage.list(paths.MANIFESTS)) == []
    with pytest.raises(FileNotFoundError):
        place.storage.read(manifest(1))

    place.storage.publish(manifest(1), b"two")

    assert place.storage.read(manifest(1)) == b"two"


def test_many_names_are_deleted_at_once_and_absent_ones_are_fine(place: Place) -> None:
    """More than a store takes in one request, some of them twice gone."""
    for number in (1, 500, 1200):
        place.storage.publish(manifest(number), b"x")
    place.storage.publish(manifest(1300), b"stays")
    place.storage.delete_all([manifest(number) for number in range(1, 1201)])
    place.storage.delete_all([])

    assert list(place.storage.list(paths.MANIFESTS)) == [manifest(1300)]


# ------------------------------------------------------------------ state files


def upload(place: Place, tmp_path: Path, data: bytes, name: str = "a.sst") -> FileRef:
    path = tmp_path / f"source-{secrets.token_hex(4)}"
    path.write_bytes(data)
    return place.storage.upload(path, name)


@pytest.mark.parametrize("size", [0, 1, 8 * MIB, 8 * MIB + 1, 21 * MIB])
def test_a_file_comes_back_as_it_was_and_equal_content_is_stored_once(place: Place, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    ref, again = upload(place, tmp_path, data), upload(place, tmp_path, data, "b.sst")
    place.storage.fetch(ref, tmp_path / "back")
    place.storage.check_content(again)

    assert (tmp_path / "back").read_bytes() == data
    assert ref == FileRef("a.sst", hashlib.sha256(data).hexdigest(), size)
    assert list(place.storage.list(paths.SHARED)) == [paths.shared_name(ref.sha256)]


def test_the_same_file_from_many_processes_is_stored_once(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(os.urandom(10 * MIB))
    with writers(place.where, 4) as uploading:
        for writer in uploading:
            writer.tell(f"upload a.sst {path}")
        assert [(writer.hear(), writer.hear()) for writer in uploading] == [("begun", "done")] * 4

    ref = place.storage.upload(path, "a.sst")
    place.storage.check_content(ref)
    assert list(place.storage.list(paths.SHARED)) == [paths.shared_name(ref.sha256)]


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "empty"])
def test_a_damaged_file_is_named_and_not_handed_out_as_good(place: Place, tmp_path: Path, damage: str) -> None:
    data = os.urandom(3 * MIB)
    ref = upload(place, tmp_path, data)
    bad = {"flip": bytes([data[0] ^ 1]) + data[1:], "cut": data[:-1], "grow": data + b"x", "empty": b""}
    place.storage.check_size(ref)
    place.overwrite(paths.shared_name(ref.sha256), bad[damage])

    with pytest.raises(CorruptCheckpoint, match=f"shared/{ref.sha256}"):
        place.storage.check_content(ref)
    # Of a file that has its size a look sees nothing: it reads none of it.
    with nullcontext() if damage == "flip" else pytest.raises(CorruptCheckpoint, match=f"shared/{ref.sha256}"):
        place.storage.check_size(ref)
    with pytest.raises(CorruptCheckpoint, match=f"shared/{ref.sha256}"):
        place.storage.fetch(ref, tmp_path / "back")


def test_a_stored_file_of_another_length_is_not_taken_for_stored(place: Place, tmp_path: Path) -> None:
    ref = upload(place, tmp_path, b"whole")
    place.overwrite(paths.shared_name(ref.sha256), b"who")

    with pytest.raises(CorruptCheckpoint, match=ref.sha256):
        upload(place, tmp_path, b"whole")


def add(batch: UploadBatch, tmp_path: Path, *contents: bytes) -> list[Callable[[], FileRef]]:
    """Files are gone once they were added."""
    added = []
    for number, content in enumerate(contents):
        path = tmp_path / f"{number}.sst"
        path.write_bytes(content)
        added.append(batch.add(path))
        path.unlink()
    return added


@pytest.mark.limits(small_file_bytes=1000, state_pack_bytes=2000)
def test_small_files_share_objects_and_come_back_as_they_were(place: Place, tmp_path: Path) -> None:
    contents = [os.urandom(size) for size in (1, 1001, 998, 1000, 1000, 1, 1000)]
    for _ in range(2):  # as after a failure: the same files are stored again
        batch = UploadBatch(place.storage)
        added = add(batch, tmp_path, *contents)
        batch.store()
    refs = [get_ref() for get_ref in added]
    for number, (ref, content) in enumerate(zip(refs, contents, strict=True)):
        place.storage.check_content(ref.object)
        place.storage.check_size(ref.object)
        passed: list[int] = []
        place.storage.fetch(ref, tmp_path / f"back-{number}", passed.append)
        assert (tmp_path / f"back-{number}").read_bytes() == content
        assert sum(passed) == len(content)

    assert [(ref.sha256, ref.size) for ref in refs] == [
        (hashlib.sha256(content).hexdigest(), len(content)) for content in contents
    ]
    assert [(ref.object.size, ref.start) for ref in refs] == [
        (1999, 0), (1001, 0), (1999, 1), (1999, 999), (1001, 0), (1001, 1000), (1000, 0)
    ]  # fmt: skip
    assert {paths.shared_name(ref.object.sha256) for ref in refs} == {*place.storage.list(paths.SHARED)}
    assert [ref.pack is None for ref in refs] == [False, True, False, False, False, False, True]


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_pack_is_named_and_its_other_files_come_back(place: Place, tmp_path: Path, damage: str) -> None:
    batch = UploadBatch(place.storage)
    added = add(batch, tmp_path, b"the first", b"the second")
    batch.store()
    first, second = [get_ref() for get_ref in added]
    name = paths.shared_name(first.object.sha256)
    if damage == "gone":
        place.storage.delete(name)
    else:
        place.overwrite(name, b"the firstthe secomd" if damage == "flip" else b"the firstthe")

    with pytest.raises(CorruptCheckpoint, match=rf"{name} \(1.sst\)"):
        place.storage.fetch(second, tmp_path / "second")
    with pytest.raises(CorruptCheckpoint, match=name):
        place.storage.check_content(second.object)
    with pytest.raises(CorruptCheckpoint, match=name) if damage == "gone" else nullcontext():
        place.storage.fetch(first, tmp_path / "first")
        assert (tmp_path / "first").read_bytes() == b"the first"


def test_a_stored_pack_of_other_content_is_not_taken_for_stored(place: Place, tmp_path: Path) -> None:
    batch = UploadBatch(place.storage)
    place.storage.publish(paths.shared_name(hashlib.sha256(b"a table").hexdigest()), b"a tab1e")
    add(batch, tmp_path, b"a ", b"table")

    with pytest.raises(CorruptCheckpoint, match="shared/[0-9a-f]{64}: the content does not match its checksum"):
        batch.store()


def test_a_missing_file_is_named(place: Place, tmp_path: Path) -> None:
    ref = FileRef("x.sst", "0" * 64, 3)
    with pytest.raises(CorruptCheckpoint, match=f"shared/{ref.sha256}.*x.sst.*missing"):
        place.storage.check_content(ref)
    with pytest.raises(CorruptCheckpoint, match=f"shared/{ref.sha256}.*x.sst.*missing"):
        place.storage.check_size(ref)
    with pytest.raises(CorruptCheckpoint, match="missing"):
        place.storage.fetch(ref, tmp_path / "back")


def test_what_is_fetched_is_told_as_it_passes(place: Place, tmp_path: Path) -> None:
    for name in ("x.sst", "x.rows"):
        ref = upload(place, tmp_path, os.urandom(2 * MIB + 5), name)
        passed: list[int] = []
        place.storage.fetch(ref, tmp_path / f"back-{name}", passed.append)

        assert sum(passed) == ref.size


@pytest.mark.limits(copied_bytes=MIB)
def test_a_large_file_passes_through_little_memory(s3: str, tmp_path: Path) -> None:
    storage = open_storage(s3)
    path = tmp_path / "large"
    with path.open("wb") as file:
        for _ in range(256):
            file.write(os.urandom(MIB))
    upload(Place(s3, storage, lambda name, data: None), tmp_path, b"the client library is loaded")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ref = storage.upload(path, "large.sst")
    storage.fetch(ref, tmp_path / "back")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024

    assert grown < 128, f"{grown:.0f} MiB"


# ------------------------------------------------------------------ the log


def test_a_log_keeps_its_lines_over_segments_and_writers(place: Place) -> None:
    lines = [f'{{"n":{number}}}' for number in range(LIMITS.log_lines_per_segment + 5)]
    for line in lines:
        place.storage.append(paths.HISTORY, line)
    other = storage_writer.open_for(place.where)
    other.append(paths.HISTORY, "later")

    assert list(place.storage.lines(paths.HISTORY)) == [*lines, "later"]
    assert list(other.lines(paths.HISTORY)) == [*lines, "later"]


def test_a_log_that_was_copied_from_a_directory_is_read_first_and_whole(place: Place, tmp_path: Path) -> None:
    local = place.storage.root if isinstance(place.storage, LocalStorage) else tmp_path
    log = LocalLog(local, paths.HISTORY, segment_bytes=100)
    lines = [f"{number:020d}" for number in range(40)]
    for line in lines:
        log.append(line)
    log.compress()
    if isinstance(place.storage, RemoteStorage):
        for path in (each for each in local.rglob("*.jsonl*") if each.is_file()):
            place.storage._store.create(path.relative_to(local).as_posix(), path.read_bytes())
    place.storage.append(paths.HISTORY, "later")

    assert list(place.storage.lines(paths.HISTORY)) == [*lines, "later"]


def test_a_log_is_read_whole_while_it_grows(place: Place) -> None:
    def write() -> None:
        for number in range(150):
            place.storage.append(paths.HISTORY, str(number))

    writer, seen = threading.Thread(target=write), 0
    writer.start()
    try:
        while writer.is_alive():
            found = list(place.storage.lines(paths.HISTORY))
            assert found == [str(number) for number in range(len(found))]
            assert len(found) >= seen
            seen = len(found)
    finally:
        writer.join()

    assert len(place.storage.lines(paths.HISTORY)) == 150


# ------------------------------------------------------------------ what rests on it


def test_terms_fence_and_retention_cleans(place: Place, tmp_path: Path) -> None:
    first = terms.claim(place.storage, "job", Term(0))
    terms.ensure_newest(place.storage, first)
    second = terms.claim(storage_writer.open_for(place.where), "job", Term(0))
    terms.write_base(place.storage, "job", second, None, "first start")

    assert second > first
    assert terms.list_records(place.storage, "job").claims == {first, second}
    with pytest.raises(Fenced):
        terms.ensure_newest(place.storage, first)

    stray = upload(place, tmp_path, b"named by no manifest")
    assert (
        retention.apply_retention(place.storage, "job", 1, lambda: None) == ()
    )  # nothing is finished yet, so nothing goes
    place.storage.check_content(stray)


@pytest.mark.limits(files_per_pack=8, packs_per_round=16, pack_bytes=1 << 22)
@pytest.mark.parametrize("point", ["packing.published", "packing.deleted"])
def test_who_packs_provenance_may_be_killed_while_somebody_reads_and_the_next_one_goes_on(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    files = list[tuple[Epoch, FileRef, bytes]]()
    for number in range(3 * LIMITS.files_per_pack + 2):
        content = b"of epoch %d" % number
        ref = FileRef(f"{number}-0", hashlib.sha256(content).hexdigest(), len(content))
        provenance.store_provenance(
            place.storage, Epoch(number), UnstoredCommittable("kafka", {}, 1, {}, {}, ref, content)
        )
        files.append((Epoch(number), ref, content))
    log = tmp_path / "failpoints.log"
    monkeypatch.setenv("KAFKA_EOS_FAILPOINTS", f"{point}=kill@2")
    monkeypatch.setenv("KAFKA_EOS_FAILPOINT_LOG", str(log))
    shelf = ProvenanceReader(place.storage)

    with writers(place.where, 2) as (one, other):
        one.tell("pack - -")
        begun = [shelf.load(ref, epoch) for epoch, ref, _ in files]
        heard = [one.hear(), one.hear()]
        other.tell("pack - -")
        ended = [shelf.load(ref, epoch) for epoch, ref, _ in files]
        heard += [other.hear(), other.hear()]

    assert (heard, point in log.read_text()) == (["begun", "", "begun", "done"], True)
    assert begun == ended == [content for _, _, content in files]
    assert len(place.storage.list(paths.PROVENANCE)) < LIMITS.files_per_pack
    assert [ProvenanceReader(place.storage).load(ref, epoch) for epoch, ref, _ in files] == begun


# ------------------------------------------------------------------ S3 only


@pytest.fixture
def cutter(s3_port: int) -> Iterator[s3_server.Cutter]:
    proxy = s3_server.Cutter(s3_port)
    yield proxy
    proxy.close()


def through(port: int, retry_seconds: float = 2.0) -> RemoteStorage:
    """A storage that gives up soon."""
    uri = s3_server.address(port, f"test-{secrets.token_hex(6)}")
    return RemoteStorage(objects.connect(uri, retry_seconds=retry_seconds))


def test_a_publish_whose_answer_is_lost_happened_once(cutter: s3_server.Cutter) -> None:
    storage = through(cutter.port)
    cutter.cut = True
    storage.publish(manifest(1), b"mine")

    assert cutter.dropped > 0
    assert storage.read(manifest(1)) == b"mine"


def test_a_lost_answer_is_not_taken_for_success_if_another_published_the_same(cutter: s3_server.Cutter) -> None:
    storage = through(cutter.port)
    storage.publish(manifest(1), b"equal")
    cutter.cut = True
    with pytest.raises(FileExistsError):
        storage.publish(manifest(1), b"equal")


def test_a_server_that_is_away_is_an_io_error_and_never_an_empty_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    for name, value in s3_server.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    storage = through(s3_server.free_port(), retry_seconds=0.2)
    (tmp_path / "x").write_bytes(b"x")
    for call in (
        lambda: storage.list(paths.MANIFESTS),
        lambda: storage.read(manifest(1)),
        lambda: storage.publish(manifest(1), b"x"),
        lambda: storage.upload(tmp_path / "x", "x"),
        lambda: storage.check_content(FileRef("x", "0" * 64, 1)),
        lambda: storage.check_size(FileRef("x", "0" * 64, 1)),
        lambda: storage.delete(manifest(1)),
    ):
        with pytest.raises(OSError) as raised:  # noqa: PT011 - which, is said below
            call()
        assert not isinstance(raised.value, FileNotFoundError | FileExistsError)


def test_a_bucket_that_does_not_exist_is_named(s3_port: int) -> None:
    storage = open_storage(s3_server.address(s3_port, "x").replace(s3_server.BUCKET, "no-such-bucket"))
    with pytest.raises(ConfigError, match="no-such-bucket"):
        storage.prepare_run()


def test_wrong_credentials_are_said_at_the_start(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(ConfigError, match="no right to write checkpoints"):
        open_storage(s3_server.address(s3_port, "x")).prepare_run()


# ------------------------------------------------------------------ refused


class Replacing(dict[str, bytes]):
    """A store that accepts the demand to replace nothing and ignores it, as old S3 servers do."""

    def create(self, name: str, data: bytes) -> None:
        self[name] = data

    def remove_debris(self) -> None: ...


def test_a_store_that_replaces_what_it_must_not_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="cannot decide which of two supervisors"):
        RemoteStorage(Replacing()).prepare_run()  # type: ignore[arg-type]


class Away(Replacing):
    """A store that nobody has reached, as a start finds it."""

    def create(self, name: str, data: bytes) -> None:
        raise OSError(errno.EIO, "no answer from the bucket", name)


def test_a_store_that_is_away_at_the_start_is_told_with_what_to_check() -> None:
    with pytest.raises(Retryable, match=r"usable response: no answer from the bucket\. Check checkpoint_dir"):
        RemoteStorage(Away()).prepare_run()  # type: ignore[arg-type]


# ------------------------------------------------------------------ addresses


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("s3://bucket/x?secret_access_key=abc", "does not belong in an address"),
        ("s3://bucket/x?no_such_option=1", "no_such_option"),
        ("nonsense://bucket/x", "nonsense"),
    ],
)
def test_a_wrong_address_says_what_is_wrong(uri: str, said: str) -> None:
    pytest.importorskip("obstore")
    with pytest.raises(ConfigError, match=said) as raised:
        open_storage(uri)

    assert "abc" not in str(raised.value)


def test_a_path_and_a_file_address_are_local(tmp_path: Path) -> None:
    for where in (tmp_path / "a b", str(tmp_path / "a b"), f"file://{tmp_path}/a%20b"):
        storage = open_storage(where)
        assert isinstance(storage, LocalStorage)
        assert storage.root == tmp_path / "a b"
