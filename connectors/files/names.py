"""Names of the files of a FileSink, and what a committable says about one. No other module forms such a name.

    .open.<life>.<term>.<epoch>.<subtask>.<operator>        being written
    .staged.<life>.<term>.<epoch>.<subtask>.<operator>      prepared: complete, on disk, still hidden
    part-<epoch>-<subtask>-<life>.<operator>.jsonl          committed; readers take ``part-*.jsonl``
    .committed.<life>.<term>.<epoch>.<subtask>.<operator>   trace of a commit, empty: stays when readers took the part
    .aborted.<life>.<term>.<epoch>.<subtask>.<operator>     trace of an abort: what was staged under this name is undone
    .life.<life>                                            mark of a life: it writes here
    .over.<life>                                            its mark was taken away: it may not write here any more

``<life>`` is ``<job>.<identity>``, or ``<job>`` of a job without an identity, which has no mark. Names join tokens with
dots, which no token contains, so a name never reads two ways. A final name has no term: an epoch's number is used once
in a life, so an old term that commits too can only find the file there.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kafka_eos.errors import CorruptCheckpoint
from kafka_eos.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.interfaces import Json

VERSION: Final = 2
"""Of a committable. Version 1 has no number: its staged files were committed by hard link, and left no trace."""


class Kind(enum.Enum):
    """What a hidden file is."""

    OPEN = "open"
    STAGED = "staged"
    COMMITTED = "committed"
    ABORTED = "aborted"


_IDENTITY = r"(?:\.([0-9a-f]{12}))?"
_HIDDEN = re.compile(
    rf"\.({'|'.join(kind.value for kind in Kind)})\.([^.]+){_IDENTITY}\.(\d+)\.(\d+)\.(\d+)\.([^.]+)",
    re.ASCII,
)
_FINAL = re.compile(rf"part-\d+-\d+-([^.]+){_IDENTITY}\.[^.]+\.jsonl", re.ASCII)
_MARK = re.compile(r"\.(life|over)\.([^.]+)\.([0-9a-f]{12})")


@dataclass(frozen=True, slots=True)
class Part:
    """One writer's output of one epoch."""

    job: str
    identity: JobIdentity | None
    epoch: EpochId
    subtask: int
    operator: str

    @property
    def life(self) -> str:
        return self.job if self.identity is None else f"{self.job}.{self.identity}"

    def hidden(self, kind: Kind) -> str:
        return f".{kind.value}.{self.life}.{self.epoch.term}.{self.epoch.epoch}.{self.subtask}.{self.operator}"

    @property
    def staged(self) -> str:
        return self.hidden(Kind.STAGED)

    @property
    def final(self) -> str:
        return f"part-{self.epoch.epoch.n:012d}-{self.subtask:04d}-{self.life}.{self.operator}.jsonl"

    @staticmethod
    def parse(name: str) -> tuple[Kind, Part] | None:
        """What a hidden file is, and of which part; None if the name is none of ours."""
        match = _HIDDEN.fullmatch(name)
        if match is None:
            return None
        kind, job, identity, term, number, subtask, operator = match.groups()
        epoch = EpochId(Epoch(int(number)), Term(int(term)))
        return Kind(kind), Part(job, _identity(identity), epoch, int(subtask), operator)


def files_of(job: str, operator: str) -> str:
    """A pattern that the final names of one operator match in full, of any life; its groups: epoch and subtask."""
    return rf"part-(\d+)-(\d+)-{re.escape(job)}(?:\.[0-9a-f]{{12}})?\.{re.escape(operator)}\.jsonl"


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


@dataclass(frozen=True, slots=True)
class Promise:
    """What a committable's payload says. Reading it proves that all its names stay inside the directory."""

    part: Part
    size: int
    sha256: str
    version: int = VERSION

    def payload(self) -> dict[str, Json]:
        version: dict[str, Json] = {} if self.version == 1 else {"version": self.version}
        what: dict[str, Json] = {"staged": self.part.staged, "final": self.part.final}
        return {**version, **what, "size": self.size, "sha256": self.sha256}

    @staticmethod
    def read(payload: Mapping[str, Json]) -> Promise:
        """CorruptCheckpoint if it is not a payload of this package, in this version or an older one."""
        parsed = Part.parse(str(payload.get("staged")))
        size, sha256, version = payload.get("size"), payload.get("sha256"), payload.get("version", 1)
        if parsed and type(size) is int and isinstance(sha256, str) and type(version) is int and 0 < version <= VERSION:
            promise = Promise(parsed[1], size, sha256, version)
            if promise.payload() == dict(payload):
                return promise
        raise CorruptCheckpoint(f"not a committable of a FileSink: {dict(payload)!r}")
