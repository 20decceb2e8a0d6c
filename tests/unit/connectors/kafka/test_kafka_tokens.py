"""Tokens of OAUTHBEARER come from a file or a provider, as they are when a client logs in, and are never shown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.connectors.kafka.client import oauth_tokens
from kafka_eos.connectors.kafka.client.credentials import is_renewable, resolve_config
from kafka_eos.connectors.kafka.client.oauth_tokens import TokenRefused
from kafka_eos.core.errors import ConfigError, Retryable
from tests.oidc import Provider, provider, signed
from tests.scripted_http_server import HALF, RESET, Answer, Answering, dripping

SECRET = "canary=8d21,c4 +%/"


@pytest.fixture
def issuer() -> Iterator[Provider]:
    with provider(app=SECRET) as found:
        yield found


def _answer(config: dict[str, Any]) -> Any:
    return resolve_config(config)["oauth_cb"]("")


def test_a_token_of_a_file_is_the_one_that_stands_there_now(tmp_path: Path) -> None:
    file = tmp_path / "token"
    config = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.from_file": str(file)}
    client = resolve_config(config)
    found = []
    for subject in ("ada", "eve"):
        file.write_text(f"{signed(subject, 60)}\n")
        token, ends, principal, extensions = client["oauth_cb"]("")
        found.append((token == file.read_text().strip(), round(ends - time.time()), principal, extensions))

    assert found == [(True, 60, "ada", {}), (True, 60, "eve", {})]
    assert client.keys() == {"sasl.mechanism", "oauth_cb"}


def test_a_token_of_an_unknown_kind_is_looked_for_again_after_minutes(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("opaque")
    token, ends, _, _ = _answer({"sasl.oauthbearer.token.from_file": str(tmp_path / "token")})

    assert (token, round(ends - time.time(), -1)) == ("opaque", 300)


def test_a_token_that_is_over_or_gone_is_said(tmp_path: Path) -> None:
    file = tmp_path / "token"
    config = {"sasl.oauthbearer.token.from_file": str(file)}
    with pytest.raises(Retryable, match="token cannot be read: No such file"):
        _answer(config)
    file.write_text(over := signed("ada", -5))
    with pytest.raises(Retryable, match=rf"the token in {file} expired at .* was not renewed") as raised:
        _answer(config)

    assert over not in str(raised.value)


def test_a_provider_is_asked_once_for_all_clients_of_a_process(issuer: Provider) -> None:
    config = issuer.config("app", **{"sasl.oauthbearer.client.secret": SECRET, "sasl.oauthbearer.scope": "kafka topics",
                                     "sasl.oauthbearer.extensions": "logicalCluster=l1,pool=p"})  # fmt: skip
    answers = [_answer(config) for _ in range(3)]

    assert issuer.asked == [{"grant_type": ["client_credentials"], "scope": ["kafka topics"]}]
    assert [answer[2:] for answer in answers] == [("app", {"logicalCluster": "l1", "pool": "p"})] * 3
    assert "sasl.oauthbearer.method" not in resolve_config(config)


def test_a_token_is_asked_for_again_before_it_is_over(issuer: Provider) -> None:
    issuer.lasts = 0.0
    config = issuer.config("app", **{"sasl.oauthbearer.client.secret": SECRET})
    for _ in range(2):
        _answer(config)

    assert len(issuer.asked) == 2


def test_a_secret_that_was_changed_is_used_at_the_next_login(issuer: Provider, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    config = issuer.config("app", **{"sasl.oauthbearer.client.secret.from_file": str(file)})
    file.write_text("old")
    with pytest.raises(TokenRefused):
        _answer(config)
    file.write_text(f"{SECRET}\n")

    assert _answer(config)[2] == "app"


@pytest.mark.parametrize(
    ("status", "error"), [(503, Retryable), (429, Retryable), (400, TokenRefused), (307, TokenRefused)]
)
def test_what_a_provider_answers_is_told_without_the_secret(
    issuer: Provider, status: int, error: type[Exception]
) -> None:
    issuer.fails = status
    with pytest.raises(error, match=rf"no token from {issuer.url} for the client 'app': {status}") as raised:
        _answer(issuer.config("app", **{"sasl.oauthbearer.client.secret": SECRET}))

    assert SECRET not in str(raised.value)
    assert len(issuer.asked) == 1, "a secret goes to no other address"


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"<html>"),
        (200, b"[" * 100_000),
        (200, b"x" * (2 << 20)),
        (200, b'{"expires_in": 60}'),
        (503, b"[" * 100_000),
        HALF,
        RESET,
    ],
    ids=["markup", "nested", "large", "no token", "away", "half", "reset"],
)
def test_rubbish_of_a_provider_is_no_token(answer: Answer) -> None:
    with (
        Answering(lambda request: answer) as server,
        pytest.raises(Retryable, match="no token|without an access_token"),
    ):
        _answer(Provider(server.url, {}).config("app", **{"sasl.oauthbearer.client.secret": SECRET}))


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b'\r\nContent-Length: 21\r\n\r\n{"access_token": "t"}'),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 91\r\n\r\n{"more": "', b'", "access_token": "t"}'),
    ],
    ids=["headers", "body"],
)
def test_a_token_that_arrives_byte_by_byte_has_a_deadline(
    start: bytes, end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oauth_tokens, "_SECONDS", 0.3)
    with dripping(start, end) as url, pytest.raises(Retryable, match="no token from"):
        _answer(Provider(url, {}).config("app", **{"sasl.oauthbearer.client.secret": SECRET}))


@pytest.mark.parametrize("lasts", ["1e999", "-1e999", "NaN", "9" * 400, '"soon"'])
def test_a_lifetime_that_is_none_is_some_minutes(lasts: str) -> None:
    token = b'{"access_token": "opaque", "expires_in": %b}' % lasts.encode()
    with Answering(lambda request: (200, token)) as server:
        config = Provider(server.url, {}).config("app", **{"sasl.oauthbearer.client.secret": SECRET})
        _, ends, _, _ = _answer(config)

    assert round(ends - time.time(), -1) == 300


def test_a_wrong_secret_is_not_told_though_the_provider_repeats_it(issuer: Provider) -> None:
    with pytest.raises(TokenRefused, match="401") as raised:
        _answer(issuer.config("app", **{"sasl.oauthbearer.client.secret": "hunter2"}))

    assert "hunter2" not in str(raised.value)


def test_nobody_at_the_address_is_said() -> None:
    config = {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token",
              "sasl.oauthbearer.client.id": "app", "sasl.oauthbearer.client.secret": SECRET}  # fmt: skip

    with pytest.raises(Retryable, match=r"no token from http://127.0.0.1:1/token: .*refused"):
        _answer(config)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, r"needs config\['sasl.oauthbearer.token.endpoint.url'\]"),
        ({"sasl.oauthbearer.token.endpoint.url": "https://a"}, r"needs config\['sasl.oauthbearer.client.id'\]"),
        (
            {"sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd", "sasl.oauthbearer.client.id": "app",
             "sasl.oauthbearer.client.secret": SECRET},
            "is not a valid address: use https://",
        ),
    ],
)  # fmt: skip
def test_what_is_missing_for_a_provider_is_named(config: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolve_config({"sasl.oauthbearer.method": "OIDC", **config})


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ({}, False),
        ({"sasl.username": "ada", "sasl.password": "x"}, False),
        ({"sasl.password.from_file": "x"}, True),
        ({"security.protocol": "sasl_ssl"}, True),
        ({"oauth_cb": print}, True),
        ({"sasl.oauthbearer.method": "oidc"}, True),
    ],
)
def test_what_lets_a_client_in_may_change_without_its_settings(config: dict[str, Any], changes: bool) -> None:
    assert is_renewable(config) is changes
