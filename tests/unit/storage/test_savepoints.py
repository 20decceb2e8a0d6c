"""A savepoint is one directory: whole or not there, checked to the last byte, and never mistaken for another thing."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_samples import JOB, MANIFEST
from msgspec.structs import replace

import kafka_eos
from kafka_eos.abc.committer import CommitOutcome
from kafka_eos.abc.state import InFlightRows, StateDescriptor
from kafka_eos.abc.storage import FileRef, ignore_progress
from kafka_eos.codecs import KeyCodec, MsgpackCodec
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import Epoch, Term, ensure_name
from kafka_eos.runtime.state import canonical_savepoint as making
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage import job_records as manifest
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import record_signatures as signatures
from kafka_eos.storage import retention
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.job_records import Manifest, Receipt, TermBase, TermClaim, publish
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.storage.savepoint_files import Savepoint, SavepointFiles

TOTAL: StateDescriptor[int] = StateDescriptor("sum", KeyCodec(), MsgpackCodec(int))
ROWS = {f"key-{n}": n for n in range(500)}


@pytest.fixture
def job(tmp_path: Path) -> tuple[LocalStorage, Manifest]:
    """A job with one committed epoch: state of RocksDB, and rows between subtasks."""
    storage = LocalStorage(tmp_path / JOB)
    backend = open_backend("rocksdb", "total", tmp_path / "local", range(128), (), storage)
    state = backend.value(TOTAL)
    for key, value in ROWS.items():
        state.put(key, value)
    handle = backend.snapshot(Epoch(7))(storage)
    backend.close()
    frames = tmp_path / "frames"
    frames.write_bytes(b"rows under way")
    in_flight = InFlightRows("by-key", {"name": "msgpack"}, (storage.upload(frames, "0.frames"),), overtaken=True)
    made = {name: getattr(MANIFEST, name) for name in MANIFEST.__struct_fields__}
    manifest = Manifest(**{**made, "states": (handle,), "in_flight": (in_flight,)})
    publish(storage, TermClaim(job=JOB, term=3, host="h", pid=1, at=0))
    publish(storage, TermBase(job=JOB, term=3, resumed=None, reason="first start", at=0))
    publish(storage, manifest)
    publish(storage, Receipt(job=JOB, epoch=7, term=3, created_at=0, outcomes=(CommitOutcome.COMMITTED,)))
    return storage, manifest


@pytest.fixture
def made(job: tuple[LocalStorage, Manifest], tmp_path: Path) -> Path:
    making.write_savepoint(*job, tmp_path / "backup" / "one")
    return tmp_path / "backup" / "one"


def restored(path: Path, scratch: Path) -> dict[str, int]:
    found = savepoints.read_savepoint(path)
    backend = open_backend("memory", "total", scratch, range(128), found.operators, SavepointFiles(path))
    rows = dict(backend.value(TOTAL).items())
    backend.close()
    return rows


def test_a_copy_holds_everything(made: Path, job: tuple[LocalStorage, Manifest], tmp_path: Path) -> None:
    elsewhere = Path(shutil.copytree(made, tmp_path / "elsewhere"))
    shutil.rmtree(made)
    shutil.rmtree(job[0].root)

    assert savepoints.find_damage(elsewhere) == []
    assert restored(elsewhere, tmp_path / "scratch") == ROWS
    found = savepoints.read_savepoint(elsewhere)
    assert (found.job, found.epoch, found.term, found.sources) == (JOB, 7, 3, MANIFEST.sources)
    (ref,) = found.in_flight[0].files
    assert SavepointFiles(elsewhere).path_of(ref).read_bytes() == b"rows under way"


def test_it_is_there_alone(made: Path) -> None:
    assert [entry.name for entry in made.parent.iterdir()] == [made.name]
    assert sorted(entry.name for entry in made.iterdir()) == ["files", "savepoint.json"]
    assert {entry.name for entry in (made / "files").iterdir()} == {
        ref.sha256 for ref in savepoints.read_savepoint(made).files
    }


def test_two_of_the_same_epoch_differ_in_their_id_only(made: Path, job: tuple[LocalStorage, Manifest]) -> None:
    again = making.write_savepoint(*job, made.parent / "two")

    assert again.id != savepoints.read_savepoint(made).id
    assert again.operators == savepoints.read_savepoint(made).operators


def test_retention_cannot_take_the_files_from_one_that_is_begun(
    job: tuple[LocalStorage, Manifest], tmp_path: Path
) -> None:
    pinned = making.begin_savepoint(*job, tmp_path / "later")
    for stored in (job[0].root / paths.SHARED).iterdir():
        stored.unlink()

    pinned.write_savepoint()

    assert restored(tmp_path / "later", tmp_path / "scratch") == ROWS


def test_one_that_is_given_up_leaves_nothing(job: tuple[LocalStorage, Manifest], tmp_path: Path) -> None:
    making.begin_savepoint(*job, tmp_path / "backup" / "never").close()

    assert list((tmp_path / "backup").iterdir()) == []


def test_a_damaged_checkpoint_makes_no_savepoint(job: tuple[LocalStorage, Manifest], tmp_path: Path) -> None:
    (sst,) = (file for file in job[1].states[0].files if file.name.endswith(".sst"))
    damaged = job[0].root / paths.shared_name(sst.object.sha256)
    data = bytearray(damaged.read_bytes())
    data[sst.start + 100] ^= 1
    damaged.write_bytes(data)

    with pytest.raises(CorruptCheckpoint, match=sst.name):
        making.write_savepoint(*job, tmp_path / "backup" / "one")

    assert list((tmp_path / "backup").iterdir()) == []


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("place", ["name", "sha256"])
@pytest.mark.parametrize("part", ["operators", "in_flight"])
def test_a_savepoint_that_names_a_file_elsewhere_is_refused(made: Path, part: str, place: str) -> None:
    """Though another file has the same content."""
    found = savepoints.read_savepoint(made)
    (*others, last) = getattr(found, part)
    forged = replace(last, files=(replace(last.files[-1], **{place: "../../elsewhere"}), *last.files))
    record = replace(found, **{part: (*others, forged)})
    (made / paths.SAVEPOINT).write_bytes(manifest.encode(record))

    with pytest.raises(CorruptCheckpoint, match=r"\.\./\.\./elsewhere"):
        savepoints.read_savepoint(made)


@pytest.mark.parametrize("name", ["../../x", "/x", "..", "", "a/b", "x.scratch", "x\n"])
@pytest.mark.parametrize("kind", ["operator", "state"])
def test_names_of_operators_and_states_lead_nowhere(
    made: Path, job: tuple[LocalStorage, Manifest], name: str, kind: str
) -> None:
    """Engines and tools build paths of names; a savepoint may come from anywhere."""
    (handle,) = savepoints.read_savepoint(made).operators
    states = tuple({**state, "name": name} for state in handle.states)
    forged = replace(handle, operator=name) if kind == "operator" else replace(handle, states=states)
    record = replace(savepoints.read_savepoint(made), operators=(forged,))
    (made / paths.SAVEPOINT).write_bytes(manifest.encode(record))
    stored = replace(job[1], states=(forged,))

    with pytest.raises(CorruptCheckpoint, match="is not usable as a name"):
        savepoints.read_savepoint(made)
    with pytest.raises(CorruptCheckpoint, match="is not usable as a name"):
        manifest.decode(Manifest, stored.name, manifest.encode(stored))


def _torn(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _longer(data: bytes) -> bytes:
    return data + b"\0"


def _flipped(data: bytes) -> bytes:
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


@pytest.mark.parametrize("damage", [_torn, _longer, _flipped])
def test_a_damaged_file_is_named(made: Path, damage: Callable[[bytes], bytes]) -> None:
    (ref,) = savepoints.read_savepoint(made).operators[0].files
    file = made / "files" / ref.sha256
    file.write_bytes(damage(file.read_bytes()))

    (problem,) = savepoints.find_damage(made)

    assert ref.sha256 in problem and "sum.rows" in problem and str(made) in problem


def test_a_missing_file_is_named(made: Path) -> None:
    (ref,) = savepoints.read_savepoint(made).operators[0].files
    (made / "files" / ref.sha256).unlink()

    (problem,) = savepoints.find_damage(made)

    assert ref.sha256 in problem and "missing" in problem


@pytest.mark.parametrize("damage", [_torn, _longer, _flipped, lambda data: b""])
def test_a_damaged_record_is_refused(made: Path, damage: Callable[[bytes], bytes]) -> None:
    record = made / paths.SAVEPOINT
    record.write_bytes(damage(record.read_bytes()))

    with pytest.raises(CorruptCheckpoint, match=str(made)):
        savepoints.read_savepoint(made)


def test_a_name_cannot_lead_out_of_it(made: Path, tmp_path: Path) -> None:
    found = savepoints.read_savepoint(made)
    handle = found.operators[0]
    evil = type(handle.files[0])("../../evil", handle.files[0].sha256, handle.files[0].size)
    values = {name: getattr(found, name) for name in found.__struct_fields__}
    record = Savepoint(**{**values, "operators": (type(handle)("total", "memory", (0, 127), (evil,), handle.states),)})
    (made / paths.SAVEPOINT).unlink()
    publish(SavepointFiles(made), record)

    with pytest.raises(CorruptCheckpoint, match="not a plain file name"):
        savepoints.read_savepoint(made)


def test_a_newer_format_says_so(made: Path) -> None:
    class Later(Savepoint, frozen=True, kw_only=True):
        VERSION = Savepoint.VERSION + 1

    found = savepoints.read_savepoint(made)
    (made / paths.SAVEPOINT).unlink()
    publish(SavepointFiles(made), Later(**{name: getattr(found, name) for name in found.__struct_fields__}))

    with pytest.raises(ConfigError, match="Upgrade kafka-eos"):
        savepoints.read_savepoint(made)


# ---------------------------------------------------------------- its place


@pytest.mark.parametrize("taken", ["savepoint", "directory", "file", "link"])
def test_a_taken_place_is_refused(made: Path, job: tuple[LocalStorage, Manifest], taken: str) -> None:
    place = {"savepoint": made}.get(taken, made.parent / taken)
    if taken == "directory":
        place.mkdir()
        (place / "mine").touch()
    elif taken == "file":
        place.touch()
    elif taken == "link":
        place.symlink_to(made.parent / "nowhere")

    with pytest.raises(ConfigError, match="exists already"):
        making.write_savepoint(*job, place)


def test_a_place_taken_meanwhile_is_left_alone(job: tuple[LocalStorage, Manifest], tmp_path: Path) -> None:
    pinned = making.begin_savepoint(*job, tmp_path / "late")
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "mine").touch()

    with pytest.raises(ConfigError, match="exists already"):
        pinned.write_savepoint()

    assert [entry.name for entry in (tmp_path / "late").iterdir()] == ["mine"]


def test_there_is_no_place_below_a_file(made: Path, job: tuple[LocalStorage, Manifest]) -> None:
    with pytest.raises(ConfigError, match="is not a directory"):
        making.write_savepoint(*job, made / paths.SAVEPOINT / "below" / "it")


def test_an_empty_directory_is_a_place(job: tuple[LocalStorage, Manifest], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    making.write_savepoint(*job, tmp_path / "empty")

    assert savepoints.find_damage(tmp_path / "empty") == []


def test_those_of_a_job_are_listed_and_a_damaged_one_hides_no_other(
    made: Path, job: tuple[LocalStorage, Manifest]
) -> None:
    making.write_savepoint(*job, made.parent / "two")
    (made.parent / "something-else").mkdir()
    (made / paths.SAVEPOINT).write_bytes(b"")

    first, second = savepoints.list_savepoints(made.parent)

    assert (first.path, first.savepoint) == (made, None) and "torn" in first.problem
    assert second.savepoint is not None and second.savepoint.job == JOB
    assert savepoints.list_savepoints(made.parent / "nowhere") == []


def test_those_below_a_directory_are_found(made: Path, job: tuple[LocalStorage, Manifest], tmp_path: Path) -> None:
    deep = tmp_path / "backup" / "2026" / "01"
    making.write_savepoint(*job, deep)
    (made / paths.SAVEPOINT).write_bytes(b"")
    shutil.copytree(deep, tmp_path / "backup" / ".tmp-savepoint-1" / "content")
    (tmp_path / "backup" / "link").symlink_to(deep)

    assert [(found.path, found.savepoint is not None) for found in savepoints.find_savepoints(tmp_path / "backup")] == [
        (deep, True),
        (made, False),
    ]
    assert [found.path for found in savepoints.find_savepoints(deep)] == [deep]
    with pytest.raises(ConfigError, match="is not a directory"):
        savepoints.find_savepoints(tmp_path / "nowhere")


def test_a_directory_that_may_hide_some_is_told(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def as_nobody(path: Any) -> Any:
        """Root, who runs the tests in a container, may look everywhere."""
        if Path(path).name == "shut":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", as_nobody)
    made.parent.joinpath("shut").mkdir()

    assert [found.problem[:10] for found in savepoints.find_savepoints(made.parent)] == ["", "[Errno 13]"]


def test_no_job_can_have_the_name_of_the_place_of_savepoints(tmp_path: Path) -> None:
    target = savepoints.default_target(tmp_path / "orders")

    assert target.parent == tmp_path / "orders.savepoints"
    with pytest.raises(ConfigError):
        ensure_name(target.parent.name, "the pipeline name")


def test_a_savepoint_is_signed_in_place(made: Path, tmp_path: Path) -> None:
    savepoint = savepoints.read_savepoint(made)
    names = sorted(os.listdir(made))
    with pytest.raises(ConfigError, match="nothing to sign with"):
        savepoints.sign_savepoint(made, savepoint)
    (tmp_path / "keys").write_text("11" * 32)
    signatures.use_keys(tmp_path / "keys")
    try:
        with pytest.raises(CorruptCheckpoint, match="it has no signature"):
            savepoints.read_savepoint(made)

        savepoints.sign_savepoint(made, savepoint)

        assert savepoints.read_savepoint(made) == savepoint
    finally:
        signatures.use_keys(None)
    assert (sorted(os.listdir(made)), os.listdir(made.parent)) == (names, ["one"])


def test_drop_removes_a_savepoint_even_if_it_is_damaged(made: Path) -> None:
    (made / "files").rename(made / "gone")
    shutil.rmtree(made / "gone")

    savepoints.delete_savepoint(made)

    assert list(made.parent.iterdir()) == []


def test_drop_knows_a_savepoint_by_whatever_name(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)

    savepoints.delete_savepoint(Path("."))

    assert list(made.parent.iterdir()) == []


@pytest.mark.parametrize("what", ["job", "home", "absent", "link", "more", "lookalike"])
def test_drop_refuses_what_is_not_a_savepoint(
    made: Path, job: tuple[LocalStorage, Manifest], tmp_path: Path, what: str
) -> None:
    place = {"job": job[0].root, "home": tmp_path, "more": made}.get(what, tmp_path / what)
    if what == "link":
        place.symlink_to(made)
    elif what == "more":
        (made / "thesis.txt").touch()
    elif what == "lookalike":
        place.mkdir()
        (place / paths.SAVEPOINT).write_text("{}")
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(ConfigError, match="nothing was removed"):
        savepoints.delete_savepoint(place)

    assert sorted(tmp_path.rglob("*")) == before


# ---------------------------------------------------------------- what it may be made of


def test_the_newest_committed_epoch_is_found(job: tuple[LocalStorage, Manifest]) -> None:
    assert savepoints.newest_committed(job[0], JOB) == job[1]


def test_the_newest_is_found_while_records_of_an_older_term_are_dropped(job: tuple[LocalStorage, Manifest]) -> None:
    """No manifest goes with them."""
    publish(job[0], TermClaim(job=JOB, term=2, host="h", pid=1, at=0))
    publish(job[0], TermBase(job=JOB, term=2, resumed=None, reason="first start", at=0))

    assert savepoints.newest_committed(Dropping(job[0], "read terms"), JOB) == job[1]
    assert paths.base_name(Term(2)) not in job[0].list(paths.TERMS)


def test_an_epoch_that_is_decided_only_must_be_finished_first(job: tuple[LocalStorage, Manifest]) -> None:
    values = {name: getattr(job[1], name) for name in job[1].__struct_fields__}
    publish(job[0], Manifest(**{**values, "epoch": 8}))

    with pytest.raises(ConfigError, match=r"epoch 8/3 .* not committed yet.*doctor APP --resolve"):
        savepoints.newest_committed(job[0], JOB)
    assert savepoints.newest_committed(job[0], JOB, settled=False) == job[1]


def test_a_job_without_a_committed_epoch_has_none(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / JOB)
    publish(storage, TermBase(job=JOB, term=3, resumed=None, reason="first start", at=0))
    publish(storage, MANIFEST)

    with pytest.raises(ConfigError, match="no committed checkpoint"):
        savepoints.newest_committed(storage, JOB)


def later(job: tuple[LocalStorage, Manifest], epoch: int, *, committed: bool = True, term: int = 3) -> None:
    """One more epoch of the job, without files."""
    values = {name: getattr(job[1], name) for name in job[1].__struct_fields__}
    publish(job[0], Manifest(**{**values, "epoch": epoch, "term": term, "states": (), "in_flight": ()}))
    if committed:
        publish(job[0], Receipt(job=JOB, epoch=epoch, term=term, created_at=0, outcomes=(CommitOutcome.COMMITTED,)))


def test_an_older_epoch_becomes_a_savepoint_with_its_rows_under_way(
    job: tuple[LocalStorage, Manifest], tmp_path: Path
) -> None:
    later(job, 8)
    later(job, 9, committed=False)

    made = making.write_epoch(job[0], JOB, 7, tmp_path / "seven")

    assert (made.epoch, made.term, made.in_flight) == (7, 3, job[1].in_flight)
    assert savepoints.find_damage(tmp_path / "seven") == []
    assert restored(tmp_path / "seven", tmp_path / "scratch") == ROWS


def test_only_a_committed_epoch_that_counts_becomes_one(job: tuple[LocalStorage, Manifest], tmp_path: Path) -> None:
    later(job, 8, committed=False)
    later(job, 9, committed=False, term=2)
    target = tmp_path / "never"

    with pytest.raises(ConfigError, match="epoch 8 of job 'totals' is decided, but its output is not committed yet"):
        making.write_epoch(job[0], JOB, 8, target)
    for epoch in (6, 9):
        with pytest.raises(
            ConfigError, match=f"has no stored and committed epoch {epoch}; committed and still stored: 7"
        ):
            making.write_epoch(job[0], JOB, epoch, target)
    assert not target.exists()


class Dropping(LocalStorage):
    """Of a running job that drops all epochs but the newest when the first ``what`` of an object is tried."""

    def __init__(self, storage: LocalStorage, what: str) -> None:
        super().__init__(storage.root)
        self.what = what

    def read(self, name: str) -> bytes:
        self._drop(f"read {name.split('/')[0]}")
        return super().read(name)

    def fetch(self, ref: FileRef, target: Path, passed: Callable[[int], None] = ignore_progress) -> None:
        self._drop("fetch")
        super().fetch(ref, target, passed)

    def _drop(self, doing: str) -> None:
        if doing == self.what:
            self.what = ""
            retention.apply_retention(self, JOB, 1, lambda: None)


@pytest.mark.parametrize("what", ["read terms", "read manifests", "fetch"])
def test_retention_that_is_faster_leaves_nothing_half(
    job: tuple[LocalStorage, Manifest], tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later(job, 8)
    (tmp_path / "backup").mkdir()
    monkeypatch.setattr("kafka_eos.storage.local_files.link", lambda source, target: False)

    with pytest.raises(ConfigError, match="deleted epoch 7 meanwhile"):
        making.write_epoch(Dropping(job[0], what), JOB, 7, tmp_path / "backup" / "seven")

    assert list((tmp_path / "backup").iterdir()) == []


def test_a_file_that_was_lost_otherwise_is_named(job: tuple[LocalStorage, Manifest], tmp_path: Path) -> None:
    lost = job[0].root / paths.shared_name(job[1].states[0].files[0].object.sha256)
    lost.unlink()

    with pytest.raises(CorruptCheckpoint, match=lost.name):
        making.write_epoch(job[0], JOB, 7, tmp_path / "never")


# ---------------------------------------------------------------- crashes

MAKE = """
import sys
from pathlib import Path
from typing import Any
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.runtime.state.canonical_savepoint import write_savepoint
storage = LocalStorage(Path(sys.argv[1]))
write_savepoint(storage, savepoints.newest_committed(storage, sys.argv[2]), Path(sys.argv[3]))
"""


def test_what_a_crash_leaves_is_removed_by_the_next_and_what_another_process_makes_is_not(
    job: tuple[LocalStorage, Manifest], tmp_path: Path
) -> None:
    target = tmp_path / "backup" / "one"
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(kafka_eos.__file__).parents[1]),
        "KAFKA_EOS_FAILPOINTS": "savepoint.staged=kill",
        "KAFKA_EOS_FAILPOINT_LOG": str(tmp_path / "fired"),
    }
    command = [sys.executable, "-c", MAKE, str(job[0].root), JOB, str(target)]
    done = subprocess.run(command, env=environment, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr

    (left,) = target.parent.iterdir()
    assert left.name.startswith(".tmp-savepoint-")
    assert savepoints.list_savepoints(target.parent) == []

    busy = making.begin_savepoint(*job, target.parent / "busy")
    making.write_savepoint(*job, target.parent / "two")
    busy.write_savepoint()

    whole = sorted(target.parent.iterdir())
    assert [entry.name for entry in whole] == ["busy", "two"]
    assert [problem for entry in whole for problem in savepoints.find_damage(entry)] == []
