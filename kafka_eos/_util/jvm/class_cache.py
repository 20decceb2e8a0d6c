"""The classes that Kafka or Spark loads, kept for its next start: to find, read and check them is half of that start.

Java writes an archive when a JVM ends, and maps it into the next one. Rule: an archive is used only when it is whole,
and one that Java does not want (another Java, other jars) is as none.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from kafka_eos._util.jvm.jars import cache_dir

_WRITING_SECONDS = 3600.0
"""So old is no archive that is still being written."""
_KEPT = 4
"""Archives that are kept, those that were used last; one of Spark has some 180 MB, and each environment its own."""
_QUIET = ("-XX:+IgnoreUnrecognizedVMOptions", "-Xlog:disable", "-XX:+VerifySharedSpaces")
"""The last one compares checksums: a JVM dies of an archive that is damaged, at each start."""


@dataclass(frozen=True, slots=True)
class ClassOptions:
    """What JVMs are told that run the same jars.

    ``keeping``  to use the archive, or to write one when it ends
    ``reading``  to use the archive and never to write one: for a JVM that loads few of the classes, or that is killed
    """

    keeping: list[str]
    reading: list[str]


def class_options(java: str, jars: str) -> ClassOptions:
    """What JVMs are told that run what is in ``jars``. Looks once, and clears up what was left."""
    whose = hashlib.sha256(f"{Path(java).resolve()} {jars}".encode()).hexdigest()[:16]
    directory = cache_dir() / "classes"
    whole = directory / f"{whose}.jsa"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _clear(directory)
        if not whole.exists():
            return ClassOptions([*_QUIET, f"-XX:ArchiveClassesAtExit={directory / f'{whose}.{uuid4().hex}.part'}"], [])
        whole.touch()
    except OSError:
        return ClassOptions([], [])  # no room, or none of ours: a start takes longer
    using = [*_QUIET, f"-XX:SharedArchiveFile={whole}"]
    return ClassOptions(using, using)


def _clear(directory: Path) -> None:
    """Makes whole what was written; removes what was left half, and all archives but those that were used last."""
    for part in directory.glob("*.part"):
        _settle(part, directory / f"{part.name.partition('.')[0]}.jsa")
    for old in sorted(directory.glob("*.jsa"), key=lambda each: each.stat().st_mtime)[:-_KEPT]:
        old.unlink(missing_ok=True)


def _settle(part: Path, whole: Path) -> None:
    """Java writes the head of an archive last; until then it begins with zeros."""
    with part.open("rb") as file:
        is_whole = any(file.read(4))
        if is_whole:
            os.fsync(file.fileno())  # a power cut must not leave a part of one that counts as whole
    if is_whole:
        os.replace(part, whole)
    elif time.time() - part.stat().st_mtime > _WRITING_SECONDS:
        part.unlink()
