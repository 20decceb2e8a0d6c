"""How a connection begins: what the broker can do, and who the client is.

Pure. See ``request``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kafka_eos.connectors.kafka.rpc.messages.request import Request
from kafka_eos.connectors.kafka.rpc.messages.wire_format import NO_TAGS, Reader, blob, old_text, text

API_VERSIONS: Final = 18
_FINALIZED: Final = 2
"""The tag of the finalized features."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a broker has: the versions of each API, lowest and highest, and the finalized level of each feature."""

    error: int
    versions: Mapping[int, tuple[int, int]]
    features: Mapping[str, int]


def api_versions() -> Request[Abilities]:
    def api(found: Reader) -> tuple[int, tuple[int, int]]:
        has = found.int16(), (found.int16(), found.int16())
        found.tags()
        return has

    def feature(found: Reader) -> tuple[str, int]:
        level = found.text(), found.int16()
        found.skip(Reader.int16, Reader.tags)
        return level

    def read(found: Reader, version: int) -> Abilities:
        if error := found.int16():  # a broker that does not have this version answers in another layout
            found.rest()
            return Abilities(error, {}, {})
        versions = dict(found.array(api))
        found.int32()
        finalized = found.tags().get(_FINALIZED)
        return Abilities(0, versions, dict(finalized.array(feature)) if finalized else {})

    # The broker refuses a request without a name and version of the client.
    return Request("ApiVersions", API_VERSIONS, 3, 3, lambda _: text("kafka-eos") + text("1") + NO_TAGS, read)


@dataclass(frozen=True, slots=True)
class Mechanisms:
    error: int
    names: tuple[str, ...]


def sasl_handshake(mechanism: str) -> Request[Mechanisms]:
    def read(found: Reader, version: int) -> Mechanisms:
        return Mechanisms(found.int16(), found.old_array(Reader.old_text))

    return Request("SaslHandshake", 17, 1, 1, lambda _: old_text(mechanism), read, flexible=False)


@dataclass(frozen=True, slots=True)
class Authenticated:
    """``lifetime_ms`` is for how long the broker accepts it; 0: for ever."""

    error: int
    message: str | None
    token: bytes
    lifetime_ms: int


def sasl_authenticate(token: bytes) -> Request[Authenticated]:
    def read(found: Reader, version: int) -> Authenticated:
        seen = Authenticated(found.int16(), found.text_or_none(), found.blob() or b"", found.int64())
        found.tags()
        return seen

    return Request("SaslAuthenticate", 36, 2, 2, lambda _: blob(token) + NO_TAGS, read)
