"""Give a job's newest checkpoint back the format in which versions before the hash of key groups wrote it.

Rule: only of a job that does not run. What comes out is manifest 3 with rows that ``crc32 % 128`` grouped, at the
parallelism and with the rows under way that the job left: what an upgrade of kafka-eos finds.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

VERSION = 3


def age(storage: LocalStorage, job: str, scratch: Path) -> Manifest:
    """Rewrite the newest manifest; returns it as it is read now."""
    name = storage.list(paths.MANIFESTS)[-1]
    newest = records.load(storage, Manifest, name, job)
    body: dict[str, Any] = msgspec.to_builtins(newest)
    body["states"] = [_without_hash(_regrouped(h, newest.states, storage, scratch)) for h in newest.states]
    (storage.root / name).write_bytes(_record(body))
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


def _without_hash(handle: StateHandle) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(handle)
    assert fields.pop("key_hash") == OLDEST
    return fields


def _record(body: dict[str, Any]) -> bytes:
    data = msgspec.json.encode(body)
    head = f"kafka-eos manifest {VERSION} {len(data)} ".encode()
    return head + hashlib.sha256(head + data).hexdigest().encode() + b"\n" + data


def _sweep(storage: LocalStorage, job: str) -> None:
    """What the rewritten manifest named and no other one does."""
    stored = (records.load(storage, Manifest, name, job) for name in storage.list(paths.MANIFESTS))
    named = {paths.shared_name(sha256) for manifest in stored for sha256 in manifest.files}
    for name in set(storage.list(paths.SHARED)) - named:
        storage.delete(name)
