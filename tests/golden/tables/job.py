"""The job that the golden job directory in this folder was made of: rows that wait for a table, which is half read.

Its rows are in the file, and no broker is needed. It was stopped when it had read a part of the table.
"""

import os
import time
from typing import Any

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import Record
from kafka_eos.testing import ListSource
from kafka_eos.testing.list_source import ListReader

PAUSE = float(os.environ["TEST_PAUSE"])


class Rate(msgspec.Struct):
    version: int


class SlowReader(ListReader):
    def poll(self, max_records: int, timeout: float) -> Any:
        time.sleep(PAUSE)
        return super().poll(min(max_records, 10), timeout)


class SlowSource(ListSource):
    def reader(self, ctx: Any, positions: Any) -> ListReader:
        return SlowReader(self, ctx.operator, positions)


ROWS = [(f"a{n % 7}", n) for n in range(60)]
RATES: list[Record[str, Rate]] = [Record(f"a{n % 5}", Rate(n)) for n in range(1000)]
RATES += [Record("a4", None)]


def rated(row: Any, rate: Rate | None) -> bytes:
    return f"{row[0]} {row[1]} {None if rate is None else rate.version}".encode()


pipeline = Pipeline(
    "golden-tables", checkpoint_dir=os.environ["TEST_CHECKPOINTS"], checkpoint_interval=0.1, state_backend="memory"
)
rows = pipeline.source(ListSource(ROWS, splits=2), name="rows").key_by(
    lambda row: row[0], name="by-key", values=tuple[str, int]
)
rates = pipeline.table(SlowSource(RATES, name="rates"), name="rates", values=Record[str, Rate])
rows.left_join(rates, rated, name="rated").sink(FileSink(os.environ["TEST_FILES"]), name="out")
