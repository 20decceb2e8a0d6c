"""A directory of files as one archive, produced piece by piece, so that no process holds it whole.

The format is that of ``tar`` (POSIX.1-2001). Rule: a client that receives all pieces has the complete archive. If a
file cannot be read, or its length has changed, the pieces end with an error.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PIECE: Final = 1 << 20


def stream_tar(directory: Path) -> Iterator[bytes]:
    """Yield the files of a directory as a tar archive. OSError if one cannot be read."""
    for path in sorted(each for each in directory.rglob("*") if each.is_file()):
        found = path.stat()
        entry = tarfile.TarInfo(f"{directory.name}/{path.relative_to(directory).as_posix()}")
        entry.size = found.st_size
        entry.mtime = int(found.st_mtime)
        entry.mode = 0o600
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
        raise OSError(f"{path} has another size than at the start of the download")
