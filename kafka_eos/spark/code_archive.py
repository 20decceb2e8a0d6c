"""The user's code as an archive, for executors that have no disk in common with the driver.

Rule: the code of each run has a directory of its own, so that a session can run several jobs, and changed ones.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path


def write_archive(archive: Path, files: Mapping[str, Path]) -> None:
    """Write an archive of files, by their paths in it."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as out:
        for name, file in files.items():
            out.write(file, name)


def unpack_archive(archive: Path) -> Path:
    """Return the directory that has the files of an archive, next to it. The first task of an executor unpacks it."""
    directory = archive.with_suffix("")
    if not directory.is_dir():
        fresh = Path(tempfile.mkdtemp(dir=archive.parent))
        with zipfile.ZipFile(archive) as files:
            files.extractall(fresh)
        try:
            fresh.rename(directory)
        except OSError:
            if not directory.is_dir():
                raise
            shutil.rmtree(fresh)  # another task was faster
    return directory
