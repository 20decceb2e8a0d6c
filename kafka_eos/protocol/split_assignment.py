"""Which subtask reads which split.

Pure. Rule: a split that ends in a number, as Kafka partitions do, goes to ``number % parallelism``, so that equal
partitions of several topics meet in one subtask (what ``key_by(local=True)`` counts on) and a restart changes nothing.
Other splits are dealt out by a checksum of their names.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping

from kafka_eos.core.ids import SplitId
from kafka_eos.core.json_values import Positions

_NUMBER = re.compile(r"(\d+)$", re.ASCII)


def subtask_of_split(split: SplitId, parallelism: int) -> int:
    """The subtask that reads ``split``."""
    number = _NUMBER.search(split)
    return (int(number[1]) if number else zlib.crc32(split.encode())) % parallelism


def is_numbered(split: SplitId) -> bool:
    """Does the name end in a number, that of the partition in the origin of its rows?"""
    return _NUMBER.search(split) is not None


def share(positions: Mapping[str, Positions], subtask: int, parallelism: int) -> dict[str, Positions]:
    """The part of one subtask: for every source its splits, none of them perhaps."""
    return {
        source: {split: at for split, at in splits.items() if subtask_of_split(split, parallelism) == subtask}
        for source, splits in positions.items()
    }
