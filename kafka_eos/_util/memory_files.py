"""Files in memory, for secrets that another process or library reads from a file.

Rule: they have no name, so ``ps`` does not show what they contain, and no other user can open them.
"""

from __future__ import annotations

import os


def open_memory_file(data: bytes) -> int:
    """Return the descriptor of a file in memory that contains ``data``, at its beginning."""
    file = os.memfd_create("kafka-eos-given")
    with os.fdopen(file, "wb", closefd=False) as writer:
        writer.write(data)
    os.lseek(file, 0, os.SEEK_SET)
    return file
