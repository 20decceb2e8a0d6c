"""What is asked of a broker ends in time, and a failure is never taken for an answer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.end_txn import v3
from kio.schema.end_txn.v5.response import EndTxnResponse
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.response import Coordinator, FindCoordinatorResponse
from kio.schema.metadata.v11.response import MetadataResponse, MetadataResponseBroker
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.schema.types import BrokerId, ProducerId
from kio.static.primitive import i16, i32, i32Timedelta, i64Timedelta

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc import retrying_request as asking
from kafka_eos.connectors.kafka.rpc.brokers import Brokers
from kafka_eos.connectors.kafka.rpc.messages.cluster import metadata
from kafka_eos.core.errors import ConfigError, Retryable
from tests.scripted_broker import FIND_COORDINATOR, HANG_UP, NOW, SILENCE, Half, ScriptedBroker, Stray
from tests.waiting import PATIENCE, eventually
from tests.wire import API_VERSIONS, METADATA

END_TXN, HANDSHAKE, AUTHENTICATE = 26, 17, 36
ENDED = EndTxnResponse(
    throttle_time=i32Timedelta.parse(NOW),
    error_code=ErrorCode.none,
    producer_id=ProducerId(7),
    producer_epoch=i16(4),
)


def _end(broker: ScriptedBroker, patience: float = 20.0, **config: Any) -> str:
    with KafkaRequests(Cluster(broker.address, config), patience) as rpc:
        return rpc.end("job.1", 7, 3, commit=True, version=5)


def _count(broker: ScriptedBroker, key: int) -> int:
    return [request.__api_key__ for request in broker.seen].count(key)


def _first(fault: Any, then: Any = ENDED) -> Callable[[Any], Any]:
    """Answers so once, and ``then`` from then on."""
    left = [fault]
    return lambda request: left.pop() if left else then


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(HANG_UP, id="reset-before-the-answer"),
        pytest.param(Half(ENDED), id="half-an-answer"),
        pytest.param(Stray(ENDED), id="an-answer-to-another-request"),
        pytest.param(b"\0\0\0\4\0\0\0\1", id="an-answer-without-a-body"),
        pytest.param(b"\x7f\xff\xff\xff", id="an-answer-of-two-gigabytes"),
        pytest.param(b"\xff\xff\xff\xff", id="an-answer-of-less-than-nothing"),
    ],
)
def test_a_commit_whose_answer_is_lost_is_sent_again_over_a_new_connection(fault: Any) -> None:
    with ScriptedBroker({END_TXN: _first(fault)}) as broker:
        assert _end(broker) == "NONE"

        assert _count(broker, END_TXN) == 2
        assert len(broker.links) >= 2


@pytest.mark.parametrize("told", ["here", None])
def test_the_id_of_a_cluster_is_what_its_brokers_say_of_it(told: str | None) -> None:
    with ScriptedBroker({}) as broker, KafkaRequests(Cluster(broker.address)) as rpc:
        broker.cluster_id = told

        assert rpc.cluster_id() == (told or "")


def test_an_answer_that_never_comes_ends_with_the_patience() -> None:
    with (
        ScriptedBroker({END_TXN: lambda request: SILENCE}) as broker,
        pytest.raises(Retryable, match=r"EndTxn v5 for 'job.1' on .*: no response in time|timed out"),
    ):
        _end(broker, patience=0.5)


def test_a_late_answer_is_nobody_s() -> None:
    """The connection that it comes on is closed by then."""
    late = threading.Event()

    def slow(request: Any) -> Any:
        assert late.wait(PATIENCE)
        return ENDED

    answers = _first(None)
    with (
        ScriptedBroker({END_TXN: lambda request: slow(request) if answers(request) is None else ENDED}) as broker,
        KafkaRequests(Cluster(broker.address), 0.5) as rpc,
    ):
        with pytest.raises(Retryable):
            rpc.end("job.1", 7, 3, commit=True, version=5)
        late.set()

        assert rpc.end("job.1", 7, 3, commit=True, version=5) == "NONE"


def test_a_connection_that_was_closed_while_idle_is_opened_again_before_it_is_used() -> None:
    """A request that was sent may have been carried out: it is not sent into a connection that has ended."""
    with ScriptedBroker({END_TXN: lambda request: ENDED}) as broker, KafkaRequests(Cluster(broker.address)) as rpc:
        rpc.end("job.1", 7, 3, commit=True, version=5)
        broker.hang_up()
        before = _count(broker, END_TXN)

        assert rpc.end("job.1", 7, 3, commit=True, version=5) == "NONE"

        assert _count(broker, END_TXN) == before + 1


def test_nobody_who_listens_is_retryable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    with (
        pytest.raises(
            Retryable, match=rf"no response in 0.3 s; the last attempt: 127.0.0.1:{port}: Connection refused$"
        ),
        KafkaRequests(Cluster(f"127.0.0.1:{port}"), 0.3) as rpc,
    ):
        rpc.describe("job.1")


def test_another_bootstrap_server_is_asked_when_one_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with ScriptedBroker({END_TXN: lambda request: ENDED}) as broker:
        for _ in range(4):  # which is asked first is chance
            with KafkaRequests(Cluster(f"127.0.0.1:{port},{broker.address}")) as rpc:
                assert rpc.end("job.1", 7, 3, commit=True, version=5) == "NONE"


def test_a_coordinator_that_has_moved_is_looked_for_again() -> None:
    moved = EndTxnResponse(throttle_time=i32Timedelta.parse(NOW), error_code=ErrorCode.not_coordinator)
    with ScriptedBroker({END_TXN: _first(moved)}) as broker:
        assert _end(broker) == "NONE"

        assert _count(broker, FIND_COORDINATOR) == 2


def test_a_coordinator_that_nobody_may_look_for_is_a_question_of_rights() -> None:
    def forbidden(request: Any) -> FindCoordinatorResponse:
        refused = Coordinator(
            key=request.coordinator_keys[0],
            node_id=BrokerId(-1),
            host="",
            port=i32(-1),
            error_code=ErrorCode.transactional_id_authorization_failed,
            error_message=None,
        )
        return FindCoordinatorResponse(throttle_time=i32Timedelta.parse(NOW), coordinators=(refused,))

    with (
        ScriptedBroker({FIND_COORDINATOR: forbidden}) as broker,
        pytest.raises(
            ConfigError,
            match=r"TRANSACTIONAL_ID_AUTHORIZATION_FAILED.*User:ada lacks permission to Write on transactional-id",
        ),
    ):
        _end(broker, **{"sasl.username": "ada"})


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(b"\x15\x03\x03\x00\x02\x02\x50", "it responds with TLS: set security.protocol=SSL", id="tls"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", "like a web server", id="http"),
    ],
)
def test_who_speaks_another_protocol_is_told_by_how_it_answers(answer: bytes, said: str) -> None:
    with (
        ScriptedBroker({API_VERSIONS: lambda request: answer}) as broker,
        pytest.raises(ConfigError, match=f"refuses the connection: .*{said}"),
    ):
        _end(broker, PATIENCE)


def test_a_listener_that_wants_a_login_closes_the_connection() -> None:
    with (
        ScriptedBroker({METADATA: lambda request: HANG_UP}) as broker,
        pytest.raises(ConfigError, match="at the first request. A listener that requires a login does so: set sec"),
    ):
        _end(broker, PATIENCE)


def test_a_broker_that_is_silent_is_told_of_before_the_patience_is_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "_SILENT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    with caplog.at_level("WARNING"), pytest.raises(Retryable), KafkaRequests(Cluster(f"127.0.0.1:{port}"), 0.5) as rpc:
        rpc.describe("job.1")

    (told,) = [record.getMessage() for record in caplog.records if record.name == "kafka_eos.kafka"]
    assert told.startswith(f"Kafka at 127.0.0.1:{port} has not responded yet: DescribeTransactions: ")
    assert told.endswith("refused. The request is retried for 0.5 s in all")


def test_a_broker_that_names_no_broker_is_asked_again() -> None:
    """One that was just started: a listing of transactions that asks nobody would find none."""
    with ScriptedBroker({}) as broker:
        this = MetadataResponseBroker(node_id=BrokerId(1), host="127.0.0.1", port=i32(broker.port))
        nobody = MetadataResponse(throttle_time=i32Timedelta.parse(NOW), brokers=(), topics=())
        somebody = MetadataResponse(throttle_time=i32Timedelta.parse(NOW), brokers=(this,), topics=())
        answers = iter([nobody, nobody])  # one is for the check of the cluster's id
        broker.script(METADATA, lambda request: next(answers, somebody))
        with KafkaRequests(Cluster(broker.address)) as rpc:
            assert rpc._nodes() == [1]


def test_a_broker_without_the_request_is_too_old() -> None:
    with (
        ScriptedBroker({}, highest={END_TXN: 4}) as broker,
        pytest.raises(ConfigError, match=r"EndTxn v5: the broker at .* is too old: it supports versions up to 4"),
    ):
        _end(broker)


def test_end_txn_4_is_sent_as_3_to_a_broker_that_ends_there() -> None:
    old = v3.EndTxnResponse(throttle_time=i32Timedelta.parse(NOW), error_code=ErrorCode.none)
    with (
        ScriptedBroker({END_TXN: lambda request: old}, highest={END_TXN: 3}) as broker,
        KafkaRequests(Cluster(broker.address)) as rpc,
    ):
        assert rpc.end("job.1", 7, 3, commit=True, version=4) == "NONE"

        assert broker.seen[-1].__version__ == 3


def _handshake(request: Any) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.none, mechanisms=("PLAIN",))


def _authenticated(code: ErrorCode = ErrorCode.none, lifetime: float = 0.0) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=code,
        error_message="Authentication failed: who are you?" if code else None,
        auth_bytes=b"",
        session_lifetime=i64Timedelta.parse(i64Timedelta.resolution * round(lifetime * 1_000_000)),
    )


PLAIN = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"}


def test_a_login_that_fails_is_a_mistake_in_the_settings() -> None:
    refused = _authenticated(ErrorCode.sasl_authentication_failed)
    with (
        ScriptedBroker({HANDSHAKE: _handshake, AUTHENTICATE: lambda request: refused}) as broker,
        pytest.raises(
            ConfigError,
            match=r"Kafka at .* refuses the connection: .*who are you\?\. Check sasl.username=a and sasl.password$",
        ),
    ):
        _end(broker, PATIENCE, **PLAIN)


def test_a_login_that_fails_for_a_moment_is_tried_again() -> None:
    refused = _authenticated(ErrorCode.sasl_authentication_failed)
    script = {HANDSHAKE: _handshake, AUTHENTICATE: _first(refused, _authenticated()), END_TXN: lambda request: ENDED}
    with ScriptedBroker(script) as broker:
        assert _end(broker, **PLAIN) == "NONE"


def test_a_login_that_is_refused_after_it_was_accepted_is_final() -> None:
    refused = _authenticated(ErrorCode.sasl_authentication_failed)
    script = {HANDSHAKE: _handshake, AUTHENTICATE: _first(_authenticated(), refused), END_TXN: lambda request: ENDED}
    with ScriptedBroker(script) as broker, KafkaRequests(Cluster(broker.address, PLAIN)) as rpc:
        rpc.end("job.1", 7, 3, commit=True, version=5)
        broker.hang_up()

        with pytest.raises(ConfigError, match="the broker rejected the user"):
            rpc.end("job.1", 7, 3, commit=True, version=5)


def test_a_broker_that_comes_back_and_refuses_for_a_moment_is_waited_for() -> None:
    """For longer than a refusal takes to be final, it was away: that counts for nothing."""
    refused = _authenticated(ErrorCode.sasl_authentication_failed)
    away = time.monotonic() + 2 * asking._REFUSED_SECONDS
    script = {
        HANDSHAKE: lambda request: HANG_UP if time.monotonic() < away else _handshake(request),
        AUTHENTICATE: _first(refused, _authenticated()),
        END_TXN: lambda request: ENDED,
    }
    with ScriptedBroker(script) as broker:
        assert _end(broker, **PLAIN) == "NONE"


def test_a_mechanism_that_the_broker_has_not_is_named() -> None:
    none = SaslHandshakeResponse(error_code=ErrorCode.unsupported_sasl_mechanism, mechanisms=("GSSAPI",))
    with (
        ScriptedBroker({HANDSHAKE: lambda request: none}) as broker,
        pytest.raises(ConfigError, match="it supports GSSAPI, not PLAIN"),
    ):
        _end(broker, PATIENCE, **PLAIN)


def test_a_login_is_renewed_before_the_broker_ends_it() -> None:
    script = {
        HANDSHAKE: _handshake,
        AUTHENTICATE: lambda request: _authenticated(lifetime=0.05),
        END_TXN: lambda request: ENDED,
    }
    with ScriptedBroker(script) as broker, KafkaRequests(Cluster(broker.address, PLAIN)) as rpc:

        def logins() -> int:
            rpc.end("job.1", 7, 3, commit=True, version=5)
            return _count(broker, AUTHENTICATE)

        eventually(lambda: logins() > 1, "another login")


def test_threads_ask_at_the_same_time_and_their_connections_are_kept() -> None:
    together = threading.Barrier(4)
    answers: list[str] = []

    def at_once(request: Any) -> EndTxnResponse:
        together.wait(PATIENCE)
        return ENDED

    with ScriptedBroker({END_TXN: at_once}) as broker, KafkaRequests(Cluster(broker.address)) as rpc:

        def many() -> None:
            for _ in range(5):
                answers.append(rpc.end("job.1", 7, 3, commit=True, version=5))

        threads = [threading.Thread(target=many) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert answers == ["NONE"] * 20
        assert len(broker.links) == 4


def test_closing_ends_what_another_thread_waits_for() -> None:
    asked = threading.Event()
    failed: list[Retryable] = []

    def silent(request: Any) -> Any:
        asked.set()
        return SILENCE

    with ScriptedBroker({METADATA: silent}) as broker:
        brokers = Brokers(Cluster(broker.address))

        def wait() -> None:
            try:
                brokers.ask(metadata([]), None, time.monotonic() + 10 * PATIENCE)
            except Retryable as error:
                failed.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert asked.wait(PATIENCE)

        brokers.close()

        thread.join(PATIENCE)
        assert len(failed) == 1
