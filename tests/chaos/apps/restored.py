"""Numbers to files, with a sum for each key. No broker. A worker gets stored files back as slowly as a test wants.

Only what a restore fetches is slow: uploads, and the supervisor's checksums, are not.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink
from kafka_eos.storage import local_files as files
from kafka_eos.testing import ListSource

COUNT = int(os.environ["TEST_COUNT"])
PAUSE = float(os.environ.get("TEST_FETCH_PAUSE", "0"))
"""Seconds that each piece of a stored file takes."""
PIECE = 1024


class Sum(msgspec.Struct):
    key: int
    sum: int


def slowly(data: Iterable[bytes], passed: Callable[[int], None]) -> Iterator[bytes]:
    for block in data:
        for start in range(0, len(block), PIECE):
            time.sleep(PAUSE)
            piece = block[start : start + PIECE]
            yield piece
            passed(len(piece))


if PAUSE:
    files.with_progress = slowly

pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.2,
    batch_size=500,
    restart_backoff_initial=0.05,
    state_backend=os.environ.get("TEST_BACKEND", "rocksdb"),
)
(
    pipeline.source(ListSource(range(COUNT), splits=2), name="numbers")
    .key_by(lambda number: number % 4000, values=int)
    .fold(
        name="sum",
        init=lambda: 0,
        step=lambda sum_, number: sum_ + number,
        emit=lambda key, sum_: Sum(key, sum_),
    )
    .sink(FileSink(os.environ["TEST_FILES"], value=Sum), name="sums")
)
