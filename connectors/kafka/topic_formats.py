"""Checks and descriptions of the codecs of a topic's keys and values, for sources and sinks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kafka_eos.abc.codec import Codec, SchemaChecks
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json


def described(codecs: Mapping[Any, Codec[Any]]) -> dict[str, Json]:
    """Return the descriptions of formats for ``explain``, and so for the plan's fingerprint."""
    shown = {part: codec.describe() for part, codec in codecs.items()}
    return {part: description for part, description in shown.items() if description is not None}


def parts(key: Codec[Any] | None, value: Codec[Any]) -> Mapping[str, Codec[Any]]:
    """Return the codecs of one topic by part."""
    return {"value": value} if key is None else {"key": key, "value": value}


def expect_readable(*codecs: SchemaChecks) -> Sequence[str]:
    """Check that each codec can read the topic's data; return the notices of all."""
    return [notice for codec in codecs for notice in codec.check_reading()]


def expect_ready(*codecs: SchemaChecks | None) -> Sequence[str]:
    """Check that each codec can write; return the notices of all. See ``SchemaChecks.check``."""
    return [notice for codec in codecs if codec is not None for notice in codec.check()]


_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def topic_name(topic: object) -> str:
    """Return the name. Raise ConfigError unless it is a legal Kafka topic name."""
    if not isinstance(topic, str) or not _NAME.fullmatch(topic) or topic in (".", ".."):
        raise ConfigError(
            f"{topic!r} is not a Kafka topic name: use 1 to 249 letters of ASCII, digits, '.', '_' or '-'. "
            "A source reads all topics that match a pattern if it is written as re.compile(…)."
        )
    return topic
