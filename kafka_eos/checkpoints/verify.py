"""Compare what is stored with what was written, down to the last byte of every state file.

Rule: verifying reports, it does not decide. The list names each object once with what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafka_eos.checkpoints import manifest, paths
from kafka_eos.checkpoints.manifest import Base, Claim, Manifest, R, Receipt, Record
from kafka_eos.checkpoints.storage import JobStorage
from kafka_eos.errors import ConfigError, CorruptCheckpoint
from kafka_eos.interfaces import FileRef


@dataclass(frozen=True, slots=True)
class Problem:
    """``object`` is the durable name; ``what`` one line for a person."""

    object: str
    what: str

    def __str__(self) -> str:
        return self.what


def verify_manifest(storage: JobStorage, name: str, job: str) -> list[Problem]:
    """Problems of a manifest and of every file that it names; empty if it can be restored."""
    found = _record(storage, Manifest, name, job)
    return [found] if isinstance(found, Problem) else verify_files(storage, found)


def verify_files(storage: JobStorage, found: Manifest) -> list[Problem]:
    """Problems of the files that a manifest names."""
    parts = [*(state.files for state in found.states), *(rows.files for rows in found.in_flight)]
    refs = {file.sha256: file for files in parts for file in files}
    return [problem for ref in refs.values() for problem in _file(storage, ref)]


def verify_job(storage: JobStorage, job: str) -> list[Problem]:
    """Problems of every object in the job's directory."""
    problems = [p for name in storage.list(paths.MANIFESTS) for p in verify_manifest(storage, name, job)]
    for name in storage.list(paths.RECEIPTS):
        problems += _only_problem(_record(storage, Receipt, name, job))
    for name in storage.list(paths.TERMS):
        kind: type[Record] = Claim if name.endswith(".claim.json") else Base
        problems += _only_problem(_record(storage, kind, name, job))
    return list(dict.fromkeys(problems))


def _record(storage: JobStorage, kind: type[R], name: str, job: str) -> R | Problem:
    try:
        return manifest.load(storage, kind, name, job)
    except FileNotFoundError:
        return Problem(name, f"{name}: missing")
    except (CorruptCheckpoint, ConfigError) as error:
        return Problem(name, str(error))


def _only_problem(found: Record | Problem) -> list[Problem]:
    return [found] if isinstance(found, Problem) else []


def _file(storage: JobStorage, ref: FileRef) -> list[Problem]:
    try:
        storage.check(ref)
    except CorruptCheckpoint as error:
        return [Problem(paths.shared_name(ref.sha256), str(error))]
    return []
