"""The interface to librdkafka: the only module that imports confluent_kafka.

Rule: an error of the client is mapped here, once, to what the caller must do next. No call may outlive its deadline,
because a client was seen to hang far beyond its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
    cimpl,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from kafka_eos.core.errors import (
    ConfigError,
    Fatal,
    InputLost,
    KafkaEosError,
    LoginRefused,
    LossCause,
    RestartFromCheckpoint,
    Retryable,
)

__all__ = [
    "EOF",
    "AdminClient",
    "BrokerWatch",
    "Consumer",
    "ConsumerGroupTopicPartitions",
    "Explain",
    "IsolationLevel",
    "LIBRARY",
    "KafkaError",
    "KafkaException",
    "Message",
    "NewTopic",
    "OffsetSpec",
    "Producer",
    "TopicPartition",
    "run_with_deadline",
    "map_consumer_error",
    "error_name",
    "map_error",
    "map_errors",
    "is_login_error",
    "is_refusal",
    "purged",
    "too_large",
    "undelivered",
    "until_done",
]

T = TypeVar("T")
Explain: TypeAlias = Callable[[int], str]
"""Returns an additional explanation of an error code; "" for most."""
EOF: Final[int] = KafkaError._PARTITION_EOF
LIBRARY: Final[str] = cimpl.__file__
"""The path of the loaded library that brings librdkafka along."""

_LOOK: Final = 1.0
"""Seconds between two checks whether a wait is in vain."""
_INCONSISTENT_TOPIC_ID: Final = 103
"""The client has a name for this code since 2.15."""
_REFUSED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._INVALID_ARG,
        KafkaError._SSL,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_NOT_LET_IN: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
"""Codes of ``_REFUSED`` about passwords and tokens, which are renewed."""
_LOST: Final[Mapping[int, LossCause]] = {
    KafkaError._AUTO_OFFSET_RESET: LossCause.ALTERED,
    KafkaError._LOG_TRUNCATION: LossCause.ALTERED,
    KafkaError.OFFSET_OUT_OF_RANGE: LossCause.ALTERED,
    KafkaError._UNKNOWN_PARTITION: LossCause.MISSING,
    KafkaError._UNKNOWN_TOPIC: LossCause.MISSING,
    KafkaError.UNKNOWN_TOPIC_OR_PART: LossCause.MISSING,
    KafkaError.UNKNOWN_TOPIC_ID: LossCause.MISSING,
    _INCONSISTENT_TOPIC_ID: LossCause.REPLACED,
}
"""Codes of input that is gone. That an offset is refused does not show on which side of the log it is: the strictest
cause is assumed."""
_PASSES: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._DESTROY_BROKER,
        KafkaError._INTR,
        KafkaError._NODE_UPDATE,
        KafkaError._RESOLVE,
        KafkaError._RETRY,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_CACHE,
        KafkaError._WAIT_COORD,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.FETCH_SESSION_ID_NOT_FOUND,
        KafkaError.INVALID_FETCH_SESSION_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.LISTENER_NOT_FOUND,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
        KafkaError.REBOOTSTRAP_REQUIRED,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.STALE_BROKER_EPOCH,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
"""Temporary errors of brokers and leaders: librdkafka fetches the same offset again."""
_UNREADABLE: Final = frozenset(
    {
        KafkaError._BAD_MSG,
        KafkaError._NOT_IMPLEMENTED,
        KafkaError._UNDERFLOW,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
_INVALID: Final = frozenset({KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP})
_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_REFUSALS: Final = _INVALID | _TOO_LARGE | {KafkaError._INVALID_DIFFERENT_RECORD}


def _unexplained(code: int) -> str:
    return ""


def map_error(error: KafkaError, what: str, explain: Explain = _unexplained) -> KafkaEosError:
    """Return the exception for a librdkafka error while writing or in a transaction."""
    text = f"{what}: {error.str()}"
    if error.code() in _REFUSED:
        return _refused(error, _with(text, explain(error.code())))
    if error.retriable() and not error.fatal():
        return Retryable(text)
    return RestartFromCheckpoint(text)


def is_login_error(error: KafkaError) -> bool:
    """Return whether the error is about the identity of the client or the broker.

    With renewed secrets the client may be accepted later.
    TLS also fails when a broker stops or starts: only errors that name a certificate are about the identity.
    """
    about_certificates = error.code() == KafkaError._SSL and "certificate" in error.str().lower()
    return error.code() in _NOT_LET_IN or about_certificates


def _refused(error: KafkaError, text: str) -> ConfigError:
    return LoginRefused(text) if is_login_error(error) else ConfigError(text)


def _with(text: str, explained: str) -> str:
    return f"{text.rstrip('.')}: {explained}" if explained else text


def map_consumer_error(error: KafkaError, what: str, explain: Explain = _unexplained) -> KafkaEosError | None:
    """Return the exception for an error in place of a record; None if librdkafka retries by itself.

    Every error that might lose records ends the attempt, because librdkafka may have skipped records.
    """
    if error.code() in _PASSES and not error.fatal():
        return None
    text = f"{what}: {error.str()}"
    if (cause := _LOST.get(error.code())) is not None:
        return InputLost(
            f"{text}. Records that the job still needed were removed, or the topic was recreated; "
            "lengthen retention, or start the job over from a position that exists.",
            cause,
        )
    if error.code() in _REFUSED:
        return _refused(error, _with(text, explain(error.code())))
    if error.code() in _TOO_LARGE:
        return ConfigError(
            f"{text}. A record is larger than this consumer accepts: raise "
            "receive.message.max.bytes (and fetch.message.max.bytes) in the source's config=…. "
            "Nothing was skipped."
        )
    if error.code() == KafkaError._BAD_COMPRESSION:
        return Fatal(
            f"{text}. Most likely the decompressed batch is larger than this consumer accepts, "
            "receive.message.max.bytes (100 MB by default; the limit may be a third of it): "
            "raise that in the source's config=…, up to 2147483647. If that does not help, the "
            "log is damaged: inspect it with kafka-dump-log.sh. Nothing was skipped."
        )
    if error.code() in _UNREADABLE:
        return Fatal(
            f"{text}. The log cannot be read there: it is damaged, or uses a format that this "
            "client does not support. Nothing was skipped; inspect it with kafka-dump-log.sh "
            "before you continue."
        )
    return RestartFromCheckpoint(text)


def purged(error: KafkaError) -> bool:
    """Return whether the client dropped the record because its transaction failed. The error does not contain the
    cause."""
    return error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


def too_large(error: KafkaError) -> bool:
    return error.code() in _TOO_LARGE


def is_refusal(error: KafkaError) -> bool:
    """Return whether the broker refused a record, or its batch because of another record in it."""
    return error.code() in _REFUSALS


def undelivered(error: KafkaError, topic: str | None) -> str:
    """Return a one-line description of a record that was not delivered."""
    if error.code() in _INVALID:
        return (
            f"{error.str()}: the topic {topic} accepts no record that is further ahead of the broker's "
            "clock than message.timestamp.after.max.ms (by default an hour) or further behind it than "
            "message.timestamp.before.max.ms, and none without a key if it is compacted. Such rows are rejected before "
            "they are sent, with these exceptions: the settings were changed while the job ran, this user may not read "
            "them (DescribeConfigs), the clocks differ, or the broker has another rule. The next attempt tries out all "
            "rows for the topic, and rejects those that the broker refuses"
        )
    if not too_large(error):
        return f"{topic}: {error.str()}"
    return (
        f"{error.str()}: the topic {topic} refused a batch of records as larger than its max.message.bytes, "
        "which was lowered while the job ran, or which this user may not read (DescribeConfigs)"
    )


class BrokerWatch:
    """A watch for clients that know no broker any more, from their own statistics.

    librdkafka forgets each broker that a metadata response does not name, and a broker that was just started names
    none, not even itself. A client that has forgotten all of them never sends a request again
    (confluentinc/librdkafka#5301, seen with 2.16): it must be replaced.
    """

    _NEVER_ASKED: Final = frozenset({"internal", "logical"})

    def __init__(self) -> None:
        self.forgotten = False

    def learn(self, statistics: Mapping[str, Any]) -> None:
        known: Mapping[str, Any] = statistics.get("brokers", {})
        self.forgotten = all(broker.get("source") in self._NEVER_ASKED for broker in known.values())


@contextmanager
def map_errors(what: str, explain: Explain = _unexplained) -> Iterator[None]:
    """Map the errors of librdkafka that are raised in the context.

    After a fatal fencing error ``flush`` may raise SystemError instead.
    """
    try:
        yield
    except KafkaException as error:
        cause = error.args[0] if error.args else None
        if not isinstance(cause, KafkaError):
            raise RestartFromCheckpoint(f"{what}: {error}") from error
        raise map_error(cause, what, explain) from error
    except SystemError as error:
        raise RestartFromCheckpoint(f"{what}: the producer is fenced ({error.__cause__ or error})") from error


def error_name(code: int) -> str:
    """Return Kafka's name of a protocol error."""
    name = str(KafkaError(code).name())
    return f"error {code}" if name.startswith("ERR_") else name


def run_with_deadline(call: Callable[[], T], seconds: float, what: str, check: Callable[[], None] = lambda: None) -> T:
    """Run a call on its own thread; raise RestartFromCheckpoint if it takes too long.

    ``check`` is called about every second meanwhile; an error that it raises ends the wait.
    """
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:  # noqa: BLE001 - re-raised in the caller's thread
            failure.append(error)

    thread = threading.Thread(target=run, name=f"kafka-{what}", daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds
    while thread.is_alive() and (left := deadline - time.monotonic()) > 0:
        thread.join(min(_LOOK, left))
        check()
    if failure:
        raise failure[0]
    if not result:
        raise RestartFromCheckpoint(f"{what} did not return within {seconds:g} s")
    return result[0]


def until_done(
    call: Callable[[float], Any],
    seconds: float,
    what: str,
    check: Callable[[], None] = lambda: None,
    explain: Explain = _unexplained,
) -> None:
    """Repeat ``call(seconds left)`` while it raises Retryable; raise RestartFromCheckpoint after ``seconds``.

    ``check``: as for ``run_with_deadline``.
    """
    deadline = time.monotonic() + seconds

    def attempt() -> bool:
        while True:
            try:
                with map_errors(what, explain):
                    call(max(0.1, deadline - time.monotonic()))
                return True
            except Retryable as error:
                if time.monotonic() > deadline:
                    raise RestartFromCheckpoint(f"{error}, for {seconds:g} s") from error
                time.sleep(0.02)

    run_with_deadline(attempt, seconds + 5.0, what, check)
