"""Positions in a topic, and where a job continues: from its positions, and from what the log still contains.

Pure. Rule: a position that the log cannot serve any more is InputLost, never a silent jump; a new partition is read
from its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafka_eos.core.errors import Bug, InputLost, LossCause
from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Json, Position, Positions

_UNTIL = "until"
_GO_ON = (
    "The job never skips to another position. To accept the loss, start it under another "
    "name, with start= on the source (docs/failures-and-recovery.md, missing input)."
)


def split_id(topic: str, partition: int) -> SplitId:
    return SplitId(f"{topic}/{partition}")


def partition_of(split: SplitId) -> int:
    return int(split.rpartition("/")[2])


def topic_of(split: SplitId) -> str:
    return split.rpartition("/")[0]


def position(offset: int, topic_id: str) -> Position:
    """Return the first position of a split. ``begin`` stays in all its later positions, for the audit."""
    return {"offset": offset, "topic_id": topic_id, "begin": offset}


def ending(at: Position, until: int) -> Position:
    """Return the position of a split that ends at the offset ``until``, or at once if it begins after that."""
    return {**at, _UNTIL: max(until, offset_of(at))}


def endless(positions: Positions) -> dict[SplitId, Position]:
    """Return these positions without an end, for a source that is unbounded now."""
    return {split: {part: of for part, of in at.items() if part != _UNTIL} for split, at in positions.items()}


def until_of(at: Mapping[str, Json]) -> int | None:
    """Return the final end of a split; None if it has none."""
    found = at.get(_UNTIL)
    return found if isinstance(found, int) else None


def moved(at: Position, offset: int) -> Position:
    """Return the position of a split that was read up to ``offset``."""
    return {**at, "offset": offset}


def offset_of(at: Mapping[str, Json]) -> int:
    found = at.get("offset")
    if not isinstance(found, int):
        raise Bug(f"{at!r} is not a Kafka position")
    return found


def positions(topic: str, topic_id: str, offsets: Mapping[int, int]) -> dict[SplitId, Position]:
    """Return the first positions of partitions, from offsets by partition."""
    return {split_id(topic, partition): position(offset, topic_id) for partition, offset in offsets.items()}


def continued(
    topic: str, topic_id: str, known: Positions, low: Mapping[int, int], high: Mapping[int, int]
) -> Positions:
    """Return the positions to continue from, in all existing partitions of a topic.

    ``known``: positions of this topic alone. ``low``, ``high``: the ends of the log, by partition.
    """
    for split, at in known.items():
        _verify(split, at, topic_id, low, high)
    new = {split: at for split, at in positions(topic, topic_id, low).items() if split not in known}
    return {**known, **new}


def _verify(
    split: SplitId, at: Mapping[str, Json], topic_id: str, low: Mapping[int, int], high: Mapping[int, int]
) -> None:
    offset, partition = offset_of(at), partition_of(split)
    if at.get("topic_id") != topic_id:
        raise replaced(split, at, topic_id)
    if partition not in low:
        raise InputLost(
            f"partition {split} does not exist any more, but the job still needed it from offset {offset}. {_GO_ON}",
            LossCause.MISSING,
        )
    if offset < low[partition]:
        raise InputLost(
            f"retention removed records of {split} that the job still needed: it stopped at "
            f"offset {offset}, but the log now starts at {low[partition]} "
            f"({low[partition] - offset} offsets were removed). Set retention longer than the "
            "longest outage; it depends on the timestamps of records, not on their arrival. "
            f"{_GO_ON}",
            LossCause.EXPIRED,
        )
    if offset > high[partition]:
        raise InputLost(
            f"{split} was truncated: the job has read up to offset {offset}, but the log now ends "
            f"at {high[partition]} (an unclean leader election or a lost disk). Records that were "
            f"processed are missing. {_GO_ON}",
            LossCause.ALTERED,
        )


def replaced(split: SplitId, at: Mapping[str, Json], topic_id: str) -> InputLost:
    """Return the error for a split whose topic has another id now."""
    return InputLost(
        f"topic {topic_of(split)} was deleted and created again since the checkpoint (topic "
        f"id {at.get('topic_id')}, now {topic_id}): offset {offset_of(at)} of {split} is "
        f"another record now. {_GO_ON}",
        LossCause.REPLACED,
    )
