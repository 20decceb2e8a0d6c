"""Names of a job on a cluster. Only this module builds and parses them.

    <job>.<identity>.<term>.<owner>.<slot>     a transactional id
    <job>.<term>.<owner>.<slot>                a transactional id of a streaming query, which has no identity
    <job>.<identity>                           a transactional id without a producer: the registration of an incarnation
    <job>.<identity>.<subtask>.<slot>          a marker group; that of a streaming query is its transactional id
    kafka_eos <job> <identity> <epoch>/<term>  metadata of a source's group offsets

Rule: a job's name contains no dot and no space, so parsing is unambiguous.
"""

from __future__ import annotations

import os
import re
import socket

from msgspec import Struct

from kafka_eos.abc.context import JobContext
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term, ensure_name

_IDENTITY = "[0-9a-f]{12}"
_NUMBER = "(0|[1-9][0-9]{0,17}|[1-8][0-9]{18})"
"""A number as this module writes it, below 9 * 10**18, so of 63 bits: every program may write such names. A worker of
Structured Streaming has a random number of 62 bits."""
_NUMBERS = r"\.[0-9]+\.[0-9]+\.[0-9]+"
_ID = re.compile(rf"([^.]+)(?:\.({_IDENTITY}))?\.{_NUMBER}\.{_NUMBER}\.{_NUMBER}")
_GROUP_NUMBERS = re.compile(r"[0-9]+\.[0-9]+", re.ASCII)
_REGISTRATION = re.compile(rf"[^.]+\.({_IDENTITY})")
_METADATA = re.compile(rf"kafka_eos (\S+) ({_IDENTITY}|-) {_NUMBER}/{_NUMBER} (\S+)/([1-9][0-9]{{0,8}})")


class TransactionalId(Struct, frozen=True):
    """The transactional id of one producer of a job."""

    job: str
    identity: JobIdentity | None
    term: Term
    owner: int
    slot: int

    def __str__(self) -> str:
        return f"{_owner_name(self.job, self.identity)}.{self.term}.{self.owner}.{self.slot}"

    @classmethod
    def parse(cls, text: str) -> TransactionalId | None:
        """Parse a transactional id; return None if it is not a job's."""
        found = _ID.fullmatch(text)
        if found is None:
            return None
        job, identity, *numbers = found.groups()
        term, owner, slot = map(int, numbers)
        return cls(job, None if identity is None else JobIdentity(identity), Term(term), owner, slot)


def registration_id(job: str, identity: JobIdentity) -> str:
    """Return the transactional id that is an incarnation's registration."""
    return _owner_name(job, identity)


def parse_registration_id(text: str) -> JobIdentity | None:
    """Return the identity of a registration; None if the transactional id is not one."""
    found = _REGISTRATION.fullmatch(text)
    return None if found is None else JobIdentity(found[1])


def marker_groups(ctx: JobContext, subtask: int) -> str:
    """Return the prefix of a subtask's marker groups; a dot and the slot follow."""
    return f"{_owner_name(ctx.job, ctx.identity)}.{subtask}"


def is_marker_group(name: str, of: TransactionalId) -> bool:
    """Return whether a marker group is one of the incarnation that a transactional id belongs to.

    A streaming query names the group of a transaction by its transactional id.
    """
    if name == str(of):
        return True
    whose, _, numbers = name.partition(f"{_owner_name(of.job, of.identity)}.")
    return not whose and _GROUP_NUMBERS.fullmatch(numbers) is not None


def ids(job: str, identity: JobIdentity | None) -> str:
    """Return a pattern of the transactional ids that one incarnation writes with; None: those without an identity."""
    return _pattern(job, identity) + _NUMBERS


def ids_of_all(job: str) -> str:
    """Return a pattern of the transactional ids that any incarnation of a job's name writes with."""
    return rf"{_pattern(job, None)}(\.{_IDENTITY})?{_NUMBERS}"


def ids_and_marks(job: str) -> str:
    """Return a pattern of the same ids and of registrations."""
    return rf"{ids_of_all(job)}|{_pattern(job, None)}\.{_IDENTITY}"


def offset_metadata(ctx: JobContext, epoch: EpochId) -> str:
    """Return the metadata of an offset that this process commits: job, incarnation, epoch, host and process."""
    return f"kafka_eos {ctx.job} {ctx.identity or '-'} {epoch} {socket.gethostname()}/{os.getpid()}"


class OffsetMetadata(Struct, frozen=True):
    """The metadata of a committed group offset: the job, incarnation, epoch and process that wrote it."""

    job: str
    identity: JobIdentity | None
    epoch: EpochId
    host: str
    pid: int

    @classmethod
    def parse(cls, metadata: str | None) -> OffsetMetadata | None:
        """Parse the metadata; return None if another program wrote it."""
        found = _METADATA.fullmatch((metadata or "").rstrip("\0"))
        if found is None:
            return None
        job, identity, epoch, term, host, pid = found.groups()
        at = EpochId(Epoch(int(epoch)), Term(int(term)))
        return cls(job, None if identity == "-" else JobIdentity(identity), at, host, int(pid))


def _pattern(job: str, identity: JobIdentity | None) -> str:
    """Return the two parts as a pattern; only the dot is special in them."""
    return _owner_name(job, identity).replace(".", r"\.")


def _owner_name(job: str, identity: JobIdentity | None) -> str:
    return ensure_name(job, "the name of the job") + ("" if identity is None else f".{identity}")
