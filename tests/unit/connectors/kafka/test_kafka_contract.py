"""KafkaSource keeps the contract of a source where control records stand between the records, and behind them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.testing import SOURCE_CHECKS, SourceUnderTest, check_source
from tests.examples import seeds
from tests.kafka_log import Log, Part


@pytest.fixture
def brokers(record_client: str) -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def test_a_topic_keeps_the_contract(brokers: ExitStack) -> None:
    """But for what it shows of committed epochs: this broker has no groups."""
    checks = [name for name in SOURCE_CHECKS if name != "completed"]

    def fresh() -> SourceUnderTest:
        log = Log(3)
        log.append(0, b"1", None, b"2", b"3", None)
        log.append(1, b"10", b"11", b"12", None, None)
        log.append(2, None)
        address = brokers.enter_context(log.served()).address

        def grow() -> Sequence[int]:
            log.parts.append(Part())
            log.append(0, b"4", None)
            log.append(3, b"30", None, b"31")
            return [4, 30, 31]

        def lose() -> None:
            for part in log.parts:
                part.start = max(0, part.end - 1)

        def spoil() -> Sequence[int]:
            log.append(0, b"x", b"4", None, b"x", b"x")
            log.append(2, b"x", b"20")
            return [4, 20]

        source = lambda: KafkaSource("in", value=int, config={"fetch.wait.max.ms": 10})  # noqa: E731
        settings = {"bootstrap_servers": address}
        return SourceUnderTest(source, [1, 2, 3, 10, 11, 12], grow, lose, spoil, settings)

    check_source(fresh, *checks, seeds=seeds(3))
