"""The pipeline that puts the records of dead letters back: a file that the processes of its job load, like any user's.

Rule: a record is known by its topic, partition, offset and time. An operator keeps those that were put back, for ever,
and its name must never change: under another one all of them would be put back once more.
"""

from __future__ import annotations

from kafka_eos.api import Pipeline
from kafka_eos.connectors.kafka.sink.dead_letters import Letter
from kafka_eos.core.records import Record
from kafka_eos.ops.dead_letters.replay_request import OPERATOR, Order

order = Order.given()
places = order.places()


def selected(record: Record[bytes, bytes]) -> list[Letter]:
    """The letter, if it is meant. What is no letter is left where it is."""
    letter = Letter.opened(record)
    return [letter] if letter is not None and order.selection.includes(letter) else []


def identity(letter: Letter) -> tuple[str, int, int, int]:
    return letter.identity


pipeline = Pipeline(order.job, **order.settings())
(
    pipeline.source(places.letters(), name=f"letters-{order.run}")
    .flat_map(selected, name="selected")
    .key_by(identity, name="by-record", values=Letter)
    .distinct(name=OPERATOR, ttl=None)
    .sink(places.restored(order.to), name="records")
)
