"""Error codes of the protocol: their names, and how to handle them.

Pure. Rule: an unknown code is a rejection, named by its number. A failure of the broker itself is retried.
"""

from __future__ import annotations

from typing import Final

from kafka_eos.connectors.kafka.client.librdkafka import error_name
from kafka_eos.core.errors import UserError

TOPIC_UNKNOWN: Final = 3
LEADER_UNKNOWN: Final = 5
UNSUPPORTED_VERSION: Final = 35
ID_NOT_FOUND: Final = 105
BROKER_FAILED: Final = frozenset({-1, 8, 9, 19, 20, 56, 72, 74, 75, 78, 89})
"""Failures of a broker or its replicas, such as UNKNOWN_SERVER_ERROR and KAFKA_STORAGE_ERROR."""
RETRYABLE: Final = frozenset({LEADER_UNKNOWN, 6, 7, 13, 14, 15, 16, 41, 51, 84, 88}) | BROKER_FAILED
"""Error codes after which the request is sent again."""
FORBIDDEN: Final = frozenset({29, 30, 31, 53, 58, 33, 34})
_NAMES: Final = {
    0: "NONE",
    TOPIC_UNKNOWN: "UNKNOWN_TOPIC_OR_PARTITION",
    47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE",
    49: "INVALID_PRODUCER_ID_MAPPING",
    50: "INVALID_TRANSACTION_TIMEOUT",
    51: "CONCURRENT_TRANSACTIONS",
    53: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    59: "UNKNOWN_PRODUCER_ID",
    90: "PRODUCER_FENCED",
    ID_NOT_FOUND: "TRANSACTIONAL_ID_NOT_FOUND",
}
"""Names of codes that decisions depend on, and of those that librdkafka names differently."""


def name_of(code: int) -> str:
    return _NAMES.get(code) or error_name(code)


def expect(code: int, allowed: set[int], what: str) -> None:
    """Raise UserError unless the code is one of these."""
    if code not in allowed:
        raise UserError(f"{what} was refused: {name_of(code)}")
