"""Customers of the example of the state machine: what they do is allowed, but for steps that are planted.

Rule: which events are planted follows from their ids alone, so that the alerts that are due can be told without a
state: an engine that loses or repeats one event gives others.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from docs.examples.state_machine import NOBODY, RULES

CUSTOMERS = 1000
PLANTED_EVERY = 97
STEPS = sorted({what for _, what in RULES})


class Customers:
    """Makes events, one after the other. The same seed makes the same ones."""

    def __init__(self, seed: int = 0) -> None:
        self._dice, self._states = random.Random(seed), dict[str, str]()

    def event(self, number: int) -> tuple[str, bytes]:
        """Key and value of the event of that number; numbers come in order."""
        customer = f"c{number * 7919 % CUSTOMERS}"
        state = self._states.get(customer, NOBODY)
        allowed = sorted(what for before, what in RULES if before == state)
        if planted(number):
            what = self._dice.choice([step for step in STEPS if step not in allowed])
        else:
            what = self._dice.choice(allowed)
            self._states[customer] = RULES[state, what]
        return customer, json.dumps({"id": number, "customer": customer, "what": what}).encode()

    @property
    def there(self) -> int:
        """How many have come and not left."""
        return sum(state != NOBODY for state in self._states.values())


def planted(number: int) -> bool:
    return number % PLANTED_EVERY == PLANTED_EVERY - 1


def wrong(events: Iterable[Mapping[str, Any]], alerts: Iterable[Mapping[str, Any]]) -> list[str]:
    """False alerts, missed ones, and those that came twice; of all committed records of both topics."""
    due = {event["id"]: (event["customer"], event["what"]) for event in events if planted(event["id"])}
    found = Counter((alert["id"], alert["customer"], alert["what"]) for alert in alerts)
    missed = [number for number, said in due.items() if (number, *said) not in found]
    return [
        *(f"false alert {alert}" for alert in found if due.get(alert[0]) != alert[1:]),
        *(f"missed alert of event {number}" for number in missed),
        *(f"alert {alert} came {count} times" for alert, count in found.items() if count > 1),
    ]
