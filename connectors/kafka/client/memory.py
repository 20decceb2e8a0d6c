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
_BYTES_PER_RECORD: Final = 400
"""Bytes of a small record in librdkafka: its own 270 or so, which no setting of librdkafka counts, and the payload."""
_FEWEST_RECORDS: Final = 64
_SMALLEST_RESPONSE: Final = 256 << 10
_LARGEST_RESPONSE: Final = 1 << 20
_LARGEST_RECORD: Final = 1_000_000
"""librdkafka's default of ``message.max.bytes``."""


def share_of(ctx: JobContext) -> int:
    """Return the bytes of one share, at most ``SHARE``."""
    configured = ctx.settings.get("kafka_share")
    return min(SHARE, configured) if isinstance(configured, int) else SHARE


def read_ahead(share: int, partitions: int) -> dict[str, Any]:
    """Return the settings of a consumer that stops fetching once it holds ``share`` bytes of ``partitions``.

    - ``queued.max.messages.kbytes`` bounds the payload of all partitions. librdkafka lowers ``fetch.max.bytes``, the
      size of one response, along with it.
    - ``queued.min.messages`` bounds the number of records of each partition, because small records take more memory
      than their payload.
    - ``fetch.message.max.bytes`` bounds the part of each partition in a response. A response arrives whole after the
      consumer has stopped fetching, and compressed: its records are several times as large.
    """
    several = max(1, partitions)
    return {
        "queued.max.messages.kbytes": max(1, share >> 10),
        "queued.min.messages": max(_FEWEST_RECORDS, share // (_BYTES_PER_RECORD * several)),
        "fetch.message.max.bytes": min(_LARGEST_RESPONSE, max(_SMALLEST_RESPONSE, share // (5 * several))),
    }


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
