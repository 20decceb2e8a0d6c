"""Versions of files that the server reads again when they change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

FileVersion: TypeAlias = tuple[int, int, int] | None


def find_file_version(file: Path) -> FileVersion:
    """Return a value that differs once a file was changed or replaced; None while it cannot be found."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
