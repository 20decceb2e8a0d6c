"""The target of a replay, checked before it starts, and the dead letters that it has replayed.

Rule: replayed dead letters are read from the newest committed epoch. An epoch that a killed replay decided but did not
commit is not included. So the replay starts again, and commits that epoch first.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from kafka_eos.abc.context import JobContext
from kafka_eos.config.settings import Settings
from kafka_eos.connectors.kafka.sink.dead_letters import DeadLetter
from kafka_eos.connectors.kafka.source.positions import partition_of, topic_of
from kafka_eos.core.errors import ConfigError
from kafka_eos.ops.dead_letters.replay_request import OPERATOR
from kafka_eos.ops.dead_letters.topics import DeadLetterTopics
from kafka_eos.savepoints import Snapshot
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.storage_factory import find_storage


def read_replayed_ids(settings: Settings, job: str) -> Set[Any]:
    """Read the identities of the records that a replay job has written back."""
    home = settings.checkpoint_location(job)
    storage = find_storage(home)
    if storage is None or not any(storage.list(paths.RECEIPTS)):
        return frozenset()
    snapshot = Snapshot.open(home)
    return {key for key, _ in snapshot.read(OPERATOR)} if OPERATOR in snapshot.operators() else frozenset()


class ReplayTarget:
    """The topic that a replay writes to.

    Raises ConfigError if the topic cannot be written, or is the topic of the dead letters itself.
    """

    def __init__(self, at: DeadLetterTopics, to: str | None, ctx: JobContext) -> None:
        sink = at.create_replay_sink(to)
        if sink.topic == at.dead_letter_sink.topic:
            raise ConfigError(f"--to {sink.topic} is the topic of the dead letters: choose another topic")
        sink.check(ctx)
        there = () if to else (split for split in at.reads.discover(ctx, None) if topic_of(split) == at.topic)
        self._partitions = None if to else {partition_of(split) for split in there}
        self.description = to or f"{at.topic} (each in its original partition)"
        """The topic, for messages."""

    def check(self, letter: DeadLetter) -> None:
        """Raise ConfigError if the partition of the record no longer exists."""
        if self._partitions is not None and letter.partition not in self._partitions:
            raise ConfigError(
                f"the record of {letter.where} was in a partition that topic {letter.topic} no longer has: was the "
                "topic recreated? Exclude the record (--partition, --until), or write to another topic (--to)"
            )
