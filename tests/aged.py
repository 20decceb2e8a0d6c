"""Group the state of a job's newest checkpoint by the older hash of keys.

Rule: only of a job that does not run. What comes out has rows that ``crc32 % 128`` grouped, at the parallelism and with
the in-flight rows that the job left.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kafka_eos.checkpoints import manifest as records
from kafka_eos.checkpoints import paths
from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.checkpoints.storage import LocalStorage
from kafka_eos.ids import Epoch
from kafka_eos.interfaces import StateHandle
from kafka_eos.state.backends import open_backend
from kafka_eos.state.keygroups import OLDEST, Grouping
from kafka_eos.state.local import is_local


def age(storage: LocalStorage, job: str, scratch: Path) -> Manifest:
    """Rewrite the newest manifest; returns it as it is read now."""
    name = storage.list(paths.MANIFESTS)[-1]
    newest = records.load(storage, Manifest, name, job)
    states = tuple(_regrouped(handle, newest.states, storage, scratch) for handle in newest.states)
    (storage.root / name).write_bytes(records.encode(msgspec.structs.replace(newest, states=states)))
    _sweep(storage, job)
    return records.load(storage, Manifest, name, job)


def hashes(manifest: Manifest) -> set[str]:
    """By which hashes the state of an epoch is grouped."""
    return {handle.key_hash for handle in manifest.states}


def _regrouped(handle: StateHandle, states: Sequence[StateHandle], storage: LocalStorage, scratch: Path) -> StateHandle:
    first, last = handle.key_groups
    directory = scratch / f"{handle.operator}-{first}"
    backend = open_backend(
        handle.backend,  # type: ignore[arg-type]
        handle.operator,
        directory,
        range(first, last + 1),
        [other for other in states if other.operator == handle.operator],
        storage,
        grouping=Grouping(OLDEST),
        local=is_local(handle),
    )
    try:
        return backend.snapshot(Epoch(0))(storage)
    finally:
        backend.close()
        shutil.rmtree(directory, ignore_errors=True)


def _sweep(storage: LocalStorage, job: str) -> None:
    """What the rewritten manifest named and no other one does."""
    stored = (records.load(storage, Manifest, name, job) for name in storage.list(paths.MANIFESTS))
    named = {paths.shared_name(sha256) for manifest in stored for sha256 in manifest.files}
    for name in set(storage.list(paths.SHARED)) - named:
        storage.delete(name)
