"""The rows that go through Spark: frames of an exchange, reports, and the marks by which a reader knows it has all.

    target    subtask of the next level that gets the row
    level     level that the row is for; tasks of levels before it pass it on
    kind      FRAME, WATERMARK, END or REPORT
    origin    number of the task that made it: level × parallelism + subtask
    seq       number of the row among those of its origin; order is by (origin, seq)
    exchange  name of the exchange of a frame, or of a watermark
    frame     the bytes

Rule: a task that did not get every row that was sent to it, from exactly one attempt of each sender, fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from kafka_eos.core.errors import RestartFromCheckpoint
from kafka_eos.core.records import Watermark
from kafka_eos.spark.messages import EndOfPartition, decode_end, encode

FRAME, END, REPORT, WATERMARK = 0, 1, 2, 3
SPARK_SCHEMA = "target int, level int, kind int, origin int, seq long, exchange string, frame binary"
_SCHEMA = pa.schema(
    [
        ("target", pa.int32()),
        ("level", pa.int32()),
        ("kind", pa.int32()),
        ("origin", pa.int32()),
        ("seq", pa.int64()),
        ("exchange", pa.string()),
        ("frame", pa.binary()),
    ]
)
_BATCH_BYTES = 4 << 20
Row = tuple[int, int, int, int, int, str, bytes]


class ShuffleWriter:
    """Rows that one task sends to later stages."""

    def __init__(self, level: int, subtask: int, parallelism: int, attempt: int) -> None:
        self._level = level
        self._subtask = subtask
        self._parallelism = parallelism
        self._attempt = attempt
        self._origin = level * parallelism + subtask
        self._rows: list[Row] = []
        self._bytes = self._seq = 0
        self._sent: Counter[int] = Counter()

    def frame(self, target: int, level: int, exchange: str, frame: bytes) -> None:
        self._add((target, level, FRAME, self._origin, self._next(), exchange, frame))

    def replay_frame(self, target: int, level: int, exchange: str, frame: bytes, number: int) -> None:
        """Send a frame of in-flight rows, ordered before all rows of the epoch."""
        self._add((target, level, FRAME, -1, number, exchange, frame))

    def watermark(self, target: int, level: int, exchange: str, watermark: Watermark) -> None:
        """Add a frame with the watermark of an exchange, behind the frames of the epoch."""
        self._add((target, level, WATERMARK, self._origin, self._next(), exchange, encode(watermark)))

    def report(self, frame: bytes) -> None:
        """Send a report down to the next stage, and so to the driver."""
        self._add((self._subtask, self._level + 1, REPORT, self._origin, self._next(), "", frame))

    def forward(self, row: Row) -> None:
        self._add(row)

    def send_end(self) -> None:
        """Send the end marker to every task of the next stage."""
        for target in range(self._parallelism):
            end = encode(EndOfPartition(self._subtask, self._attempt, self._sent[target]))
            self._rows.append((target, self._level + 1, END, self._origin, self._next(), "", end))

    def take_full_batch(self) -> Iterator[pa.RecordBatch]:
        """Yield the buffered rows if they are worth a batch."""
        if self._bytes >= _BATCH_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield all buffered rows."""
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
            self._rows, self._bytes = [], 0
            yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)

    def _add(self, row: Row) -> None:
        self._rows.append(row)
        self._bytes += len(row[-1])
        self._sent[row[0]] += 1

    def _next(self) -> int:
        self._seq += 1
        return self._seq


class ShuffleReader:
    """Rows that reach one task, checked for completeness.

    ``inputs`` are the attempts they came from, once all are read.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch], parallelism: int) -> None:
        self._batches, self._parallelism = batches, parallelism
        self.inputs: dict[int, int] = {}
        self._announced = self._seen = 0

    def __iter__(self) -> Iterator[Row]:
        """Yield every row except the ends. Raise RestartFromCheckpoint at the end if rows are missing or surplus."""
        for batch in self._batches:
            columns: list[list[Any]] = [column.to_pylist() for column in batch.columns]
            for row in zip(*columns, strict=True):
                if row[2] == END:
                    self._end(decode_end(row[6]))
                else:
                    self._seen += 1
                    yield row
        if len(self.inputs) != self._parallelism or self._seen != self._announced:
            raise RestartFromCheckpoint(
                f"the shuffle delivered {self._seen} rows of {len(self.inputs)} tasks, but {self._announced} of "
                f"{self._parallelism} were sent"
            )

    def _end(self, end: EndOfPartition) -> None:
        if end.subtask in self.inputs:
            raise RestartFromCheckpoint(f"the shuffle delivered the rows of task {end.subtask} twice")
        self.inputs[end.subtask] = end.attempt
        self._announced += end.rows
