"""Files in memory, for secrets that another process or library reads from a file.

Rule: they have no name, so ``ps`` does not show what they contain, and no other user can open them. Where the system
has no files in memory (macOS), they are files on disk that have been deleted already.
"""

from __future__ import annotations

import os
import tempfile


def open_memory_file(data: bytes) -> int:
    """Return the descriptor of a file in memory that contains ``data``, at its beginning."""
    file = _open_nameless_file()
    with os.fdopen(file, "wb", closefd=False) as writer:
        writer.write(data)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _open_nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("kafka-eos-given")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
