"""Connected sockets of each kind that workers use, and a proxy that stands between two of them and does harm."""

from __future__ import annotations

import functools
import queue
import socket
import struct
import threading
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kafka_eos.runtime.transport.credentials import Credentials
from kafka_eos.runtime.transport.data_socket import DataSocket
from kafka_eos.runtime.transport.tcp_sockets import TcpAddress, TcpListener, dial
from tests.waiting import PATIENCE

KINDS = ("unix", "tcp", "tls", "ipv6")
SECRET = b"the secret of a test"
_CHUNK = 64 << 10
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: a closed socket resets its connection."""


@functools.cache
def certificate() -> bytes:
    """A certificate that trusts itself, and its key, as PEM."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return signed.public_bytes(encoding) + private


def credentials(kind: str) -> Credentials:
    return Credentials(SECRET, certificate() if kind == "tls" else b"")


def connect(kind: str, closing: ExitStack) -> tuple[DataSocket, DataSocket]:
    """Both ends of a connection."""
    if kind == "unix":
        return socket.socketpair()
    own, arrived = credentials(kind), queue.SimpleQueue[DataSocket]()
    listener = listen(kind, arrived, closing)
    return dial(listener.address, own.make_client_tls(), SECRET, b"hello"), arrived.get(timeout=PATIENCE)


def listen(kind: str, arrived: queue.SimpleQueue[DataSocket], closing: ExitStack) -> TcpListener:
    host, tls = "::1" if kind == "ipv6" else "127.0.0.1", credentials(kind).make_server_tls()
    listener = TcpListener(host, range(1), tls, lambda hello, is_over: SECRET, lambda hello, sock: arrived.put(sock))
    closing.callback(listener.close)
    return listener


class FaultProxy:
    """Passes connections on to ``target``, until it is told otherwise."""

    def __init__(self, target: TcpAddress) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = TcpAddress("127.0.0.1", self._listener.getsockname()[1])
        self.delay = 0.0
        """Seconds that each chunk is kept."""
        self.passed = 0
        """Bytes that went through, in both directions."""
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        """Pass nothing on, and keep all connections: each end believes that the other is there."""
        self._open.clear()

    def thaw(self) -> None:
        self._open.set()

    def cut(self) -> None:
        """Reset all connections. New ones are passed on."""
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def inject(self, data: bytes) -> None:
        """Send bytes to the target that nobody wrote."""
        for sock in self._sockets[1::2]:
            sock.sendall(data)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.thaw()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection((self._target.host, self._target.port))
            self._sockets += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while chunk := one.recv(_CHUNK):
                self._open.wait()
                time.sleep(self.delay)
                other.sendall(chunk)
                self.passed += len(chunk)
            other.shutdown(socket.SHUT_WR)
