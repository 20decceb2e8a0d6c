"""Names in a bucket, and what a committable says about one upload. No other module forms such a name.

    part-<epoch>-<term>-<subtask>-<life>.<operator>[~<number>].<extension>    an upload, or the object that it became
    .committed.… .aborted.… .life.… .over.…                                   as in a directory, see ``files.names``

A name has the term, as an upload has nothing else that tells whose it is. Three numbers are in front of the job, and
none of them has a minus: so a name never reads two ways.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kafka_eos.connectors.files.file_names import EXTENSION, IDENTITY, NUMBER, PARTITION, Part
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json

VERSION: Final = 1
_NAME = re.compile(rf"part-(\d+)-(\d+)-(\d+)-([^.]+){IDENTITY}\.([^.~]+){NUMBER}\.({EXTENSION})", re.ASCII)


def name_of(part: Part, extension: str) -> str:
    """The final name of a part, without its partition."""
    at = part.epoch
    return f"part-{at.epoch.n:012d}-{at.term}-{part.subtask:04d}-{part.life}.{part.numbered}.{extension}"


def part_of(name: str) -> Part | None:
    """What an upload is, by its name; None if it is none of ours."""
    match = _NAME.fullmatch(name.rpartition("/")[2])
    if match is None:
        return None
    epoch, term, subtask, job, identity, operator, number, _ = match.groups()
    life = None if identity is None else JobIdentity(identity)
    return Part(job, life, EpochId(Epoch(int(epoch)), Term(int(term))), int(subtask), operator, int(number or 0))


def files_of(job: str, operator: str) -> str:
    """As in a directory, see ``files.names``: a pattern, and its groups: epoch and subtask."""
    whose = rf"{re.escape(job)}(?:\.[0-9a-f]{{12}})?\.{re.escape(operator)}(?:~\d+)?"
    return rf"part-(\d+)-\d+-(\d+)-{whose}\.{EXTENSION}"


@dataclass(frozen=True, slots=True)
class UploadPromise:
    """What a committable's payload says. Reading it proves that its name stays below the prefix."""

    name: str
    upload: str
    mark: str
    tags: tuple[str, ...]
    size: int
    announced: bool

    @property
    def part(self) -> Part:
        part = part_of(self.name)
        assert part is not None
        return part

    def payload(self) -> dict[str, Json]:
        return {
            "version": VERSION,
            "name": self.name,
            "upload": self.upload,
            "mark": self.mark,
            "tags": [*self.tags],
            "size": self.size,
            "announced": self.announced,
        }

    @staticmethod
    def read(payload: Mapping[str, Json]) -> UploadPromise:
        """CorruptCheckpoint if it is not a payload of this package."""
        match payload:
            case {
                "version": 1,
                "name": str(name),
                "upload": str(upload),
                "mark": str(mark),
                "tags": [*tags],
                "size": int(size),
                "announced": bool(announced),
            } if len(payload) == 7 and _is_below(name) and all(isinstance(tag, str) for tag in tags):
                return UploadPromise(name, upload, mark, tuple(map(str, tags)), size, announced)
        raise CorruptCheckpoint(f"not a committable of files on S3: {dict(payload)!r}")


def _is_below(name: str) -> bool:
    *partitions, last = name.split("/")
    return part_of(last) is not None and all(map(PARTITION.fullmatch, partitions))
