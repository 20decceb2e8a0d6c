"""Kafka's messages by kio, which makes them of Kafka's own definitions: a witness for the ones that we write by hand,
and a client for what no other client asks.

kio refuses a time of -1 and error codes that it has not heard of, so nothing that runs may depend on it.
"""

from __future__ import annotations

import io
import socket
import struct
from contextlib import suppress
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.list_transactions.v0.request import ListTransactionsRequest
from kio.schema.metadata.v11.request import MetadataRequest
from kio.serial import entity_reader, entity_writer

from tests.waiting import PATIENCE, eventually

_CORRELATION = 1
_ONGOING = ListTransactionsRequest(state_filters=("Ongoing",))
_BROKERS = MetadataRequest(topics=(), allow_auto_topic_creation=False, include_topic_authorized_operations=False)
API_VERSIONS, METADATA = 18, 3


def encoded(entity: Any) -> bytes:
    """The bytes of a request or of an answer, without a header."""
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def request_of(frame: bytes) -> tuple[int, Any]:
    """Correlation id and request of a frame.

    librdkafka appends three bytes to its request for all topics, which brokers ignore.
    """
    key, version = struct.unpack_from(">hh", frame)
    schema = load_request_schema(key, version)
    header, size = entity_reader(schema.__header_schema__)(frame, 0)
    request, end = entity_reader(schema)(frame, size)
    more = frame[size + end :]
    assert not more or (key == METADATA and more == bytes(3)), f"{schema.__name__}: {len(more)} bytes too many"
    return int(header.correlation_id), request


def answer_of(frame: bytes, key: int, version: int) -> Any:
    schema = load_response_schema(key, version)
    _, size = entity_reader(schema.__header_schema__)(frame, 0)
    return entity_reader(schema)(frame, size)[0]


def framed(answer: Any, correlation: int) -> bytes:
    """An answer with its header and its length."""
    header = answer.__header_schema__(correlation_id=correlation)
    return with_length(encoded(header) + encoded(answer))


def with_length(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def asked(address: str, request: Any) -> Any:
    """The answer of the broker at host:port, over a connection of its own. OSError if there is none."""
    host, _, port = address.rpartition(":")
    header = request.__header_schema__(
        request_api_key=request.__api_key__,
        request_api_version=request.__version__,
        correlation_id=_CORRELATION,
        client_id="tests",
    )
    with socket.create_connection((host, int(port)), PATIENCE) as link, link.makefile("rb") as answers:
        link.sendall(with_length(encoded(header) + encoded(request)))
        length = answers.read(4)
        frame = answers.read(int.from_bytes(length, "big"))
    if len(length) < 4 or len(frame) < int.from_bytes(length, "big"):
        raise ConnectionError(f"{address} closed the connection")
    return answer_of(frame, request.__api_key__, request.__version__)


def asked_any(bootstrap: str, request: Any) -> Any:
    """The answer of the first of these brokers that is there."""
    *others, last = bootstrap.split(",")
    for address in others:
        with suppress(OSError):
            return asked(address, request)
    return asked(last, request)


def ongoing(bootstrap: str) -> dict[str, int]:
    """The transactions that have not ended, and the node that coordinates each. Waits for brokers that come or go."""

    def found() -> dict[str, int] | None:
        members = asked_any(bootstrap, _BROKERS).brokers
        answers = {one.node_id: asked(f"{one.host}:{one.port}", _ONGOING) for one in members}
        if not members or any(answer.error_code for answer in answers.values()):
            return None
        return {t.transactional_id: node for node, answer in answers.items() for t in answer.transaction_states}

    listed: list[dict[str, int]] = []

    def answered() -> bool:
        with suppress(OSError):
            listed.extend(each for each in [found()] if each is not None)
        return bool(listed)

    eventually(answered, "every broker lists its transactions")
    return listed[0]
