"""A worker's connections by TCP: it dials its supervisor, and the workers of a session dial each other.

Of two workers the one with the lower subtask dials. A connection that arrives before its session begins here is kept
for it. Rule: a connection between workers is authenticated by the secret of its session, which the supervisor sends to
the workers of that session alone.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from kafka_eos.core.errors import EnvironmentFailed, RestartFromCheckpoint
from kafka_eos.runtime.transport.data_socket import DataSocket
from kafka_eos.runtime.transport.tcp_sockets import TcpAddress, TcpListener, dial
from kafka_eos.runtime.worker.control_channel import TcpChannel
from kafka_eos.runtime.worker.control_messages import ControlMessage, StartSession, ToWorker
from kafka_eos.runtime.worker.worker_connections import WorkerConnections
from kafka_eos.runtime.worker.worker_ticket import WorkerTicket

_LOOK = 0.1
"""Most seconds until a waiting session sees that it was cancelled, or a waiting connection that it was closed."""
_SECRET = 5.0
"""Most seconds that a connection waits here for the message that begins its session."""
_LOG = logging.getLogger(__name__)


class WorkerHello(msgspec.Struct, frozen=True):
    """A worker's first words to its supervisor, part of the handshake: its number, its process, where it listens."""

    number: int
    pid: int
    host: str
    port: int
    local_state: tuple[int, ...] = ()
    """The sizes of state files that its machine has; see ``local_state.list_largest_files``."""


class PeerHello(msgspec.Struct, frozen=True):
    """The first words of one worker to another, part of the handshake."""

    session: int
    sender: int
    receiver: int


_peer_hello = msgspec.msgpack.Decoder(PeerHello)


class TcpConnections(WorkerConnections):
    """The connections of a worker, which dials its supervisor at once. Raises OSError if it cannot.

    ``local_state``: see ``WorkerHello``.
    """

    def __init__(self, ticket: WorkerTicket, local_state: tuple[int, ...] = ()) -> None:
        self._changed = threading.Condition()
        self._session = 0
        """The latest session that the supervisor has begun."""
        self._subtask = -1
        """The subtask of this worker in that session."""
        self._secret = b""
        """The secret of that session."""
        self._arrived: dict[tuple[int, int], DataSocket] = {}
        """Connections that other workers have made: by session and subtask of the sender."""
        self._number = ticket.number
        credentials = ticket.credentials
        host, tls = ticket.listen_host or _find_own_address(ticket.host, ticket.port), credentials.make_server_tls()
        self._listener = TcpListener(host, range(*ticket.listen_ports), tls, self._find_secret, self._keep)
        own = self._listener.address
        self._tls = credentials.make_client_tls()
        hello = msgspec.msgpack.encode(WorkerHello(ticket.number, os.getpid(), own.host, own.port, local_state))
        self._control = TcpChannel(dial(TcpAddress(ticket.host, ticket.port), self._tls, credentials.secret, hello))

    def send(self, message: ControlMessage) -> None:
        self._control.send(message)

    def receive(self) -> Iterator[ToWorker]:
        for message in self._control.receive_as_worker():
            if isinstance(message, StartSession):
                self._begin(message)
            yield message

    def connect_peers(self, start: StartSession, is_cancelled: Callable[[], bool]) -> Mapping[int, DataSocket]:
        where = self._listener.address
        _LOG.info("worker %d runs as subtask %d of %d at %s", self._number, start.subtask, start.parallelism, where)
        connected: dict[int, DataSocket] = {}
        try:
            for peer, (host, port) in zip(start.peers, start.addresses, strict=True):
                if peer > start.subtask:
                    hello = msgspec.msgpack.encode(PeerHello(start.session, start.subtask, peer))
                    connected[peer] = self._dial(start.subtask, peer, TcpAddress(host, port), start.secret, hello)
            for peer in start.peers:
                if peer < start.subtask:
                    connected[peer] = self._await(start.session, peer, is_cancelled)
        except BaseException:
            for sock in connected.values():
                sock.close()
            raise
        return connected

    def _dial(self, own: int, peer: int, address: TcpAddress, secret: bytes, hello: bytes) -> DataSocket:
        try:
            return dial(address, self._tls, secret, hello)
        except ConnectionError as error:
            raise EnvironmentFailed(f"worker {peer} cannot be reached from worker {own}: {error}") from error

    def close(self) -> None:
        """Close all connections that belong to no session. The supervisor takes this for the end of the worker."""
        self._listener.close()
        self._control.close()
        with self._changed:
            for sock in self._arrived.values():
                sock.close()
            self._arrived.clear()

    # ------------------------------------------------------------ connections that other workers have made

    def _begin(self, start: StartSession) -> None:
        with self._changed:
            self._session, self._secret = start.session, start.secret
            self._subtask = start.subtask
            for old in [key for key in self._arrived if key[0] < start.session]:
                self._arrived.pop(old).close()
            self._changed.notify_all()

    def _find_secret(self, hello: bytes, is_over: Callable[[], bool]) -> bytes | None:
        """Return the secret of a connection's session. The sender may have heard of it earlier than this worker."""
        try:
            peer = _peer_hello.decode(hello)
        except msgspec.DecodeError:
            return None
        deadline = time.monotonic() + _SECRET
        with self._changed:
            while self._session < peer.session and not is_over() and time.monotonic() < deadline:
                self._changed.wait(_LOOK)
            is_current = self._session == peer.session and self._subtask == peer.receiver
            return self._secret if is_current else None

    def _keep(self, hello: bytes, sock: DataSocket) -> None:
        peer = _peer_hello.decode(hello)
        with self._changed:
            if peer.session != self._session or (peer.session, peer.sender) in self._arrived:
                sock.close()
                return
            self._arrived[peer.session, peer.sender] = sock
            self._changed.notify_all()

    def _await(self, session: int, sender: int, is_cancelled: Callable[[], bool]) -> DataSocket:
        with self._changed:
            while (sock := self._arrived.pop((session, sender), None)) is None:
                if is_cancelled():
                    raise RestartFromCheckpoint("the session was cancelled: the attempt has failed elsewhere")
                self._changed.wait(_LOOK)
            return sock


def _find_own_address(host: str, port: int) -> str:
    """Return the address of this machine from which it reaches the supervisor. Nothing is sent."""
    unusable: OSError | None = None
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            try:
                sock.connect(address)
            except OSError as error:  # such as of IPv6 on a machine without it
                unusable = error
                continue
            return str(sock.getsockname()[0])
    raise OSError(f"no route from this machine to the supervisor at {TcpAddress(host, port)}") from unusable
