"""Savepoints: one directory with everything that a job needs to go on, wherever it is copied to.

    savepoint.json     what the job was: where it had read to, and its state, by operator
    files/<sha256>     the state: rows in key order, the same whatever backend and parallelism they came from

Rule: a savepoint is there whole or not at all, and never changes. It is made beside its place and renamed; what a
crash leaves of one is a hidden directory that the next one made there removes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from kafka_eos._util import failpoints
from kafka_eos.abc.state import InFlight, StateHandle
from kafka_eos.abc.storage import CheckpointStorage, FileRef
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.json_values import Positions
from kafka_eos.protocol.lineage import lineage
from kafka_eos.storage import job_records as manifest
from kafka_eos.storage import local_files as files
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import retention
from kafka_eos.storage.job_records import Manifest, Record
from kafka_eos.storage.job_storage import LocalFiles

_DRAFT = f"{files.TEMPORARY}savepoint-"


class Savepoint(Record, frozen=True, kw_only=True):
    """What ``savepoint.json`` holds. ``id`` is random: it tells two savepoints apart wherever they are copied."""

    FORMAT: ClassVar[str] = "savepoint"

    id: str
    epoch: int
    """The epoch that it was made of; 0 if it was not made of one."""
    term: int
    created_at: int
    """Milliseconds since the Unix epoch."""
    plan: str
    """Fingerprint of the plan that made the epoch."""
    max_key_groups: int
    sources: dict[str, Positions]
    """Where to read next, by source operator."""
    operators: tuple[StateHandle, ...]
    """The state, in the memory backend's row format; large state is several handles of an operator."""
    in_flight: tuple[InFlight, ...] = ()
    """Rows between subtasks that belong to the epoch."""
    identity: str | None = None
    """Which life of the job's name it is of; None if it was not made of a job."""

    @property
    def name(self) -> str:
        return paths.SAVEPOINT

    @property
    def files(self) -> tuple[FileRef, ...]:
        """Every file, once."""
        of_state = [file for handle in self.operators for file in handle.files]
        under_way = [file for rows in self.in_flight for file in rows.files]
        return tuple({ref.sha256: ref for ref in of_state + under_way}.values())


class Origin(Record, frozen=True, kw_only=True):
    """Which savepoint a job began with; kept in the job's directory for as long as the job lives."""

    FORMAT: ClassVar[str] = "origin"

    savepoint: str
    """Its id."""
    path: str
    """Where it was then, for people."""
    at: int
    """Milliseconds since the Unix epoch."""

    @property
    def name(self) -> str:
        return paths.ORIGIN


class SavepointFiles(LocalFiles):
    """The files of a savepoint as a storage: state is stored into it while it is made, and restored from it.

    ``ordered`` says that files of rows are in key order, as in every savepoint.
    """

    def __init__(self, root: Path, *, ordered: bool = True) -> None:
        super().__init__(root)
        self.ordered = ordered

    def path_of(self, ref: FileRef) -> Path:
        """Where the content of a file is."""
        return self._path(paths.shared_name(ref.sha256))

    def _path(self, name: str) -> Path:
        if name == paths.SHARED:
            return self.root / paths.SAVEPOINT_FILES
        if name == paths.SAVEPOINT:
            return self.root / name
        return self.root / paths.SAVEPOINT_FILES / paths.parse_shared_name(name)


# ---------------------------------------------------------------- reading


def read(path: Path) -> Savepoint:
    """What the savepoint in directory ``path`` holds; its files are not looked at.

    Raises ConfigError if it is no savepoint, or one of a newer kafka-eos; CorruptCheckpoint if it is damaged.
    """
    try:
        data = SavepointFiles(path).read(paths.SAVEPOINT)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{path} is not a savepoint: it has no {paths.SAVEPOINT}") from None
    try:
        found = manifest.decode(Savepoint, paths.SAVEPOINT, data)
    except CorruptCheckpoint as error:
        raise CorruptCheckpoint(f"savepoint {path}: {error}") from error
    for ref in found.files:
        paths.plain_file_name(ref.name)
        paths.shared_name(ref.sha256)
    return found


def verify(path: Path) -> list[str]:
    """What is wrong with a savepoint, one line a damaged file; empty if it can be restored. Raises as ``read``."""
    storage, problems = SavepointFiles(path), []
    for ref in read(path).files:
        try:
            storage.check(ref)
        except CorruptCheckpoint as error:
            problems.append(f"{path}: {error}")
    return problems


@dataclass(frozen=True, slots=True)
class Listed:
    """A savepoint in a directory of savepoints: what it holds, or why that cannot be read."""

    path: Path
    savepoint: Savepoint | None
    problem: str = ""


def listed(directory: Path) -> Sequence[Listed]:
    """The savepoints right below ``directory``, oldest name first; [] if it does not exist."""
    names = sorted(os.listdir(directory)) if directory.is_dir() else []
    found = (directory / name for name in names if not name.startswith(files.TEMPORARY))
    return [look(path) for path in found if (path / paths.SAVEPOINT).exists()]


def below(directory: Path) -> Sequence[Listed]:
    """The savepoints at or anywhere below ``directory``, by name; links are not followed. ConfigError if it is none.

    A directory that cannot be looked into is listed with the reason: there may be some in it.
    """
    if not directory.is_dir():
        raise ConfigError(f"{directory} is not a directory")
    found: list[Listed] = []

    def shut(error: OSError) -> None:
        found.append(Listed(Path(error.filename), None, str(error)))

    for name, names, inside in os.walk(directory, onerror=shut):
        if paths.SAVEPOINT in inside:
            found.append(look(Path(name)))
            names.clear()
        names[:] = [name for name in names if not name.startswith(files.TEMPORARY)]
    return sorted(found, key=lambda listed: listed.path)


def look(path: Path) -> Listed:
    """What is at ``path``, whatever it is."""
    try:
        return Listed(path, read(path))
    except (ConfigError, CorruptCheckpoint, OSError) as error:
        return Listed(path, None, str(error))


# ---------------------------------------------------------------- what one is made of


def newest_committed(storage: CheckpointStorage, job: str, *, settled: bool = True) -> Manifest:
    """The newest epoch of a job whose output is committed. ConfigError if there is none.

    With ``settled``, also if a newer one is decided: the next start commits its output, and a job that begins with
    the older one would make that output again.

    The job may run meanwhile, and drop what was listed: then it is looked for again, until two lists are the same.
    """
    known: tuple[Sequence[str], Sequence[str]] | None = None
    gone: FileNotFoundError | None = None
    while (stored := (storage.list(paths.MANIFESTS), storage.list(paths.TERMS))) != known:
        known, gone = stored, None
        try:
            if found := _newest_of(storage, job, stored[0], settled):
                return found
        except FileNotFoundError as error:
            gone = error
    raise gone or ConfigError(f"job {job!r} has no committed checkpoint yet")


def _newest_of(storage: CheckpointStorage, job: str, stored: Sequence[str], settled: bool) -> Manifest | None:
    """As ``newest_committed``, of manifests that were listed before. FileNotFoundError if one is gone since."""
    counted = lineage([paths.parse_manifest_name(name) for name in stored], retention.bases(storage, job))[::-1]
    receipts = frozenset(paths.parse_receipt_name(name) for name in storage.list(paths.RECEIPTS))
    newest = next((epoch for epoch in counted if epoch in receipts), None)
    if newest is None:
        return None
    if settled and counted[0] != newest:
        raise ConfigError(
            f"epoch {counted[0]} of job {job!r} is decided, and its output not committed yet: finish it first, with "
            "kafka-eos doctor APP --end or by starting the job"
        )
    return manifest.load(storage, Manifest, paths.manifest_name(newest), job)


def committed(storage: CheckpointStorage, job: str, epoch: int) -> Manifest:
    """The stored epoch of that number. ConfigError if there is none, or none whose output is committed.

    The job may run meanwhile, and go on: what it drops is missed, never mistaken. So receipts are listed first, and
    manifests, which are dropped before them, later.
    """
    try:
        receipts = frozenset(paths.parse_receipt_name(name) for name in storage.list(paths.RECEIPTS))
        stored = [paths.parse_manifest_name(name) for name in storage.list(paths.MANIFESTS)]
        counted = lineage(stored, retention.bases(storage, job))[::-1]
        for found in counted:
            if found.epoch.n == epoch and found in receipts:
                return manifest.load(storage, Manifest, paths.manifest_name(found), job)
    except FileNotFoundError as error:
        raise dropped(job, epoch) from error
    if any(found.epoch.n == epoch for found in counted):
        raise ConfigError(
            f"epoch {epoch} of job {job!r} is decided, and its output not committed yet: wait for it, or finish "
            "it, with kafka-eos doctor APP --end or by starting the job"
        )
    known = ", ".join(str(found.epoch) for found in sorted(counted) if found in receipts) or "none"
    raise ConfigError(f"job {job!r} stores no epoch {epoch} that counts; committed and still stored: {known}")


def dropped(job: str, epoch: int) -> ConfigError:
    """The running job was faster than whoever wanted to keep an epoch of it."""
    return ConfigError(
        f"job {job!r} has dropped checkpoints while epoch {epoch} was to be kept: see kafka-eos checkpoints list {job} "
        "for those that are left; the setting retained_checkpoints says how many are kept"
    )


# ---------------------------------------------------------------- making


class SavepointDraft:
    """A savepoint in the making. ``files`` takes its files; ``work`` is for whatever else is needed meanwhile."""

    def __init__(self, root: Path, target: Path) -> None:
        self._root, self._target = root, target
        self.work = root / "work"
        self.content = root / "content"
        for directory in (self.work, self.content, self.content / paths.SAVEPOINT_FILES):
            directory.mkdir(mode=0o700)
        self.files = SavepointFiles(self.content)

    def publish(self, savepoint: Savepoint) -> None:
        """Give it its name. The files must be stored already; durable on return."""
        manifest.publish(self.files, savepoint)
        files.sync_directory(self.content)
        failpoints.hit("savepoint.staged")
        try:
            os.rename(self.content, self._target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise _taken(self._target) from error
            raise
        files.sync_directory(self._target.parent)
        failpoints.hit("savepoint.written")


@contextmanager
def staged(target: Path) -> Iterator[SavepointDraft]:
    """Make a savepoint that will be ``target``, an absent or empty directory; ConfigError if it is taken."""
    check_free(target)
    _make_parents(target.parent)
    _remove_dead(target.parent)
    root = target.parent / f"{_DRAFT}{secrets.token_hex(8)}"
    lock = _make_locked(root)
    try:
        yield SavepointDraft(root, target)
    finally:
        shutil.rmtree(root, ignore_errors=True)
        os.close(lock)


def check_free(target: Path) -> None:
    """ConfigError if ``target`` exists and is anything but an empty directory, or cannot be made."""
    above = next(path for path in target.absolute().parents if path.exists())
    if not above.is_dir():
        raise ConfigError(f"{above} is not a directory: there can be no {target}")
    if target.is_symlink() or (target.exists() and not (target.is_dir() and not any(target.iterdir()))):
        raise _taken(target)


def new_id() -> str:
    return secrets.token_hex(8)


def now_ms() -> int:
    """Milliseconds since the Unix epoch, for people to read."""
    return time.time_ns() // 1_000_000


def default_target(job_directory: Path) -> Path:
    """A fresh name for a savepoint of the job in that directory: ``<job>.savepoints/<utc time>-<random>``."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return paths.savepoints_of(job_directory) / f"{stamp}-{secrets.token_hex(4)}"


def drop(path: Path) -> None:
    """Remove a savepoint, damaged or not. ConfigError for anything that is not a savepoint, or more than one."""
    if path.is_symlink() or not path.is_dir() or not _looks_like_one(path):
        raise ConfigError(f"{path} is not a savepoint directory: nothing was removed")
    strange = [entry for entry in path.iterdir() if entry.name not in (paths.SAVEPOINT, paths.SAVEPOINT_FILES)]
    if strange:
        raise ConfigError(f"{path} holds {strange[0].name}, which is no part of a savepoint: nothing was removed")
    # Renamed first: half a savepoint is never seen under its name. By its own name, which "." is not.
    path = path.resolve()
    gone = path.parent / f"{_DRAFT}{secrets.token_hex(8)}"
    os.rename(path, gone)
    files.sync_directory(path.parent)
    shutil.rmtree(gone)


def _looks_like_one(path: Path) -> bool:
    try:
        head = SavepointFiles(path).read(paths.SAVEPOINT)[:64]
    except (FileNotFoundError, NotADirectoryError, CorruptCheckpoint):
        return False
    return head.startswith(f"kafka-eos {Savepoint.FORMAT} ".encode())


def _taken(target: Path) -> ConfigError:
    return ConfigError(f"{target} exists already; give the savepoint a directory that does not")


def _make_parents(directory: Path) -> None:
    """Make a directory and those above it; their names are durable on return."""
    for missing in reversed([path for path in (directory, *directory.parents) if not path.exists()]):
        files.make_directory(missing)
        files.sync_directory(missing.parent)


def _make_locked(root: Path) -> int:
    """Make the directory and hold a lock on it as long as this process lives. Returns the descriptor."""
    while True:
        root.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # Between the two calls somebody else may have taken it for the rest of a dead process.
            if os.path.exists(root) and os.path.samestat(os.fstat(fd), os.stat(root)):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _remove_dead(parent: Path) -> None:
    """Remove what processes that died here have left; a draft that somebody works on is locked."""
    for draft in parent.glob(f"{_DRAFT}*"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            fd = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(draft)
            finally:
                os.close(fd)
