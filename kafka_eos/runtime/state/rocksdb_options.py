"""Options of the RocksDB backend, and the distribution of operators over local directories.

Rule: memory is one number per worker. Besides it, most users need only a profile; each option of a profile can be set
alone, by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

Compaction: TypeAlias = Literal["level", "universal"]
Profile: TypeAlias = Literal["default", "read-heavy", "write-heavy", "spinning-disk"]

DEFAULT_MEMORY = 256 << 20
DEFAULT_CLEANUP_ROWS = 10_000
_MIB = 1 << 20
_KIB = 1 << 10


class RocksDBTuning(Struct, frozen=True):
    """RocksDB options that a profile sets.

    ``write_buffer``    bytes of rows of one state that are buffered before they become a file
    ``bloom_bits``      bits per row of the bloom filter for absent rows; 10 lets 1 % pass, 0 disables it
    ``compaction``      level: reads access few files; universal: rows are rewritten less often, and take more space
    ``block_size``      bytes that one read loads, uncompressed
    ``level0_files``    each checkpoint adds one; so many are merged (and uploaded again) at once
    """

    write_buffer: int = 32 * _MIB
    bloom_bits: int = 10
    compaction: Compaction = "level"
    block_size: int = 4 * _KIB
    level0_files: int = 8


PROFILES: Mapping[Profile, RocksDBTuning] = MappingProxyType(
    {
        "default": RocksDBTuning(),
        "read-heavy": RocksDBTuning(bloom_bits=16, level0_files=4),
        "write-heavy": RocksDBTuning(write_buffer=64 * _MIB, compaction="universal", level0_files=12),
        "spinning-disk": RocksDBTuning(write_buffer=64 * _MIB, bloom_bits=16, block_size=64 * _KIB, level0_files=12),
    }
)


class StateOptions(Struct, frozen=True):
    """The options of all states.

    ``memory`` is in bytes, for all RocksDB databases of this process with the same number.
    """

    memory: int = DEFAULT_MEMORY
    tuning: RocksDBTuning = PROFILES["default"]
    ttl_cleanup_rows: int = DEFAULT_CLEANUP_ROWS
    """Rows of each state with a time to live that one checkpoint examines."""

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
        """Return a profile with single options replaced. Arguments are named like the settings, without ``state_``."""
        tuning = PROFILES[profile]
        alone = {"write_buffer": write_buffer, "bloom_bits": bloom_bits, "compaction": compaction}
        given: dict[str, Any] = {name: value for name, value in alone.items() if value is not None}
        return cls(memory, replace(tuning, **given), ttl_cleanup_rows)


def spread(operators: Sequence[str], directories: Sequence[Path], subtask: int = 0) -> dict[str, Path]:
    """Return the local directory of each operator: round robin, starting at another directory for each subtask."""
    return {name: directories[(number + subtask) % len(directories)] for number, name in enumerate(operators)}
