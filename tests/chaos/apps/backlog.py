"""Rows that wait behind an exchange for as long as a test likes. Input, output and broker: a list, files, none.

What is read is far ahead of what is processed, so a barrier that does not overtake takes seconds.
"""

import os
import time

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink
from kafka_eos.testing import ListSource


class Row(msgspec.Struct):
    id: int


class Count(msgspec.Struct):
    id: int
    seen: int


PAUSE = float(os.environ.get("TEST_PAUSE", "0.002"))


def slowly(key: int, count: Count) -> Count:
    time.sleep(PAUSE)
    return count


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_mode="unaligned",
    checkpoint_interval=float(os.environ.get("TEST_INTERVAL", "0.2")),
    checkpoint_timeout=float(os.environ.get("TEST_TIMEOUT", "1")),
    tolerated_checkpoint_failures=1,
    batch_size=100,
    parallelism=2,
    restart_backoff_initial=0.05,
)
(
    pipeline.source(ListSource([Row(n) for n in range(60_000)], splits=4), name="rows")
    .key_by(lambda row: row.id % 40, name="by-key", values=Row)
    .fold(
        name="count",
        init=lambda: Count(-1, 0),
        step=lambda count, row: Count(row.id, count.seen + 1),
        emit=slowly,
    )
    .sink(FileSink(os.environ["TEST_FILES"], value=Count), name="counts")
)
