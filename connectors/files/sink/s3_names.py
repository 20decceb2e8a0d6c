"""Names in a bucket, and the payload of an upload's committable. No other module builds such a name.

    part-<epoch>-<term>-<subtask>-<incarnation>.<operator>[~<number>].<extension>  an upload, or its object
    .committed.…  .aborted.…  .incarnation.…  .retired.…    as in a directory, see ``file_names``

A name has the term, because an upload has no other field that identifies its writer. Three numbers precede the job, and
they contain no minus, so parsing is unambiguous.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct

from kafka_eos.connectors.files.file_names import EXTENSION, IDENTITY, NUMBER, PARTITION, PartId
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json

VERSION: Final = 1
_NAME = re.compile(rf"part-(\d+)-(\d+)-(\d+)-([^.]+){IDENTITY}\.([^.~]+){NUMBER}\.({EXTENSION})", re.ASCII)


def name_of(part: PartId, extension: str) -> str:
    """Return the final name of a part, without its partition."""
    at = part.epoch
    return f"part-{at.epoch.n:012d}-{at.term}-{part.subtask:04d}-{part.incarnation}.{part.numbered}.{extension}"


def part_of(name: str) -> PartId | None:
    """Return the part of an upload, by its name; None if the name is not a FileSink's."""
    match = _NAME.fullmatch(name.rpartition("/")[2])
    if match is None:
        return None
    epoch, term, subtask, job, identity, operator, number, _ = match.groups()
    at = EpochId(Epoch(int(epoch)), Term(int(term)))
    owner = None if identity is None else JobIdentity(identity)
    return PartId(job, owner, at, int(subtask), operator, int(number or 0))


def files_of(jobs: Collection[str], operator: str) -> str:
    """Return a pattern of final names, with the groups epoch and subtask, as ``file_names.files_of`` does."""
    whose = rf"(?:{'|'.join(map(re.escape, sorted(jobs)))})(?:\.[0-9a-f]{{12}})?\.{re.escape(operator)}(?:~\d+)?"
    return rf"part-(\d+)-\d+-(\d+)-{whose}\.{EXTENSION}"


class UploadCommittable(Struct, frozen=True):
    """The payload of an S3 committable: one multipart upload that is ready to complete.

    Reading a payload proves that its name stays below the prefix.
    """

    name: str
    upload: str
    upload_tag: str
    tags: tuple[str, ...]
    size: int
    announced: bool

    @property
    def part(self) -> PartId:
        part = part_of(self.name)
        assert part is not None
        return part

    def payload(self) -> dict[str, Json]:
        return {
            "version": VERSION,
            "name": self.name,
            "upload": self.upload,
            "upload_tag": self.upload_tag,
            "tags": [*self.tags],
            "size": self.size,
            "announced": self.announced,
        }

    @staticmethod
    def read(payload: Mapping[str, Json]) -> UploadCommittable:
        """Parse a payload. Raise CorruptCheckpoint if it is not one of this package."""
        match payload:
            case {
                "version": 1,
                "name": str(name),
                "upload": str(upload),
                "upload_tag": str(upload_tag),
                "tags": [*tags],
                "size": int(size),
                "announced": bool(announced),
            } if len(payload) == 7 and _is_below(name) and all(isinstance(tag, str) for tag in tags):
                return UploadCommittable(name, upload, upload_tag, tuple(map(str, tags)), size, announced)
        raise CorruptCheckpoint(f"not a committable of files on S3: {dict(payload)!r}")


def _is_below(name: str) -> bool:
    *partitions, last = name.split("/")
    return part_of(last) is not None and all(map(PARTITION.fullmatch, partitions))
