"""Spark forgets that it decided a batch whose output is visible, and replays it."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from kafka_eos.core.errors import ConfigError, Fatal
from tests.limits import set_limits
from tests.structured_streaming.kit import Totals, messages

OLDER = "the output of batch {} is already visible.* is older than its output"


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


@pytest.mark.campaign
def test_a_replay_that_differs_stops_before_it_is_decided(totals: Totals, spark: Any) -> None:
    """The visible output is of one attempt; Spark's state would be of another."""
    totals.run(spark)
    last = totals.decided()
    totals.forget(last)

    query = totals.start(spark)
    with pytest.raises(Fatal, match=f"Spark replays batch {last}, whose .* records are committed already"):
        query.awaitTermination()

    assert totals.decided() == last - 1
    totals.exact(last)


@pytest.mark.campaign
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


@pytest.mark.campaign
@pytest.mark.parametrize(("kind", "retained"), [("certain", 2), ("random", 100)])
def test_a_checkpoint_older_than_its_output(kind: str, retained: int, totals: Totals, spark: Any) -> None:
    """The first batch is forgotten, or is remembered and comes out otherwise."""
    totals.kind = kind
    with set_limits(settled_batches_kept=retained):
        totals.run(spark)
    last = totals.decided()
    for part in ("offsets", "commits", "state", "sources"):
        shutil.rmtree(totals.checkpoint / part, ignore_errors=True)

    with pytest.raises(Fatal, match=OLDER.format(last)):
        totals.run(spark)

    totals.none_staged()
    assert all(len(lists[-1]["ids"]) == len(set(lists[-1]["ids"])) for lists in totals.outputs().values())


@pytest.mark.campaign
def test_a_batch_of_another_sink_is_adopted_only_on_request(totals: Totals, spark: Any) -> None:
    totals.run(spark)
    for record in (totals.checkpoint / "kafka_eos" / "manifests").iterdir():
        record.unlink()

    with pytest.raises(ConfigError, match="adopt=True"):
        totals.run(spark)

    totals.feed()
    totals.run(spark, adopt=True)
    totals.exact()
