"""``TransactionalBroker`` and a real broker, asked the same, admit, fence, commit and show the same."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from tests.broker.transaction_kit import Writer, append, committed_values, end, mark, new_writer, settled
from tests.examples import examples
from tests.transactional_broker import TransactionalBroker

IDS = 2
"""Transactional ids of a script."""
VERSION = 4
"""Of EndTxn: the one that all releases know."""
scripts = st.lists(
    st.tuples(st.sampled_from(["open", "write", "mark", "commit", "look"]), st.integers(0, IDS - 1)),
    min_size=6,
    max_size=14,
)


class BrokerUnderTest(Protocol):
    """A topic of one partition, and how to read what is committed to it."""

    address: str
    topic: str

    def visible(self) -> list[str]: ...


class RealBroker:
    def __init__(self, address: str, topic: str) -> None:
        self.address, self.topic = address, topic

    def visible(self) -> list[str]:
        return committed_values(self.address, self.topic)


class MemoryBroker:
    topic = "out"

    def __init__(self, kafka: TransactionalBroker, address: str) -> None:
        self._kafka, self.address = kafka, address

    def visible(self) -> list[str]:
        return [(value or b"").decode() for value in self._kafka.values]


@pytest.fixture
def brokers(bootstrap: str, topic: Callable[..., str]) -> Iterator[Callable[[], list[BrokerUnderTest]]]:
    """A real one with a new topic, and one in memory, at each call."""
    served = []

    def make() -> list[BrokerUnderTest]:
        kafka = TransactionalBroker({"out": 1})
        served.append(kafka.served())
        return [RealBroker(bootstrap, topic()), MemoryBroker(kafka, served[-1].__enter__().address)]

    yield make
    for each in served:
        each.__exit__(None, None, None)


class Script:
    """Plays steps against one broker, and notes what each answered."""

    def __init__(self, broker: BrokerUnderTest) -> None:
        self._broker, self._rpc = broker, KafkaRequests(Cluster(broker.address))
        run = uuid.uuid4().hex[:10]
        self._names = [f"t-{run}.1.0.{which}" for which in range(IDS)]
        self._groups = [f"markers-{run}-{which}" for which in range(IDS)]
        self._writers: dict[int, Writer] = {}
        self._fenced: list[Writer] = []
        self._open_transactions: set[int] = set()
        self._markers: dict[str, int] = {}
        self._values = map(str, itertools.count())

    def play(self, script: list[tuple[str, int]]) -> list[object]:
        steps = {
            "open": self._open,
            "write": self._write,
            "mark": self._mark,
            "commit": self._commit,
            "look": self._look,
        }
        with self._rpc:
            notes: list[object] = [(step, which, steps[step](which)) for step, which in script]
            notes += [("look", which, self._look(which)) for which in range(IDS)]
            for which in sorted(self._open_transactions):
                self._open(which)  # an open transaction hides what was committed after its first record
        return [*notes, sorted(self._broker.visible())]

    def _open(self, which: int) -> object:
        """A new writer ends the transaction of the one before it, which can commit nothing any more."""
        older = self._writers.get(which)
        self._writers[which] = new_writer(self._broker.address, self._names[which])
        self._open_transactions.discard(which)
        if older is None:
            return None
        self._fenced.append(older)  # its end would abort
        return end(self._rpc, older, VERSION) == "NONE"

    def _write(self, which: int) -> None:
        if which not in self._writers or self._state(which) == "CompleteCommit":
            return
        if which not in self._open_transactions:
            self._writers[which].producer.begin_transaction()
            self._open_transactions.add(which)
        append(self._writers[which], self._broker.topic, next(self._values))

    def _mark(self, which: int) -> None:
        if which in self._open_transactions and self._state(which) == "Ongoing":
            marker = mark(self._writers[which], self._broker.topic, self._groups[which])
            self._markers[marker] = len(self._markers)

    def _commit(self, which: int) -> object:
        """As a committer does: with the identity of the writer, whether or not it is committed already."""
        if which not in self._writers:
            return None
        answer = end(self._rpc, self._writers[which], VERSION)
        if answer == "NONE":
            settled(self._rpc, self._writers[which], "CompleteCommit")
        return answer == "NONE"

    def _look(self, which: int) -> object:
        marker = self._rpc.marker(self._groups[which], self._broker.topic, 0)
        return self._state(which), None if marker is None else self._markers[marker]

    def _state(self, which: int) -> str | None:
        found = self._rpc.describe(self._names[which])
        return None if found is None else found.state


@examples(4, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(script=scripts)
@example(
    [
        *[("open", 0), ("write", 0), ("mark", 0), ("open", 1), ("write", 1), ("commit", 0), ("commit", 0)],
        *[("open", 0), ("commit", 1), ("write", 0), ("mark", 0), ("open", 0), ("write", 0), ("commit", 0)],
    ]
)
@example([("open", 0), ("open", 1), ("write", 1), ("write", 0), ("commit", 0)])
@example([("open", 0), ("open", 1), ("write", 1), ("write", 0), ("commit", 0), ("commit", 1)])
def test_both_answer_the_same(brokers: Callable[[], list[BrokerUnderTest]], script: list[tuple[str, int]]) -> None:
    real, memory = (Script(broker).play(script) for broker in brokers())

    assert memory == real
