"""Of which compacted topics the audit needs each record: of a table's only if the job has not read it to its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos.abc.context import JobContext
from kafka_eos.audit.facts.audit_subject import subject
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.core.ids import Term

TOPICS = ("orders", "rates", "rated")


@pytest.mark.parametrize(
    ("ahead", "needed"),
    [((), ["orders", "rated"]), ((1,), ["orders", "rates", "rated"])],
    ids=["read", "not read to its end"],
)
def test_what_compaction_may_take_of_a_table(ahead: tuple[int, ...], needed: list[str]) -> None:
    pipeline = Pipeline("tables")
    orders = pipeline.source(KafkaSource("orders", value=str), name="orders").key_by(str)
    rates: Any = pipeline.table(KafkaSource.records("rates", key=str, value=int), name="rates")
    orders.join(rates, lambda order, rate: order, name="join").sink(KafkaSink("rated", value=str), name="out")
    found = subject(pipeline.plan(), JobContext("tables", Term(0), {"bootstrap_servers": "localhost:1"}), {})

    # A value that stands behind what the job has read takes away the one that the job met.
    not_read = {"orders": {0: (5, 5)}, "rates": {part: (3, 3 + (part in ahead)) for part in range(2)}}
    assert found.needed_whole(TOPICS, not_read) == needed


def test_a_table_that_two_sinks_write_is_not_audited(tmp_path: Path) -> None:
    """Rows do not say which of the two has written them; each would find those of the other unexpected."""
    pipeline = Pipeline("tables")
    orders = pipeline.source(KafkaSource("orders", value=dict[str, Any]), name="orders")
    for name, table in (("one", "a"), ("two", "a"), ("alone", "b")):
        orders.sink(DeltaSink[dict[str, Any]](tmp_path / table), name=name)
    found = subject(pipeline.plan(), JobContext("tables", Term(0), {"bootstrap_servers": "localhost:1"}), {})

    why = f"another sink writes to its table {tmp_path / 'a'} too"
    assert found.not_audited == {"one": why, "two": why}
    assert [sink.node for sink in found.sinks] == ["alone"]
