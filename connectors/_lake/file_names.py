"""Names of a lake sink's files, and what a committable says about one. No other module forms such a name.

    part-<epoch>-<term>-<subtask>-<life>.<operator>[.<number>].parquet         a data file, below the table's own place
    _kafka_eos/.staged.<life>.<term>.<epoch>.<subtask>.<operator>[~<number>]   its note, empty: no commit names it yet
    _kafka_eos/.life.<life>                                                    mark of a life: it writes here
    _kafka_eos/.check.<job>.<term>.<process>                                   a start tries whether it may write here

``<life>`` is ``<job>.<identity>``, or ``<job>`` of a job without an identity, which has no mark. A data file has its
name from the beginning, which nothing else ever gets: no other attempt, term or life. Its note comes before it and goes
after its commit, or after it. So whoever looks for what is staged reads the notes, however many files a table has.

Rows that replace those of their key are staged in the note itself: no commit ever names such a file. The commit writes
data files of what they and the table come to, whose ``<operator>`` is ``_`` and 32 random hex digits: every attempt of
a commit has names of its own.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import unquote

from kafka_eos.connectors.files.file_names import DEFAULT_PARTITION, PARTITION, Kind, Part
from kafka_eos.connectors.files.file_names import mark as mark_of
from kafka_eos.connectors.files.file_names import marked as whose_mark
from kafka_eos.connectors.files.sink.s3_names import name_of
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json

VERSION: Final = 1
CONTROL: Final = "_kafka_eos"
"""The directory of notes and marks. Readers and VACUUM pass over what begins with an underscore."""


def data(part: Part) -> str:
    """The name of a data file. OPTIMIZE of deltalake does not find one with a ~, which its store spells as %7E."""
    return name_of(part, "parquet").replace("~", ".")


def note(part: Part) -> str:
    """The name of a data file's note."""
    return f"{CONTROL}/{part.staged}"


def made_by_commit(job: str, identity: JobIdentity | None, epoch: EpochId) -> Callable[[int], Part]:
    """Data files of one attempt of a commit, by number."""
    return partial(_attempt, job, identity, epoch, f"_{uuid.uuid4().hex}")


def _attempt(job: str, identity: JobIdentity | None, epoch: EpochId, attempt: str, number: int) -> Part:
    return Part(job, identity, epoch, 0, attempt, number)


def is_made_by_commit(part: Part) -> bool:
    """No operator's name begins like that."""
    return part.operator.startswith("_")


def noted(name: str) -> Part | None:
    """Of which data file this is the note, without its directory; None if it is none."""
    parsed = Part.parse(name)
    return parsed[1] if parsed is not None and parsed[0] is Kind.STAGED else None


def mark(job: str, identity: JobIdentity) -> str:
    """The mark of a life."""
    return f"{CONTROL}/{mark_of(job, identity)}"


def marked(name: str) -> tuple[str, JobIdentity] | None:
    """Whose mark this is, without its directory: job and identity; None if it is none."""
    found = whose_mark(name)
    return None if found is None else found[:2]


def trial(job: str, term: Term) -> str:
    """What a start makes and removes."""
    return f"{CONTROL}/.check.{job}.{term}.{os.getpid()}"


def partition(place: str) -> dict[str, str | None]:
    """What the rows of a partition have in its columns, as text; ``place`` is as Hive spells it, or empty."""
    pairs = (each.partition("=") for each in place.split("/") if each)
    return {name: None if value == DEFAULT_PARTITION else unquote(value) for name, _, value in pairs}


@dataclass(frozen=True, slots=True)
class Promise:
    """What a committable's payload says. Reading it proves that its names are ones that this module forms.

    ``table``   the identity of the table that the file was written for: another one in its place is not that table
    ``schema``  what the table's columns were then, and what else a file has to fit, in short
    ``place``   the partition that its rows belong to, as Hive spells it; empty in a table without
    ``key``     the columns that tell which rows of the table its own replace; empty if they are added
    """

    part: Part
    size: int
    table: str
    schema: str
    place: str = ""
    key: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """Where its rows are staged."""
        return note(self.part) if self.key else data(self.part)

    @property
    def partition(self) -> dict[str, str | None]:
        return partition(self.place)

    def payload(self) -> dict[str, Json]:
        return {
            "version": VERSION,
            "staged": self.part.staged,
            "size": self.size,
            "table": self.table,
            "schema": self.schema,
            "partition": self.place,
            "key": [*self.key],
        }

    @staticmethod
    def read(payload: Mapping[str, Json]) -> Promise:
        """CorruptCheckpoint if it is not a payload of this package."""
        match payload:
            case {
                "version": 1,
                "staged": str(staged),
                "size": int(size),
                "table": str(table),
                "schema": str(schema),
                "partition": str(place),
                "key": [*key],
            } if len(payload) == 7 and type(size) is int and (part := noted(staged)) is not None:
                known = not place or all(map(PARTITION.fullmatch, place.split("/")))
                if known and all(isinstance(name, str) for name in key) and not (place and key):
                    return Promise(part, size, table, schema, place, tuple(map(str, key)))
        raise CorruptCheckpoint(f"not a committable of a table of a lake: {dict(payload)!r}")
