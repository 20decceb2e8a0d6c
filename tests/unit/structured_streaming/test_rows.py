"""What one task makes of its rows, without a driver: records, their sum, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pyarrow as pa
import pytest

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.core.errors import UserError
from kafka_eos.structured_streaming import partition_writer as task
from tests.micro_batches import TIMEOUT_MS, rows
from tests.scripted_broker import ScriptedBroker
from tests.transactional_broker import TransactionalBroker
from tests.waiting import eventually


def summed(*batches: pa.RecordBatch) -> tuple[int, int]:
    """Records and digest, as a replay counts them."""
    (row,) = (row for batch in task.recount(iter(batches)) for row in batch.to_pylist())
    assert row["transaction"] is None
    return row["records"], row["digest"]


def test_a_replay_is_counted_without_regard_to_order_and_batches() -> None:
    whole = rows(b"a", b"b", b"c")

    assert summed(whole) == (3, ord("a") + ord("b") + ord("c"))
    assert summed(rows(b"c"), rows(b"a", b"b"), rows()) == summed(whole)
    assert summed(rows(b"a", b"b")) != summed(whole)
    assert summed() == (0, 0)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_of_hashes_stays_within_64_bits(sign: int) -> None:
    most = 2**63 - 1
    digests = [sign * most, sign * most, sign * most, 5]
    batch = rows(*[b""] * 4).set_column(2, "digest", pa.array(digests, pa.int64()))

    wanted = (sum(digests) + 2**63) % 2**64 - 2**63
    assert summed(batch) == (4, wanted)
    assert summed(batch.slice(0, 1), batch.slice(1, 2), batch.slice(3)) == (4, wanted)


def test_columns_that_a_query_leaves_out_have_no_part_in_its_records() -> None:
    columns = task.columns_of(rows(b"a", None))

    assert (columns.values, columns.keys) == ([b"a", None], [None, None])
    assert (columns.headers, columns.partitions) == (None, None)
    assert isinstance(columns.timestamps, Iterator)
    assert list(islice(columns.timestamps, 3)) == [0, 0, 0]


def test_nulls_leave_to_kafka_what_they_are_about() -> None:
    batch = rows(
        b"a",
        b"b",
        b"c",
        timestamp=[5, None, -5],
        partition=[2, None, 0],
        headers=[[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, []],
    )

    columns = task.columns_of(batch)

    assert list(columns.timestamps) == [5, 0, -5]
    assert columns.partitions == [2, -1, 0]
    assert columns.headers == [[("h", b"1"), ("h", None)], [], []]


def test_only_tasks_with_rows_have_a_transaction() -> None:
    returned = [{"transaction": None}, {"transaction": '{"term": 1}'}, {"transaction": '{"term": 2}'}]

    assert task.transactions(returned) == [{"term": 1}, {"term": 2}]


# ---------------------------------------------------------------- what can never be sent


def deliver(broker: ScriptedBroker, topic: str | None, *batches: pa.RecordBatch) -> None:
    assignment = task.BatchSpec(
        "totals-0", 1, 0, Cluster(broker.address, {"compression.type": "none"}), TIMEOUT_MS, topic
    )
    list(task.write_partition(assignment, iter(batches)))


def test_a_row_that_can_never_be_sent_is_refused(kafka: TransactionalBroker, broker: ScriptedBroker) -> None:
    with pytest.raises(UserError, match=r"row 1 of an Arrow batch can never be sent .* has 20000\d\d bytes"):
        deliver(broker, "out", rows(b"short"), rows(b"short", b"x" * 2_000_000))

    assert kafka.visible == []
    eventually(lambda: [*kafka.ids] and not kafka.open, "the transaction is given up at once")


def test_batches_are_as_small_as_the_topic_wants_them(kafka: TransactionalBroker, broker: ScriptedBroker) -> None:
    kafka.max_message_bytes = 5000

    deliver(broker, "out", rows(*[b"x" * 1000] * 20))

    (name,) = kafka.open
    assert 4 <= kafka.batches[name] <= 20


def test_a_topic_that_a_row_names_must_take_the_batches_of_the_query(
    kafka: TransactionalBroker, broker: ScriptedBroker
) -> None:
    kafka.max_message_bytes = 5000

    with pytest.raises(UserError, match=r'the topic other accepts batches of at most 5000 .*batch\.size": 5000'):
        deliver(broker, None, rows(b"row", topic=["other"]))
