"""The target of a replay, checked before it starts, and the dead letters that it has replayed.

Rule: replayed dead letters are read from the newest committed epoch. An epoch that a killed replay decided but did not
commit is not included. So the replay starts again, and commits that epoch first.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, Final

from kafka_eos.abc.context import JobContext
from kafka_eos.config.settings import Settings
from kafka_eos.connectors.kafka.sink.dead_letters import DeadLetter
from kafka_eos.connectors.kafka.source.positions import offset_of, partition_of, topic_of
from kafka_eos.core.errors import ConfigError
from kafka_eos.ops.dead_letters.replay_request import OPERATOR
from kafka_eos.ops.dead_letters.text_output import readable
from kafka_eos.ops.dead_letters.topics import DeadLetterTopics
from kafka_eos.savepoints import Snapshot
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.storage_factory import find_storage

_LONGEST_NAME: Final = 200


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
        ends = {} if to else at.reads.get_end_positions(ctx)
        self._ends = {partition_of(split): offset_of(of) for split, of in ends.items() if topic_of(split) == at.topic}
        self._in_place = to is None
        self.description = to or f"{at.topic} (each in its original partition)"
        """The topic, for messages."""

    def check(self, letter: DeadLetter) -> None:
        """Raise ConfigError if the source's topic cannot have had the record: see ``expect_origin``."""
        if self._in_place:
            expect_origin(letter, self._ends)


def expect_origin(letter: DeadLetter, ends: Mapping[int, int]) -> None:
    """Raise ConfigError if the origin that a dead letter names is behind the end of its topic.

    Every program that may write to the dead letter topic can write a dead letter of a record that never existed.
    ``ends``: the end of each partition.
    """
    where, topic = readable(letter.where, _LONGEST_NAME), readable(letter.topic, _LONGEST_NAME)
    todo = "Exclude the record (--partition, --offsets, --until), or write to another topic (--to)"
    if letter.partition not in ends:
        raise ConfigError(
            f"the record of {where} was in a partition that topic {topic} no longer has: was the topic "
            f"recreated? {todo}"
        )
    if letter.offset >= ends[letter.partition]:
        raise ConfigError(
            f"a dead letter names the record {where}, and that partition ends at {ends[letter.partition]}: the topic "
            f"was recreated, or another program than this job has written the dead letter. {todo}"
        )
