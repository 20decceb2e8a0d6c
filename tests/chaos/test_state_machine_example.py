"""The example of the state machine: an alert for each step that is not allowed and for no other, whoever dies.

The rules are such that an event which is lost, or counts twice, leads to a false alert or to a missed one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from docs.examples import state_machine
from kafka_eos.devtools.broker import Broker
from kafka_eos.testing import run_local
from tests.chaos import machines
from tests.chaos.running import nothing_left
from tests.chaos.soak_loads import Customers
from tests.chaos.storm import Steps, Storm
from tests.marks import campaign
from tests.producers import in_order
from tests.waiting import PATIENCE

NUMBER = 4000


@dataclass
class Crowd(Storm):
    """A storm over customers."""

    customers: Customers = field(default_factory=Customers)

    def feed(self, payments: int = 300) -> None:
        producer = in_order(self.job.bootstrap)
        for number in range(self.fed, self.fed + payments):
            key, value = self.customers.record(number)
            producer.produce(self.job.input, value, key=key)
        assert producer.flush(PATIENCE) == 0
        self.fed += payments


STEPS: Steps = (
    (2, ("commit.before=kill@2", "recovery.opened=kill", "snapshot.uploaded=kill@3")),
    (3, ("sink.seal=kill@2", "align.complete=kill@3", "worker.ack.after=kill@3")),
    (1, ("manifest.published=kill@2",)),
)
FEW: Steps = ((1, ("commit.before=kill@2",)), (2, ("snapshot.uploaded=kill@3",)))


@pytest.mark.campaign
@pytest.mark.chaos
@pytest.mark.parametrize(
    ("mode", "steps"),
    [
        pytest.param("unaligned", FEW, id="few"),
        campaign("unaligned", STEPS, named="unaligned"),
        campaign("aligned", STEPS, named="aligned"),
    ],
)
def test_no_alert_is_false_and_none_is_missed(
    broker_factory: Callable[..., Broker], tmp_path: Path, mode: str, steps: Steps
) -> None:
    customers = Customers()
    job = customers.job(broker_factory().bootstrap, tmp_path)
    storm = Crowd(job, 0, customers=customers)
    for workers, faults in steps:
        with storm.through(*faults, KAFKA_EOS_PARALLELISM=workers, KAFKA_EOS_CHECKPOINT_MODE=mode):
            storm.feed(1000)
    job.run()

    assert customers.exact(job) == storm.fed
    nothing_left(job)


def test_the_alerts_are_those_of_the_planted_steps() -> None:
    events = made()

    assert machines.wrong(events, alerts(events)) == []
    assert sum(machines.planted(event["id"]) for event in events) > 30


@pytest.mark.parametrize("number", [*range(500, 510), *map(campaign, range(510, 600))])
def test_one_event_that_is_lost_or_counts_twice_shows(number: int) -> None:
    events = made()
    index = next(i for i, event in enumerate(events) if event["id"] == number)
    lost = alerts(events[:index] + events[index + 1 :])
    if machines.planted(number):
        assert machines.wrong(events, lost) == [f"missed alert of event {number}"]
    else:
        assert machines.wrong(events, lost) != []
    assert machines.wrong(events, alerts(events[: index + 1] + events[index:])) != []


def made() -> list[dict[str, Any]]:
    customers = machines.Customers()
    return [json.loads(customers.event(number)[1]) for number in range(NUMBER)]


def alerts(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    given = [state_machine.Event(**event) for event in events]
    return [msgspec.structs.asdict(alert) for alert in run_local(state_machine.pipeline, {"events": given})["to-kafka"]]
