"""What the client's errors and limits mean to a job: pure mappings, no broker."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from kafka_eos.connectors.kafka.client.librdkafka import is_login_error, map_consumer_error, map_error
from kafka_eos.connectors.kafka.sink.cluster_limits import LONGEST_MS, _span
from kafka_eos.core.errors import (
    ConfigError,
    Fatal,
    InputLost,
    KafkaEosError,
    LoginRefused,
    LossCause,
    RestartFromCheckpoint,
)

WHAT = "read in/3 at offset 42"


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        (KafkaError._BAD_MSG, Fatal),
        (KafkaError._BAD_COMPRESSION, Fatal),
        (KafkaError._NOT_IMPLEMENTED, Fatal),
        (KafkaError.INVALID_MSG, Fatal),
        (KafkaError.MSG_SIZE_TOO_LARGE, ConfigError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, ConfigError),
        (KafkaError._AUTO_OFFSET_RESET, InputLost),
        (KafkaError._LOG_TRUNCATION, InputLost),
        (KafkaError.UNKNOWN, RestartFromCheckpoint),
        (KafkaError._FAIL, RestartFromCheckpoint),
    ],
)
def test_an_error_that_may_pass_over_records_stops_and_says_where(code: int, wanted: type[KafkaEosError]) -> None:
    found = map_consumer_error(KafkaError(code), WHAT)

    assert type(found) is wanted
    assert WHAT in str(found)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (KafkaError._AUTO_OFFSET_RESET, LossCause.ALTERED),
        (KafkaError._LOG_TRUNCATION, LossCause.ALTERED),
        (KafkaError.OFFSET_OUT_OF_RANGE, LossCause.ALTERED),
        (KafkaError._UNKNOWN_TOPIC, LossCause.MISSING),
        (KafkaError._UNKNOWN_PARTITION, LossCause.MISSING),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, LossCause.MISSING),
        (KafkaError.UNKNOWN_TOPIC_ID, LossCause.MISSING),
        (103, LossCause.REPLACED),
    ],
)
def test_an_error_about_lost_input_has_its_cause(code: int, cause: LossCause) -> None:
    found = map_consumer_error(KafkaError(code), WHAT)

    assert isinstance(found, InputLost)
    assert found.cause is cause


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
    ],
)
def test_brokers_that_come_and_go_stop_nothing(code: int) -> None:
    assert map_consumer_error(KafkaError(code), WHAT) is None


def test_a_fatal_error_always_stops() -> None:
    assert isinstance(map_consumer_error(KafkaError(KafkaError._TRANSPORT, "gone", True), WHAT), RestartFromCheckpoint)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(LONGEST_MS, "24.8 days"), (900_000, "15 min"), (3_600_000, "1 h"), (1_500, "1.5 s"), (5_400_000, "1.5 h")],
)
def test_a_limit_is_never_shown_larger_than_it_is(milliseconds: int, text: str) -> None:
    assert _span(milliseconds) == text


@pytest.mark.parametrize(
    ("code", "text", "refused"),
    [
        (KafkaError._AUTHENTICATION, "SASL authentication error", True),
        (KafkaError.SASL_AUTHENTICATION_FAILED, "", True),
        (KafkaError._SSL, "SSL handshake failed: certificate verify failed", True),
        (KafkaError._SSL, "sslv3 alert certificate expired: SSL alert number 45", True),
        (KafkaError._SSL, "SSL handshake failed: Disconnected", False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "certificate", False),
    ],
)
def test_who_is_not_let_in_may_be_later_and_a_broker_that_ends_refuses_nobody(
    code: int, text: str, refused: bool
) -> None:
    error = KafkaError(code, text)

    assert is_login_error(error) is refused
    for found in (map_error(error, WHAT), map_consumer_error(error, WHAT)):
        assert isinstance(found, LoginRefused) is refused
        assert isinstance(found, ConfigError)
