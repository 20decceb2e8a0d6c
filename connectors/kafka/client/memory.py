"""The memory of librdkafka's buffers: records that a source has read ahead, and those that a producer has not sent yet.

Pure. The engine sets the bytes of one share; a source gets one share, a producer two. The user's own librdkafka
settings take precedence over both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kafka_eos.abc.context import JobContext
from kafka_eos.core.errors import ConfigError

SHARE: Final = 128 << 20
"""Most bytes of a share: more memory does not increase throughput."""
_LARGEST_RECORD: Final = 1_000_000
"""librdkafka's default of ``message.max.bytes``."""


def share_of(ctx: JobContext) -> int:
    """Return the bytes of one share, at most ``SHARE``."""
    configured = ctx.settings.get("kafka_share")
    return min(SHARE, configured) if isinstance(configured, int) else SHARE


def read_ahead(share: int) -> dict[str, Any]:
    """Return the settings of a consumer that stops fetching once it holds ``share`` bytes.

    librdkafka lowers ``fetch.max.bytes``, the size of one response, along with it.
    """
    return {"queued.max.messages.kbytes": max(1, share >> 10)}


def queue(share: int) -> dict[str, Any]:
    """Return the settings of a producer that holds two shares."""
    return {"queue.buffering.max.kbytes": max(1, 2 * share >> 10)}


def largest_record(config: Mapping[str, Any]) -> int:
    """Return the bytes of the largest record that a producer accepts."""
    return int(config.get("message.max.bytes", _LARGEST_RECORD))


def expect_room(config: Mapping[str, Any]) -> None:
    """Raise ConfigError if the largest record of a producer exceeds its queue: it would wait forever."""
    largest = largest_record(config)
    room = int(config["queue.buffering.max.kbytes"]) << 10
    if room < largest:
        raise ConfigError(
            f"a producer may buffer {room} bytes (kafka_memory, or queue.buffering.max.kbytes), "
            f"but one record may have {largest} (message.max.bytes): such a record would wait for "
            "space forever. Raise the first, or lower the second."
        )
