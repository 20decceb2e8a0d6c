"""Names of every durable object of a job. No other module forms or takes apart such a name.

    lock                              held by the supervisor that runs the job
    terms/<term>.claim.json           who took the term
    terms/<term>.base.json            which manifest the term resumed from
    manifests/<epoch>-<term>.json     an epoch is decided exactly when this exists
    receipts/<epoch>-<term>.json      everything of the epoch is committed
    shared/<sha256>                   a state file, named by its content
    provenance/<epoch>-<bytes>-<sha256>   where the output of one transaction came from, as its epoch recorded it
    provenance/pack-<first>-<last>-<bytes>-<sha256>   many of these files, of epochs from ``first`` to ``last``
    origin.json                       which savepoint the job began with, if with one
    heartbeats/<writer>-<count>.json  a supervisor that others stand by for is alive; liveness only
    trials/<token>                    kafka-eos doctor tries whether the store keeps its promises; taken away at once
    requests/<token>.json             what somebody asks the running job to do
    requests/<token>.done.json        what became of it
    history.jsonl                     what happened, for people; nothing depends on it
    told.jsonl                        the newest of the history, told on this machine, if the history is in a store
    refused.json                      the first records that this run refused, on the machine where it runs
    ledger.jsonl                      what the job knew at each commit, for the audit; see ``ledger``
    identity.json                     which life of its name the job is (of a streaming query: its name in Kafka)
    probe                             shows at every start that the store replaces nothing; see ``remote``
    history/<number>-<writer>-<lines>.jsonl    a full file of the history; see ``logs``. Compressed it ends in ``.gz``
    history/<started>-<writer>-<lines>.jsonl   the history where nothing can be appended to, with each version of a
                                      segment until two newer ones were begun; see ``remote``
    ledger/…                          so the ledger

A savepoint is a directory of its own, anywhere; by default it is beside the job's, in ``<job>.savepoints/``:

    savepoint.json                    what it holds
    files/<sha256>                    a file, named by its content

Rule: a name is relative to the job's directory and cannot leave it. A name that does not parse raises
CorruptCheckpoint: somebody else wrote into the job's directory. Where nothing is decided by what is listed, it is said
and passed over; see ``provenance``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, Term

LOCK = "lock"
JVM_LOCK = "lock.jvm"
"""Of a Structured Streaming query: held by its driver's Java process."""
HISTORY = "history.jsonl"
LEDGER = "ledger.jsonl"
TOLD = "told.jsonl"
"""Only on a machine where supervisors run a job whose history is in a store."""
REFUSED = "refused.json"
"""Always on the machine where the job runs: what is in the first records that it has refused."""
LOGS: Mapping[str, str] = {HISTORY: "history", LEDGER: "ledger", TOLD: "told"}
"""What is appended to, and the directory of its segments: of full ones; of all where nothing can be appended to."""
COMPRESSED = ".gz"
IDENTITY = "identity.json"
PROBE = "probe"
ORIGIN = "origin.json"
TERMS = "terms"
MANIFESTS = "manifests"
RECEIPTS = "receipts"
SHARED = "shared"
DIRECTORIES = (TERMS, MANIFESTS, RECEIPTS, SHARED)
PROVENANCE = "provenance"
"""Made when something is first stored there. Not in ``shared``: it is kept as long as the ledger."""

HEARTBEATS = "heartbeats"
"""Made when the first one is stored: by supervisors that others may stand by for."""

TRIALS = "trials"
"""Made when the first one is: of ``kafka-eos doctor``."""

MADE_WHEN_NEEDED = (PROVENANCE, HEARTBEATS, TRIALS)

REQUESTS = "requests"
"""Always on the machine where the job runs, also if its checkpoints are not."""

SAVEPOINT = "savepoint.json"
SAVEPOINT_FILES = "files"

IMMUTABLE_SUFFIX = ".sst"
"""Files with this ending are never written again by their owner, so one inode may serve owner and store."""

_EPOCH_ID = re.compile(r"([0-9]{12,})-([0-9]{8,})\.json")
_TERM = re.compile(r"([0-9]{8,})\.(claim|base)\.json")
_HEARTBEAT = re.compile(r"([0-9a-f]{16})-([0-9]{10,})\.json")
_REQUEST = re.compile(r"([0-9a-f]{16})(\.done)?\.json")
_SEGMENT = re.compile(r"(([0-9]{13,})-[0-9a-f]{16})-([0-9]{6,})\.jsonl(\.gz)?")
_SINGLE = re.compile(r"([0-9]{12,})-(0|[1-9][0-9]*)-([0-9a-f]{64})")
_PACK = re.compile(r"pack-([0-9]{12,})-([0-9]{12,})-(0|[1-9][0-9]*)-([0-9a-f]{64})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


def manifest_name(epoch: EpochId) -> str:
    return f"{MANIFESTS}/{_epoch_file(epoch)}"


def receipt_name(epoch: EpochId) -> str:
    return f"{RECEIPTS}/{_epoch_file(epoch)}"


def claim_name(term: Term) -> str:
    return f"{TERMS}/{term.n:08d}.claim.json"


def base_name(term: Term) -> str:
    return f"{TERMS}/{term.n:08d}.base.json"


def shared_name(sha256: str) -> str:
    """The stored file with this content; ``sha256`` in lower-case hex."""
    return f"{SHARED}/{_digest(sha256)}"


@dataclass(frozen=True, slots=True, order=True)
class Single:
    """The file of provenance of one transaction."""

    epoch: Epoch
    """That recorded it. The epoch that committed it is this one or a later one."""
    size: int
    """In bytes."""
    sha256: str


@dataclass(frozen=True, slots=True, order=True)
class Pack:
    """Files of provenance in one."""

    first: Epoch
    last: Epoch
    """The epochs of the oldest and of the newest file in it."""
    size: int
    """In bytes, inflated."""
    sha256: str
    """Of these bytes."""


Provenance: TypeAlias = Single | Pack


def provenance_name(file: Provenance) -> str:
    match file:
        case Single(epoch, size, sha256):
            return f"{PROVENANCE}/{epoch.n:012d}-{size}-{_digest(sha256)}"
        case Pack(first, last, size, sha256):
            return f"{PROVENANCE}/pack-{first.n:012d}-{last.n:012d}-{size}-{_digest(sha256)}"


def parse_provenance_name(name: str) -> Provenance:
    directory, _, file = name.rpartition("/")
    if directory != PROVENANCE:
        raise stray(name)
    if single := _SINGLE.fullmatch(file):
        return Single(Epoch(int(single[1])), int(single[2]), single[3])
    if pack := _PACK.fullmatch(file):
        return Pack(Epoch(int(pack[1])), Epoch(int(pack[2])), int(pack[3]), pack[4])
    raise stray(name)


def heartbeat_name(writer: str, count: int) -> str:
    """``writer``: 16 hex digits of one run of a supervisor."""
    name = f"{HEARTBEATS}/{writer}-{count:010d}.json"
    parse_heartbeat_name(name)
    return name


def trial_name(token: str) -> str:
    return f"{TRIALS}/{token}"


def parse_heartbeat_name(name: str) -> tuple[str, int]:
    """Whose it is, and which."""
    match = _heartbeat(name)
    if match is None:
        raise stray(name)
    return match[1], int(match[2])


def is_heartbeat_name(name: str) -> bool:
    return _heartbeat(name) is not None


def _heartbeat(name: str) -> re.Match[str] | None:
    directory, _, file = name.rpartition("/")
    return _HEARTBEAT.fullmatch(file) if directory == HEARTBEATS else None


def request_name(token: str) -> str:
    return _request_file(token, "")


def answer_name(token: str) -> str:
    return _request_file(token, ".done")


def parse_request_name(name: str) -> tuple[str, Literal["request", "answer"]]:
    directory, _, file = name.rpartition("/")
    match = _REQUEST.fullmatch(file)
    if directory != REQUESTS or match is None:
        raise stray(name)
    return match[1], "answer" if match[2] else "request"


@dataclass(frozen=True, slots=True)
class Segment:
    """One version of a part of a log."""

    name: str
    """``<number>-<16 hex digits>``. The number gives the order; where nothing can be appended to it is a time."""
    number: int
    lines: int
    compressed: bool
    file: str


def segments(names: Iterable[str]) -> list[Segment]:
    """The parts of a log in order, each in its longest version; of two that are equally long the plain one."""
    return longest(map(parse_segment_name, names))


def longest(versions: Iterable[Segment]) -> list[Segment]:
    """As ``segments``, of names that are parsed."""
    found: dict[str, Segment] = {}
    for segment in versions:
        known = found.get(segment.name)
        if known is None or (segment.lines, known.compressed) > (known.lines, segment.compressed):
            found[segment.name] = segment
    return [found[name] for name in sorted(found)]


def complete_lines(data: bytes) -> list[str]:
    """Lines that end in a newline. Bytes that are no UTF-8 are replaced: logs are for people."""
    return [line.decode(errors="replace") for line in data.split(b"\n")[:-1]]


def segment_name(directory: str, segment: str, lines: int) -> str:
    """One version of a segment of a log; ``segment`` is ``<number>-<16 hex digits>``."""
    name = f"{directory}/{segment}-{lines:06d}.jsonl"
    parse_segment_name(name)
    return name


def parse_segment_name(name: str) -> Segment:
    directory, _, file = name.rpartition("/")
    match = _SEGMENT.fullmatch(file)
    if directory not in LOGS.values() or match is None:
        raise stray(name)
    return Segment(match[1], int(match[2]), int(match[3]), match[4] is not None, file)


def is_segment(name: str) -> bool:
    directory, _, file = name.rpartition("/")
    return directory in LOGS.values() and _SEGMENT.fullmatch(file) is not None


def savepoints_of(job_directory: Path) -> Path:
    """Where a job's savepoints are put if no place is given. No job has this name: it has a dot."""
    return job_directory.parent / f"{job_directory.name}.savepoints"


def parse_manifest_name(name: str) -> EpochId:
    return _parse_epoch_file(name, MANIFESTS)


def parse_receipt_name(name: str) -> EpochId:
    return _parse_epoch_file(name, RECEIPTS)


def parse_term_name(name: str) -> tuple[Term, Literal["claim", "base"]]:
    directory, _, file = name.rpartition("/")
    match = _TERM.fullmatch(file)
    if directory != TERMS or match is None:
        raise stray(name)
    return Term(int(match[1])), "claim" if match[2] == "claim" else "base"


def parse_shared_name(name: str) -> str:
    """The SHA-256 of the content."""
    directory, _, sha256 = name.rpartition("/")
    if directory != SHARED or not _SHA256.fullmatch(sha256):
        raise stray(name)
    return sha256


def plain_file_name(name: str) -> str:
    """Return ``name`` if it names a file inside one directory and nothing else."""
    if not _PLAIN.fullmatch(name):
        raise CorruptCheckpoint(f"{name!r} is not a plain file name: nothing is written under it")
    return name


def inside(name: str) -> str:
    """Return ``name`` if it is a plain file of the job's directory or of one of its directories."""
    directory, slash, file = name.rpartition("/")
    plain_file_name(file)
    if slash and directory not in (*DIRECTORIES, *MADE_WHEN_NEEDED, *LOGS.values()):
        raise stray(name)
    return name


def is_manifest(name: str) -> bool:
    return name.startswith(f"{MANIFESTS}/")


def _digest(sha256: str) -> str:
    if not _SHA256.fullmatch(sha256):
        raise CorruptCheckpoint(f"{sha256!r} is not a SHA-256 in hex: it cannot name a stored file")
    return sha256


def _request_file(token: str, suffix: str) -> str:
    name = f"{REQUESTS}/{token}{suffix}.json"
    parse_request_name(name)
    return name


def _epoch_file(epoch: EpochId) -> str:
    return f"{epoch.epoch.n:012d}-{epoch.term.n:08d}.json"


def _parse_epoch_file(name: str, expected: str) -> EpochId:
    directory, _, file = name.rpartition("/")
    match = _EPOCH_ID.fullmatch(file)
    if directory != expected or match is None:
        raise stray(name)
    return EpochId(Epoch(int(match[1])), Term(int(match[2])))


def stray(name: str) -> CorruptCheckpoint:
    """The error that names an object of somebody else."""
    return CorruptCheckpoint(f"{name!r} is not a name of this package: move it out of the job's directory")
