"""The contract of a format: rows become a block, blocks become a file, and a file becomes rows again for the audit.

Rule: a format sees one file from its beginning to its end; where that lies and what it is called is not its affair.
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
"""The column that tells where a row came from, where a format has columns."""


class Out(Protocol):
    """Where a file's bytes go."""

    def write(self, data: bytes, /) -> int: ...


class Block(Protocol):
    """Rows, as their format holds them until they are written."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def slice(self, offset: int, length: int, /) -> Block: ...

    def take(self, indices: Sequence[int], /) -> Block: ...


class Body(Protocol):
    """The rows of one file."""

    def write(self, block: Any) -> None: ...

    @property
    def held(self) -> int:
        """Bytes that are not written yet."""

    @property
    def memory(self) -> int:
        """Bytes of memory that these take."""

    def flush(self) -> None:
        """Write what is held, though the file would be better with more of it at once."""

    def close(self) -> None:
        """Write what is left, and the file's end."""


class Layout(Protocol):
    """How one sink's values lie in a file."""

    @property
    def codec(self) -> Codec[Any]:
        """What decodes what ``told`` gives."""

    def block(self, values: Sequence[Any], provenance: Sequence[str] | None) -> Block:
        """Rows of values. Raises BadRows for all that cannot be written."""

    def joined(self, blocks: Sequence[Any]) -> Block:
        """One block of several: many small ones take more memory than their rows."""

    def body(self, out: Out) -> Body:
        """Begin a file."""

    def told(self, block: Any) -> list[bytes]:
        """What each row says, for the audit: the same bytes for the same row, read back or not."""

    def read(self, path: Path) -> Iterator[tuple[bytes, str | None]]:
        """For the audit: of each row of a file what it says, and its provenance."""


class Format(Protocol):
    """A format with its options."""

    @property
    def extension(self) -> str: ...

    def layout(self, value: Any, envelope: bool) -> Layout:
        """For values of a type; None is any. ConfigError if the format cannot hold them."""

    def describe(self) -> Mapping[str, Json]:
        """Its options, as far as they are not the usual ones."""


class Chunks(list[bytes]):
    """A block of rows that are bytes."""

    @property
    def nbytes(self) -> int:
        return sum(map(len, self))

    @staticmethod
    def joined(blocks: Sequence[Chunks]) -> Chunks:
        return Chunks(chain.from_iterable(blocks))

    def slice(self, offset: int, length: int, /) -> Chunks:
        return Chunks(self[offset : offset + length])

    def take(self, indices: Sequence[int], /) -> Chunks:
        return Chunks(self[index] for index in indices)


class Text:
    """A body of lines, as they are or as one gzip member."""

    def __init__(self, out: Out, compressed: bool, header: bytes = b"") -> None:
        self._out = out
        self._zlib = zlib.compressobj(wbits=31) if compressed else None
        self._put(header)

    def write(self, block: Chunks) -> None:
        self._put(b"\n".join([*block, b""]))

    @property
    def held(self) -> int:
        return 0

    @property
    def memory(self) -> int:
        return 0

    def flush(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        if self._zlib is not None:
            self._out.write(self._zlib.flush())

    def _put(self, data: bytes) -> None:
        data = data if self._zlib is None else self._zlib.compress(data)
        if data:
            self._out.write(data)


def expect_compression(given: str | None, known: Sequence[str | None], what: str) -> None:
    """ConfigError that says which there are."""
    if given not in known:
        raise ConfigError(f"compression={given!r}: {what} can be compressed by {', '.join(map(repr, known))}")
