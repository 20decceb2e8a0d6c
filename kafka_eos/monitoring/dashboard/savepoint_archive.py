"""A directory of files as one archive, piece by piece: nobody has to hold it whole.

The format is that of ``tar`` (POSIX.1-2001). Rule: whoever is given the pieces until their end has the whole of it; if
a file cannot be read, or is not as long as it was, the pieces end with an error.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PIECE: Final = 1 << 20


def archived(directory: Path) -> Iterator[bytes]:
    """All files at and below ``directory``, under its name. OSError if one cannot be read."""
    for path in sorted(each for each in directory.rglob("*") if each.is_file()):
        found = path.stat()
        entry = tarfile.TarInfo(f"{directory.name}/{path.relative_to(directory).as_posix()}")
        entry.size, entry.mtime, entry.mode = found.st_size, int(found.st_mtime), 0o600
        yield entry.tobuf(tarfile.PAX_FORMAT)
        yield from _pieces(path, found.st_size)
        yield b"\0" * (-found.st_size % tarfile.BLOCKSIZE)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            size -= len(piece)
            yield piece
    if size:
        raise OSError(f"{path} is not as long as it was")
