"""Class archives of Kafka and Spark: loading and verifying classes takes half of a JVM's startup time.

Java writes an archive when a JVM exits, and the next JVM maps it into memory. Rule: an archive is used only if it is
complete; one that Java rejects (another Java, other jars) has no effect.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from uuid import uuid4

from msgspec import Struct

from kafka_eos._util.jvm.jars import cache_dir

_WRITING_SECONDS = 3600.0
"""An older archive is not being written any more."""
_KEPT = 4
"""Archives to keep, the most recently used ones. One of Spark has some 180 MB, and each environment its own."""
_QUIET = ("-XX:+IgnoreUnrecognizedVMOptions", "-Xlog:disable", "-XX:+VerifySharedSpaces")
"""The last option verifies checksums: without it, a damaged archive crashes the JVM at each start."""


class ClassArchiveOptions(Struct, frozen=True):
    """JVM options that use a class archive, with and without writing one.

    ``read_write``  uses the archive, or writes one when the JVM exits
    ``read_only``   uses the archive and never writes one: for a JVM that loads few of the classes, or is killed
    """

    read_write: list[str]
    read_only: list[str]


def find_archive_options(java: str, jars: str) -> ClassArchiveOptions:
    """Return the JVM options of the class archive for these jars; remove stale archives."""
    whose = hashlib.sha256(f"{Path(java).resolve()} {jars}".encode()).hexdigest()[:16]
    directory = cache_dir() / "classes"
    whole = directory / f"{whose}.jsa"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _clear(directory)
        if not whole.exists():
            return ClassArchiveOptions(
                [*_QUIET, f"-XX:ArchiveClassesAtExit={directory / f'{whose}.{uuid4().hex}.part'}"], []
            )
        whole.touch()
    except OSError:
        return ClassArchiveOptions([], [])  # no space, or no permission: the start takes longer
    using = [*_QUIET, f"-XX:SharedArchiveFile={whole}"]
    return ClassArchiveOptions(using, using)


def _clear(directory: Path) -> None:
    """Complete archives that were written; remove partial archives, and all but the most recently used ones."""
    for part in directory.glob("*.part"):
        _settle(part, directory / f"{part.name.partition('.')[0]}.jsa")
    for old in sorted(directory.glob("*.jsa"), key=lambda each: each.stat().st_mtime)[:-_KEPT]:
        old.unlink(missing_ok=True)


def _settle(part: Path, whole: Path) -> None:
    """Rename an archive once it is complete. Java writes its header last; until then it begins with zeros."""
    with part.open("rb") as file:
        is_whole = any(file.read(4))
        if is_whole:
            os.fsync(file.fileno())  # a power failure must not leave a partial archive under the final name
    if is_whole:
        os.replace(part, whole)
    elif time.time() - part.stat().st_mtime > _WRITING_SECONDS:
        part.unlink()
