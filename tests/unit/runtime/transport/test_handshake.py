"""Before any frame each end proves that it knows the secret; who does not is refused, and waits for nothing."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import msgspec
import pytest

from kafka_eos.core.errors import ConfigError
from kafka_eos.runtime.transport.data_socket import DataSocket
from kafka_eos.runtime.transport.handshake import HandshakeRefused, prove_dialer, prove_listener
from kafka_eos.runtime.transport.self_signed import create_credentials
from kafka_eos.runtime.transport.tcp_sockets import TcpAddress, TcpListener, dial
from tests.waiting import PATIENCE, eventually
from tests.wires import KINDS, connect, credentials, dial_in, listen

SECRET = b"the secret of a test"
TCP = ("ipv4", "ipv6")


def shake(theirs: bytes | None, mine: bytes, hello: bytes = b"hello") -> tuple[object, object]:
    """What both ends of a handshake come to: the listener, then the dialer."""
    ended: queue.SimpleQueue[object] = queue.SimpleQueue()
    one, other = socket.socketpair()

    def run(end: Callable[[], object]) -> object:
        try:
            return end()
        except OSError as error:
            return type(error)

    def listen() -> None:
        deadline = time.monotonic() + PATIENCE
        ended.put(run(lambda: prove_listener(one, lambda hello: theirs, deadline)))
        one.close()

    with one, other:
        thread = threading.Thread(target=listen)
        thread.start()
        dialed = run(lambda: prove_dialer(other, mine, hello, time.monotonic() + PATIENCE))
        other.close()
        thread.join()
    return ended.get(), dialed


def test_who_shares_a_secret_is_connected_and_says_who_it_is() -> None:
    assert shake(SECRET, SECRET, b"worker 3") == (b"worker 3", None)


@pytest.mark.parametrize("theirs", [None, b"another"])
def test_a_dialer_without_the_secret_is_refused_and_gets_no_proof(theirs: bytes | None) -> None:
    assert shake(theirs, SECRET) == (HandshakeRefused, HandshakeRefused)


def test_a_listener_that_only_pretends_is_found_out() -> None:
    """It lets everybody in, and answers with a proof of its own."""
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"keos-w\x00\x01" + bytes(32) + bytes(32))

        with pytest.raises(HandshakeRefused, match="the listener does not know the secret"):
            prove_dialer(other, SECRET, b"hello", time.monotonic() + PATIENCE)


def test_a_recorded_handshake_is_worth_nothing() -> None:
    """The same bytes again, to a listener with another nonce."""
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"keos-w\x00\x01" + bytes(32))
        with pytest.raises(TimeoutError):
            prove_dialer(other, SECRET, b"hello", time.monotonic() + 0.2)
        recorded = one.recv(1000)
    one, other = socket.socketpair()
    with one, other:
        other.sendall(recorded)

        with pytest.raises(HandshakeRefused, match="the dialer does not know the secret"):
            prove_listener(one, lambda hello: SECRET, time.monotonic() + PATIENCE)


def test_who_says_nothing_is_waited_for_until_the_deadline() -> None:
    one, other = socket.socketpair()
    with one, other, pytest.raises(TimeoutError):
        prove_listener(one, lambda hello: SECRET, time.monotonic() + 0.05)


@pytest.mark.parametrize(
    "rubbish", [b"GET / HTTP/1.1\r\nHost: worker\r\n\r\n" * 3, b"keos-w\x00\x01" + b"\xff" * 5000, b"\x00" * 100]
)
@pytest.mark.parametrize("kind", TCP)
def test_rubbish_is_refused_and_the_next_one_is_served(kind: str, rubbish: bytes) -> None:
    with ExitStack() as closing:
        arrived: queue.SimpleQueue[DataSocket] = queue.SimpleQueue()
        listener = listen(kind, arrived, closing)
        stranger = closing.enter_context(socket.create_connection((listener.address.host, listener.address.port)))
        stranger.settimeout(PATIENCE)
        stranger.sendall(rubbish)
        eventually(lambda: is_closed(stranger), "it is closed")

        ours = dial_in(listener.address)
        theirs = arrived.get(timeout=PATIENCE)
        ours.close()
        theirs.close()


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1000) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("kind", TCP)
def test_a_wrong_secret_names_the_address(kind: str) -> None:
    with ExitStack() as closing:
        listener = listen(kind, queue.SimpleQueue(), closing)

        with pytest.raises(ConnectionError, match=rf"{listener.address.port}: .*closed the connection"):
            dial_in(listener.address, own=msgspec.structs.replace(credentials(), secret=b"wrong"))


def test_a_certificate_of_another_run_is_refused_by_both_ends() -> None:
    """The secret alone proves nothing: it passes through Spark, which may not encrypt it."""
    with ExitStack() as closing:
        arrived: queue.SimpleQueue[DataSocket] = queue.SimpleQueue()
        listener = listen("ipv4", arrived, closing)
        other = msgspec.structs.replace(create_credentials(), secret=credentials().secret)
        trusting = other.make_client_tls()
        trusting.load_verify_locations(cadata=credentials().certificate.decode())

        with pytest.raises(ConnectionError, match="certificate verify failed"):
            dial_in(listener.address, own=other)
        with pytest.raises(ConnectionError):
            dial(listener.address, trusting, other.secret, b"hello")
        assert arrived.empty()


def test_no_row_can_be_read_on_the_wire() -> None:
    with ExitStack() as closing:
        arrived: queue.SimpleQueue[DataSocket] = queue.SimpleQueue()
        listener = listen("ipv4", arrived, closing)
        recorder = closing.enter_context(socket.create_server(("127.0.0.1", 0)))
        seen = bytearray()

        def record() -> None:
            near, _ = recorder.accept()
            far = socket.create_connection((listener.address.host, listener.address.port))
            with near, far:
                threading.Thread(target=lambda: copy(far, near, seen), daemon=True).start()
                copy(near, far, seen)

        threading.Thread(target=record, daemon=True).start()
        address = TcpAddress("127.0.0.1", recorder.getsockname()[1])
        ours = dial_in(address, b"worker 3 says hello")
        theirs = arrived.get(timeout=PATIENCE)
        ours.send(b"a row that nobody may read")
        eventually(lambda: receive(theirs) == b"a row that nobody may read", "it arrives")
        ours.close()
        theirs.close()

    assert len(seen) > 200
    assert b"nobody may read" not in seen and b"says hello" not in seen and credentials().secret not in seen


def copy(one: socket.socket, other: socket.socket, seen: bytearray) -> None:
    try:
        while chunk := one.recv(1 << 16):
            seen.extend(chunk)
            other.sendall(chunk)
    except OSError:
        pass  # the test is over


def receive(sock: DataSocket) -> bytes:
    try:
        return sock.recv(1000)
    except BlockingIOError:
        return b""


def test_a_port_range_is_kept_and_what_is_full_is_said() -> None:
    tls = credentials().make_server_tls()

    def never(hello: bytes, sock: DataSocket) -> None: ...

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(ConfigError, match=f"no port from {port} to {port} is free on 127.0.0.1: allow more ports"):
            TcpListener("127.0.0.1", range(port, port + 1), tls, lambda hello, is_over: SECRET, never)
        with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0: "):
            TcpListener("192.0.2.1", range(1), tls, lambda hello, is_over: SECRET, never)


@pytest.mark.parametrize("kind", TCP)
def test_strangers_who_keep_silent_do_not_keep_out_those_who_belong_here(kind: str) -> None:
    """There are far more of them than places, and each may keep silent for longer than a worker tries to connect."""
    with ExitStack() as closing:
        arrived: queue.SimpleQueue[DataSocket] = queue.SimpleQueue()
        listener = listen(kind, arrived, closing)
        for _ in range(200):
            closing.enter_context(socket.create_connection((listener.address.host, listener.address.port)))

        dial_in(listener.address).close()
        arrived.get(timeout=PATIENCE).close()


def test_a_machine_that_connects_again_and_again_keeps_out_no_other() -> None:
    """Its own handshakes end for each other: one of another machine, begun before them all, goes on."""
    with ExitStack() as closing:
        listener = listen("ipv4", queue.SimpleQueue(), closing)
        place = listener.address.host, listener.address.port
        worker = closing.enter_context(socket.create_connection(place))
        strangers = [
            closing.enter_context(socket.create_connection(place, source_address=("127.0.0.2", 0))) for _ in range(200)
        ]
        strangers[0].settimeout(PATIENCE)
        eventually(lambda: is_closed(strangers[0]), "the oldest of them is ended")

        with credentials().make_client_tls().wrap_socket(worker) as secured:
            prove_dialer(secured, credentials().secret, b"hello", time.monotonic() + PATIENCE)


def test_what_strangers_do_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as closing:
        arrived: queue.SimpleQueue[DataSocket] = queue.SimpleQueue()
        listener = listen("ipv4", arrived, closing)
        for _ in range(50):
            with socket.create_connection((listener.address.host, listener.address.port)) as stranger:
                stranger.settimeout(PATIENCE)
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                eventually(lambda: is_closed(stranger), "it is closed")
    assert caplog.text.count("was refused") <= 1


def test_both_ends_of_a_connection_need_one_secret_each_and_no_more() -> None:
    """A certificate alone proves nothing: the secret is asked for, too."""
    with ExitStack() as closing:
        listener = listen("ipv4", queue.SimpleQueue(), closing)

        with pytest.raises(ConnectionError):
            dial_in(listener.address, own=msgspec.structs.replace(credentials(), secret=b""))


@pytest.mark.parametrize("kind", KINDS)
def test_a_socket_of_any_kind_never_waits_and_tells_the_end(kind: str) -> None:
    with ExitStack() as closing:
        one, other = connect(kind, closing)
        one.setblocking(False)
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            one.recv(10)

        def fill() -> None:
            for _ in range(10_000):
                other.send(bytes(1 << 16))

        with pytest.raises(BlockingIOError):
            fill()
        other.close()
        received = 0
        while chunk := one.recv(1 << 20):
            received += len(chunk)

        assert received > 1 << 16
        one.close()
