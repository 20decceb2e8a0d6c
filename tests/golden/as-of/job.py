"""The job that the golden job directories in this folder were made of: rows and versions that wait in an as-of join.

Its rows are in the file, and no broker is needed. They had come to the first sixty; with TEST_MORE there are sixty
more, for a version that goes on with what is stored.
"""

import os
from typing import Any

import msgspec

from kafka_eos import Pipeline, bounded
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import Record
from kafka_eos.testing import ListSource

GOLDEN = 60


class Rate(msgspec.Struct):
    version: int


def upsert(n: int) -> Record[str, Rate]:
    """A version of each of four accounts in turn, 300 milliseconds apart; each eleventh takes its account away."""
    return Record(f"a{n % 4}", None if n % 11 == 10 else Rate(n), timestamp=n * 300)


def at(row: tuple[str, int]) -> int:
    """200 milliseconds apart, each third a second late: behind the versions, which wait."""
    return row[1] * 200 - (1000 if row[1] % 3 == 0 else 0)


def known(row: tuple[str, int], rate: Rate | None) -> bytes:
    return f"{row[0]} {row[1]} {None if rate is None else rate.version}".encode()


ROWS = [(f"a{n % 5}", n) for n in range(2 * GOLDEN)]
RATES = [upsert(n) for n in range(2 * GOLDEN)]
MORE = bool(os.environ.get("TEST_MORE"))

pipeline = Pipeline(
    f"golden-{os.environ['TEST_BACKEND']}",
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=0.1,
    state_backend=os.environ["TEST_BACKEND"],
)
rows = (
    pipeline.source(ListSource(ROWS if MORE else ROWS[:GOLDEN]), name="rows")
    .with_timestamps(at, watermarks=bounded(1))
    .key_by(lambda row: row[0], name="by-key", values=tuple[str, int])
)
rates: Any = pipeline.table(
    ListSource(RATES if MORE else RATES[:GOLDEN], name="rates"), name="rates", values=Record[str, Rate]
)
versions = rates.with_timestamps(lambda record: record.timestamp, watermarks=bounded(1))
rows.left_join_as_of(versions, known, name="then").sink(FileSink(os.environ["TEST_FILES"]), name="out")
