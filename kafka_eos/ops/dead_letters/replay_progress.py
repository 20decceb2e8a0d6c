"""What a replay can do, and what it has done: asked before it starts.

Rule: what was put back is read from the newest epoch that is committed. What a killed replay has decided and not
committed is not in it, so the replay starts again, and finishes that first.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from kafka_eos.abc.context import JobContext
from kafka_eos.config.settings import Settings
from kafka_eos.connectors.kafka.sink.dead_letters import Letter
from kafka_eos.connectors.kafka.source.positions import partition_of, topic_of
from kafka_eos.core.errors import ConfigError
from kafka_eos.ops.dead_letters.replay_request import OPERATOR
from kafka_eos.ops.dead_letters.topics import Places
from kafka_eos.savepoints import Snapshot
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.storage_factory import find_storage


def restored(settings: Settings, job: str) -> Set[Any]:
    """Identities of the records that the job has put back; some 300 bytes of memory each."""
    home = settings.checkpoints_of(job)
    storage = find_storage(home)
    if storage is None or not any(storage.list(paths.RECEIPTS)):
        return frozenset()
    snapshot = Snapshot.open(home)
    return {key for key, _ in snapshot.read(OPERATOR)} if OPERATOR in snapshot.operators() else frozenset()


class Way:
    """Where the records go. ConfigError if nobody can write there, or it is the topic of the dead letters itself."""

    def __init__(self, at: Places, to: str | None, ctx: JobContext) -> None:
        sink = at.restored(to)
        if sink.topic == at.refused.topic:
            raise ConfigError(
                f"--to {sink.topic} is the topic of the dead letters: what is put there is no dead letter"
            )
        sink.check(ctx)
        there = () if to else (split for split in at.reads.discover(ctx, None) if topic_of(split) == at.topic)
        self._partitions = None if to else {partition_of(split) for split in there}
        self.told = to or f"{at.topic}, each to the partition that it was in"
        """The topic, for people."""

    def check(self, letter: Letter) -> None:
        """ConfigError if there is no place for its record."""
        if self._partitions is not None and letter.partition not in self._partitions:
            raise ConfigError(
                f"the record of {letter.where} was in a partition that topic {letter.topic} does not have any more: "
                "was the topic made anew? Leave it out (--partition, --until), or write to another topic (--to)"
            )
