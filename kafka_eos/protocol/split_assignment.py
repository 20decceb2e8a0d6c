"""Assignment of splits to subtasks.

Pure. Rule: a split whose name ends in a number, as Kafka partitions do, is assigned to ``number % parallelism``. So
equal partitions of several topics meet in one subtask (``key_by(local=True)`` depends on it), and a restart changes
nothing. Other splits are distributed by a checksum of their names.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions

_NUMBER = re.compile(r"(\d+)$", re.ASCII)


def subtask_of_split(split: SplitId, parallelism: int) -> int:
    """Return the subtask that reads ``split``."""
    number = _NUMBER.search(split)
    return (int(number[1]) if number else zlib.crc32(split.encode())) % parallelism


def is_numbered(split: SplitId) -> bool:
    """Return whether the name ends in a number, which is the partition in the origin of its rows."""
    return _NUMBER.search(split) is not None


def select_positions(positions: Mapping[str, Positions], subtask: int, parallelism: int) -> dict[str, Positions]:
    """Return one subtask's splits and positions, by source."""
    return {
        source: {split: at for split, at in splits.items() if subtask_of_split(split, parallelism) == subtask}
        for source, splits in positions.items()
    }
