"""Logins say what their standards say, and believe only a broker that proves itself."""

from __future__ import annotations

import base64
import hashlib
import hmac
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kafka_eos.connectors.kafka.rpc.sasl import LoginFailed, kerberos, oauthbearer, plain, scram
from kafka_eos.core.errors import ConfigError

OFFER = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNED = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def _nonce() -> str:
    return "rOprNGfwEbeRWgbNEkqO"


def test_scram_is_that_of_rfc_7677() -> None:
    login = scram("sha256", "user", "pencil", _nonce)

    assert next(login) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert login.send(OFFER) == PROOF
    with pytest.raises(StopIteration):
        login.send(SIGNED)


def test_scram_sha_512_is_checked_by_who_knows_the_password() -> None:
    """A broker's side of RFC 5802 that is written out here."""
    login = scram("sha512", "a=b,c", "secret")
    begun = next(login)
    offer = begun.rpartition(b",r=")[2] + b"theirs"
    offered = b"r=" + offer + b",s=" + base64.b64encode(b"salt") + b",i=4096"
    answer = login.send(offered)
    ended, _, proof = answer.rpartition(b",p=")
    key = hashlib.pbkdf2_hmac("sha512", b"secret", b"salt", 4096)
    client = hmac.digest(key, b"Client Key", "sha512")
    signed = begun.removeprefix(b"n,,") + b"," + offered + b"," + ended
    signature = hmac.digest(hashlib.sha512(client).digest(), signed, "sha512")

    assert begun.startswith(b"n,,n=a=3Db=2Cc,r=")
    assert bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True)) == client
    server = hmac.digest(hmac.digest(key, b"Server Key", "sha512"), signed, "sha512")
    with pytest.raises(StopIteration):
        login.send(b"v=" + base64.b64encode(server))


@pytest.mark.parametrize(
    "offer",
    [
        b"",
        b"e=other-error",
        OFFER.replace(b"r=rOpr", b"r=xxxx"),
        OFFER.replace(b"s=W22Z", b"s=!!!!"),
        OFFER.replace(b"i=4096", b"i=0"),
        OFFER.replace(b"i=4096", b"i=1"),
        OFFER.replace(b"i=4096", b"i=4095"),
        OFFER.replace(b"i=4096", b"i=1000000000"),
        b"\xff",
    ],
)
def test_an_offer_that_does_not_answer_ends_a_scram_login(offer: bytes) -> None:
    login = scram("sha256", "user", "pencil", _nonce)
    next(login)

    with pytest.raises(LoginFailed):
        login.send(offer)


@pytest.mark.parametrize("answer", [b"", b"e=invalid-proof", b"v=AAAA", SIGNED.replace(b"6rri", b"7rri")])
def test_a_broker_that_does_not_know_the_password_is_not_believed(answer: bytes) -> None:
    login = scram("sha256", "user", "pencil", _nonce)
    next(login)
    login.send(OFFER)

    with pytest.raises(LoginFailed):
        login.send(answer)


def test_plain_is_that_of_rfc_4616() -> None:
    assert list(plain("tim", "tanstaaftanstaaf")) == [b"\0tim\0tanstaaftanstaaf"]


def test_a_token_and_its_extensions_are_sent_as_rfc_7628_says() -> None:
    login = oauthbearer("abc", {"tenant": "t1"})

    assert next(login) == b"n,,\1auth=Bearer abc\1tenant=t1\1\1"
    with pytest.raises(StopIteration):
        login.send(b"")


def test_a_refused_token_is_followed_by_one_more_message() -> None:
    """Only then the broker says why."""
    login = oauthbearer("abc", {})

    assert next(login) == b"n,,\1auth=Bearer abc\1\1"
    assert login.send(b'{"status":"invalid_token"}') == b"\1"


class _Context:
    """What a Kerberos library does, without a ticket: two tokens, then the offer of layers."""

    complete = False

    def __init__(self, **options: Any) -> None:
        self.options = options

    def step(self, token: bytes | None) -> bytes | None:
        self.complete = token is not None
        return None if token else b"first"

    def unwrap(self, message: bytes) -> Any:
        return SimpleNamespace(message=message)

    def wrap(self, message: bytes, encrypt: bool) -> Any:
        return SimpleNamespace(message=b"wrapped:" + message)


class _Error(Exception):
    pass


def test_kerberos_takes_no_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    name = SimpleNamespace(canonicalize=lambda mechanism: "name")
    kinds = SimpleNamespace(hostbased_service=1, kerberos=2)
    library = SimpleNamespace(
        Name=lambda *_, **__: name,
        NameType=kinds,
        MechType=kinds,
        SecurityContext=_Context,
        exceptions=SimpleNamespace(GSSError=_Error),
    )
    monkeypatch.setitem(sys.modules, "gssapi", library)  # type: ignore[arg-type]
    login = kerberos("kafka", "broker.example")

    assert next(login) == b"first"
    assert login.send(b"theirs") == b""
    assert login.send(b"\7\0\1\0") == b"wrapped:\1\0\1\0kafka@broker.example"


def test_a_ticket_that_is_not_there_ends_a_kerberos_login(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> Any:
        raise _Error("no credentials")

    kinds = SimpleNamespace(hostbased_service=1)
    library = SimpleNamespace(Name=none, NameType=kinds, exceptions=SimpleNamespace(GSSError=_Error))
    monkeypatch.setitem(sys.modules, "gssapi", library)  # type: ignore[arg-type]

    with pytest.raises(LoginFailed, match="no credentials"):
        next(kerberos("kafka", "broker.example"))


def test_kerberos_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="pip install gssapi"):
        next(kerberos("kafka", "broker.example"))
