"""q9, winning bids: each auction with the bid that has won it, when it ends."""

from benchmarks.nexmark.events import Events
from benchmarks.nexmark.queries.closing import Won, closing
from kafka_eos.connectors.kafka import KafkaSink


def q9(events: Events, topic: str) -> None:
    closing(events, "q9").sink(KafkaSink(topic, value=Won, key=lambda row: str(row.id)), name="q9")
