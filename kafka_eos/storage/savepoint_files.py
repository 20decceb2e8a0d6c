"""Savepoints: one directory with everything that a job needs to continue, wherever it is copied to.

    savepoint.json  the record: source positions, and the state handles by operator
    files/<sha256>  the state: rows in key order, in the same format for every backend and parallelism

Rule: a savepoint exists completely or not at all, and never changes. It is created next to its location and renamed. A
crash may leave a hidden directory, which the next savepoint created there removes.
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
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from kafka_eos._util import failpoints
from kafka_eos.abc.state import InFlightRows, StateHandle
from kafka_eos.abc.storage import CheckpointStorage, FileRef
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.json_values import Positions
from kafka_eos.protocol.lineage import lineage
from kafka_eos.storage import job_records as manifest
from kafka_eos.storage import local_files as files
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import record_signatures as signatures
from kafka_eos.storage import retention
from kafka_eos.storage.job_records import Manifest, StoredRecord
from kafka_eos.storage.job_storage import LocalFiles

_DRAFT = f"{files.TEMPORARY}savepoint-"


class Savepoint(StoredRecord, frozen=True, kw_only=True):
    """The content of ``savepoint.json``. ``id`` is random and identifies the savepoint wherever it is copied."""

    FORMAT: ClassVar[str] = "savepoint"

    id: str
    epoch: int
    """The epoch that it was created from; 0 if it was not created from one."""
    term: int
    created_at: int
    """Milliseconds since the Unix epoch."""
    plan: str
    """Fingerprint of the plan that ran in the epoch."""
    max_key_groups: int
    sources: dict[str, Positions]
    """Positions to read next, by source operator."""
    operators: tuple[StateHandle, ...]
    """The state, in the memory backend's row format; large state has several handles per operator."""
    in_flight: tuple[InFlightRows, ...] = ()
    """Rows between subtasks that belong to the epoch."""
    identity: str | None = None
    """The incarnation of the job; None if it was not created from a job."""

    @property
    def name(self) -> str:
        return paths.SAVEPOINT

    @property
    def files(self) -> tuple[FileRef, ...]:
        """Return every file once."""
        of_state = [file for handle in self.operators for file in handle.files]
        under_way = [file for rows in self.in_flight for file in rows.files]
        return tuple({ref.sha256: ref for ref in of_state + under_way}.values())


class SavepointOrigin(StoredRecord, frozen=True, kw_only=True):
    """The record of the savepoint that a job started from."""

    FORMAT: ClassVar[str] = "origin"

    savepoint: str
    """The id of the savepoint."""
    path: str
    """The path of the savepoint at that time, for display."""
    at: int
    """Milliseconds since the Unix epoch."""

    @property
    def name(self) -> str:
        return paths.ORIGIN


class SavepointFiles(LocalFiles):
    """The files of a savepoint as a storage: written while it is created, read when state is restored.

    ``ordered``: files of rows are in key order, as in every savepoint.
    """

    def __init__(self, root: Path, *, ordered: bool = True) -> None:
        super().__init__(root)
        self.ordered = ordered

    def path_of(self, ref: FileRef) -> Path:
        """Return the path of a file's content."""
        return self._path(paths.shared_name(ref.sha256))

    def _path(self, name: str) -> Path:
        if name == paths.SHARED:
            return self.root / paths.SAVEPOINT_FILES
        if name == paths.SAVEPOINT:
            return self.root / name
        return self.root / paths.SAVEPOINT_FILES / paths.parse_shared_name(name)


# ---------------------------------------------------------------- reading


def read_savepoint(path: Path) -> Savepoint:
    """Read ``savepoint.json``; the files are not checked.

    Raises ConfigError if the path is not a savepoint, or one of a newer kafka-eos; CorruptCheckpoint if it is damaged.
    """
    try:
        data = SavepointFiles(path).read(paths.SAVEPOINT)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{path} is not a savepoint: it has no {paths.SAVEPOINT}") from None
    try:
        found = manifest.decode(Savepoint, paths.SAVEPOINT, data)
        for handle in found.operators:
            manifest.ensure_usable(handle)
        for rows in found.in_flight:
            manifest.ensure_names(rows.files)
    except CorruptCheckpoint as error:
        raise CorruptCheckpoint(f"savepoint {path}: {error}") from error
    return found


def find_damage(path: Path) -> list[str]:
    """Return descriptions of the damaged files of a savepoint. Raise the same errors as ``read_savepoint``."""
    storage, problems = SavepointFiles(path), []
    for ref in read_savepoint(path).files:
        try:
            storage.check_content(ref)
        except CorruptCheckpoint as error:
            problems.append(f"{path}: {error}")
    return problems


class ListedSavepoint(Struct, frozen=True):
    """A savepoint in a directory, or the reason why it cannot be read."""

    path: Path
    savepoint: Savepoint | None
    problem: str = ""


def list_savepoints(directory: Path) -> Sequence[ListedSavepoint]:
    """List the savepoints directly in a directory."""
    names = sorted(os.listdir(directory)) if directory.is_dir() else []
    found = (directory / name for name in names if not name.startswith(files.TEMPORARY))
    return [inspect(path) for path in found if (path / paths.SAVEPOINT).exists()]


def find_savepoints(directory: Path) -> Sequence[ListedSavepoint]:
    """List the savepoints anywhere below a directory. Raise ConfigError if the path is not a directory.

    A directory that cannot be read is listed with the reason, because it may contain savepoints.
    """
    if not directory.is_dir():
        raise ConfigError(f"{directory} is not a directory")
    found: list[ListedSavepoint] = []

    def shut(error: OSError) -> None:
        found.append(ListedSavepoint(Path(error.filename), None, str(error)))

    for name, names, inside in os.walk(directory, onerror=shut):
        if paths.SAVEPOINT in inside:
            found.append(inspect(Path(name)))
            names.clear()
        names[:] = [name for name in names if not name.startswith(files.TEMPORARY)]
    return sorted(found, key=lambda listed: listed.path)


def inspect(path: Path) -> ListedSavepoint:
    """Read the savepoint at a path; return it, or the reason why it cannot be read."""
    try:
        return ListedSavepoint(path, read_savepoint(path))
    except (ConfigError, CorruptCheckpoint, OSError) as error:
        return ListedSavepoint(path, None, str(error))


# ---------------------------------------------------------------- epochs to create one from


def newest_committed(storage: CheckpointStorage, job: str, *, settled: bool = True) -> Manifest:
    """Return the newest epoch of a job whose output is committed. Raise ConfigError if there is none.

    With ``settled``, also raise if a newer epoch is decided: the next start commits that epoch's output, and a job
    that starts from the older epoch would produce the output again.
    The job may run meanwhile and delete listed epochs: then the search is repeated until two listings are equal.
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
    """Return the newest committed epoch of these manifests. Raise FileNotFoundError if one was deleted since."""
    counted = lineage([paths.parse_manifest_name(name) for name in stored], retention.load_bases(storage, job))[::-1]
    receipts = frozenset(paths.parse_receipt_name(name) for name in storage.list(paths.RECEIPTS))
    newest = next((epoch for epoch in counted if epoch in receipts), None)
    if newest is None:
        return None
    if settled and counted[0] != newest:
        raise ConfigError(
            f"epoch {counted[0]} of job {job!r} is decided, but its output is not committed yet: finish it first, with "
            "kafka-eos doctor APP --resolve or by starting the job"
        )
    return manifest.load(storage, Manifest, paths.manifest_name(newest), job)


def load_committed(storage: CheckpointStorage, job: str, epoch: int) -> Manifest:
    """Load the manifest of a committed epoch. Raise ConfigError if it does not exist or is not committed.

    The job may run meanwhile and delete epochs: then the epoch is not found, but never mistaken. For that, receipts are
    listed before manifests, because manifests are deleted first.
    """
    try:
        receipts = frozenset(paths.parse_receipt_name(name) for name in storage.list(paths.RECEIPTS))
        stored = [paths.parse_manifest_name(name) for name in storage.list(paths.MANIFESTS)]
        counted = lineage(stored, retention.load_bases(storage, job))[::-1]
        for found in counted:
            if found.epoch.n == epoch and found in receipts:
                return manifest.load(storage, Manifest, paths.manifest_name(found), job)
    except FileNotFoundError as error:
        raise dropped_error(job, epoch) from error
    if any(found.epoch.n == epoch for found in counted):
        raise ConfigError(
            f"epoch {epoch} of job {job!r} is decided, but its output is not committed yet: wait for it, or finish "
            "it, with kafka-eos doctor APP --resolve or by starting the job"
        )
    known = ", ".join(str(found.epoch) for found in sorted(counted) if found in receipts) or "none"
    raise ConfigError(f"job {job!r} has no stored and committed epoch {epoch}; committed and still stored: {known}")


def dropped_error(job: str, epoch: int) -> ConfigError:
    """Return the error for an epoch that retention deleted meanwhile."""
    return ConfigError(
        f"job {job!r} deleted epoch {epoch} meanwhile: see kafka-eos checkpoints list {job} for the "
        "remaining ones; the setting retained_checkpoints determines how many are kept"
    )


# ---------------------------------------------------------------- creating


class SavepointDraft:
    """A savepoint that is being created. ``files`` stores its files; ``work`` is a temporary directory."""

    def __init__(self, root: Path, target: Path) -> None:
        self._root, self._target = root, target
        self.work = root / "work"
        self.content = root / "content"
        for directory in (self.work, self.content, self.content / paths.SAVEPOINT_FILES):
            directory.mkdir(mode=0o700)
        self.files = SavepointFiles(self.content)

    def publish(self, savepoint: Savepoint) -> None:
        """Publish the savepoint under its name, durably. Its files must be stored already."""
        manifest.publish(self.files, savepoint)
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
def draft_savepoint(target: Path) -> Iterator[SavepointDraft]:
    """Yield a draft that becomes the savepoint at the target when published."""
    ensure_free(target)
    _make_parents(target.parent)
    _remove_dead(target.parent)
    root = target.parent / f"{_DRAFT}{secrets.token_hex(8)}"
    lock = _make_locked(root)
    try:
        yield SavepointDraft(root, target)
    finally:
        shutil.rmtree(root, ignore_errors=True)
        os.close(lock)


def ensure_free(target: Path) -> None:
    """Raise ConfigError unless the target is absent or an empty directory."""
    above = next(path for path in target.absolute().parents if path.exists())
    if not above.is_dir():
        raise ConfigError(f"{above} is not a directory, so {target} cannot be created")
    if target.is_symlink() or (target.exists() and not (target.is_dir() and not any(target.iterdir()))):
        raise _taken(target)


def new_id() -> str:
    return secrets.token_hex(8)


def now_ms() -> int:
    """Return the milliseconds since the Unix epoch, for display."""
    return time.time_ns() // 1_000_000


def default_target(job_directory: Path) -> Path:
    """Return a new path for a savepoint of the job: ``<job>.savepoints/<utc time>-<random>``."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return paths.savepoints_of(job_directory) / f"{stamp}-{secrets.token_hex(4)}"


def delete_savepoint(path: Path) -> None:
    """Delete a savepoint, damaged or not. Raise ConfigError if the path is not exactly one savepoint."""
    if path.is_symlink() or not path.is_dir() or not _looks_like_one(path):
        raise ConfigError(f"{path} is not a savepoint directory: nothing was removed")
    strange = [entry for entry in path.iterdir() if entry.name not in (paths.SAVEPOINT, paths.SAVEPOINT_FILES)]
    if strange:
        raise ConfigError(f"{path} contains {strange[0].name}, which is not part of a savepoint: nothing was removed")
    # Rename it first, so that a partial savepoint never has its name. Use the directory's own name: "." is not one.
    path = path.resolve()
    gone = path.parent / f"{_DRAFT}{secrets.token_hex(8)}"
    os.rename(path, gone)
    files.sync_directory(path.parent)
    shutil.rmtree(gone)


def sign_savepoint(path: Path, savepoint: Savepoint) -> None:
    """Replace the record of a savepoint by one that is signed with the first key of this process."""
    if not signatures.has_keys():
        raise ConfigError("nothing to sign with: give --key-file, or set checkpoint_key_file")
    draft = files.temporary_path(path.absolute().parent)
    with files.create_file(draft) as fd:
        files.write_all(fd, manifest.encode(savepoint))
        os.fsync(fd)
    os.rename(draft, path / paths.SAVEPOINT)
    files.sync_directory(path)


def _looks_like_one(path: Path) -> bool:
    try:
        head = SavepointFiles(path).read(paths.SAVEPOINT)[:64]
    except (FileNotFoundError, NotADirectoryError, CorruptCheckpoint):
        return False
    return head.startswith(f"kafka-eos {Savepoint.FORMAT} ".encode())


def _taken(target: Path) -> ConfigError:
    return ConfigError(f"{target} exists already; choose a new directory for the savepoint")


def _make_parents(directory: Path) -> None:
    """Create a directory and its parents; their names are durable on return."""
    for missing in reversed([path for path in (directory, *directory.parents) if not path.exists()]):
        files.make_directory(missing)
        files.sync_directory(missing.parent)


def _make_locked(root: Path) -> int:
    """Create the directory and lock it for as long as this process runs. Return the descriptor."""
    while True:
        root.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # Between the two calls another process may have removed it as a left-over directory.
            if os.path.exists(root) and os.path.samestat(os.fstat(fd), os.stat(root)):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _remove_dead(parent: Path) -> None:
    """Remove the drafts of dead processes; a draft in use is locked."""
    for draft in parent.glob(f"{_DRAFT}*"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            fd = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(draft)
            finally:
                os.close(fd)
