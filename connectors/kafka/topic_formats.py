"""What the codecs of a topic's keys and values have to say, for sources and sinks alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kafka_eos.abc.codec import Checked, Codec, Described, Part
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json


def described(codecs: Mapping[Part, Codec[Any]]) -> dict[str, Json]:
    """For ``explain``, and so for the plan's fingerprint: formats that are more than the user's type."""
    return {part: codec.describe() for part, codec in codecs.items() if isinstance(codec, Described)}


def parts(key: Codec[Any] | None, value: Codec[Any]) -> Mapping[Part, Codec[Any]]:
    """Of one topic."""
    return {"value": value} if key is None else {"key": key, "value": value}


def expect_readable(*codecs: Any) -> Sequence[str]:
    """Can each of them read what its topic has? Returns the notices of all."""
    return [notice for codec in codecs if isinstance(codec, Checked) for notice in codec.check_reading()]


def expect_ready(*codecs: Any) -> Sequence[str]:
    """Can each of them write? See ``abc.Checked``; returns the notices of all."""

    def said() -> Iterator[str]:
        for codec in codecs:
            if isinstance(codec, Checked):
                yield from codec.check()

    return list(said())


_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def topic_name(topic: object) -> str:
    """ConfigError unless it is a legal Kafka topic name."""
    if not isinstance(topic, str) or not _NAME.fullmatch(topic) or topic in (".", ".."):
        raise ConfigError(
            f"{topic!r} is not a Kafka topic name: use 1 to 249 letters of ASCII, digits, '.', '_' or '-'. "
            "A source reads all topics that match a pattern if it is written as re.compile(…)."
        )
    return topic
