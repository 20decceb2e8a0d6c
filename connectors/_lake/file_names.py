"""Names of a lake sink's files, and the payload of its committables. No other module builds such a name.

    part-<epoch>-<term>-<subtask>-<incarnation>.<operator>[.<number>].parquet
        a data file, below the table's root
    _kafka_eos/.staged.<incarnation>.<term>.<epoch>.<subtask>.<operator>[~<number>]
        its staging entry, empty: not committed
    _kafka_eos/.rows.<incarnation>.<term>.<epoch>.<subtask>.<operator>[~<number>]
        rows that replace rows of the same key, with a staging entry: no commit ever names such a file
    _kafka_eos/.incarnation.<incarnation>
        the registration of an incarnation
    _kafka_eos/.check.<job>.<term>.<process>
        a start tests whether it may write here

``<incarnation>`` is ``<job>.<identity>``, or ``<job>`` of a job without an identity, which has no registration.
A data file keeps its name from the beginning, and no other attempt, term or incarnation uses it. Its staging entry is
created before it and deleted after its commit, or after the file itself; so is that of a file with rows that replace
others. So staged files are found by listing the entries, however many files a table has.

The commit of rows that replace others writes data files with the merged rows. Their ``<operator>`` is ``_`` and 32
random hex digits, so every attempt at a commit has its own names.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final
from urllib.parse import unquote

from msgspec import Struct

from kafka_eos.connectors.files.file_names import DEFAULT_PARTITION, PARTITION, PartId, PartState
from kafka_eos.connectors.files.file_names import registration_name as file_registration_name
from kafka_eos.connectors.files.sink.s3_names import name_of
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json

VERSION: Final = 1
CONTROL: Final = "_kafka_eos"
"""The directory of staging entries and registrations. Readers and VACUUM ignore names that begin with ``_``."""


def data(part: PartId) -> str:
    """Return the name of a data file, without ``~``: deltalake's OPTIMIZE does not find such files, spelled
    %7E there."""
    return name_of(part, "parquet").replace("~", ".")


def build_entry_name(part: PartId) -> str:
    """Return the name of the staging entry of a data file, or of a file with rows that replace others."""
    return f"{CONTROL}/{part.staged}"


def replacing_rows(part: PartId) -> str:
    """Return the name of a file with rows that replace others."""
    return f"{CONTROL}/.rows{part.staged.removeprefix(f'.{PartState.STAGED.value}')}"


def made_by_commit(job: str, identity: JobIdentity | None, epoch: EpochId) -> Callable[[int], PartId]:
    """Return a function that gives the ids of data files of one attempt at a commit, by number."""
    return partial(_attempt, job, identity, epoch, f"_{uuid.uuid4().hex}")


def _attempt(job: str, identity: JobIdentity | None, epoch: EpochId, attempt: str, number: int) -> PartId:
    return PartId(job, identity, epoch, 0, attempt, number)


def is_made_by_commit(part: PartId) -> bool:
    """Return whether a commit wrote this data file. No operator's name begins with an underscore."""
    return part.operator.startswith("_")


def noted(name: str) -> PartId | None:
    """Return the data file of a staging entry, given without its directory; None if the name is not an entry."""
    parsed = PartId.parse(name)
    return parsed[1] if parsed is not None and parsed[0] is PartState.STAGED else None


def build_registration_name(job: str, identity: JobIdentity) -> str:
    """Return the name of an incarnation's registration file."""
    return f"{CONTROL}/{file_registration_name(job, identity)}"


def trial(job: str, term: Term) -> str:
    """Return the name of the file with which a start tests its permission to write."""
    return f"{CONTROL}/.check.{job}.{term}.{os.getpid()}"


def partition(place: str) -> dict[str, str | None]:
    """Return the values of a partition's columns as text. ``place``: its directory as Hive spells it, or empty."""
    pairs = (each.partition("=") for each in place.split("/") if each)
    return {name: None if value == DEFAULT_PARTITION else unquote(value) for name, _, value in pairs}


def describe_key(key: Sequence[str]) -> str:
    """Return what a commit does to the table: see ``OutputOwner.target``."""
    return f"replace rows by key {tuple(key)!r}" if key else "append rows"


class LakeCommittable(Struct, frozen=True):
    """The payload of a lake committable: one staged data file.

    Reading a payload proves that this module built its names.
    ``table``: the identity of the table that the file was written for; a table that replaced it has another identity.
    ``schema``: a digest of the table's columns then, and of everything else that a file must match.
    ``place``: the partition of its rows, as Hive spells it; empty in a table without partitions.
    ``key``: the columns that identify the rows of the table that its rows replace; empty if they are appended.
    """

    part: PartId
    size: int
    table: str
    schema: str
    place: str = ""
    key: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """Return the name of the file in which its rows are staged."""
        return replacing_rows(self.part) if self.key else data(self.part)

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
    def read(payload: Mapping[str, Json]) -> LakeCommittable:
        """Parse a payload. Raise CorruptCheckpoint if it is not one of this package."""
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
                    return LakeCommittable(part, size, table, schema, place, tuple(map(str, key)))
        raise CorruptCheckpoint(f"not a committable of a lake table: {dict(payload)!r}")
