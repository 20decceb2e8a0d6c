"""Compare what is stored with what was written: state files by existence and size, or down to their last byte.

Rule: verifying reports, it does not decide. The list names each object once with what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from kafka_eos.abc.storage import FileRef
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId
from kafka_eos.storage import epoch_ledger as ledger
from kafka_eos.storage import job_records as manifest
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import provenance_files as provenance
from kafka_eos.storage.epoch_ledger import Entry
from kafka_eos.storage.job_records import Base, Claim, Manifest, R, Receipt, Record
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.object_names import Pack, Provenance

AT_ONCE = 8
"""State files that are looked at, or read, at the same time."""

Progress = Callable[[int, int], None]
"""Told after each file: bytes of those that are done, and of all. What it raises ends the work."""


def nobody(done: int, total: int) -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True)
class Problem:
    """``object`` is the durable name; ``what`` one line for a person."""

    object: str
    what: str

    def __str__(self) -> str:
        return self.what


def verify_manifest(storage: JobStorage, name: str, job: str) -> list[Problem]:
    """Problems of a manifest and of every file that it names; empty if it can be restored."""
    return _of_manifest(storage, _record(storage, Manifest, name, job))


def look_at_files(storage: JobStorage, files: Mapping[str, FileRef]) -> list[Problem]:
    """Files, by SHA-256, that are missing or of another size. Reads no byte of them; OSError if the store is away."""
    return _each(storage.look, files, nobody)


def verify_files(storage: JobStorage, files: Mapping[str, FileRef], told: Progress = nobody) -> list[Problem]:
    """Files, by SHA-256, that are not what was stored. Reads every byte, of several files at a time."""
    return _each(storage.check, files, told)


def verify_job(storage: JobStorage, job: str) -> list[Problem]:
    """Problems of every object in the job's directory. The job may run meanwhile: what it drops is no problem."""
    manifests = {name: _record(storage, Manifest, name, job) for name in storage.list(paths.MANIFESTS)}
    found = {name: _of_manifest(storage, manifest) for name, manifest in manifests.items()}
    for name in storage.list(paths.RECEIPTS):
        found[name] = _only_problem(_record(storage, Receipt, name, job))
    for name in storage.list(paths.TERMS):
        kind: type[Record] = Claim if name.endswith(".claim.json") else Base
        found[name] = _only_problem(_record(storage, kind, name, job))
    there = {name for kind in (paths.MANIFESTS, paths.RECEIPTS, paths.TERMS) for name in storage.list(kind)}
    problems = [problem for name, some in found.items() if name in there for problem in some]
    readable = [manifest for manifest in manifests.values() if isinstance(manifest, Manifest)]
    try:
        entries = ledger.read(storage)
    except CorruptCheckpoint as error:
        return list(dict.fromkeys([*problems, Problem(paths.LEDGER, str(error))]))
    problems += _against_ledger(entries, readable)
    problems += _of_provenance(storage, [*entries.values(), *map(ledger.entry_of, readable)])
    return list(dict.fromkeys(problems))


def _of_manifest(storage: JobStorage, found: Manifest | Problem) -> list[Problem]:
    """What is wrong with a manifest that was read, or with a file that it names."""
    if isinstance(found, Problem):
        return [found]
    return verify_files(storage, manifest.named_files(found.states, found.in_flight))


def _of_provenance(storage: JobStorage, entries: Iterable[Entry]) -> list[Problem]:
    """Files of provenance that are not what was stored, alone or in a pack, and what is not of this package."""
    missing = {kept.sha256: (entry.id.epoch, kept.ref) for entry in entries for kept in entry.provenance}
    problems: dict[Provenance, Problem] = {}
    there: tuple[Provenance, ...] = ()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="verify") as pool:
        # A running job packs: what has gone from one object is in another one, until two looks see the same.
        while missing and (known := there) != (there := provenance.listed(storage)):
            new = [f for f in there if f not in frozenset(known) and (isinstance(f, Pack) or f.sha256 in missing)]
            for file, found in zip(new, pool.map(partial(_opened, storage), new), strict=True):
                if isinstance(found, Problem):
                    problems[file] = found
                    continue
                for sha256 in found:
                    missing.pop(sha256, None)
    strays: list[str] = []
    provenance.listed(storage, strays.append)
    foreign = [Problem(name, str(paths.stray(name))) for name in strays]
    return [*foreign, *problems.values(), *_gone(missing, problems)]


def _gone(missing: Mapping[str, tuple[Epoch, FileRef]], damaged: Collection[Provenance]) -> list[Problem]:
    """Files that are nowhere, each with the damaged packs that it may be in. Those that are damaged are named so."""
    packs = [file for file in damaged if isinstance(file, Pack)]
    alone = {file.sha256 for file in damaged}
    problems: list[Problem] = []
    for sha256, (epoch, ref) in missing.items():
        if sha256 not in alone:
            near = provenance.likeliest(packs, epoch)
            error = provenance.hidden(ref, epoch, near) if near else provenance.absent(ref, epoch)
            problems.append(Problem(provenance.name_of(ref, epoch), str(error)))
    return problems


def _opened(storage: JobStorage, file: Provenance) -> Collection[str] | Problem:
    """The files that an object of provenance holds; none if it is gone."""
    try:
        return frozenset(provenance.opened(storage, file))
    except FileNotFoundError:
        return frozenset()
    except CorruptCheckpoint as error:
        return Problem(paths.provenance_name(file), str(error))


def _against_ledger(entries: Mapping[EpochId, Entry], manifests: Sequence[Manifest]) -> list[Problem]:
    """Manifests that say something else than the ledger does."""
    told = [(found, entries[found.id]) for found in manifests if found.id in entries]
    return [
        Problem(found.name, f"{found.name}: {wrong}")
        for found, entry in told
        if (wrong := ledger.difference(entry, ledger.entry_of(found)))
    ]


def _record(storage: JobStorage, kind: type[R], name: str, job: str) -> R | Problem:
    try:
        return manifest.load(storage, kind, name, job)
    except FileNotFoundError:
        return Problem(name, f"{name}: missing")
    except (CorruptCheckpoint, ConfigError) as error:
        return Problem(name, str(error))


def _only_problem(found: Record | Problem) -> list[Problem]:
    return [found] if isinstance(found, Problem) else []


def _each(look: Callable[[FileRef], None], files: Mapping[str, FileRef], told: Progress) -> list[Problem]:
    problems: list[Problem] = []
    total, done = sum(ref.size for ref in files.values()), 0
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="verify") as pool:
        try:
            for ref, found in zip(files.values(), pool.map(partial(_file, look), files.values()), strict=True):
                problems += found
                done += ref.size
                told(done, total)
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
