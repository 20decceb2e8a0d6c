"""The text that tells where an output came from: written by sinks, read by the audit.

    <term>.<epoch>/<source>/<topic>/<partition>/<offset>/<lane>.<ordinal>[/<update>]

``term.epoch`` is the attempt that wrote the row; the rest names the input row, which output of it this is, and,
after a keyed operator, how many outputs the key has had. Everything after the first slash is the same in every
attempt, so two visible outputs that agree there are a duplicate.

Pure. Rule: this file is the only one that knows the grammar; a sink that inlines it takes the start from ``prefix``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafka_eos.ids import Epoch, Term
from kafka_eos.records import Batch

HEADER = "kafka_eos"
"""Name of the Kafka header that carries the text."""

_TEXT = re.compile(
    r"(?P<term>\d+)\.(?P<epoch>\d+)/(?P<source>[^/]+)/(?P<topic>[^/]+)/(?P<partition>\d+)/(?P<offset>\d+)"
    r"/(?P<lane>\d+)\.(?P<ordinal>\d+)(?:/(?P<update>\d+))?",
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
    ordinal: int
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


def ordinals(rows: Sequence[int]) -> list[int]:
    """For ascending ``rows``: 0, 1, 2 … within each run of equal numbers."""
    found = [0] * len(rows)
    if isinstance(rows, range):
        return found
    for i in range(1, len(rows)):
        if rows[i] == rows[i - 1]:
            found[i] = found[i - 1] + 1
    return found


def column(batch: Batch[Any], term: Term, epoch: Epoch) -> list[str]:
    """The text of every value of ``batch``, in order."""
    origin, lane = batch.origin, batch.lane
    partitions, offsets = origin.partitions, origin.offsets
    starts = {p: prefix(term, epoch, origin.source, origin.topic, p) for p in {partitions[row] for row in batch.rows}}
    texts = [
        f"{starts[partitions[row]]}{offsets[row]}/{lane}.{ordinal}"
        for row, ordinal in zip(batch.rows, ordinals(batch.rows), strict=True)
    ]
    if batch.updates is None:
        return texts
    return [f"{text}/{update}" for text, update in zip(texts, batch.updates, strict=True)]


def parse(text: str) -> Provenance:
    """Read one text. ValueError if it is not one."""
    match = _TEXT.fullmatch(text)
    if match is None:
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
        ordinal=int(part["ordinal"]),
        update=None if part["update"] is None else int(part["update"]),
    )
