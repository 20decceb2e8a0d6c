"""In-flight rows of a snapshot, as files of the checkpoint.

A file is one line ``kafka-eos frames 1``, then frames of ``wire_format``, each after its length (four bytes, big
endian). It does not name subtasks: at any parallelism, each subtask restores the rows that are routed to it. Values are
decoded as the plan declares them now, by the rules of state; keys are stored unchanged.

Rule: frames of one channel stay in order, in one file; only one frame at a time is in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from kafka_eos.abc.codec import ListCodec
from kafka_eos.abc.state import InFlightRows
from kafka_eos.abc.storage import FileBatch, StoredFiles
from kafka_eos.core.error_messages import show_message
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, PlanError, UserError
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch
from kafka_eos.plan import FeedbackNode, Node, Plan
from kafka_eos.runtime.exchange import wire_format as wire
from kafka_eos.runtime.state.schema_evolution import describe_codec, resolve_codec

_MAGIC = b"kafka-eos frames 1\n"
_LENGTH = 4


class InFlightLog:
    """In-flight rows of one exchange that a snapshot collects before it stores them.

    A log that cannot be written (a full disk) does not stop the processing of rows. So ``add`` ignores the error, and
    ``add_to`` raises it: then only the checkpoint fails.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tail = bytearray(_MAGIC)
        """Bytes that are not in the file yet."""
        self._begun = False
        self._error: OSError | None = None

    def add(self, frame: bytes) -> None:
        self._tail += len(frame).to_bytes(_LENGTH, "big") + frame
        if len(self._tail) >= LIMITS.in_flight_bytes_in_memory:
            self._write()

    def add_to(
        self, batch: FileBatch, exchange: str, codec: ListCodec[Any], overtaken: bool
    ) -> Callable[[], InFlightRows]:
        """Add the whole log to a batch. The returned function is called when the batch is stored.

        Raises OSError if the log could not be written, or cannot be stored.
        """
        self._write()
        if self._error is not None:
            raise self._error
        self._path.chmod(0o600)  # a private file is linked instead of copied
        get_ref = batch.add(self._path)
        return lambda: InFlightRows(exchange, describe_codec(codec), (get_ref(),), overtaken)

    def drop(self) -> None:
        """Delete the log: it is stored, or its epoch was aborted."""
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._error is None:
            try:
                with self._path.open("ab" if self._begun else "wb") as file:
                    file.write(self._tail)
                self._begun = True
            except OSError as error:
                self._error = error
        self._tail.clear()


def read_frames(stored: StoredFiles, scratch: Path, kept: Sequence[InFlightRows]) -> Iterator[tuple[str, bytes]]:
    """Yield the stored frames, each with the name of its exchange.

    CorruptCheckpoint names a file that differs from what was stored.
    """
    for part in kept:
        for file in part.files:
            try:
                stored.fetch(file, scratch)
                with scratch.open("rb") as data:
                    for frame in _frames(data, file.name):
                        yield part.exchange, frame
            finally:
                scratch.unlink(missing_ok=True)


def read_rows(
    plan: Plan,
    stored: StoredFiles,
    scratch: Path,
    kept: Sequence[InFlightRows],
) -> Iterator[tuple[int, str, Batch[Any]]]:
    """Yield stored in-flight rows in processing order, decoded as the plan declares them now.

    Each frame comes with its number and the name of its exchange. Before the first one it raises ConfigError with both
    schemas if the plan's type cannot read them, or PlanError if their exchange does not exist.
    """
    places = {node.name: place for place, node in enumerate(plan.exchanges)}
    for part in kept:
        if part.exchange not in places:
            raise PlanError(
                f"the checkpoint contains in-flight rows of exchange {part.exchange!r}, but the pipeline has no "
                "exchange of that name: restore the old name"
            )
    # Rows further downstream are older; and rows that receivers had are older than those that senders still had.
    ordered = sorted(kept, key=lambda part: (-places[part.exchange], part.overtaken))
    codecs = [_reader(part, plan.node(part.exchange)) for part in ordered]
    numbers = itertools.count()
    for part, codec in zip(ordered, codecs, strict=True):
        for _, frame in read_frames(stored, scratch, [part]):
            yield next(numbers), part.exchange, _decoded(part, frame, codec, plan.node(part.exchange))


def _reader(part: InFlightRows, node: Node) -> ListCodec[Any]:
    try:
        codec: ListCodec[Any] = resolve_codec(node.exchange_codec, dict(part.codec))
    except UserError as error:
        raise _refusal(part, node, error) from error
    return codec


def _decoded(part: InFlightRows, frame: bytes, codec: ListCodec[Any], node: Node) -> Batch[Any]:
    try:
        return wire.decode(frame, codec)
    except PlanError as error:
        raise _refusal(part, node, error.__cause__ or error) from error


def _refusal(part: InFlightRows, node: Node, reason: BaseException) -> ConfigError:
    assert node.exchange_codec is not None  # every exchange has one
    if isinstance(node, FeedbackNode):
        hint = (
            "Every savepoint contains the rows in a loop. Make the new type able to read the old one (a default for "
            "each new field, no other type under an old name). Or run the old version with --until-caught-up: it "
            "ends when the loop is empty."
        )
    else:
        hint = "Run the old version until it has stopped: its last checkpoint contains no such rows."
    return ConfigError(
        f"in-flight rows of exchange {part.exchange!r} were written with {dict(part.codec)}, but the pipeline now "
        f"declares {describe_codec(node.exchange_codec)} ({show_message(reason)}). {hint}"
    )


def _frames(data: IO[bytes], name: str) -> Iterator[bytes]:
    if data.read(len(_MAGIC)) != _MAGIC:
        raise ConfigError(f"{name}: unknown format for this kafka-eos. Upgrade kafka-eos.")
    while head := data.read(_LENGTH):
        size = int.from_bytes(head, "big")
        frame = data.read(size)
        if len(head) < _LENGTH or len(frame) < size:
            raise CorruptCheckpoint(f"{name}: a frame of rows is truncated")
        yield frame
