"""Spark forgets that it decided a batch whose output is visible, and replays it."""

from __future__ import annotations

from typing import Any

import pytest

from kafka_eos.errors import ConfigError, Fatal
from tests.spark.door.kit import Totals, messages


def test_a_replay_that_is_the_same_is_not_written_again(totals: Totals, spark: Any) -> None:
    totals.kind = "certain"
    totals.run(spark)
    written = len(messages(totals.bootstrap, totals.target))
    totals.forget(totals.decided())

    totals.run(spark)

    assert len(messages(totals.bootstrap, totals.target)) == written
    totals.feed()
    totals.run(spark)
    totals.exact()


def test_a_replay_that_differs_stops_before_it_is_decided(totals: Totals, spark: Any) -> None:
    """The visible output is of one attempt; Spark's state would be of another."""
    totals.run(spark)
    last = totals.decided()
    totals.forget(last)

    query = totals.start(spark)
    with pytest.raises(Fatal, match=f"Spark replays batch {last}, whose .* records are committed already"):
        query.awaitTermination()

    assert totals.decided() == last - 1
    totals.exact()


def test_two_forgotten_decisions(totals: Totals, spark: Any) -> None:
    """Spark replays only the newest batch, with the state before it."""
    totals.kind = "certain"
    totals.run(spark)
    last = totals.decided()
    totals.forget(last)
    totals.forget(last - 1)

    totals.run(spark)
    totals.feed()
    totals.run(spark)

    totals.exact()


def test_a_batch_of_another_sink_is_adopted_only_on_request(totals: Totals, spark: Any) -> None:
    totals.run(spark)
    for record in (totals.checkpoint / "kafka_eos" / "manifests").iterdir():
        record.unlink()

    with pytest.raises(ConfigError, match="adopt=True"):
        totals.run(spark)

    totals.feed()
    totals.run(spark, adopt=True)
    totals.exact()


def test_another_name_is_refused(totals: Totals, spark: Any) -> None:
    totals.run(spark)

    with pytest.raises(ConfigError, match="belongs to the query 'totals', not to 'sums'"):
        totals.run(spark, name="sums")
