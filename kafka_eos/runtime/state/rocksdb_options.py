"""Named options of the RocksDB backend, and how operators are spread over local directories.

Rule: memory is one number a worker. The profiles are the only other thing most people need; what they set can be
set alone, by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

Compaction: TypeAlias = Literal["level", "universal"]
Profile: TypeAlias = Literal["default", "read-heavy", "write-heavy", "spinning-disk"]

DEFAULT_MEMORY = 256 << 20
DEFAULT_CLEANUP_ROWS = 10_000
_MIB = 1 << 20
_KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a profile sets.

    ``write_buffer``    bytes of rows of one state that are collected before they become a file
    ``bloom_bits``      bits a row of the filter that spares reads of absent rows; 10 lets 1 % pass, 0 is no filter
    ``compaction``      level: reads look at few files; universal: rows are rewritten less often, and take more space
    ``block_size``      bytes that one read brings in, uncompressed
    ``level0_files``    each checkpoint adds one; so many are merged (and uploaded anew) at once
    """

    write_buffer: int = 32 * _MIB
    bloom_bits: int = 10
    compaction: Compaction = "level"
    block_size: int = 4 * _KIB
    level0_files: int = 8


PROFILES: Mapping[Profile, Tuning] = MappingProxyType(
    {
        "default": Tuning(),
        "read-heavy": Tuning(bloom_bits=16, level0_files=4),
        "write-heavy": Tuning(write_buffer=64 * _MIB, compaction="universal", level0_files=12),
        "spinning-disk": Tuning(write_buffer=64 * _MIB, bloom_bits=16, block_size=64 * _KIB, level0_files=12),
    }
)


@dataclass(frozen=True, slots=True)
class StateOptions:
    """``memory`` is in bytes, for all RocksDB databases of this process that are opened with the same number."""

    memory: int = DEFAULT_MEMORY
    tuning: Tuning = PROFILES["default"]
    ttl_cleanup_rows: int = DEFAULT_CLEANUP_ROWS
    """Rows of each state with a time to live that are looked at in one checkpoint."""

    @classmethod
    def of(
        cls,
        memory: int = DEFAULT_MEMORY,
        profile: Profile = "default",
        write_buffer: int | None = None,
        bloom_bits: int | None = None,
        compaction: Compaction | None = None,
        ttl_cleanup_rows: int = DEFAULT_CLEANUP_ROWS,
    ) -> StateOptions:
        """A profile with what is set alone on top. The names are those of the settings, without ``state_``."""
        tuning = PROFILES[profile]
        alone = {"write_buffer": write_buffer, "bloom_bits": bloom_bits, "compaction": compaction}
        given: dict[str, Any] = {name: value for name, value in alone.items() if value is not None}
        return cls(memory, replace(tuning, **given), ttl_cleanup_rows)


def spread(operators: Sequence[str], directories: Sequence[Path], subtask: int = 0) -> dict[str, Path]:
    """Which local directory each operator of a subtask works in: in turn, and another turn for each subtask."""
    return {name: directories[(number + subtask) % len(directories)] for number, name in enumerate(operators)}
