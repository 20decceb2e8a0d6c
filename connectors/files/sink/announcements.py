"""The content of epoch files, which announce committed files to readers. Pure.

Rule: the content is the same, whichever process writes it and in whatever order the files were committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from kafka_eos.connectors.files import file_names as names
from kafka_eos.connectors.files.file_names import PartId
from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Json

VERSION = 1


class EpochFileEntry(Struct, frozen=True):
    """A committed file as an epoch file lists it. ``final`` includes the directory of its partition."""

    part: PartId
    final: str
    rows: int
    size: int
    more: Mapping[str, Json]


def build_epoch_files(epoch: EpochId, entries: Sequence[EpochFileEntry]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of an epoch's files, one per incarnation."""
    for incarnation in sorted({file.part.incarnation for file in entries}):
        of = sorted((file for file in entries if file.part.incarnation == incarnation), key=lambda file: file.final)
        files = [
            {"file": file.final, "operator": file.part.operator, "rows": file.rows, "size": file.size, **file.more}
            for file in of
        ]
        content = {"version": VERSION, "job": of[0].part.job, "epoch": epoch.epoch.n, "files": files}
        yield names.announcement(incarnation, epoch.epoch), json.dumps(content, indent=1).encode() + b"\n"
