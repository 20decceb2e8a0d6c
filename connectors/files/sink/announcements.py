"""What the file of an epoch tells readers. Pure.

Rule: it is the same, whoever writes it and in whatever order the files were committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kafka_eos.connectors.files import file_names as names
from kafka_eos.connectors.files.file_names import Part
from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Json

VERSION = 1


@dataclass(frozen=True, slots=True)
class ToldFile:
    """A committed file. ``final`` has the directory of its partition."""

    part: Part
    final: str
    rows: int
    size: int
    more: Mapping[str, Json]


def announcements(epoch: EpochId, told: Sequence[ToldFile]) -> Iterator[tuple[str, bytes]]:
    """Name and content of what tells of an epoch, one a life; none if there is nothing to tell."""
    for life in sorted({file.part.life for file in told}):
        of = sorted((file for file in told if file.part.life == life), key=lambda file: file.final)
        files = [
            {"file": file.final, "operator": file.part.operator, "rows": file.rows, "size": file.size, **file.more}
            for file in of
        ]
        said = {"version": VERSION, "job": of[0].part.job, "epoch": epoch.epoch.n, "files": files}
        yield names.announcement(life, epoch.epoch), json.dumps(said, indent=1).encode() + b"\n"
