"""The connections of workers by TCP: to their supervisor, and with each other for one session at a time."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress

import msgspec
import pytest

from kafka_eos.core.errors import EnvironmentFailed, RestartFromCheckpoint
from kafka_eos.runtime.transport.data_socket import DataSocket
from kafka_eos.runtime.transport.tcp_sockets import TcpAddress, TcpListener
from kafka_eos.runtime.worker import control_channel
from kafka_eos.runtime.worker.control_channel import TcpChannel
from kafka_eos.runtime.worker.control_messages import (
    ControlMessage,
    EndSession,
    SessionReady,
    StartSession,
    ToWorker,
)
from kafka_eos.runtime.worker.tcp_connections import PeerHello, TcpConnections, WorkerHello
from kafka_eos.runtime.worker.worker_ticket import WorkerTicket
from tests.waiting import PATIENCE, eventually
from tests.wires import FaultProxy, connect, credentials, dial_in

KINDS = ("ipv4", "ipv6")


class Side:
    """A worker's connections, the supervisor's end of its channel, and the messages that the worker has received."""

    def __init__(self, subtask: int, kind: str, closing: ExitStack, through: type[FaultProxy] | None = None) -> None:
        arrived: queue.SimpleQueue[tuple[bytes, DataSocket]] = queue.SimpleQueue()
        own, host = credentials(), "::1" if kind == "ipv6" else "127.0.0.1"
        keep = lambda hello, sock: arrived.put((hello, sock))  # noqa: E731
        find = lambda hello, is_over: own.secret  # noqa: E731
        listener = TcpListener(host, range(1), own.make_server_tls(), find, keep)
        closing.callback(listener.close)
        self.proxy = None if through is None else through(listener.address)
        at = listener.address if self.proxy is None else self.proxy.address
        if self.proxy is not None:
            closing.callback(self.proxy.close)
        self.subtask = subtask
        self.connections = TcpConnections(WorkerTicket(7, at.host, at.port, own))
        hello, sock = arrived.get(timeout=PATIENCE)
        self.hello = msgspec.msgpack.decode(hello, type=WorkerHello)
        self.supervisor = TcpChannel(sock)
        closing.callback(self.supervisor.release)
        self.received: queue.SimpleQueue[ToWorker | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()
        closing.callback(self._thread.join)
        closing.callback(self.connections.close)

    def _receive(self) -> None:
        try:
            for message in self.connections.receive():
                self.received.put(message)
        except OSError:
            pass  # the channel was cut
        finally:
            self.received.put(None)


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start_of(sides: Sequence[Side], mine: Side, session: int = 3, secret: bytes = b"of the session") -> StartSession:
    peers = [side for side in sides if side is not mine]
    return StartSession(
        session=session, identity="", term=session, first_epoch=1, subtask=mine.subtask, parallelism=len(sides),
        peers=tuple(side.subtask for side in peers), positions={}, states=(), in_flight=(), ends=None,
        waiting_sources=frozenset(), excluded_sources=frozenset(),
        addresses=tuple((side.hello.host, side.hello.port) for side in peers), secret=secret,
    )  # fmt: skip


def begin(side: Side, start: StartSession) -> StartSession:
    """Send a worker its session, and have it receive it."""
    side.supervisor.send(start)
    assert side.received.get(timeout=PATIENCE) == start
    return start


@pytest.mark.parametrize("kind", KINDS)
def test_messages_go_both_ways_and_the_end_is_told(closing: ExitStack, kind: str) -> None:
    side = Side(0, kind, closing)
    assert side.hello.number == 7
    side.supervisor.send(EndSession(session=1))
    side.connections.send(SessionReady(session=1))

    assert side.received.get(timeout=PATIENCE) == EndSession(session=1)
    assert next(side.supervisor.receive_as_supervisor()) == SessionReady(session=1)
    side.supervisor.close()
    assert side.received.get(timeout=PATIENCE) is None


@pytest.mark.parametrize("kind", KINDS)
def test_all_workers_of_a_session_are_connected_with_each_other(closing: ExitStack, kind: str) -> None:
    sides = [Side(subtask, kind, closing) for subtask in range(3)]
    with ThreadPoolExecutor(3) as threads:
        connecting: list[Future[dict[int, DataSocket]]] = []
        for side in reversed(sides):  # the one that dials has its message last
            start = begin(side, start_of(sides, side))
            connecting.append(threads.submit(lambda side=side, start=start: connected(side, start)))
        found = {
            side.subtask: future.result(PATIENCE) for side, future in zip(reversed(sides), connecting, strict=True)
        }

    assert {subtask: set(peers) for subtask, peers in found.items()} == {0: {1, 2}, 1: {0, 2}, 2: {0, 1}}
    for subtask, peers in found.items():
        for peer, sock in peers.items():
            sock.send(f"{subtask}>{peer}".encode())
    for subtask, peers in found.items():
        for peer, sock in peers.items():
            eventually(lambda s=sock, text=f"{peer}>{subtask}": read(s) == text.encode(), "it arrives")
    for peers in found.values():
        for sock in peers.values():
            sock.close()


def connected(side: Side, start: StartSession) -> dict[int, DataSocket]:
    return dict(side.connections.connect_peers(start, lambda: False))


def read(sock: DataSocket) -> bytes:
    try:
        return sock.recv(100)
    except BlockingIOError:
        return b""


@pytest.mark.parametrize(
    ("session", "sender", "receiver", "secret"),
    [(3, 0, 1, b"wrong"), (2, 0, 1, b"of the session"), (3, 0, 2, b"of the session"), (3, 0, 1, credentials().secret)],
    ids=["wrong secret", "other session", "other receiver", "secret of the run"],  # a random one is no name
)
def test_a_connection_of_another_session_or_secret_reaches_nobody(
    closing: ExitStack, session: int, sender: int, receiver: int, secret: bytes
) -> None:
    sides = [Side(subtask, "ipv4", closing) for subtask in range(2)]
    begin(sides[1], start_of(sides, sides[1]))
    hello = msgspec.msgpack.encode(PeerHello(session, sender, receiver))
    at = TcpAddress(sides[1].hello.host, sides[1].hello.port)

    with pytest.raises(ConnectionError):
        dial_in(at, hello, msgspec.structs.replace(credentials(), secret=secret))


def test_connections_of_sessions_that_never_begin_keep_nobody_out(closing: ExitStack) -> None:
    """A stranger with the certificate may name any session, and its connection waits for it."""
    tls = credentials().make_client_tls()
    sides = [Side(subtask, "ipv4", closing) for subtask in range(2)]
    begin(sides[1], start_of(sides, sides[1]))
    start = begin(sides[0], start_of(sides, sides[0]))
    hello = msgspec.msgpack.encode(PeerHello(10**9, 0, 1))
    greeting = b"keos-w\x00\x01" + bytes(32) + len(hello).to_bytes(2, "big") + hello + bytes(32)
    for _ in range(100):
        stranger = socket.create_connection((sides[1].hello.host, sides[1].hello.port))
        with suppress(OSError):  # it was ended for another one
            closing.enter_context(tls.wrap_socket(stranger)).sendall(greeting)

    sides[0].connections.connect_peers(start, lambda: False)[1].close()


def test_a_session_that_is_cancelled_waits_for_nobody(closing: ExitStack) -> None:
    sides = [Side(subtask, "ipv4", closing) for subtask in range(2)]
    start = begin(sides[1], start_of(sides, sides[1]))

    with pytest.raises(RestartFromCheckpoint, match="the session was cancelled"):
        sides[1].connections.connect_peers(start, lambda: True)


def test_a_worker_that_cannot_be_reached_is_named(closing: ExitStack) -> None:
    sides = [Side(subtask, "ipv4", closing) for subtask in range(2)]
    start = begin(sides[0], start_of(sides, sides[0]))
    sides[1].connections.close()

    with pytest.raises(EnvironmentFailed, match=r"worker 1 cannot be reached from worker 0: 127\.0\.0\.1:\d+: "):
        sides[0].connections.connect_peers(start, lambda: False)


def test_a_connection_of_an_older_session_is_closed_when_the_next_begins(closing: ExitStack) -> None:
    sides = [Side(subtask, "ipv4", closing) for subtask in range(2)]
    begin(sides[1], start_of(sides, sides[1], session=3))
    old = begin(sides[0], start_of(sides, sides[0], session=3))
    sock = sides[0].connections.connect_peers(old, lambda: False)[1]
    begin(sides[1], start_of(sides, sides[1], session=4))

    def is_closed() -> bool:
        try:
            return sock.recv(1) == b""
        except BlockingIOError:
            return False

    eventually(is_closed, "it is closed")
    sock.close()


# ---------------------------------------------------------------- a network that does harm


def test_a_cut_ends_the_channel_at_both_ends(closing: ExitStack) -> None:
    side = Side(0, "ipv4", closing, FaultProxy)
    assert side.proxy is not None
    side.proxy.cut()

    assert side.received.get(timeout=PATIENCE) is None
    assert ended(side.supervisor)
    eventually(lambda: refuses(side.connections), "nothing can be sent any more")


def refuses(connections: TcpConnections) -> bool:
    try:
        connections.send(SessionReady(session=1))
    except OSError:
        return True
    return False


def ended(channel: TcpChannel) -> bool:
    try:
        return list(channel.receive_as_supervisor()) == []
    except OSError:
        return True


def test_who_accepts_nothing_blocks_nobody_for_long(closing: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_channel, "_SEND_TIMEOUT", 0.3)
    side = Side(0, "ipv4", closing, FaultProxy)
    assert side.proxy is not None
    side.proxy.freeze()
    large = start_of([side], side, secret=bytes(1 << 20))

    def fill() -> None:
        for _ in range(100):
            side.supervisor.send(large)

    with pytest.raises(TimeoutError, match="accepts no more messages"):
        fill()


def test_rubbish_is_no_message_and_ends_the_channel(closing: ExitStack) -> None:
    side = Side(0, "ipv4", closing, FaultProxy)
    assert side.proxy is not None
    side.proxy.inject(b"\xff" * 100)

    with pytest.raises(OSError, match="SSL"):
        next(side.supervisor.receive_as_supervisor())


def test_many_threads_send_whole_messages_while_another_receives(closing: ExitStack) -> None:
    """One TLS connection carries both directions at the same time."""
    one, other = map(TcpChannel, connect("ipv4", closing))
    closing.callback(one.release)
    closing.callback(other.release)
    total = 2000

    def send(channel: TcpChannel, message: ControlMessage) -> None:
        for _ in range(total):
            channel.send(message)

    with ThreadPoolExecutor(6) as threads:
        sending = [threads.submit(send, one, SessionReady(session=n)) for n in range(2)]
        sending += [threads.submit(send, other, EndSession(session=n)) for n in range(2)]
        here, there = one.receive_as_worker(), other.receive_as_supervisor()
        receiving = [threads.submit(lambda way=way: [next(way) for _ in range(2 * total)]) for way in (here, there)]
        for each in sending:
            each.result(PATIENCE)
        got = [future.result(PATIENCE) for future in receiving]

    assert [sorted(message.session for message in messages) for messages in got] == [[0] * total + [1] * total] * 2
