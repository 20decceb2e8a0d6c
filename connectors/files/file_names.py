"""Names of the files of a FileSink, and the payload of its committables. No other module builds such a name.

    .open.<incarnation>.<term>.<epoch>.<subtask>.<operator>       being written
    .staged.<incarnation>.<term>.<epoch>.<subtask>.<operator>     prepared: complete, durable, still hidden
    part-<epoch>-<subtask>-<incarnation>.<operator>.<extension>   committed; readers read ``part-*``
    .committed.<incarnation>.<term>.<epoch>.<subtask>.<operator>  empty marker of a commit, also after the part is gone
    .aborted.<incarnation>.<term>.<epoch>.<subtask>.<operator>    marker of an abort: the aborted staged file
    .incarnation.<incarnation>                                    registration of an incarnation
    .retired.<incarnation>                                        a retired incarnation, which may not write here

``<incarnation>`` is ``<job>.<identity>``, or ``<job>`` of a job without an identity, which has no registration.
Names join tokens with dots, which no token contains, so parsing is unambiguous. A final name has no term: an epoch's
number is used once per incarnation, so an old term that also commits can only find the same file there. If a writer
creates several files in an epoch, the second is ``<operator>~0001``, and so on. Only committed files are stored in
partition directories, ``day=2026-01-31/part-…``; ``_epochs/<epoch>-<incarnation>.json`` lists the files of an epoch
that is committed in all sinks.
A reader that skips names beginning with a dot or an underscore, as Spark and pyarrow do, reads committed rows only.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import re
import uuid
from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct

from kafka_eos.abc.committer import OutputOwner
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json

VERSION: Final = 1
"""The version of the payload of a committable."""
EPOCHS: Final = "_epochs"
"""The directory of the files that tell readers which epochs are complete."""
DEFAULT_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
"""Hive's partition value for null."""


class PartState(enum.Enum):
    """State of a hidden file: open, staged, committed or aborted."""

    OPEN = "open"
    STAGED = "staged"
    COMMITTED = "committed"
    ABORTED = "aborted"


IDENTITY = r"(?:\.([0-9a-f]{12}))?"
NUMBER = r"(?:~(\d{4,9}))?"
EXTENSION = r"(?:jsonl|csv|avro|parquet)(?:\.gz)?"
_HIDDEN = re.compile(
    rf"\.({'|'.join(kind.value for kind in PartState)})\.([^.]+){IDENTITY}\.(\d+)\.(\d+)\.(\d+)\.([^.~]+){NUMBER}",
    re.ASCII,
)
_FINAL = re.compile(rf"part-(\d+)-\d+-([^.]+){IDENTITY}\.[^.~]+{NUMBER}\.({EXTENSION})", re.ASCII)
PARTITION = re.compile(r"[A-Za-z_]\w*=[^/\0]+", re.ASCII)
PARTITION_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]")
_LONGEST = 255
_REGISTRATION = re.compile(r"\.(incarnation|retired)\.([^.]+)\.([0-9a-f]{12})")


class PartId(Struct, frozen=True):
    """The identity of one part file: job, incarnation, epoch, subtask, operator and number."""

    job: str
    identity: JobIdentity | None
    epoch: EpochId
    subtask: int
    operator: str
    number: int = 0
    """The number of the file among the writer's files of the epoch."""

    @property
    def incarnation(self) -> str:
        return self.job if self.identity is None else f"{self.job}.{self.identity}"

    @property
    def owner(self) -> OutputOwner:
        return OutputOwner(self.staged, self.job, self.identity, self.epoch.term, self.epoch.epoch)

    def build_hidden_name(self, kind: PartState) -> str:
        return f".{kind.value}.{self.incarnation}.{self.epoch.term}.{self.epoch.epoch}.{self.subtask}.{self.numbered}"

    @property
    def staged(self) -> str:
        return self.build_hidden_name(PartState.STAGED)

    def build_final_name(self, extension: str = "jsonl") -> str:
        return f"part-{self.epoch.epoch.n:012d}-{self.subtask:04d}-{self.incarnation}.{self.numbered}.{extension}"

    @property
    def numbered(self) -> str:
        """Return the operator, with the number of the file if it is not the first."""
        return f"{self.operator}~{self.number:04d}" if self.number else self.operator

    @staticmethod
    def parse(name: str) -> tuple[PartState, PartId] | None:
        """Return the kind of a hidden file, and its part; None if the name is not a FileSink's."""
        match = _HIDDEN.fullmatch(name)
        if match is None:
            return None
        kind, job, identity, term, epoch, subtask, operator, number = match.groups()
        at = EpochId(Epoch(int(epoch)), Term(int(term)))
        return PartState(kind), PartId(job, _identity(identity), at, int(subtask), operator, int(number or 0))


def files_of(jobs: Collection[str], operator: str) -> str:
    """Return a pattern that matches the final names of one operator of ``jobs``, of any incarnation; its groups: epoch
    and subtask."""
    whose = rf"(?:{'|'.join(map(re.escape, sorted(jobs)))})(?:\.[0-9a-f]{{12}})?\.{re.escape(operator)}(?:~\d+)?"
    return rf"part-(\d+)-(\d+)-{whose}\.{EXTENSION}"


def partition(values: Mapping[str, object]) -> str:
    """Return the directory of a partition, as Hive spells it. Raise ValueError if the values cannot be one."""
    if not values:
        raise ValueError("partition_by returned no partition: return a dict such as {'day': …}")
    for name in values:
        if not PARTITION_NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a valid partition name: use a letter, then letters, digits and _. "
                "(Readers ignore directories that begin with _ or a dot.)"
            )
    parts = [f"{name}={_partition_value(value)}" for name, value in values.items()]
    for part in parts:
        if not PARTITION.fullmatch(part) or len(part.encode()) > _LONGEST:
            raise ValueError(f"{part!r} is not a valid partition directory: use a name of at most {_LONGEST} bytes")
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


def parse_committed_name(name: str) -> tuple[str, JobIdentity | None, Epoch] | None:
    """Return job, identity and epoch of a committed file or of its marker; None if the name is neither."""
    if (match := _FINAL.fullmatch(name)) is not None:
        return match[2], _identity(match[3]), Epoch(int(match[1]))
    match PartId.parse(name):
        case PartState.COMMITTED, part:
            return part.job, part.identity, part.epoch.epoch
        case _:
            return None


def registration_name(job: str, identity: JobIdentity) -> str:
    """Return the name of an incarnation's registration."""
    return f".incarnation.{job}.{identity}"


def retirement_name(job: str, identity: JobIdentity) -> str:
    """Return the name of the file that replaces the registration of a retired incarnation."""
    return f".retired.{job}.{identity}"


def parse_registration(name: str) -> tuple[str, JobIdentity, bool] | None:
    """Return job, identity, and whether the incarnation was retired; None if the name is not a registration."""
    match = _REGISTRATION.fullmatch(name)
    return None if match is None else (match[2], JobIdentity(match[3]), match[1] == "retired")


def _identity(text: str | None) -> JobIdentity | None:
    return None if text is None else JobIdentity(text)


def announcement(incarnation: str, epoch: Epoch) -> str:
    """Return the name of the file that announces a committed epoch of an incarnation."""
    return f"{EPOCHS}/{epoch.n:012d}-{incarnation}.json"


class FileCommittable(Struct, frozen=True):
    """The payload of a file committable: one staged file and its final name.

    Reading a payload proves that all its names stay inside the directory.
    """

    part: PartId
    size: int
    sha256: str
    final_name: str
    """The name that readers see once the part is committed."""
    in_epoch_file: bool = False
    """Whether the epoch's file in ``_epochs`` lists this file."""

    def payload(self) -> dict[str, Json]:
        return {
            "version": VERSION,
            "staged": self.part.staged,
            "final": self.final_name,
            "size": self.size,
            "sha256": self.sha256,
            "announced": self.in_epoch_file,
        }

    @staticmethod
    def read(payload: Mapping[str, Json]) -> FileCommittable:
        """Parse a payload. Raise CorruptCheckpoint if it is not one of this package."""
        match payload:
            case {
                "version": int(version),
                "staged": str(staged),
                "final": str(final),
                "size": int(size),
                "sha256": str(sha256),
                "announced": bool(announced),
            } if bool not in map(type, (version, size)) and version == VERSION and (parsed := PartId.parse(staged)):
                staged_file = FileCommittable(parsed[1], size, sha256, final, announced)
                if staged_file.payload() == dict(payload) and _is_final(staged_file):
                    return staged_file
        raise CorruptCheckpoint(f"not a committable of files: {dict(payload)!r}")


def _is_final(staged_file: FileCommittable) -> bool:
    """Return whether its final name is one that this part may have."""
    *partitions, name = staged_file.final_name.split("/")
    match = _FINAL.fullmatch(name)
    if match is None or name != staged_file.part.build_final_name(match[5]):
        return False
    return all(map(PARTITION.fullmatch, partitions))
