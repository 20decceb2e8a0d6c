"""The interface of a format: rows become a block, blocks become a file, and a file becomes rows again for the audit.

Rule: a format sees one file from its beginning to its end, and knows neither its location nor its name.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, Protocol

from kafka_eos.abc.codec import Codec
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json

PROVENANCE: Final = "kafka_eos_provenance"
"""The column with the origin of a row, in formats with columns."""


class ByteOutput(Protocol):
    """The destination of a file's bytes."""

    def write(self, data: bytes, /) -> int: ...


class RowBlock(Protocol):
    """A batch of encoded rows, in the representation of its format."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def slice(self, offset: int, length: int, /) -> RowBlock: ...

    def take(self, indices: Sequence[int], /) -> RowBlock: ...


class BlockWriter(Protocol):
    """A writer of row blocks into one file."""

    def write(self, block: Any) -> None: ...

    @property
    def buffered_bytes(self) -> int:
        """Return the bytes that are not written yet."""

    @property
    def memory(self) -> int:
        """Return the bytes of memory that these take."""

    def flush(self) -> None:
        """Write the buffered rows, even if the file would be better with larger blocks."""

    def close(self) -> None:
        """Write the remaining rows, and the end of the file."""


class FileLayout(Protocol):
    """The encoding of one sink's values as rows of a file, and the decoding for the audit."""

    @property
    def codec(self) -> Codec[Any]:
        """Return the codec that decodes the results of ``encode_for_audit``."""

    def block(self, values: Sequence[Any], provenance: Sequence[str] | None) -> RowBlock:
        """Return the rows of these values. Raise BadRows for all values that cannot be written."""

    def joined(self, blocks: Sequence[Any]) -> RowBlock:
        """Return several blocks as one: many small blocks take more memory than their rows."""

    def body(self, out: ByteOutput) -> BlockWriter:
        """Return a writer that begins a file."""

    def encode_for_audit(self, block: Any) -> list[bytes]:
        """Return each row encoded for the audit; a row read from a file gives the same bytes."""

    def read(self, path: Path) -> Iterator[tuple[bytes, str | None]]:
        """Yield each row of a file, encoded for the audit, and its provenance."""


class Format(Protocol):
    """A file format with its options."""

    @property
    def extension(self) -> str: ...

    @property
    def needs_type(self) -> bool:
        """Return whether the columns follow from the type of the values."""

    def layout(self, value: Any, envelope: bool) -> FileLayout:
        """Return the layout for values of a type; None is any type. Raise ConfigError if the format cannot
        store them."""

    def describe(self) -> Mapping[str, Json]:
        """Return its options that differ from the defaults."""


class BytesBlock(list[bytes]):
    """A row block whose rows are bytes."""

    @property
    def nbytes(self) -> int:
        return sum(map(len, self))

    @staticmethod
    def joined(blocks: Sequence[BytesBlock]) -> BytesBlock:
        return BytesBlock(chain.from_iterable(blocks))

    def slice(self, offset: int, length: int, /) -> BytesBlock:
        return BytesBlock(self[offset : offset + length])

    def take(self, indices: Sequence[int], /) -> BytesBlock:
        return BytesBlock(self[index] for index in indices)


class TextWriter:
    """A writer of rows as lines, optionally gzip-compressed."""

    def __init__(self, out: ByteOutput, compressed: bool, header: bytes = b"") -> None:
        self._out = out
        self._zlib = zlib.compressobj(wbits=31) if compressed else None
        self._put(header)

    def write(self, block: BytesBlock) -> None:
        self._put(b"\n".join([*block, b""]))

    @property
    def buffered_bytes(self) -> int:
        return 0

    @property
    def memory(self) -> int:
        return 0

    def flush(self) -> None:
        """Do nothing: no rows are buffered."""

    def close(self) -> None:
        if self._zlib is not None:
            self._out.write(self._zlib.flush())

    def _put(self, data: bytes) -> None:
        data = data if self._zlib is None else self._zlib.compress(data)
        if data:
            self._out.write(data)


def expect_compression(given: str | None, known: Sequence[str | None], what: str) -> None:
    """Raise ConfigError, with the possible values, unless the compression is known."""
    if given not in known:
        raise ConfigError(f"compression={given!r}: {what} can be compressed by {', '.join(map(repr, known))}")
