"""What a position in a topic is, and where a job goes on: from its positions, and from what the log still holds.

Pure. Rule: a position that the log cannot serve any more is InputLost, never a silent jump; a partition that is new is
read from its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafka_eos.core.errors import Bug, InputLost
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Json, Position, Positions

_UNTIL = "until"
_GO_ON = (
    "The job does not jump by itself; to accept that, start it under another name, with start= on the source "
    "(docs/operations.md, input that is gone)."
)


def split_id(topic: str, partition: int) -> SplitId:
    return SplitId(f"{topic}/{partition}")


def partition_of(split: SplitId) -> int:
    return int(split.rpartition("/")[2])


def topic_of(split: SplitId) -> str:
    return split.rpartition("/")[0]


def position(offset: int, topic_id: str) -> Position:
    """Where a split is read first. ``begin`` stays in every later position of it, so that the audit knows it."""
    return {"offset": offset, "topic_id": topic_id, "begin": offset}


def ending(at: Position, until: int) -> Position:
    """The position of a split that is read up to the offset ``until``, or not at all if it begins behind that."""
    return {**at, _UNTIL: max(until, offset_of(at))}


def endless(positions: Positions) -> dict[SplitId, Position]:
    """These positions, of a source that has no end any more."""
    return {split: {part: of for part, of in at.items() if part != _UNTIL} for split, at in positions.items()}


def until_of(at: Mapping[str, Json]) -> int | None:
    """Where a split ends for good; None if it does not."""
    found = at.get(_UNTIL)
    return found if isinstance(found, int) else None


def moved(at: Position, offset: int) -> Position:
    """The position of a split that was read up to ``offset``."""
    return {**at, "offset": offset}


def offset_of(at: Mapping[str, Json]) -> int:
    found = at.get("offset")
    if not isinstance(found, int):
        raise Bug(f"{at!r} is not a Kafka position")
    return found


def positions(topic: str, topic_id: str, offsets: Mapping[int, int]) -> dict[SplitId, Position]:
    """Where partitions are read first, from offsets by partition."""
    return {split_id(topic, partition): position(offset, topic_id) for partition, offset in offsets.items()}


def continued(
    topic: str, topic_id: str, known: Positions, low: Mapping[int, int], high: Mapping[int, int]
) -> Positions:
    """Where to go on, in all partitions that there are; ``low`` and ``high`` are the ends of the log, by partition.

    ``known``: positions of this topic alone.
    """
    for split, at in known.items():
        _verify(split, at, topic_id, low, high)
    new = {split: at for split, at in positions(topic, topic_id, low).items() if split not in known}
    return {**known, **new}


def _verify(
    split: SplitId, at: Mapping[str, Json], topic_id: str, low: Mapping[int, int], high: Mapping[int, int]
) -> None:
    offset, partition, told = offset_of(at), partition_of(split), at.get("topic_id")
    if told != topic_id:
        raise InputLost(
            f"topic {topic_of(split)} was deleted and created again since the checkpoint (topic id {told}, "
            f"now {topic_id}): offset {offset} of {split} means another record now. {_GO_ON}"
        )
    if partition not in low:
        raise InputLost(f"partition {split} is gone; the job still needed it from offset {offset}. {_GO_ON}")
    if offset < low[partition]:
        raise InputLost(
            f"retention removed records of {split} that the job still needed: it stopped at offset {offset}, the "
            f"log now starts at {low[partition]} ({low[partition] - offset} offsets are gone). Set retention "
            f"longer than the longest outage; it goes by the timestamps of records, not by when they came. {_GO_ON}"
        )
    if offset > high[partition]:
        raise InputLost(
            f"{split} was truncated: the job has read up to offset {offset}, the log now ends at "
            f"{high[partition]} (an unclean leader election or a lost disk). Records already processed "
            f"are gone. {_GO_ON}"
        )
