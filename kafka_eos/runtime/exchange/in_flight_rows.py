"""Rows under way that belong to a snapshot, as files of the checkpoint.

A file is one line ``kafka-eos frames 1``, then frames of ``wire``, each after its length (four bytes, big endian). It
says nothing about subtasks: whoever restores it, at whatever parallelism, takes the rows that are routed to it.
Values come back as the plan declares them now, by the rules of state; keys as they were given.
Rule: frames of one channel stay in order, in one file; one frame at a time is in memory, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from kafka_eos.abc.codec import ListCodec
from kafka_eos.abc.state import InFlight
from kafka_eos.abc.storage import CheckpointStorage, StoredFiles
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint, PlanError, UserError
from kafka_eos.core.limits import LIMITS
from kafka_eos.core.records import Batch
from kafka_eos.plan import Feedback, Node, Plan
from kafka_eos.runtime.exchange import wire_format as wire
from kafka_eos.runtime.state.schema_evolution import described, reader

_MAGIC = b"kafka-eos frames 1\n"
_LENGTH = 4


class Log:
    """A file of a checkpoint in the making: what one subtask has seen under way on one exchange so far.

    Rows go on being processed whatever becomes of their log. So a file that cannot be written (a full disk) does not
    show in ``add``, but in ``store``: without the log there is no checkpoint, and no more than that.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tail = bytearray(_MAGIC)
        """What is not in the file yet."""
        self._begun = False
        self._error: OSError | None = None

    def add(self, frame: bytes) -> None:
        self._tail += len(frame).to_bytes(_LENGTH, "big") + frame
        if len(self._tail) >= LIMITS.in_flight_bytes_in_memory:
            self._write()

    def store(self, storage: CheckpointStorage, exchange: str, codec: ListCodec[Any], overtaken: bool) -> InFlight:
        """Upload the whole log. OSError if it could not be written, or cannot be stored."""
        self._write()
        if self._error is not None:
            raise self._error
        self._path.chmod(0o600)  # a private file is linked, not copied
        file = storage.upload(self._path, self._path.name)
        return InFlight(exchange, described(codec), (file,), overtaken)

    def drop(self) -> None:
        """It is stored, or its epoch was given up."""
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


def load(stored: StoredFiles, scratch: Path, kept: Sequence[InFlight]) -> Iterator[tuple[str, bytes]]:
    """All frames, with the name of their exchange. CorruptCheckpoint names a file that is not what was stored."""
    for part in kept:
        for file in part.files:
            try:
                stored.fetch(file, scratch)
                with scratch.open("rb") as data:
                    for frame in _frames(data, file.name):
                        yield part.exchange, frame
            finally:
                scratch.unlink(missing_ok=True)


def restored(
    plan: Plan,
    stored: StoredFiles,
    scratch: Path,
    kept: Sequence[InFlight],
    mine: Callable[[int], bool] = lambda number: True,
) -> Iterator[tuple[int, str, Batch[Any]]]:
    """The rows of all frames, in the order in which they are to be processed, as the plan declares them now.

    Each frame comes with its number and the name of its exchange; ``mine`` says by number which are wanted. ConfigError
    with both schemas if the plan's type cannot read them, PlanError if their exchange is gone: before the first one.
    """
    places = {node.name: place for place, node in enumerate(plan.exchanges)}
    for part in kept:
        if part.exchange not in places:
            raise PlanError(
                f"the checkpoint holds rows on their way through {part.exchange!r}, but the pipeline has no exchange "
                "of that name: give it its name back"
            )
    # Rows further down are older; so is what the receivers had than what the senders still had.
    ordered = sorted(kept, key=lambda part: (-places[part.exchange], part.overtaken))
    codecs = [_reader(part, plan.node(part.exchange)) for part in ordered]
    number = 0
    for part, codec in zip(ordered, codecs, strict=True):
        for _, frame in load(stored, scratch, [part]):
            if mine(number):
                yield number, part.exchange, _decoded(part, frame, codec, plan.node(part.exchange))
            number += 1


def _reader(part: InFlight, node: Node) -> ListCodec[Any]:
    try:
        codec: ListCodec[Any] = reader(node.wire, dict(part.codec))
    except UserError as error:
        raise _refusal(part, node, error) from error
    return codec


def _decoded(part: InFlight, frame: bytes, codec: ListCodec[Any], node: Node) -> Batch[Any]:
    try:
        return wire.decode(frame, codec)
    except PlanError as error:
        raise _refusal(part, node, error.__cause__ or error) from error


def _refusal(part: InFlight, node: Node, reason: BaseException) -> ConfigError:
    assert node.wire is not None  # an exchange has one
    if isinstance(node, Feedback):
        hint = (
            "Every savepoint holds what goes round in a loop. Let the new type read the old one (a default for each "
            "new field, no other type under an old name), or run the old version with --until-caught-up: it ends when "
            "nothing goes round any more, and leaves no such rows."
        )
    else:
        hint = "Run the old version until it has stopped: its last checkpoint holds no such rows."
    return ConfigError(
        f"rows on their way through {part.exchange!r} were written with {dict(part.codec)}, and the pipeline declares "
        f"{described(node.wire)} there ({reason}). {hint}"
    )


def _frames(data: IO[bytes], name: str) -> Iterator[bytes]:
    if data.read(len(_MAGIC)) != _MAGIC:
        raise ConfigError(f"{name}: not in a format that this kafka-eos reads. Upgrade kafka-eos.")
    while head := data.read(_LENGTH):
        size = int.from_bytes(head, "big")
        frame = data.read(size)
        if len(head) < _LENGTH or len(frame) < size:
            raise CorruptCheckpoint(f"{name}: a frame of rows is cut off")
        yield frame
