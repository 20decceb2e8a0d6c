"""The pipeline that replays the records of dead letters. The processes of its job load this file like a user's.

Rule: a record is identified by its topic, partition, offset and time. An operator keeps the replayed records forever.
Its name must never change: under another name all of them would be replayed once more.
"""

from __future__ import annotations

from kafka_eos.api import Pipeline
from kafka_eos.connectors.kafka.sink.dead_letters import DeadLetter
from kafka_eos.core.records import Record
from kafka_eos.ops.dead_letters.replay_request import OPERATOR, ReplayRequest

order = ReplayRequest.from_environment()
places = order.places()


def selected(record: Record[bytes, bytes]) -> list[DeadLetter]:
    """Return the dead letter if it is selected and has the contents of a record.

    Records that are not dead letters are ignored.
    """
    letter = DeadLetter.from_record(record)
    return [letter] if letter is not None and order.selection.includes(letter) and letter.has_record else []


def identity(letter: DeadLetter) -> tuple[str, int, int, int]:
    return letter.identity


pipeline = Pipeline(order.job, **order.settings())
(
    pipeline.source(places.create_source(), name=f"letters-{order.run}")
    .flat_map(selected, name="selected")
    .key_by(identity, name="by-record", values=DeadLetter)
    .distinct(name=OPERATOR, ttl=None)
    .sink(places.create_replay_sink(order.to), name="records")
)
