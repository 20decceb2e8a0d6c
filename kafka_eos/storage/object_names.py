"""Names of every durable object of a job. No other module builds or parses such a name.

    lock                              held by the supervisor that runs the job
    terms/<term>.claim.json           the supervisor that claimed the term
    terms/<term>.base.json            the manifest that the term resumed from
    manifests/<epoch>-<term>.json     an epoch is decided exactly when this exists
    receipts/<epoch>-<term>.json      everything of the epoch is committed
    shared/<sha256>                   a state file, or a pack of several small ones, named by its content
    provenance/<epoch>-<bytes>-<sha256>   the origins of one transaction's output, as recorded by its epoch
    provenance/pack-<first>-<last>-<bytes>-<sha256>   many of these files, of epochs from ``first`` to ``last``
    origin.json                       the savepoint that the job started from, if any
    heartbeats/<writer>-<count>.json  a supervisor with standbys is alive; for liveness only
    trials/<token>                    written by kafka-eos doctor to test the store; deleted at once
    requests/<token>.json             a request to the running job
    requests/<token>.done.json        the response to it
    history.jsonl                     events of the job, for display; nothing depends on it
    told.jsonl                        the newest events, on this machine, if the history is in a remote store
    refused.json                      the first dead letters of this run, on the machine where it runs
    ledger.jsonl                      the job's facts at each commit, for the audit; see ``epoch_ledger``
    identity.json                     the incarnation of the job (of a streaming query: its name in Kafka)
    probe                             tested at every start: the store must not replace it; see ``remote_storage``
    history/<number>-<writer>-<lines>.jsonl    a full file of the history, or ``.jsonl.gz``; see ``rolling_log``
    history/<started>-<writer>-<lines>.jsonl   the history in a store without append: each version of a segment,
                                      until two newer segments exist; see ``remote_storage``
    ledger/…                          the same for the ledger

A savepoint is a directory of its own, anywhere; the default is next to the job's directory, in ``<job>.savepoints/``:

    savepoint.json                    the savepoint's record
    files/<sha256>                    a file, named by its content

Rule: a name is relative to the job's directory and cannot leave it. A name that does not parse raises
CorruptCheckpoint: another program wrote into the job's directory. Where no decision depends on a listing, such a name
is reported and ignored; see ``provenance_files``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, Term, ensure_name
from kafka_eos.core.inflation import GZIP, inflate

_MOST_INFLATED: Final = 64 << 20
"""Bytes of a segment of a log. It has ``Limits.log_segment_bytes`` and a line more."""
LOCK = "lock"
JVM_LOCK = "lock.jvm"
"""The lock of a Structured Streaming query, held by its driver's Java process."""
HISTORY = "history.jsonl"
LEDGER = "ledger.jsonl"
LOCAL_HISTORY = "told.jsonl"
"""The newest events on this machine, if the history is in a remote store."""
DEAD_LETTER_SAMPLES = "refused.json"
"""The first dead letters of a run, on the machine where it runs."""
LOGS: Mapping[str, str] = {HISTORY: "history", LEDGER: "ledger", LOCAL_HISTORY: "told"}
"""Logs, with the directory of their segments: of full segments, or of all in a store without append."""
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
"""Created by the first write. Separate from ``shared``, because its files are kept as long as the ledger."""

HEARTBEATS = "heartbeats"
"""Created by the first heartbeat of a supervisor that may have standbys."""

TRIALS = "trials"
"""Created by the first trial of ``kafka-eos doctor``."""

LAZY_DIRECTORIES = (PROVENANCE, HEARTBEATS, TRIALS)

REQUESTS = "requests"
"""Always on the machine where the job runs, even if its checkpoints are elsewhere."""

SAVEPOINT = "savepoint.json"
SAVEPOINT_FILES = "files"

IMMUTABLE_SUFFIX = ".sst"
"""Files with this suffix are never written again by their owner, so owner and store may share an inode."""

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
    """Return the name of the stored object with this content; ``sha256`` in lower-case hex."""
    return f"{SHARED}/{_digest(sha256)}"


class ProvenanceFile(Struct, frozen=True, order=True):
    """The provenance file of one transaction."""

    epoch: Epoch
    """The epoch that recorded it. The epoch that committed it is this one or a later one."""
    size: int
    """The size in bytes."""
    sha256: str


class ProvenancePack(Struct, frozen=True, order=True):
    """Several provenance files in one object."""

    first: Epoch
    last: Epoch
    """The epochs of the oldest and of the newest file in it."""
    size: int
    """The uncompressed size in bytes."""
    sha256: str
    """SHA-256 of the uncompressed bytes."""


ProvenanceObject: TypeAlias = ProvenanceFile | ProvenancePack


def provenance_name(file: ProvenanceObject) -> str:
    match file:
        case ProvenanceFile(epoch, size, sha256):
            return f"{PROVENANCE}/{epoch.n:012d}-{size}-{_digest(sha256)}"
        case ProvenancePack(first, last, size, sha256):
            return f"{PROVENANCE}/pack-{first.n:012d}-{last.n:012d}-{size}-{_digest(sha256)}"


def parse_provenance_name(name: str) -> ProvenanceObject:
    directory, _, file = name.rpartition("/")
    if directory != PROVENANCE:
        raise foreign_object_error(name)
    if single := _SINGLE.fullmatch(file):
        return ProvenanceFile(Epoch(int(single[1])), int(single[2]), single[3])
    if pack := _PACK.fullmatch(file):
        return ProvenancePack(Epoch(int(pack[1])), Epoch(int(pack[2])), int(pack[3]), pack[4])
    raise foreign_object_error(name)


def heartbeat_name(writer: str, count: int) -> str:
    """Return the name of a heartbeat. ``writer``: 16 hex digits that identify one run of a supervisor."""
    name = f"{HEARTBEATS}/{writer}-{count:010d}.json"
    parse_heartbeat_name(name)
    return name


def trial_name(token: str) -> str:
    return f"{TRIALS}/{token}"


def parse_heartbeat_name(name: str) -> tuple[str, int]:
    """Return the writer and the count of a heartbeat."""
    match = _heartbeat(name)
    if match is None:
        raise foreign_object_error(name)
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
        raise foreign_object_error(name)
    return match[1], "answer" if match[2] else "request"


class LogSegment(Struct, frozen=True):
    """One version of one segment of a log."""

    name: str
    """``<number>-<16 hex digits>``. The number gives the order; in a store without append it is a time."""
    number: int
    lines: int
    compressed: bool
    file: str


def newest_segments(names: Iterable[str]) -> list[LogSegment]:
    """Return the segments of a log in order, each in its longest version."""
    return longest(map(parse_segment_name, names))


def longest(versions: Iterable[LogSegment]) -> list[LogSegment]:
    """Return the segments in order, each in its longest version."""
    found: dict[str, LogSegment] = {}
    for segment in versions:
        known = found.get(segment.name)
        if known is None or (segment.lines, known.compressed) > (known.lines, segment.compressed):
            found[segment.name] = segment
    return [found[name] for name in sorted(found)]


def inflate_segment(file: str, data: bytes) -> bytes:
    """Return the content of a compressed segment. Raises CorruptCheckpoint if it is damaged or inflates to too
    much."""
    try:
        return inflate(data, _MOST_INFLATED, GZIP)
    except ValueError as error:
        raise CorruptCheckpoint(f"{file}: {error}") from error


def complete_lines(data: bytes) -> list[str]:
    """Return the lines that end in a newline. Bytes that are not valid UTF-8 are replaced."""
    return [line.decode(errors="replace") for line in data.split(b"\n")[:-1]]


def segment_name(directory: str, segment: str, lines: int) -> str:
    """Return the name of one version of a log segment; ``segment`` is ``<number>-<16 hex digits>``."""
    name = f"{directory}/{segment}-{lines:06d}.jsonl"
    parse_segment_name(name)
    return name


def parse_segment_name(name: str) -> LogSegment:
    directory, _, file = name.rpartition("/")
    match = _SEGMENT.fullmatch(file)
    if directory not in LOGS.values() or match is None:
        raise foreign_object_error(name)
    return LogSegment(match[1], int(match[2]), int(match[3]), match[4] is not None, file)


def is_segment(name: str) -> bool:
    directory, _, file = name.rpartition("/")
    return directory in LOGS.values() and _SEGMENT.fullmatch(file) is not None


def savepoints_of(job_directory: Path) -> Path:
    """Return the default directory of a job's savepoints. It contains a dot, so it is never the name of a job."""
    return job_directory.parent / f"{job_directory.name}.savepoints"


def parse_manifest_name(name: str) -> EpochId:
    return _parse_epoch_file(name, MANIFESTS)


def parse_receipt_name(name: str) -> EpochId:
    return _parse_epoch_file(name, RECEIPTS)


def parse_term_name(name: str) -> tuple[Term, Literal["claim", "base"]]:
    directory, _, file = name.rpartition("/")
    match = _TERM.fullmatch(file)
    if directory != TERMS or match is None:
        raise foreign_object_error(name)
    return Term(int(match[1])), "claim" if match[2] == "claim" else "base"


def parse_shared_name(name: str) -> str:
    """Return the SHA-256 of the content."""
    directory, _, sha256 = name.rpartition("/")
    if directory != SHARED or not _SHA256.fullmatch(sha256):
        raise foreign_object_error(name)
    return sha256


def ensure_plain_name(name: str) -> str:
    """Return the name if it is a plain file name, else raise CorruptCheckpoint."""
    if not _PLAIN.fullmatch(name):
        raise CorruptCheckpoint(f"{name!r} is not a plain file name: nothing is written under it")
    return name


def ensure_token(name: object) -> str:
    """Return the stored name of an operator or a state if a plan may have it, else raise CorruptCheckpoint."""
    try:
        return ensure_name(name, "the stored name")
    except ConfigError as error:
        raise CorruptCheckpoint(f"{error} Nothing was read under it.") from None


def ensure_inside(name: str) -> str:
    """Return the name if it cannot leave the job's directory, else raise CorruptCheckpoint."""
    directory, slash, file = name.rpartition("/")
    ensure_plain_name(file)
    if slash and directory not in (*DIRECTORIES, *LAZY_DIRECTORIES, *LOGS.values()):
        raise foreign_object_error(name)
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
        raise foreign_object_error(name)
    return EpochId(Epoch(int(match[1])), Term(int(match[2])))


def foreign_object_error(name: str) -> CorruptCheckpoint:
    """Return the error for an object that is not this package's."""
    return CorruptCheckpoint(f"{name!r} is not a name of this package: move it out of the job's directory")
