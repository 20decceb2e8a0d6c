"""What a replay can do, and what it has done: asked before it starts.

Rule: what was put back is read from the newest epoch that is committed. What a killed replay has decided and not
committed is not in it, so the replay starts again, and finishes that first.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from kafka_eos.checkpoints import paths
from kafka_eos.checkpoints.opening import find_storage
from kafka_eos.dead_letters.order import OPERATOR
from kafka_eos.dead_letters.places import Places
from kafka_eos.errors import ConfigError
from kafka_eos.interfaces import JobContext
from kafka_eos.settings import Settings
from kafka_eos.state.reader import Snapshot


def restored(settings: Settings, job: str) -> Set[Any]:
    """Identities of the records that the job has put back; some 300 bytes of memory each."""
    home = settings.checkpoints_of(job)
    storage = find_storage(home)
    if storage is None or not any(storage.list(paths.RECEIPTS)):
        return frozenset()
    snapshot = Snapshot.open(home)
    return {key for key, _ in snapshot.read(OPERATOR)} if OPERATOR in snapshot.operators() else frozenset()


def check(at: Places, to: str | None, ctx: JobContext) -> None:
    """ConfigError if the records cannot be written where they shall go, or would only be read as dead letters again."""
    sink = at.restored(to)
    if sink.topic == at.refused.topic:
        raise ConfigError(f"--to {sink.topic} is the topic of the dead letters: what is put there is no dead letter")
    sink.check(ctx)
