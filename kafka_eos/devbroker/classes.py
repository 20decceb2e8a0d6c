"""The classes that Kafka or Spark loads, kept for its next start: to find, read and check them is half of that start.

Java writes an archive when a JVM ends, and maps it into the next one. Rule: an archive is used only when it is whole,
and one that Java does not want (another Java, other jars) is as none.
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
"""After which an archive is deleted; one of Spark has more than 100 MB."""
_QUIET = ("-XX:+IgnoreUnrecognizedVMOptions", "-Xlog:disable")


def archive_options(java: str, jars: str) -> list[str]:
    """What a JVM is told that runs what is in ``jars``: to use the archive, or to write one when it ends."""
    try:
        whole, part = _settled(java, jars)
    except OSError:
        return []  # no room, or none of ours: a start takes longer
    return _using(whole) or [*_QUIET, f"-XX:ArchiveClassesAtExit={part}"]


def reading_options(java: str, jars: str) -> list[str]:
    """The same for a JVM that loads few of the classes: it uses an archive, and writes none."""
    try:
        return _using(_settled(java, jars)[0])
    except OSError:
        return []


def _settled(java: str, jars: str) -> tuple[Path, Path]:
    """Where the archive is once there is one, and where the next one may be written."""
    whose = hashlib.sha256(f"{Path(java).resolve()} {jars}".encode()).hexdigest()[:16]
    directory = cache_dir() / "classes"
    whole = directory / f"{whose}.jsa"
    directory.mkdir(parents=True, exist_ok=True)
    for part in directory.glob(f"{whose}.*.part"):
        _settle(part, whole)
    for other in directory.glob("*.jsa"):
        if time.time() - other.stat().st_mtime > _UNUSED_SECONDS:
            other.unlink()
    if whole.exists():
        whole.touch()
    return whole, directory / f"{whose}.{uuid4().hex}.part"


def _using(whole: Path) -> list[str]:
    return [*_QUIET, f"-XX:SharedArchiveFile={whole}"] if whole.exists() else []


def _settle(part: Path, whole: Path) -> None:
    """Java writes the head of an archive last; until then it begins with zeros."""
    with part.open("rb") as file:
        head = file.read(4)
    if any(head):
        os.replace(part, whole)
    elif time.time() - part.stat().st_mtime > _WRITING_SECONDS:
        part.unlink()
