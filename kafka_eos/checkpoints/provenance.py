"""Files that say where output came from: stored before their epoch is decided, and kept as long as the ledger.

Rule: a file is what its committable says it is, or it is CorruptCheckpoint, named.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress

from kafka_eos.checkpoints import paths
from kafka_eos.checkpoints.storage import expect
from kafka_eos.errors import CorruptCheckpoint
from kafka_eos.interfaces import CheckpointStorage, Committable, FileRef, Unstored


def stored(storage: CheckpointStorage, committable: Committable) -> Committable:
    """The committable as a manifest may hold it: its provenance is durable on return. OSError if it cannot be."""
    if not isinstance(committable, Unstored) or committable.provenance is None:
        return committable
    # Named by its content: what is there already is the rest of a call that failed.
    with suppress(FileExistsError):
        storage.publish(paths.provenance_name(committable.provenance.sha256), committable.content)
    told = committable.scope, committable.payload, committable.records, committable.by_sink, committable.spread
    return Committable(*told, committable.provenance)


def load(storage: CheckpointStorage, ref: FileRef) -> bytes:
    """The content of a file. CorruptCheckpoint, naming it, if it is absent or not what was stored."""
    name = paths.provenance_name(ref.sha256)
    try:
        content = storage.read(name)
    except FileNotFoundError:
        raise CorruptCheckpoint(f"{name} ({ref.name}): the file is missing") from None
    try:
        expect(ref, (hashlib.sha256(content).hexdigest(), len(content)))
    except CorruptCheckpoint as error:
        raise CorruptCheckpoint(str(error).replace(paths.shared_name(ref.sha256), name)) from error
    return content
