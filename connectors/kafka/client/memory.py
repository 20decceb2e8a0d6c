"""How much librdkafka may buffer: what a source has read ahead, and what a producer has not yet sent.

Pure. The engine says how many bytes one share is; a source gets one, a producer two. The user's own librdkafka
settings win over both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kafka_eos.abc.context import JobContext
from kafka_eos.core.errors import ConfigError

SHARE: Final = 128 << 20
"""Bytes of a share where memory does not matter: with more nothing gets faster."""
_LARGEST_RECORD: Final = 1_000_000
"""librdkafka's default of ``message.max.bytes``."""


def share_of(ctx: JobContext) -> int:
    """Bytes of one share, at most ``SHARE``."""
    told = ctx.settings.get("kafka_share")
    return min(SHARE, told) if isinstance(told, int) else SHARE


def read_ahead(share: int) -> dict[str, Any]:
    """Settings of a consumer that asks for no more once it holds ``share`` bytes.

    librdkafka lowers ``fetch.max.bytes``, the size of one answer, along with it.
    """
    return {"queued.max.messages.kbytes": max(1, share >> 10)}


def queue(share: int) -> dict[str, Any]:
    """Settings of a producer that holds two shares."""
    return {"queue.buffering.max.kbytes": max(1, 2 * share >> 10)}


def largest_record(config: Mapping[str, Any]) -> int:
    """Bytes of the largest record that a producer takes."""
    return int(config.get("message.max.bytes", _LARGEST_RECORD))


def expect_room(config: Mapping[str, Any]) -> None:
    """ConfigError if the largest record that a producer may be given is more than its queue: it would wait for ever."""
    largest = largest_record(config)
    room = int(config["queue.buffering.max.kbytes"]) << 10
    if room < largest:
        raise ConfigError(
            f"a producer may hold {room} bytes (kafka_memory, or queue.buffering.max.kbytes), and one record up to "
            f"{largest} (message.max.bytes): it would wait for room for ever. Raise the first, or lower the second."
        )
