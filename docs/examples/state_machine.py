"""Is what each customer does allowed? A table of rules, a state a customer, an alert for each step that breaks them.

Topic ``events`` in, ``alerts`` out. Every step leads to another state and none is allowed twice in a row, so a single
event that is lost or counted twice leads to an alert: the job tells by itself whether it is exactly-once.
"""

from collections.abc import Iterable

import msgspec

from kafka_eos import Pipeline, ProcessContext, ProcessFunction, Stream
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

NOBODY = "nobody"
RULES = {
    (NOBODY, "come"): "browsing",
    ("browsing", "log in"): "known",
    ("known", "order"): "ordering",
    ("ordering", "cancel"): "known",
    ("ordering", "pay"): "paid",
    ("paid", "receive"): "known",
    ("known", "leave"): NOBODY,
}


class Event(msgspec.Struct, frozen=True):
    id: int
    customer: str
    what: str


class Alert(msgspec.Struct, frozen=True):
    id: int
    customer: str
    state: str
    what: str


class Rules(ProcessFunction[str, Event, Alert]):
    """Keeps the state of each customer. An illegal step does not change it; leaving deletes it."""

    def open(self, ctx: ProcessContext) -> None:
        self.state = ctx.value_state("state", str, NOBODY)

    def process(self, key: str, value: Event) -> Iterable[Alert]:
        state = self.state.get()
        after = RULES.get((state, value.what))
        if after is None:
            yield Alert(value.id, key, state, value.what)
        elif after == NOBODY:
            self.state.clear()
        else:
            self.state.put(after)


def alerts(events: Stream[Event]) -> Stream[Alert]:
    return events.key_by(lambda event: event.customer).process(Rules, name="rules")


def customer(alert: Alert) -> str:
    return alert.customer


pipeline = Pipeline("state-machine")
found = alerts(pipeline.source(KafkaSource("events", value=Event), name="events"))
found.sink(KafkaSink("alerts", value=Alert, key=customer), name="to-kafka")

if __name__ == "__main__":
    pipeline.run()
