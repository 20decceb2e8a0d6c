"""Inputs of a run from files with one JSON value per line.

Rule: a line is the value of a record as it is: the codec of its source decodes it, or rejects it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from kafka_eos.core.errors import ConfigError


def read_lines(files: Sequence[str], sources: Collection[str], option: str) -> dict[str, list[bytes]]:
    """Return the lines by source. ``files``: ``FILE`` for the only source, else ``SOURCE=FILE``.

    Raise ConfigError that names ``option`` if a file cannot be read, has no lines or belongs to no source.
    """
    found: dict[str, list[bytes]] = {}
    for given in files:
        name, _, file = given.rpartition("=")
        name = name or (next(iter(sources)) if len(sources) == 1 else "")
        if name not in sources:
            known = sorted(sources)
            raise ConfigError(f"{option} {given}: name the source, SOURCE=FILE, where SOURCE is one of {known}")
        try:
            lines = [line for line in Path(file).read_bytes().splitlines() if line.strip()]
        except OSError as error:
            raise ConfigError(f"{option} {file} cannot be read: {error.strerror}") from error
        if not lines:
            raise ConfigError(f"{option} {file} has no lines")
        found.setdefault(name, []).extend(lines)
    return found
