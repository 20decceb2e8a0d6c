"""Names of the files of a FileSink, and what a committable says about one. No other module forms such a name.

    .open.<life>.<term>.<epoch>.<subtask>.<operator>        being written
    .staged.<life>.<term>.<epoch>.<subtask>.<operator>      prepared: complete, on disk, still hidden
    part-<epoch>-<subtask>-<life>.<operator>.<extension>    committed; readers take ``part-*``
    .committed.<life>.<term>.<epoch>.<subtask>.<operator>   trace of a commit, empty: stays when readers took the part
    .aborted.<life>.<term>.<epoch>.<subtask>.<operator>     trace of an abort: what was staged under this name is undone
    .life.<life>                                            mark of a life: it writes here
    .over.<life>                                            its mark was taken away: it may not write here any more

``<life>`` is ``<job>.<identity>``, or ``<job>`` of a job without an identity, which has no mark. Names join tokens with
dots, which no token contains, so a name never reads two ways. A final name has no term: an epoch's number is used once
in a life, so an old term that commits too can only find the file there. Of several files that a writer makes in an
epoch the second is ``<operator>~0001``, and so on. Only committed files lie in directories of partitions,
``day=2026-01-31/part-…``; ``_epochs/<epoch>-<life>.json`` tells of an epoch that is committed in all sinks.

A reader that skips names beginning with a dot or an underscore, as Spark and pyarrow do, sees committed rows alone.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json

VERSION: Final = 1
"""Of a committable."""
EPOCHS: Final = "_epochs"
"""The directory of what tells readers which epochs are whole."""
DEFAULT_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""The value of a partition of rows that have none."""


class Kind(enum.Enum):
    """What a hidden file is."""

    OPEN = "open"
    STAGED = "staged"
    COMMITTED = "committed"
    ABORTED = "aborted"


IDENTITY = r"(?:\.([0-9a-f]{12}))?"
NUMBER = r"(?:~(\d{4,9}))?"
EXTENSION = r"(?:jsonl|csv|avro|parquet)(?:\.gz)?"
_HIDDEN = re.compile(
    rf"\.({'|'.join(kind.value for kind in Kind)})\.([^.]+){IDENTITY}\.(\d+)\.(\d+)\.(\d+)\.([^.~]+){NUMBER}",
    re.ASCII,
)
_FINAL = re.compile(rf"part-\d+-\d+-([^.]+){IDENTITY}\.[^.~]+{NUMBER}\.({EXTENSION})", re.ASCII)
PARTITION = re.compile(r"[A-Za-z_]\w*=[^/\0]+", re.ASCII)
PARTITION_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]")
_LONGEST = 255
_MARK = re.compile(r"\.(life|over)\.([^.]+)\.([0-9a-f]{12})")


@dataclass(frozen=True, slots=True)
class Part:
    """One writer's output of one epoch."""

    job: str
    identity: JobIdentity | None
    epoch: EpochId
    subtask: int
    operator: str
    number: int = 0
    """Which of the writer's files of the epoch."""

    @property
    def life(self) -> str:
        return self.job if self.identity is None else f"{self.job}.{self.identity}"

    def hidden(self, kind: Kind) -> str:
        return f".{kind.value}.{self.life}.{self.epoch.term}.{self.epoch.epoch}.{self.subtask}.{self.numbered}"

    @property
    def staged(self) -> str:
        return self.hidden(Kind.STAGED)

    def final(self, extension: str = "jsonl") -> str:
        return f"part-{self.epoch.epoch.n:012d}-{self.subtask:04d}-{self.life}.{self.numbered}.{extension}"

    @property
    def numbered(self) -> str:
        """The operator, and which of its files."""
        return f"{self.operator}~{self.number:04d}" if self.number else self.operator

    @staticmethod
    def parse(name: str) -> tuple[Kind, Part] | None:
        """What a hidden file is, and of which part; None if the name is none of ours."""
        match = _HIDDEN.fullmatch(name)
        if match is None:
            return None
        kind, job, identity, term, epoch, subtask, operator, number = match.groups()
        at = EpochId(Epoch(int(epoch)), Term(int(term)))
        return Kind(kind), Part(job, _identity(identity), at, int(subtask), operator, int(number or 0))


def files_of(job: str, operator: str) -> str:
    """A pattern that the final names of one operator match in full, of any life; its groups: epoch and subtask."""
    whose = rf"{re.escape(job)}(?:\.[0-9a-f]{{12}})?\.{re.escape(operator)}(?:~\d+)?"
    return rf"part-(\d+)-(\d+)-{whose}\.{EXTENSION}"


def partition(values: Mapping[str, object]) -> str:
    """The directory of a partition, as Hive spells it. ValueError for what cannot be one."""
    if not values:
        raise ValueError("partition_by gave no partition: it returns a dict such as {'day': …}")
    for name in values:
        if not PARTITION_NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} cannot name a partition: letters, digits and _, with a letter first; readers pass over "
                "directories that begin with _ or a dot"
            )
    parts = [f"{name}={_partition_value(value)}" for name, value in values.items()]
    for part in parts:
        if not PARTITION.fullmatch(part) or len(part.encode()) > _LONGEST:
            raise ValueError(f"{part!r} cannot be the directory of a partition: a name, and at most {_LONGEST} bytes")
    return "/".join(parts)


def _partition_value(value: object) -> str:
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or value == "":
        return DEFAULT_PARTITION
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float | datetime.date | decimal.Decimal | uuid.UUID):
        raise ValueError(f"a {type(value).__name__} cannot be the value of a partition")
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", str(value))


def published(name: str) -> tuple[str, JobIdentity | None] | None:
    """Whose final file this is, by job and identity; None if it is none of ours."""
    match = _FINAL.fullmatch(name)
    return None if match is None else (match[1], _identity(match[2]))


def mark(job: str, identity: JobIdentity) -> str:
    """The mark of a life."""
    return f".life.{job}.{identity}"


def over(job: str, identity: JobIdentity) -> str:
    """What stands in its place once it was taken away."""
    return f".over.{job}.{identity}"


def marked(name: str) -> tuple[str, JobIdentity, bool] | None:
    """Job, identity, and whether the mark was taken away; None if it is no mark."""
    match = _MARK.fullmatch(name)
    return None if match is None else (match[2], JobIdentity(match[3]), match[1] == "over")


def _identity(text: str | None) -> JobIdentity | None:
    return None if text is None else JobIdentity(text)


def announcement(life: str, epoch: Epoch) -> str:
    """What tells that an epoch of a life is committed."""
    return f"{EPOCHS}/{epoch.n:012d}-{life}.json"


@dataclass(frozen=True, slots=True)
class Promise:
    """What a committable's payload says. Reading it proves that all its names stay inside the directory."""

    part: Part
    size: int
    sha256: str
    final: str
    """The final name, with the directory of its partition."""
    announced: bool = False
    """Readers are told when all of the epoch is committed."""

    def payload(self) -> dict[str, Json]:
        return {
            "version": VERSION,
            "staged": self.part.staged,
            "final": self.final,
            "size": self.size,
            "sha256": self.sha256,
            "announced": self.announced,
        }

    @staticmethod
    def read(payload: Mapping[str, Json]) -> Promise:
        """CorruptCheckpoint if it is not a payload of this package."""
        match payload:
            case {
                "version": int(version),
                "staged": str(staged),
                "final": str(final),
                "size": int(size),
                "sha256": str(sha256),
                "announced": bool(announced),
            } if bool not in map(type, (version, size)) and version == VERSION and (parsed := Part.parse(staged)):
                promise = Promise(parsed[1], size, sha256, final, announced)
                if promise.payload() == dict(payload) and _is_final(promise):
                    return promise
        raise CorruptCheckpoint(f"not a committable of files: {dict(payload)!r}")


def _is_final(promise: Promise) -> bool:
    """Is its final name one that is given to this part?"""
    *partitions, name = promise.final.split("/")
    match = _FINAL.fullmatch(name)
    if match is None or name != promise.part.final(match[4]):
        return False
    return all(map(PARTITION.fullmatch, partitions))
