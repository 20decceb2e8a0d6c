"""The text that tells where an output came from: written by sinks, read by the audit.

    <term>.<epoch>/<source>/<topic>/<partition>/<offset>/<lane>.<ordinal>[/<update>]

``term.epoch`` is the attempt that wrote the row; the rest names the input row, which output of it this is, and, after a
fold or reduce whose state lasts, how many outputs the key has had. Everything after the first slash is the same in
every attempt, so two visible outputs that agree there are a duplicate.

The ordinal counts the outputs of one input row. Where rows change subtasks they can no longer be counted together,
so an exchange fixes the number so far as the row's *branch*, with its own number in the plan before it: the second
output at exchange 0 becomes ``0-1-``, and what follows from it counts as ``0-1-0``, ``0-1-1`` …; the first output has
no branch, unless it is copied or goes round a loop. So the text does not depend on the parallelism.
A row that goes back to the head of a loop as output k gets ``0-k-``: every round has names of its own.

What a timer made comes from no record: the source is its operator, the topic ``timers``, or ``processing-timers`` for
one of the clock, the partition the key group, the offset the time of the timer, which may be negative, and the branch
begins with two numbers that stand for the key.

A dead letter's branch ends in the lane and a checksum of the name of who refused it: whoever else refuses the record,
in whichever worker, writes another name.

Pure. Rule: this file is the only one that knows the grammar; a sink that inlines it takes the start from ``prefix``.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from typing import Any

from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.records import Batch

TIMERS = "timers"
"""In place of a topic: the row was made by a timer, in event time."""
PROCESSING_TIMERS = "processing-timers"
"""The same of a timer in processing time."""

HEADER = "kafka_eos"
"""Name of the Kafka header that carries the text."""

_TEXT = re.compile(
    r"(?P<term>\d+)\.(?P<epoch>\d+)/(?P<source>[^/]+)/(?P<topic>[^/]+)/(?P<partition>\d+)/(?P<offset>-?\d+)"
    r"/(?P<lane>\d+)\.(?P<ordinal>\d+(?:-\d+)*)(?:/(?P<update>\d+))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Provenance:
    """One parsed text. ``str`` gives the text back."""

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
        """The part that does not depend on the attempt: equal only for the same output of the same input."""
        return str(self).partition("/")[2]

    def __str__(self) -> str:
        start = prefix(self.term, self.epoch, self.source, self.topic, self.partition)
        update = "" if self.update is None else f"/{self.update}"
        return f"{start}{self.offset}/{self.lane}.{self.ordinal}{update}"


def prefix(term: Term, epoch: Epoch, source: str, topic: str, partition: int) -> str:
    """What all rows of one partition and one epoch have in common; continue with the offset."""
    return f"{term.n}.{epoch.n}/{source}/{topic}/{partition}/"


def ordinals(batch: Batch[Any]) -> list[int]:
    """0, 1, 2 … within each run of values of one row and one branch."""
    rows, branch = batch.rows, batch.branch
    found = [0] * len(rows)
    if isinstance(rows, range):
        return found
    for i in range(1, len(rows)):
        if rows[i] == rows[i - 1] and (branch is None or branch[i] == branch[i - 1]):
            found[i] = found[i - 1] + 1
    return found


def fans_out(batch: Batch[Any]) -> bool:
    """Do several values of the batch come from one row?"""
    rows = batch.rows
    return not isinstance(rows, range) and len(set(rows)) < len(rows)


def branched(batch: Batch[Any], place: int, always: bool = False) -> Batch[Any]:
    """The batch with the number of each output so far fixed in its branch; called at exchange number ``place``.

    ``always``: of the first output, too; where rows are copied, and where they begin another round of a loop.
    """
    if not always and (isinstance(batch.rows, range) or not fans_out(batch)):
        return batch
    so_far, numbers = batch.branch or [""] * len(batch), ordinals(batch)
    fixed = [f"{b}{place}-{k}-" if k or always else b for b, k in zip(so_far, numbers, strict=True)]
    return replace(batch, branch=fixed)


def column(batch: Batch[Any], term: Term, epoch: Epoch) -> list[str]:
    """The text of every value of ``batch``, in order."""
    origin, lane = batch.origin, batch.lane
    partitions, offsets = origin.partitions, origin.offsets
    starts = {p: prefix(term, epoch, origin.source, origin.topic, p) for p in {partitions[row] for row in batch.rows}}
    branch = batch.branch or itertools.repeat("")
    texts = [
        f"{starts[partitions[row]]}{offsets[row]}/{lane}.{b}{ordinal}"
        for row, ordinal, b in zip(batch.rows, ordinals(batch), branch, strict=False)
    ]
    if batch.updates is None:
        return texts
    return [f"{text}/{update}" for text, update in zip(texts, batch.updates, strict=True)]


def parse(text: str) -> Provenance:
    """Read one text. ValueError if it is not one."""
    match = _TEXT.fullmatch(text)
    if match is None or (match["offset"].startswith("-") and match["topic"] not in (TIMERS, PROCESSING_TIMERS)):
        raise ValueError(f"{text!r} is not a provenance: <term>.<epoch>/<source>/<topic>/<partition>/<offset>/…")
    part = match.groupdict()
    return Provenance(
        term=Term(int(part["term"])),
        epoch=Epoch(int(part["epoch"])),
        source=part["source"],
        topic=part["topic"],
        partition=int(part["partition"]),
        offset=int(part["offset"]),
        lane=int(part["lane"]),
        ordinal=part["ordinal"],
        update=None if part["update"] is None else int(part["update"]),
    )
