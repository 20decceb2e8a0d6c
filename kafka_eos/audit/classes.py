"""The classes that Spark loads, kept for the next session: to find, read and check them is half of its start.

Java writes an archive when a session's JVM ends, and maps it into the next one. Rule: an archive is used only when it
is whole, and one that Java does not want (another Java, other jars) is as none.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from uuid import uuid4

from kafka_eos.devbroker.jars import cache_dir

_WRITING_SECONDS = 3600.0
"""So old is no archive that is still being written."""
_UNUSED_SECONDS = 90 * 86400.0
"""After which an archive is deleted; each has more than 100 MB."""


def archive_options(java: str, spark: str) -> str:
    """What a JVM that runs the Spark in directory ``spark`` is told: to use the archive, or to write one."""
    whose = hashlib.sha256(f"{Path(java).resolve()} {spark}".encode()).hexdigest()[:16]
    directory = cache_dir() / "classes"
    whole = directory / f"{whose}.jsa"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for part in directory.glob(f"{whose}.*.part"):
            _settle(part, whole)
        for other in directory.glob("*.jsa"):
            if time.time() - other.stat().st_mtime > _UNUSED_SECONDS:
                other.unlink()
        if whole.exists():
            whole.touch()
    except OSError:
        return ""  # no room, or none of ours: a start takes longer
    if whole.exists():
        return f'{_QUIET} "-XX:SharedArchiveFile={whole}"'
    return f'{_QUIET} "-XX:ArchiveClassesAtExit={directory / f"{whose}.{uuid4().hex}.part"}"'


_QUIET = "-XX:+IgnoreUnrecognizedVMOptions -Xlog:disable"


def _settle(part: Path, whole: Path) -> None:
    """Java writes the head of an archive last; until then it begins with zeros."""
    with part.open("rb") as file:
        head = file.read(4)
    if any(head):
        os.replace(part, whole)
    elif time.time() - part.stat().st_mtime > _WRITING_SECONDS:
        part.unlink()
