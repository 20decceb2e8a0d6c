"""After a refusal the rows for a topic are tried out: those that the broker refuses alone are found, and no others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat

import pytest

from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.connectors.kafka.sink.broker_refusals import RefusalSearch, Row, record_refusals
from kafka_eos.connectors.kafka.sink.cluster_limits import CurrentLimits
from kafka_eos.connectors.kafka.sink.record_encoders import ProducerColumns
from kafka_eos.connectors.kafka.sink.record_sizes import TopicLimits
from kafka_eos.connectors.kafka.sink.writer import AtLeastOnceWriter
from kafka_eos.core.errors import EnvironmentFailed, RestartFromCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin

SCOPE = "kafka://here:9092"


class Broker:
    """A broker that refuses some values, and with them whatever is sent together."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.sent: list[list[str]] = []

    def __call__(self, topic: str, rows: Sequence[Row]) -> bool:
        self.sent.append([row[1][0] for row in rows])
        return any(row[1][0] in self.refused for row in rows)


def rows(*values: str) -> Iterable[Row]:
    return ((index, (value, None, 0, None, -1)) for index, value in enumerate(values))


@pytest.fixture
def search(request: pytest.FixtureRequest) -> Callable[[Broker], frozenset[int]]:
    """The refused rows of three, for a topic of which a record was refused just now."""
    topic = request.node.name
    record_refusals(SCOPE, [topic])
    return lambda broker: RefusalSearch(SCOPE, broker).find_refused(topic, rows("a", "b", "a"))


Search = Callable[[Broker], frozenset[int]]


def test_all_refused_rows_of_a_batch_are_found_at_once(search: Search) -> None:
    """An attempt that found only the first one would fail once for each."""
    broker = Broker("a")

    assert search(broker) == {0, 2}
    assert broker.sent == [["a", "b", "a"], ["a"], ["b", "a"], ["b"], ["a"]]


def test_one_refused_row_of_many_is_found_in_few_tries() -> None:
    """Each try is a transaction."""
    record_refusals(SCOPE, ["many"])
    broker = Broker("77")

    assert RefusalSearch(SCOPE, broker).find_refused("many", rows(*map(str, range(1000)))) == {77}
    assert len(broker.sent) <= 21


def test_good_rows_are_sent_once_together(search: Search) -> None:
    broker = Broker("c")

    assert search(broker) == frozenset()
    assert broker.sent == [["a", "b", "a"]]


def test_rows_that_are_refused_only_together_are_not_rejected(search: Search) -> None:
    assert search(lambda topic, some: len(list(some)) > 1) == frozenset()  # type: ignore[arg-type]


def test_without_a_refusal_of_the_topic_on_this_cluster_nothing_is_tried_out() -> None:
    broker = Broker("a")
    record_refusals(SCOPE, ["doubted"])

    assert RefusalSearch(SCOPE, broker).find_refused("another", rows("a")) == frozenset()
    assert RefusalSearch("kafka://there:9092", broker).find_refused("doubted", rows("a")) == frozenset()
    assert RefusalSearch(SCOPE, broker).find_refused("doubted", rows()) == frozenset()
    assert broker.sent == []


def test_a_topic_is_trusted_again_fifteen_minutes_after_its_rows_were_first_tried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A restore may take hours before the next attempt writes a row."""
    now = time.monotonic()
    search = RefusalSearch(SCOPE, Broker("bad"))
    record_refusals(SCOPE, ["renewed"])

    found = []
    for minutes, values in ((100, "bad"), (110, "good"), (120, "bad"), (121, "good"), (137, "bad")):
        monkeypatch.setattr(time, "monotonic", lambda at=minutes: now + 60 * at)
        found.append(search.find_refused("renewed", rows(values)))

    assert found == [{0}, frozenset(), {0}, frozenset(), frozenset()]


def test_a_search_that_takes_too_long_ends_with_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the worker would count as hung, and its successor would know nothing of the refusals."""
    record_refusals(SCOPE, ["many"])
    clock = iter(range(1000, 9999))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))

    with pytest.raises(EnvironmentFailed, match=r"topic many: 61 of a batch of 500 .* lower batch_size"):
        RefusalSearch(SCOPE, lambda topic, some: True).find_refused("many", rows(*map(str, range(500))))


def test_records_that_are_not_delivered_for_one_reason_name_it_once() -> None:
    job = JobContext("job", Term(1), {})
    limits = CurrentLimits(lambda: TopicLimits("out", None, 1_000_000, 1))
    batch = Batch(["a", "b", "c"], range(3), ListOrigin("in", "in", 0, 0, "abc"))
    writer: AtLeastOnceWriter[str] = AtLeastOnceWriter(
        TaskContext(job, 0, 1, "out"),
        limits,
        lambda batch: ProducerColumns([value.encode() for value in batch.values], repeat(None), repeat(0), None),
        {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 50, "log_level": 0},
        5.0,
        provenance=False,
        scope=SCOPE,
    )
    writer.write(batch)

    with pytest.raises(RestartFromCheckpoint) as told:
        writer.seal(EpochId(Epoch(1), Term(1)))

    assert str(told.value).count("Local: Message timed out") == 1
