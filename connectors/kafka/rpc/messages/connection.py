"""The first messages of a connection: the broker's API versions, and the client's login.

Pure. See ``request``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from kafka_eos.connectors.kafka.rpc.messages.request import Request
from kafka_eos.connectors.kafka.rpc.messages.wire_format import NO_TAGS, MessageReader, blob, old_text, text

API_VERSIONS: Final = 18
_FINALIZED: Final = 2
"""The tag of the finalized features."""


class ApiVersionsResponse(Struct, frozen=True):
    """The API versions and finalized features of a broker."""

    error: int
    versions: Mapping[int, tuple[int, int]]
    features: Mapping[str, int]


def api_versions() -> Request[ApiVersionsResponse]:
    def api(found: MessageReader) -> tuple[int, tuple[int, int]]:
        has = found.int16(), (found.int16(), found.int16())
        found.tags()
        return has

    def feature(found: MessageReader) -> tuple[str, int]:
        level = found.text(), found.int16()
        found.skip(MessageReader.int16, MessageReader.tags)
        return level

    def read(found: MessageReader, version: int) -> ApiVersionsResponse:
        if error := found.int16():  # a broker without this version uses another layout in its response
            found.rest()
            return ApiVersionsResponse(error, {}, {})
        versions = dict(found.array(api))
        found.int32()
        finalized = found.tags().get(_FINALIZED)
        return ApiVersionsResponse(0, versions, dict(finalized.array(feature)) if finalized else {})

    # The broker rejects a request without the name and version of the client.
    return Request("ApiVersions", API_VERSIONS, 3, 3, lambda _: text("kafka-eos") + text("1") + NO_TAGS, read)


class SaslHandshakeResponse(Struct, frozen=True):
    error: int
    names: tuple[str, ...]


def sasl_handshake(mechanism: str) -> Request[SaslHandshakeResponse]:
    def read(found: MessageReader, version: int) -> SaslHandshakeResponse:
        return SaslHandshakeResponse(found.int16(), found.old_array(MessageReader.old_text))

    return Request("SaslHandshake", 17, 1, 1, lambda _: old_text(mechanism), read, flexible=False)


class SaslAuthenticateResponse(Struct, frozen=True):
    """The broker's next SASL message, and the lifetime of the login; 0 means no limit."""

    error: int
    message: str | None
    token: bytes
    lifetime_ms: int


def sasl_authenticate(token: bytes) -> Request[SaslAuthenticateResponse]:
    def read(found: MessageReader, version: int) -> SaslAuthenticateResponse:
        seen = SaslAuthenticateResponse(found.int16(), found.text_or_none(), found.blob() or b"", found.int64())
        found.tags()
        return seen

    return Request("SaslAuthenticate", 36, 2, 2, lambda _: blob(token) + NO_TAGS, read)
