"""SASL: the client's messages that prove its identity, and the check of the responses.

Each mechanism is a generator: it yields the message to send, receives the broker's response, and returns when it is
done.
Rule: if a mechanism lets the broker prove its identity, a broker that cannot is not trusted: LoginFailed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, TypeAlias

from kafka_eos.core.errors import ConfigError

Login: TypeAlias = Generator[bytes, bytes, None]
SCRAM: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_ITERATIONS: Final = range(4096, 1_000_001)
"""RFC 7677 requires 4096 at least: with fewer, an eavesdropper finds the password sooner."""
_NO_LAYER: Final = 1


class LoginFailed(Exception):
    """This side ends the login."""


def plain(user: str, password: str) -> Login:
    """Log in with SASL PLAIN, RFC 4616."""
    yield f"\0{user}\0{password}".encode()


def scram(algorithm: str, user: str, password: str, nonce: Callable[[], str] = lambda: secrets.token_hex(16)) -> Login:
    """Log in with SCRAM, RFC 5802, without channel binding."""
    client_nonce = nonce()
    named = user.replace("=", "=3D").replace(",", "=2C")
    begun = f"n={named},r={client_nonce}"
    offered = yield f"n,,{begun}".encode()
    server_nonce, salt, iterations = _offer(offered, client_nonce)
    salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt, iterations)
    key = hmac.digest(salted, b"Client Key", algorithm)
    ended = f"c=biws,r={server_nonce}"
    signed = b",".join((begun.encode(), offered, ended.encode()))
    signature = hmac.digest(hashlib.new(algorithm, key).digest(), signed, algorithm)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
    answer = _fields((yield ended.encode() + b",p=" + proof))
    expected = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), signed, algorithm)
    if not hmac.compare_digest(_binary(answer.get("v", "")), expected):
        raise LoginFailed(f"the broker did not prove that it knows the password ({answer.get('e', 'wrong signature')})")


def _offer(offered: bytes, client_nonce: str) -> tuple[str, bytes, int]:
    """Return the broker's nonce, salt and iterations."""
    fields = _fields(offered)
    nonce, salt, iterations = fields.get("r", ""), _binary(fields.get("s", "")), fields.get("i", "")
    if not nonce.startswith(client_nonce) or not salt:
        raise LoginFailed("the broker's nonce does not extend the client's")
    if not iterations.isdecimal() or int(iterations) not in _ITERATIONS:
        raise LoginFailed(
            f"the broker requires {iterations!r} iterations, but only {_ITERATIONS[0]:,} to "
            f"{_ITERATIONS[-1]:,} are accepted. Create the user's SCRAM credentials again, with "
            "iterations=8192 or another number in that range"
        )
    return nonce, salt, int(iterations)


def _fields(message: bytes) -> dict[str, str]:
    pairs = (part.partition("=") for part in message.decode("utf-8", "replace").split(","))
    return {name: value for name, _, value in pairs}


def _binary(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise LoginFailed(f"the broker sent {text!r}, which is not valid base64") from error


def oauthbearer(token: str, extensions: Mapping[str, str]) -> Login:
    """Log in with a token, RFC 7628. A broker that rejects the token gives the reason after one more message."""
    fields = [f"auth=Bearer {token}", *(f"{name}={value}" for name, value in extensions.items())]
    refusal = yield ("n,,\1" + "".join(f"{field}\1" for field in fields) + "\1").encode()
    if refusal:
        yield b"\1"


def kerberos(service: str, host: str) -> Login:
    """Log in with Kerberos, RFC 4752, without a security layer, with the existing ticket."""
    try:
        import gssapi
    except (ImportError, OSError) as error:
        raise ConfigError(
            "sasl.mechanisms=GSSAPI: the client that ends transactions needs gssapi: pip install gssapi"
        ) from error
    try:
        yield from _tickets(gssapi, f"{service}@{host}")
    except gssapi.exceptions.GSSError as error:
        raise LoginFailed(f"Kerberos: {error}") from error


def _tickets(library: Any, principal: str) -> Login:
    named = library.Name(principal, name_type=library.NameType.hostbased_service)
    context = library.SecurityContext(name=named.canonicalize(library.MechType.kerberos), usage="initiate")
    token = context.step(None)
    while not context.complete:
        token = context.step((yield token or b""))
    offered: bytes = context.unwrap((yield token or b"")).message
    if not offered:
        raise LoginFailed("Kerberos: the broker offers no security layer")
    chosen = bytes([offered[0] & _NO_LAYER]) + offered[1:] + principal.encode()
    yield context.wrap(chosen, False).message
