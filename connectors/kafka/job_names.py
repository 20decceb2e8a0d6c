"""Names that a job has on a cluster: the only module that forms and reads them.

    <job>.<identity>.<term>.<owner>.<slot>      a transactional id
    <job>.<term>.<owner>.<slot>                 the same of a streaming query, which has no identity
    <job>.<identity>                            a transactional id that nobody writes with: the mark of a life
    <job>.<identity>.<subtask>.<slot>           a marker group
    kafka_eos <job> <identity> <epoch>/<term>   metadata of a source's group offsets

Rule: a job's name holds no dot and no blank, so a name never reads two ways.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kafka_eos.abc.context import JobContext
from kafka_eos.core.ids import EpochId, JobIdentity, Term, token

_LIFE = "[0-9a-f]{12}"
_NUMBERS = r"\.[0-9]+\.[0-9]+\.[0-9]+"
_ID = re.compile(rf"([^.]+)(?:\.({_LIFE}))?\.([0-9]+)\.([0-9]+)\.([0-9]+)")
_MARK = re.compile(rf"[^.]+\.({_LIFE})")
_METADATA = re.compile(rf"kafka_eos (\S+) ({_LIFE}|-) [0-9]+/([0-9]+)")


@dataclass(frozen=True, slots=True)
class TransactionalId:
    """One producer's place in the life of a job."""

    job: str
    identity: JobIdentity | None
    term: Term
    owner: int
    slot: int

    def __str__(self) -> str:
        return f"{_life(self.job, self.identity)}.{self.term}.{self.owner}.{self.slot}"

    @classmethod
    def parse(cls, text: str) -> TransactionalId | None:
        """None if it is not one of these."""
        found = _ID.fullmatch(text)
        if found is None:
            return None
        job, identity, *numbers = found.groups()
        term, owner, slot = map(int, numbers)
        return cls(job, None if identity is None else JobIdentity(identity), Term(term), owner, slot)


def mark(job: str, identity: JobIdentity) -> str:
    """The transactional id that is the mark of a life."""
    return _life(job, identity)


def marked(text: str) -> JobIdentity | None:
    """Whose mark a transactional id is; None if it is no mark."""
    found = _MARK.fullmatch(text)
    return None if found is None else JobIdentity(found[1])


def marker_groups(ctx: JobContext, subtask: int) -> str:
    """How the names of a subtask's marker groups begin; a dot and the slot follow."""
    return f"{_life(ctx.job, ctx.identity)}.{subtask}"


def ids(job: str, identity: JobIdentity | None) -> str:
    """A pattern of the transactional ids that one life writes with; None: those without an identity."""
    return _pattern(job, identity) + _NUMBERS


def ids_of_all(job: str) -> str:
    """A pattern of the transactional ids that any life of a job's name writes with."""
    return rf"{_pattern(job, None)}(\.{_LIFE})?{_NUMBERS}"


def ids_and_marks(job: str) -> str:
    """As ``ids_of_all``, and the marks."""
    return rf"{ids_of_all(job)}|{_pattern(job, None)}\.{_LIFE}"


def offset_metadata(ctx: JobContext, epoch: EpochId) -> str:
    """What a committed offset of a source says about who committed it."""
    return f"kafka_eos {ctx.job} {ctx.identity or '-'} {epoch}"


@dataclass(frozen=True, slots=True)
class Committed:
    """Who committed a group's offset."""

    job: str
    identity: JobIdentity | None
    term: Term

    @classmethod
    def parse(cls, metadata: str | None) -> Committed | None:
        """None if another program wrote it."""
        found = _METADATA.fullmatch((metadata or "").rstrip("\0"))
        if found is None:
            return None
        job, identity, term = found.groups()
        return cls(job, None if identity == "-" else JobIdentity(identity), Term(int(term)))


def _pattern(job: str, identity: JobIdentity | None) -> str:
    """Of the two parts only the dot means something in a pattern."""
    return _life(job, identity).replace(".", r"\.")


def _life(job: str, identity: JobIdentity | None) -> str:
    return token(job, "the name of the job") + ("" if identity is None else f".{identity}")
