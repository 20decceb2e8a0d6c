"""Verification of stored objects: state files by existence and size, or by their whole content.

Rule: verification reports and decides nothing. The result names each damaged object once, with its problem.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from msgspec import Struct

from kafka_eos.abc.storage import FileRef
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId
from kafka_eos.storage import epoch_ledger as ledger
from kafka_eos.storage import job_records as manifest
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import provenance_files as provenance
from kafka_eos.storage.epoch_ledger import LedgerEntry
from kafka_eos.storage.job_records import Manifest, R, Receipt, StoredRecord, TermBase, TermClaim
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.object_names import ProvenanceObject, ProvenancePack

MAX_CONCURRENT = 8
"""Most state files that are checked at the same time."""

ProgressCallback = Callable[[int, int], None]
"""A callback that receives bytes done and total bytes after each file. An error it raises ends the verification."""


def ignore_progress(done: int, total: int) -> None:
    """Do nothing: the caller does not need progress reports."""


class Problem(Struct, frozen=True):
    """A damaged object: its durable name, and a one-line description for display."""

    object: str
    what: str

    def __str__(self) -> str:
        return self.what


def check_sizes(storage: JobStorage, files: Mapping[str, FileRef]) -> list[Problem]:
    """Return problems of files that are missing or have the wrong size, without reading them.

    Raises OSError if the store does not respond.
    """
    return _each(storage.check_size, files, ignore_progress)


def check_contents(
    storage: JobStorage, files: Mapping[str, FileRef], report_progress: ProgressCallback = ignore_progress
) -> list[Problem]:
    """Return problems of files whose content does not match. Reads every byte, several files at a time."""
    return _each(storage.check_content, files, report_progress)


def verify_job(storage: JobStorage, job: str) -> list[Problem]:
    """Return problems of every object in the job's directory. Objects that a running job deletes are not problems."""
    manifests = {name: _record(storage, Manifest, name, job) for name in storage.list(paths.MANIFESTS)}
    found = {name: _of_manifest(storage, manifest) for name, manifest in manifests.items()}
    for name in storage.list(paths.RECEIPTS):
        found[name] = _only_problem(_record(storage, Receipt, name, job))
    for name in storage.list(paths.TERMS):
        kind: type[StoredRecord] = TermClaim if name.endswith(".claim.json") else TermBase
        found[name] = _only_problem(_record(storage, kind, name, job))
    there = {name for kind in (paths.MANIFESTS, paths.RECEIPTS, paths.TERMS) for name in storage.list(kind)}
    problems = [problem for name, some in found.items() if name in there for problem in some]
    readable = [manifest for manifest in manifests.values() if isinstance(manifest, Manifest)]
    try:
        entries = ledger.read(storage)
    except CorruptCheckpoint as error:
        return list(dict.fromkeys([*problems, Problem(paths.LEDGER, str(error))]))
    problems += _compare_ledger(entries, readable)
    problems += _of_provenance(storage, [*entries.values(), *map(ledger.entry_of, readable)])
    return list(dict.fromkeys(problems))


def _of_manifest(storage: JobStorage, found: Manifest | Problem) -> list[Problem]:
    """Return the problems of a loaded manifest and of the files that it names."""
    if isinstance(found, Problem):
        return [found]
    return check_contents(storage, manifest.index_files(found.states, found.in_flight))


def _of_provenance(storage: JobStorage, entries: Iterable[LedgerEntry]) -> list[Problem]:
    """Return the problems of provenance files, alone or in a pack, and of foreign objects next to them."""
    missing = {kept.sha256: (entry.id.epoch, kept.ref) for entry in entries for kept in entry.provenance}
    problems: dict[ProvenanceObject, Problem] = {}
    there: tuple[ProvenanceObject, ...] = ()
    with ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix="verify") as pool:
        # A running job packs: a file missing from one object is in another, until two consecutive listings are equal.
        while missing and (known := there) != (there := provenance.list_provenance(storage)):
            new = [
                f for f in there if f not in frozenset(known) and (isinstance(f, ProvenancePack) or f.sha256 in missing)
            ]
            for file, found in zip(new, pool.map(partial(_opened, storage), new), strict=True):
                if isinstance(found, Problem):
                    problems[file] = found
                    continue
                for sha256 in found:
                    missing.pop(sha256, None)
    strays: list[str] = []
    provenance.list_provenance(storage, strays.append)
    foreign = [Problem(name, str(paths.foreign_object_error(name))) for name in strays]
    return [*foreign, *problems.values(), *_gone(missing, problems)]


def _gone(missing: Mapping[str, tuple[Epoch, FileRef]], damaged: Collection[ProvenanceObject]) -> list[Problem]:
    """Return the problems of missing files, each with the damaged packs that may contain it. Damaged files are named
    so."""
    packs = [file for file in damaged if isinstance(file, ProvenancePack)]
    alone = {file.sha256 for file in damaged}
    problems: list[Problem] = []
    for sha256, (epoch, ref) in missing.items():
        if sha256 not in alone:
            near = provenance.rank_packs(packs, epoch)
            error = provenance.unreadable_error(ref, epoch, near) if near else provenance.missing_error(ref, epoch)
            problems.append(Problem(provenance.provenance_name_of(ref, epoch), str(error)))
    return problems


def _opened(storage: JobStorage, file: ProvenanceObject) -> Collection[str] | Problem:
    """Return the files that a provenance object holds; none if it was deleted."""
    try:
        return frozenset(provenance.read_object(storage, file))
    except FileNotFoundError:
        return frozenset()
    except CorruptCheckpoint as error:
        return Problem(paths.provenance_name(file), str(error))


def _compare_ledger(entries: Mapping[EpochId, LedgerEntry], manifests: Sequence[Manifest]) -> list[Problem]:
    """Return the problems of manifests that contradict the ledger."""
    recorded = [(found, entries[found.id]) for found in manifests if found.id in entries]
    return [
        Problem(found.name, f"{found.name}: {wrong}")
        for found, entry in recorded
        if (wrong := ledger.describe_difference(entry, ledger.entry_of(found)))
    ]


def _record(storage: JobStorage, kind: type[R], name: str, job: str) -> R | Problem:
    try:
        return manifest.load(storage, kind, name, job)
    except FileNotFoundError:
        return Problem(name, f"{name}: missing")
    except (CorruptCheckpoint, ConfigError) as error:
        return Problem(name, str(error))


def _only_problem(found: StoredRecord | Problem) -> list[Problem]:
    return [found] if isinstance(found, Problem) else []


def _each(
    look: Callable[[FileRef], None], files: Mapping[str, FileRef], report_progress: ProgressCallback
) -> list[Problem]:
    problems: list[Problem] = []
    total, done = sum(ref.size for ref in files.values()), 0
    with ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix="verify") as pool:
        try:
            for ref, found in zip(files.values(), pool.map(partial(_file, look), files.values()), strict=True):
                problems += found
                done += ref.size
                report_progress(done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return problems


def _file(look: Callable[[FileRef], None], ref: FileRef) -> list[Problem]:
    try:
        look(ref)
    except CorruptCheckpoint as error:
        return [Problem(paths.shared_name(ref.sha256), str(error))]
    return []
