"""A small OpenID Connect provider: gives tokens to clients that it knows (RFC 6749, 4.4).

Its tokens are signed with a key that each process makes; ``jwks`` is what a broker verifies them with.
"""

from __future__ import annotations

import base64
import functools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

_KEY_ID = "of-a-test"


def signed(subject: str, lasts: float = 3600, **claims: Any) -> str:
    """A JWT (RFC 7519) that ``jwks`` verifies."""
    now = time.time()
    parts = ({"alg": "RS256", "kid": _KEY_ID}, {"sub": subject, "iat": now, "exp": now + lasts, **claims})
    text = ".".join(_base64(json.dumps(part).encode()) for part in parts)
    return f"{text}.{_base64(_key().sign(text.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def jwks() -> str:
    """The public key of all tokens of this process, as brokers want it (RFC 7517)."""
    numbers = _key().public_key().public_numbers()
    exponent, modulus = (_base64(n.to_bytes((n.bit_length() + 7) // 8)) for n in (numbers.e, numbers.n))
    key = {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": _KEY_ID, "e": exponent, "n": modulus}
    return json.dumps({"keys": [key]})


@functools.cache
def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass
class Provider:
    """``clients``: secrets by name. ``lasts``: seconds that a token lives; ``fails``: a status that it answers with."""

    url: str
    clients: dict[str, str]
    lasts: float = 3600
    fails: int = 0
    asked: list[dict[str, list[str]]] = field(default_factory=list)

    def config(self, client: str, **more: Any) -> dict[str, Any]:
        """librdkafka's settings of a client that asks here."""
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": self.url,
            "sasl.oauthbearer.client.id": client,
            **more,
        }

    def answer(self, header: str, form: dict[str, list[str]]) -> tuple[int, Mapping[str, Any]]:
        self.asked.append(form)
        client, _, secret = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
        if self.fails:
            return self.fails, {"error": "temporarily_unavailable"}
        if self.clients.get(unquote(client)) != unquote(secret):
            return 401, {"error": "invalid_client", "error_description": f"{unquote(secret)} is wrong"}
        return 200, {"access_token": signed(unquote(client), self.lasts), "expires_in": self.lasts}


@contextmanager
def provider(**clients: str) -> Iterator[Provider]:
    """At a free port of loopback, without TLS."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            status, told = found.answer(self.headers["Authorization"], form)
            body = json.dumps(told).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{found.url}/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Provider(f"http://127.0.0.1:{server.server_address[1]}/token", dict(clients))
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        try:
            yield found
        finally:
            server.shutdown()
            serving.join()
