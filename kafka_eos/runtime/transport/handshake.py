"""The mutual handshake inside a TLS connection: each end proves that it knows a secret, before any frame.

    listener -> dialer    magic, nonce of the listener
    dialer -> listener    magic, nonce of the dialer, hello, proof of the dialer
    listener -> dialer    proof of the listener

A proof is an HMAC with the secret over the role, both nonces and the hello, so that it is valid for one connection and
one direction. The hello, which the caller defines, says who dials; the listener may choose the secret by it.
Rule: an end that cannot prove itself learns nothing but that it was refused, and each step has a bound in bytes and in
time.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Callable

_MAGIC = b"keos-w\x00\x01"
_NONCE_BYTES = 32
_PROOF_BYTES = hashlib.sha256().digest_size
_LENGTH = struct.Struct(">H")
_MOST_HELLO_BYTES = 4096


class HandshakeRefused(ConnectionError):
    """The other end does not speak this protocol, or does not know the secret."""


def prove_dialer(sock: socket.socket, secret: bytes, hello: bytes, deadline: float) -> None:
    """Prove to a listener that this end knows the secret, and have it prove the same.

    ``deadline``: by the monotonic clock. Raises OSError if the connection cannot be used.
    """
    if len(hello) > _MOST_HELLO_BYTES:
        raise ValueError(f"a hello of {len(hello)} bytes is too long")
    peer_nonce = _read_greeting(sock, deadline)
    own_nonce = os.urandom(_NONCE_BYTES)
    proof = _prove(secret, b"dialer", peer_nonce, own_nonce, hello)
    _write(sock, _MAGIC + own_nonce + _LENGTH.pack(len(hello)) + hello + proof, deadline)
    answer = _read(sock, _PROOF_BYTES, deadline)
    if not hmac.compare_digest(answer, _prove(secret, b"listener", peer_nonce, own_nonce, hello)):
        raise HandshakeRefused("the listener does not know the secret of this job")


def prove_listener(sock: socket.socket, find_secret: Callable[[bytes], bytes | None], deadline: float) -> bytes:
    """Have a dialer prove itself, and prove to it that this end knows the secret; return its hello.

    ``find_secret`` returns the secret for a hello, or None to refuse it. Raises OSError if the connection cannot be
    used.
    """
    own_nonce = os.urandom(_NONCE_BYTES)
    _write(sock, _MAGIC + own_nonce, deadline)
    peer_nonce = _read_greeting(sock, deadline)
    size = _LENGTH.unpack(_read(sock, _LENGTH.size, deadline))[0]
    if size > _MOST_HELLO_BYTES:
        raise HandshakeRefused(f"a hello of {size} bytes is too long")
    hello, proof = _read(sock, size, deadline), _read(sock, _PROOF_BYTES, deadline)
    secret = find_secret(hello)
    if secret is None or not hmac.compare_digest(proof, _prove(secret, b"dialer", own_nonce, peer_nonce, hello)):
        raise HandshakeRefused("the dialer does not know the secret of this job")
    _write(sock, _prove(secret, b"listener", own_nonce, peer_nonce, hello), deadline)
    return hello


def _prove(secret: bytes, role: bytes, of_listener: bytes, of_dialer: bytes, hello: bytes) -> bytes:
    # No role begins with the other, and nonces have one length: no two inputs are the same bytes.
    return hmac.digest(secret, _MAGIC + role + of_listener + of_dialer + hello, "sha256")


def _read_greeting(sock: socket.socket, deadline: float) -> bytes:
    if _read(sock, len(_MAGIC), deadline) != _MAGIC:
        raise HandshakeRefused("the other end is not a process of kafka-eos, or is one of another version")
    return _read(sock, _NONCE_BYTES, deadline)


def _read(sock: socket.socket, size: int, deadline: float) -> bytes:
    chunks = bytearray()
    while len(chunks) < size:
        sock.settimeout(_time_left(deadline))
        chunk = sock.recv(size - len(chunks))
        if not chunk:
            raise HandshakeRefused("the other end closed the connection during the handshake")
        chunks += chunk
    return bytes(chunks)


def _write(sock: socket.socket, data: bytes, deadline: float) -> None:
    sock.settimeout(_time_left(deadline))
    sock.sendall(data)


def _time_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the handshake took too long")
    return left
