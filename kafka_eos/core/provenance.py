"""The provenance text of an output: sinks write it, and the audit reads it.

<job>.<term>.<epoch>/<source>/<topic>/<partition>/<offset>/<lane>.<ordinal>[/<update>]

``job.term.epoch`` is the attempt that wrote the row: the job's name (several may write to one topic), its term and the
epoch. The rest names the input row, the number of the output among that row's outputs, and, after a fold or reduce
whose state lasts, how many outputs the key has had. Everything after the first slash is the same in every attempt, so
two visible outputs of a job that agree there are a duplicate.

The topic may be the name of a file or a table, with any characters. It is percent-encoded. So the text is ASCII without
quotes, commas and spaces, and needs no quoting in a header, a line of JSON or a cell of CSV.

The ordinal counts the outputs of one input row. Where rows change subtasks they can no longer be counted together, so
an exchange fixes the number so far as the row's *branch*, with its own number in the plan before it: the second output
at exchange 0 becomes ``0-1-``, and what follows from it counts as ``0-1-0``, ``0-1-1`` …; the first output has no
branch, unless it is copied or goes round a loop. So the text does not depend on the parallelism. A row that goes back
to the head of a loop as output k gets ``0-k-``: every round has its own names.

An output of a timer has no input record. Its source is the timer's operator, its topic ``timers``
(``processing-timers`` for processing time), its partition the key group, its offset the time of the timer, which may be
negative. Its branch begins with two numbers that stand for the key.

A dead letter's branch ends in the lane and a checksum of the name of the operator that rejected it. So the dead letters
of two operators for one record differ, in all workers.

Pure. Rule: this file is the only one that knows the grammar; a sink that inlines it takes the start from ``prefix``.
"""

from __future__ import annotations

import itertools
import re
from typing import Any, Final
from urllib.parse import quote, unquote

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos.core.ids import NAME, Epoch, Term
from kafka_eos.core.records import Batch

TIMERS = "timers"
"""Replaces the topic: the row was emitted by an event-time timer."""
PROCESSING_TIMERS = "processing-timers"
"""Replaces the topic: the row was emitted by a processing-time timer."""

HEADER = "kafka_eos"
"""Name of the Kafka header that carries the text."""

ENCODED_NAME: Final = r"(?:[A-Za-z0-9._~=-]|%[0-9A-F]{2})+"
"""A pattern of the results of ``encode_name``, for Python and for Java."""

_TEXT = re.compile(
    rf"(?P<job>{NAME})\.(?P<term>\d+)\.(?P<epoch>\d+)/(?P<source>[^/]+)/(?P<topic>{ENCODED_NAME})"
    r"/(?P<partition>\d+)/(?P<offset>-?\d+)/(?P<lane>\d+)\.(?P<ordinal>\d+(?:-\d+)*)(?:/(?P<update>\d+))?",
    re.ASCII,
)


_IDENTITY: Final = re.compile(
    rf"[^/\s]+/(?P<topic>{ENCODED_NAME})/(?P<partition>\d+)/(?P<offset>\d+)/\d+\.\d+", re.ASCII
)
"""The part of a text that names an output, within a sentence."""


class Provenance(Struct, frozen=True):
    """A parsed provenance text. ``str`` formats it again."""

    job: str
    term: Term
    epoch: Epoch
    source: str
    topic: str
    partition: int
    offset: int
    lane: int
    ordinal: str
    update: int | None = None

    @property
    def identity(self) -> str:
        """Return the part that does not depend on the attempt: equal only for the same output of the same input."""
        return str(self).partition("/")[2]

    def __str__(self) -> str:
        start = prefix(self.job, self.term, self.epoch, self.source, self.topic, self.partition)
        update = "" if self.update is None else f"/{self.update}"
        return f"{start}{self.offset}/{self.lane}.{self.ordinal}{update}"


def prefix(job: str, term: Term, epoch: Epoch, source: str, topic: str, partition: int) -> str:
    """Return the common start of all rows of one partition and one epoch; append the offset."""
    return f"{job}.{term.n}.{epoch.n}/{source}/{encode_name(topic)}/{partition}/"


def encode_name(topic: str) -> str:
    """Encode a topic, or its counterpart, as a field of the text. Different names have different results."""
    return quote(topic, safe="=")


def number_outputs(batch: Batch[Any]) -> list[int]:
    """Number the outputs of each input row and branch: 0, 1, 2 …."""
    rows, branch = batch.origin_rows, batch.branch
    found = [0] * len(rows)
    if isinstance(rows, range):
        return found
    for i in range(1, len(rows)):
        if rows[i] == rows[i - 1] and (branch is None or branch[i] == branch[i - 1]):
            found[i] = found[i - 1] + 1
    return found


def fans_out(batch: Batch[Any]) -> bool:
    """Return whether several values of the batch come from one row."""
    rows = batch.origin_rows
    return not isinstance(rows, range) and len(set(rows)) < len(rows)


def extend_branches(batch: Batch[Any], place: int, always: bool = False) -> Batch[Any]:
    """Fix the output numbers so far in each row's branch, at an exchange.

    ``always``: extend the branch of the first output, too. Needed where rows are copied or begin another round of a
    loop.
    """
    if not always and (isinstance(batch.origin_rows, range) or not fans_out(batch)):
        return batch
    so_far, numbers = batch.branch or [""] * len(batch), number_outputs(batch)
    fixed = [f"{b}{place}-{k}-" if k or always else b for b, k in zip(so_far, numbers, strict=True)]
    return replace(batch, branch=fixed)


def format_provenance(batch: Batch[Any], job: str, term: Term, epoch: Epoch) -> list[str]:
    """Format the provenance text of every row of a batch, in order."""
    origin, lane = batch.origin, batch.lane
    partitions, offsets = origin.partitions, origin.offsets
    starts = {
        p: prefix(job, term, epoch, origin.source, origin.topic, p)
        for p in {partitions[row] for row in batch.origin_rows}
    }
    branch = batch.branch or itertools.repeat("")
    texts = [
        f"{starts[partitions[row]]}{offsets[row]}/{lane}.{b}{ordinal}"
        for row, ordinal, b in zip(batch.origin_rows, number_outputs(batch), branch, strict=False)
    ]
    if batch.updates is None:
        return texts
    return [f"{text}/{update}" for text, update in zip(texts, batch.updates, strict=True)]


def find_input_record(text: str) -> str | None:
    """Return the input record of the first output that a text names by its identity, as topic, partition and offset.

    None if it names none, or one of a timer.
    """
    for found in _IDENTITY.finditer(text):
        if found["topic"] not in (TIMERS, PROCESSING_TIMERS):
            return f"{unquote(found['topic'])}/{found['partition']}/{found['offset']}"
    return None


def parse_provenance(text: str) -> Provenance:
    """Parse a provenance text. Raises ValueError if it is malformed."""
    match = _TEXT.fullmatch(text)
    topic = "" if match is None else unquote(match["topic"])
    if (
        match is None
        or encode_name(topic) != match["topic"]
        or (match["offset"].startswith("-") and topic not in (TIMERS, PROCESSING_TIMERS))
    ):
        raise ValueError(f"{text!r} is not a provenance: <job>.<term>.<epoch>/<source>/<topic>/<partition>/…")
    part = match.groupdict()
    return Provenance(
        job=part["job"],
        term=Term(int(part["term"])),
        epoch=Epoch(int(part["epoch"])),
        source=part["source"],
        topic=topic,
        partition=int(part["partition"]),
        offset=int(part["offset"]),
        lane=int(part["lane"]),
        ordinal=part["ordinal"],
        update=None if part["update"] is None else int(part["update"]),
    )
