"""The contract of both storages, and the faults of a disk."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from kafka_eos.abc.storage import FileRef
from kafka_eos.coordination import terms
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import Term
from kafka_eos.storage import job_records as records
from kafka_eos.storage import local_files as files
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import remote_storage as remote
from kafka_eos.storage.job_storage import JobStorage, LocalStorage
from kafka_eos.storage.pyarrow_store import PyArrowStore
from kafka_eos.storage.remote_storage import RemoteStorage
from kafka_eos.storage.storage_factory import find_storage, open_claimed_storage

NAME = "manifests/000000000001-00000001.json"


@pytest.fixture
def local(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "job")


def stored(storage: JobStorage, tmp_path: Path, data: bytes, name: str = "a.rows") -> FileRef:
    path = tmp_path / f"source-{os.urandom(4).hex()}"
    path.write_bytes(data)
    return storage.upload(path, name)


def test_what_is_published_is_read_and_listed(storage: JobStorage) -> None:
    storage.publish(NAME, b"one")

    assert storage.read(NAME) == b"one"
    assert list(storage.list("manifests")) == [NAME]
    assert list(storage.list("receipts")) == []


def test_a_published_name_is_never_replaced(storage: JobStorage) -> None:
    data = b"one"
    storage.publish(NAME, data)
    for again in (data, b"two"):
        with pytest.raises(FileExistsError):
            storage.publish(NAME, again)

    assert storage.read(NAME) == data


def test_of_many_publishers_exactly_one_wins(storage: JobStorage) -> None:
    won: list[int] = []
    start = threading.Barrier(8)

    def publish(number: int) -> None:
        start.wait()
        try:
            storage.publish(NAME, b"%d" % number * 10_000)
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(won) == 1
    assert storage.read(NAME) == b"%d" % won[0] * 10_000


def test_deleting_twice_is_fine_and_reading_then_fails(storage: JobStorage) -> None:
    storage.publish(NAME, b"one")
    storage.delete(NAME)
    storage.delete(NAME)

    with pytest.raises(FileNotFoundError):
        storage.read(NAME)


@pytest.mark.parametrize("name", ["../outside", "/tmp/x", "manifests/../../x", "elsewhere/x", "manifests/.tmp-1"])
def test_no_object_is_outside_the_job(storage: JobStorage, name: str) -> None:
    with pytest.raises(CorruptCheckpoint):
        storage.publish(name, b"x")
    with pytest.raises(CorruptCheckpoint):
        storage.read(name)
    with pytest.raises(CorruptCheckpoint):
        storage.delete(name)


@pytest.mark.parametrize("name", ["a.rows", "000010.sst"])
def test_a_file_comes_back_as_it_was(storage: JobStorage, tmp_path: Path, name: str) -> None:
    data = os.urandom(3 << 20)
    ref = stored(storage, tmp_path, data, name)
    storage.fetch(ref, tmp_path / "back")
    storage.check_content(ref)

    assert ref == FileRef(name, hashlib.sha256(data).hexdigest(), len(data))
    assert (tmp_path / "back").read_bytes() == data


def test_equal_content_is_stored_once(storage: JobStorage, tmp_path: Path) -> None:
    one, two = stored(storage, tmp_path, b"same", "a"), stored(storage, tmp_path, b"same", "b")

    assert one.sha256 == two.sha256
    assert list(storage.list("shared")) == [f"shared/{one.sha256}"]


def test_a_missing_file_is_named(storage: JobStorage, tmp_path: Path) -> None:
    ref = FileRef("x.sst", "0" * 64, 3)
    with pytest.raises(CorruptCheckpoint, match=f"shared/{ref.sha256}.*x.sst.*missing"):
        storage.fetch(ref, tmp_path / "back")
    with pytest.raises(CorruptCheckpoint, match="missing"):
        storage.check_content(ref)


def test_a_log_keeps_complete_lines(storage: JobStorage) -> None:
    storage.append("history.jsonl", '{"a":1}')
    storage.append("history.jsonl", '{"b":2}')

    assert list(storage.lines("history.jsonl")) == ['{"a":1}', '{"b":2}']


@pytest.mark.limits(log_lines_per_segment=2, log_lines_per_object=2)
def test_lines_of_a_log_are_in_order_though_the_clock_is_set_back(
    storage: JobStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of a process that another machine begins later, whose clock is slow."""
    clock = iter(range(2_000_000_000_000, 0, -1000))
    monkeypatch.setattr(remote.time, "time_ns", lambda: next(clock) * 1_000_000)
    writers = [storage, RemoteStorage(storage._store) if isinstance(storage, RemoteStorage) else storage]
    for number in range(8):
        writers[number // 4].append("history.jsonl", str(number))

    assert list(storage.lines("history.jsonl")) == list("01234567")


@pytest.mark.limits(log_lines_per_segment=2, log_lines_per_object=2)
def test_shorter_versions_of_a_segment_go_when_two_newer_ones_were_begun(tmp_path: Path) -> None:
    """Who lists a store while a line is written may see neither the version that goes nor the one that comes."""
    fs = pytest.importorskip("pyarrow.fs")
    storage = RemoteStorage(PyArrowStore(fs.LocalFileSystem(), str(tmp_path)))
    (tmp_path / "history" / "not a segment").mkdir(parents=True)
    for number in range(7):
        storage.append("history.jsonl", str(number))
    storage.compress_logs()

    kept = map(paths.parse_segment_name, (name for name in storage.list("history") if paths.is_segment(name)))
    assert [segment.lines for segment in kept] == [2, 2, 1, 2, 1]
    assert list(storage.lines("history.jsonl")) == list("0123456")


class _Failing(PyArrowStore):
    """Requests to create objects fail; ``done``: they are carried out all the same."""

    fails, done = False, False

    def create(self, name: str, data: bytes) -> None:
        self.written = data
        if self.done or not self.fails:
            super().create(name, data)
        if self.fails:
            raise OSError(errno.EIO, "no answer", name)


@pytest.mark.limits(log_lines_per_segment=27, log_lines_per_object=3)
def test_a_line_of_a_log_in_a_store_is_written_with_few_others_and_read_once_whichever_requests_fail(
    tmp_path: Path,
) -> None:
    """Each line is in an object of its own, in one of 3 lines, in one of 9 and in one of 27; compression keeps all."""
    fs = pytest.importorskip("pyarrow.fs")
    fates = random.Random(1)
    store = _Failing(fs.LocalFileSystem(), str(tmp_path))
    storage, size = RemoteStorage(store), 0
    for number in range(200):
        store.fails, store.done = number < 100 and fates.random() < 0.3, fates.random() < 0.5
        with suppress(OSError):
            storage.append("history.jsonl", f"{number:03d}")
        size += len(store.written) if number >= 110 else 0
        if number % 7 == 0 and not store.fails:
            storage.compress_logs()
            assert list(storage.lines("history.jsonl")) == [f"{line:03d}" for line in range(number + 1)]

    assert size <= 4 * 4 * 90


def test_a_log_that_does_not_exist_is_empty(storage: JobStorage) -> None:
    assert list(storage.lines("history.jsonl")) == []


# ---------------------------------------------------------------- only a disk


def test_a_torn_last_line_is_dropped_and_does_not_spoil_the_next(local: LocalStorage) -> None:
    local.append("history.jsonl", "whole")
    with (local.root / "history.jsonl").open("ab") as log:
        log.write(b"to")

    assert list(local.lines("history.jsonl")) == ["whole"]

    local.append("history.jsonl", "next")

    assert list(local.lines("history.jsonl")) == ["whole", "to", "next"]


@pytest.mark.parametrize("name", ["a.rows", "000010.sst"])
@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "empty"])
def test_a_damaged_file_is_named_and_not_handed_out_as_good(
    local: LocalStorage, tmp_path: Path, name: str, damage: str
) -> None:
    data = os.urandom(10_000)
    ref = stored(local, tmp_path, data, name)
    path = local.root / "shared" / ref.sha256
    bad = {
        "flip": b"\1" + data[1:] if data[0] != 1 else b"\2" + data[1:],
        "cut": data[:-1],
        "grow": data + b"x",
        "empty": b"",
    }
    path.write_bytes(bad[damage])

    with pytest.raises(CorruptCheckpoint, match=f"shared/{ref.sha256}"):
        local.check_content(ref)
    with pytest.raises(CorruptCheckpoint, match=f"shared/{ref.sha256}"):
        local.fetch(ref, tmp_path / "back")


def test_every_sampled_flip_of_a_stored_file_is_detected(local: LocalStorage, tmp_path: Path) -> None:
    data = os.urandom(4096)
    ref = stored(local, tmp_path, data)
    path = local.root / "shared" / ref.sha256
    for position in range(0, len(data), 37):
        bad = bytearray(data)
        bad[position] ^= 1 << position % 8
        path.write_bytes(bad)
        with pytest.raises(CorruptCheckpoint, match=ref.sha256):
            local.check_content(ref)


def test_links_are_not_followed(local: LocalStorage, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x")
    (local.root / NAME).symlink_to(secret)
    sha256 = hashlib.sha256(b"x").hexdigest()
    (local.root / "shared" / sha256).symlink_to(secret)
    (tmp_path / "link").symlink_to(secret)

    with pytest.raises(CorruptCheckpoint, match=NAME):
        local.read(NAME)
    with pytest.raises(FileExistsError):
        local.publish(NAME, b"y")
    with pytest.raises(CorruptCheckpoint, match=sha256):
        local.fetch(FileRef("a", sha256, 1), tmp_path / "back")
    with pytest.raises(CorruptCheckpoint, match=sha256):
        local.upload(secret, "a")
    with pytest.raises(OSError, match="symbolic link"):
        local.upload(tmp_path / "link", "a")
    (tmp_path / "directory").symlink_to(local.root)
    with pytest.raises(OSError, match="directory"):
        files.sync_directory(tmp_path / "directory")
    assert secret.read_bytes() == b"x"


def test_a_job_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "job").symlink_to(tmp_path / "real")

    with pytest.raises(NotADirectoryError):
        LocalStorage(tmp_path / "job")


def test_nobody_else_may_read(local: LocalStorage, tmp_path: Path) -> None:
    local.publish(NAME, b"x")
    ref = stored(local, tmp_path, b"y")
    local.append("history.jsonl", "z")
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [local.root, *local.root.rglob("*")]}

    assert {found[name] for name in ("job", "manifests", "shared", "terms", "receipts")} == {0o700}
    assert {found[Path(NAME).name], found[ref.sha256], found["history.jsonl"]} == {0o600}


def given(tmp_path: Path, mode: int) -> Path:
    path = tmp_path / "given"
    path.write_bytes(b"given")
    path.chmod(mode)
    return path


def test_a_private_file_gets_a_second_name(local: LocalStorage, tmp_path: Path) -> None:
    path = given(tmp_path, 0o600)

    assert os.path.samefile(path, local.root / "shared" / local.upload(path, "a.rows").sha256)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o400, 0o444])
def test_a_file_of_any_other_mode_is_copied_and_stays_as_it_is(local: LocalStorage, tmp_path: Path, mode: int) -> None:
    path = given(tmp_path, mode)
    stored_as = local.root / "shared" / local.upload(path, "a.rows").sha256

    assert not os.path.samefile(path, stored_as)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path, stored_as)] == [mode, 0o600]


def test_a_file_of_another_user_is_copied(local: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, user = given(tmp_path, 0o600), os.geteuid()
    monkeypatch.setattr(files.os, "geteuid", lambda: user + 1)

    assert not os.path.samefile(path, local.root / "shared" / local.upload(path, "a.rows").sha256)


def test_an_immutable_file_is_linked_both_ways_and_any_other_is_copied(local: LocalStorage, tmp_path: Path) -> None:
    """A file that its owner appends to must not be the stored one."""
    table, log = stored(local, tmp_path, b"table", "1.sst"), stored(local, tmp_path, b"log", "MANIFEST-1")
    for ref in (table, log):
        local.fetch(ref, tmp_path / ref.name)
    with (tmp_path / "MANIFEST-1").open("ab") as appended:
        appended.write(b"more")

    assert os.path.samefile(tmp_path / "1.sst", local.root / "shared" / table.sha256)
    local.check_content(log)


def test_without_hard_links_files_are_copied(
    local: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file system than that of the job: EXDEV, as the kernel says it."""
    link = os.link

    def across(source: Path, target: Path, **kwargs: bool) -> None:
        if Path(source).is_relative_to(local.root) != Path(target).is_relative_to(local.root):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        link(source, target, **kwargs)

    monkeypatch.setattr(os, "link", across)
    ref = stored(local, tmp_path, b"table", "1.sst")
    local.fetch(ref, tmp_path / "back")

    assert (tmp_path / "back").read_bytes() == b"table"
    assert not os.path.samefile(tmp_path / "back", local.root / "shared" / ref.sha256)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_a_disk_error_comes_out_and_leaves_no_temporary(
    local: LocalStorage, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files.os, call, fails)
    with pytest.raises(OSError, match=os.strerror(code)) as raised:
        local.publish(NAME, b"x")

    assert raised.value.errno == code
    assert list((local.root / "manifests").iterdir()) == []


def test_tidy_removes_what_dead_processes_left(local: LocalStorage) -> None:
    local.publish(NAME, b"x")
    with (
        files.create_file(files.temporary_path(local.root / "manifests")),
        files.create_file(files.temporary_path(local.root / "shared")),
    ):
        pass

    assert list(local.list("manifests")) == [NAME]

    local.prepare_run()

    assert sorted(p.name for p in local.root.rglob("*") if p.is_file()) == [Path(NAME).name]


def test_what_could_not_be_synced_is_synced_before_anything_is_decided_on_it(
    local: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery in the same process sees the object, and begins with the publication of its claim."""
    synced, fails = [], [True]
    sync_directory = files.sync_directory

    def sync(directory: Path) -> None:
        if fails:
            fails.pop()
            raise OSError(errno.EIO, "the disk is away")
        synced.append(directory.name)
        sync_directory(directory)

    monkeypatch.setattr(files, "sync_directory", sync)
    with pytest.raises(OSError, match="away"):
        local.publish("manifests/000000000001-00000001.json", b"decided")

    local.publish("terms/00000002.claim.json", b"claimed")

    assert synced == ["manifests", "terms"]


def test_directories_that_were_synced_are_closed_again(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        files.sync_directory(tmp_path)

    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("made", [paths.TERMS, paths.MANIFESTS])
@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_only_the_storage_of_a_job_that_was_started_is_found(tmp_path: Path, made: str, address: str) -> None:
    """To look for it creates nothing."""
    where = address.format(tmp_path / "job")

    assert find_storage(where) is None and not (tmp_path / "job").exists()
    (tmp_path / "job" / paths.RECEIPTS).mkdir(parents=True)
    assert find_storage(where) is None and os.listdir(tmp_path / "job") == [paths.RECEIPTS]
    (tmp_path / "job" / made).mkdir()
    assert find_storage(where) is None
    (tmp_path / "job" / made / "00000001.json").write_bytes(b"")
    found = find_storage(where)
    assert found is not None and list(found.list(made)) == [f"{made}/00000001.json"]


def test_a_worker_works_where_it_reads_the_claim_of_its_supervisor(tmp_path: Path) -> None:
    claim = paths.claim_name(terms.claim(LocalStorage(tmp_path), "job", Term(0)))

    storage = open_claimed_storage(tmp_path, Term(1), LocalStorage(tmp_path).read(claim))

    assert storage.list(paths.TERMS) == [claim]


def test_a_directory_of_one_name_on_another_machine_is_not_that_of_the_supervisor(tmp_path: Path) -> None:
    """It may be absent, and stays so; or hold the same term of an earlier run on that machine."""
    here, elsewhere = LocalStorage(tmp_path / "here"), LocalStorage(tmp_path / "elsewhere")
    claim = paths.claim_name(terms.claim(here, "job", Term(0)))
    records.publish(elsewhere, records.TermClaim(job="job", term=1, host="elsewhere", pid=1, at=1))

    for place in ("absent", "elsewhere"):
        with pytest.raises(ConfigError, match="not the same location on every machine: .* the claim of term 1"):
            open_claimed_storage(tmp_path / place, Term(1), here.read(claim))

    assert not (tmp_path / "absent").exists()
