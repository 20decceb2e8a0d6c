"""Files that say where output came from: stored before their epoch is decided, and kept as long as the ledger.

Rule: a file is what its committable says it is, or it is CorruptCheckpoint, named.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress

from kafka_eos.checkpoints import paths
from kafka_eos.checkpoints.storage import altered, expect
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
    try:
        content = storage.read(paths.provenance_name(ref.sha256))
    except FileNotFoundError:
        raise altered(ref, "the file is missing", paths.provenance_name) from None
    expect(ref, (hashlib.sha256(content).hexdigest(), len(content)), paths.provenance_name)
    return content
