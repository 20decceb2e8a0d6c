"""Spark's own operators above the sink: all that Structured Streaming offers, written exactly once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.structured_streaming import ExactlyOnceQuery, exactly_once_kafka
from tests.structured_streaming.kit import feed, messages, nothing_is_open

START = 1_700_000_000
"""When the row with id 0 is, in seconds since the Unix epoch; the others follow each second."""
Run = Callable[..., ExactlyOnceQuery]


@pytest.fixture
def rows(bootstrap: str, topic: Callable[..., str], spark: Any) -> Callable[[], Any]:
    """``rows()``: a stream of (user, id, at), 40 rows a batch, of a topic with 100 rows."""
    source = topic(2)
    feed(bootstrap, source, range(100))

    def stream() -> Any:
        return (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 40)
            .load()
            .selectExpr(
                "string(key) AS user",
                "int(string(value)) AS id",
                f"timestamp_seconds({START} + int(string(value))) AS at",
            )
        )

    return stream


@pytest.fixture
def run(bootstrap: str, tmp_path: Path) -> Run:
    """Run a query to the end of its input."""

    def go(df: Any, **options: Any) -> ExactlyOnceQuery:
        query = exactly_once_kafka(
            df,
            bootstrap_servers=bootstrap,
            **{"checkpoint": tmp_path / "checkpoint", "trigger": {"availableNow": True}} | options,
        )
        query.awaitTermination()
        return query

    return go


@pytest.fixture
def rocksdb(spark: Any) -> Iterator[None]:
    """transformWithState needs it."""
    name = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(name, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    yield
    spark.conf.unset(name)


def test_all_columns_of_the_kafka_sink(rows: Any, run: Run, topic: Any, bootstrap: str) -> None:
    even, odd = topic(3), topic(3)
    df = rows().selectExpr(
        "binary(user) AS key",
        "IF(id = 7, NULL, string(id)) AS value",
        f"IF(id % 2 = 0, '{even}', '{odd}') AS topic",
        "IF(id < 50, 2, NULL) AS partition",
        "IF(id = 9, NULL, array(struct('id' AS key, binary(string(id)) AS value))) AS headers",
        "at AS timestamp",
    )

    run(df)

    found = {m.timestamp()[1] // 1000 - START: m for m in messages(bootstrap, even) + messages(bootstrap, odd)}
    assert sorted(found) == list(range(100))
    for n, message in found.items():
        assert message.key() == f"u{n % 6}".encode()
        assert message.value() == (None if n == 7 else str(n).encode())
        assert message.topic() == (odd if n % 2 else even)
        assert message.partition() == 2 or n >= 50
        assert message.headers() == (None if n == 9 else [("id", str(n).encode())])
    nothing_is_open(bootstrap, even)


def test_complete_mode_writes_all_groups_each_batch(rows: Any, run: Run, topic: Any, bootstrap: str) -> None:
    target = topic(2)
    df = rows().groupBy("user").count().selectExpr("user AS key", "string(count) AS value")

    query = run(df, topic=target, output_mode="complete")

    found = messages(bootstrap, target)
    assert query.last_visible_batch is not None
    assert len(found) == 6 * (query.last_visible_batch + 1)
    last = {m.key().decode(): int(m.value()) for m in found}
    assert last == Counter(f"u{n % 6}" for n in range(100))


def test_windows_with_a_watermark_append_each_window_once(rows: Any, run: Run, topic: Any, bootstrap: str) -> None:
    from pyspark.sql import functions as F

    target = topic(1)
    df = (
        rows()
        .withWatermark("at", "1 second")
        .groupBy(F.window("at", "10 seconds"))
        .count()
        .selectExpr("string(unix_seconds(window.start)) AS key", "string(count) AS value")
    )

    run(df, topic=target)

    closed = {int(m.key()): int(m.value()) for m in messages(bootstrap, target)}
    assert closed == dict.fromkeys(range(START, START + 90, 10), 10)
    assert len(messages(bootstrap, target)) == 9


@pytest.mark.campaign
def test_a_join_of_two_streams(rows: Any, run: Run, topic: Any, bootstrap: str) -> None:
    target = topic(2)
    left, right = rows().selectExpr("id", "user"), rows().selectExpr("id AS other", "user AS theirs")
    df = left.join(right, left.id == right.other + 1).selectExpr("user AS key", "concat(id, '-', other) AS value")

    run(df, topic=target)

    found = Counter(m.value().decode() for m in messages(bootstrap, target))
    assert found == Counter(f"{n}-{n - 1}" for n in range(1, 100))


@pytest.mark.campaign
def test_transform_with_state(rows: Any, run: Run, topic: Any, bootstrap: str, rocksdb: None) -> None:
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Count(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self._seen = handle.getValueState("seen", "n int")

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:  # noqa: N802 - Spark's name
            n = self._seen.get()[0] if self._seen.exists() else 0
            for row in rows:
                n += 1
                yield Row(key=key[0], value=json.dumps({"id": row.id, "n": n}))
            self._seen.update((n,))

        def close(self) -> None:
            pass

    target = topic(2)
    df = rows().groupBy("user").transformWithState(Count(), "key string, value string", "Append", "None")

    run(df, topic=target)

    found = [(m.key().decode(), json.loads(m.value())) for m in messages(bootstrap, target)]
    assert Counter(value["id"] for _, value in found) == Counter(range(100))
    for user in {key for key, _ in found}:
        numbers = [value["n"] for key, value in found if key == user]
        assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_a_running_query_is_followed_and_stopped(
    rows: Any, topic: Any, bootstrap: str, spark: Any, tmp_path: Path
) -> None:
    target = topic(1)
    df = rows().selectExpr("string(id) AS value")

    query = exactly_once_kafka(df, topic=target, bootstrap_servers=bootstrap, checkpoint=tmp_path.as_uri())
    query.processAllAvailable()

    assert len(messages(bootstrap, target)) == 100
    assert query.last_visible_batch == query.query.lastProgress["batchId"]
    assert query.isActive
    assert query.stop()
    assert not query.isActive
    assert query.exception() is None
    nothing_is_open(bootstrap, target)


@pytest.mark.campaign
def test_a_row_that_can_never_be_sent_stops_the_query(rows: Any, run: Run, topic: Any, bootstrap: str) -> None:
    target = topic(1, config={"max.message.bytes": "10000000"})
    df = rows().selectExpr("IF(id = 3, repeat('x', 3000000), string(id)) AS value")

    with pytest.raises(Exception, match=r"takes 30000\d\d bytes .*producer at most 1000000"):
        run(df, topic=target)

    assert messages(bootstrap, target) == []
    nothing_is_open(bootstrap, target)


@pytest.mark.campaign
def test_a_row_over_the_topics_limit_stops_the_query(rows: Any, run: Run, topic: Any, bootstrap: str) -> None:
    target = topic(1, config={"max.message.bytes": "5000"})
    df = rows().selectExpr("IF(id = 3, repeat('x', 6000), string(id)) AS value")

    with pytest.raises(Exception, match=f"the topic {target} takes at most 5000"):
        run(df, topic=target)

    assert messages(bootstrap, target) == []
    nothing_is_open(bootstrap, target)


@pytest.mark.campaign
def test_topics_by_row_that_do_not_take_the_querys_batches_are_named(
    rows: Any, run: Run, topic: Any, bootstrap: str, tmp_path: Path
) -> None:
    target = topic(1, config={"max.message.bytes": "5000"})
    df = rows().selectExpr(f"'{target}' AS topic", "string(id) AS value")

    with pytest.raises(Exception, match=rf"the topic {target} accepts batches of at most 5000.*batch\.size"):
        run(df)
    run(df, checkpoint=tmp_path / "second", config={"batch.size": 5000})

    assert sorted(int(m.value()) for m in messages(bootstrap, target)) == list(range(100))
    nothing_is_open(bootstrap, target)
