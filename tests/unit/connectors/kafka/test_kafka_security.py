"""The user's settings for librdkafka decide how our own connections are made, or are refused by name."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.certificates import ends_of
from kafka_eos.connectors.kafka.rpc.security import security
from kafka_eos.core.errors import ConfigError, Retryable

USER = {"sasl.username": "ada", "sasl.password": "secret"}


def _security(**config: Any) -> Any:
    return security(Cluster("here:9092", {name.replace("_", "."): value for name, value in config.items()}))


def test_without_settings_there_is_neither_tls_nor_a_login() -> None:
    found = _security()

    assert (found.client_id, found.tls, found.sasl) == ("kafka-eos", None, None)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"security_protocol": "tls"}, "use one of PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL"),
        ({"security_protocol": "sasl_ssl", "sasl_mechanism": "AWS_MSK_IAM"}, "use sasl.username and sasl.password"),
        ({"security_protocol": "sasl_plaintext", "sasl_mechanism": "PLAIN"}, r"PLAIN needs config\['sasl.username'\]"),
        ({"security_protocol": "sasl_plaintext", "sasl_mechanism": "OAUTHBEARER"}, "or a function as oauth_cb"),
        ({"ssl_ca_pem": "x"}, r"config\['ssl.ca.pem'\] cannot be applied"),
        ({"sasl_oauthbearer_method": "oidc"}, r"oidc needs config\['sasl.oauthbearer.token.endpoint.url'\]"),
        ({"sasl_oauthbearer_assertion_algorithm": "x"}, "cannot be applied.*or a function as oauth_cb"),
        (
            {"security_protocol": "ssl", "ssl_ca_location": "/no/such.pem"},
            "No such file.*ssl.ca.location.*/no/such.pem",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        _security(**config)


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nonsense")

    with pytest.raises(ConfigError, match="the TLS files cannot be used: .*ca.pem"):
        _security(security_protocol="ssl", ssl_ca_location=str(tmp_path / "ca.pem"))


def _element(tag: int, *contents: bytes) -> bytes:
    """An element of DER: short lengths are one byte, others a count and that many bytes."""
    whole = b"".join(contents)
    size = len(whole)
    raw = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, *([size] if size < 0x80 else [0x80 | len(raw), *raw])]) + whole


def _certificate(ends: bytes, tag: int, *, issuer: int = 5, version: bool = True) -> bytes:
    """Its serial number and its issuer are numbers in elements, as long as wanted."""
    begins = _element(0x17, b"200102030405Z")
    validity = _element(0x30, begins, _element(tag, ends))
    first = [_element(0xA0, b"\x02\x01\x02")] if version else []
    signed = _element(0x30, *first, _element(2, b"\x07"), _element(0x30, b"alg"), _element(0x30, b"i" * issuer),
                      validity, _element(0x30, b"subject"))  # fmt: skip
    return _element(0x30, signed, _element(0x30, b"alg"), _element(3, b"\0signature"))


@pytest.mark.parametrize("version", [True, False])
@pytest.mark.parametrize("issuer", [0, 127, 128, 255, 256, 70_000])
def test_a_certificate_ends_when_it_says(tmp_path: Path, issuer: int, version: bool) -> None:
    path = tmp_path / "client.pem"
    own = _certificate(b"310203040506Z", 0x17, issuer=issuer, version=version)
    others = _certificate(b"20600102030405Z", 0x18)
    path.write_text("comment\n" + "\n".join(map(ssl.DER_cert_to_PEM_cert, (own, others, others))))
    assert ends_of(str(path)) == datetime(2031, 2, 3, 4, 5, 6, tzinfo=UTC), "the first one is the client's own"
    path.write_text(ssl.DER_cert_to_PEM_cert(others) + ssl.DER_cert_to_PEM_cert(own))
    assert ends_of(str(path)) == datetime(2060, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize("cut", [0, 1, 2, 20, 60, 100])
def test_a_certificate_that_is_cut_off_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "client.pem"
    for content in ("", ssl.DER_cert_to_PEM_cert(_certificate(b"310203040506Z", 0x17, issuer=90)[:cut])):
        path.write_text(content)
        with pytest.raises(ConfigError, match=r"the certificate in .*/client\.pem cannot be read: "):
            ends_of(str(path))


def test_certificates_are_verified_unless_that_is_switched_off() -> None:
    checked, named, loose = (
        _security(security_protocol="SSL", **more).tls
        for more in (
            {},
            {"ssl_endpoint_identification_algorithm": "none"},
            {"enable_ssl_certificate_verification": "false"},
        )
    )

    assert (checked.verify_mode, checked.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (named.verify_mode, named.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert (loose.verify_mode, loose.check_hostname) == (ssl.CERT_NONE, False)


def test_the_mechanism_is_librdkafka_s_default_if_none_is_given() -> None:
    assert _security(security_protocol="sasl_plaintext").sasl.mechanism == "GSSAPI"


def test_each_connection_asks_for_a_token() -> None:
    asked: list[str] = []

    def tokens(config: str) -> tuple[str, float, str, dict[str, str]]:
        asked.append(config)
        return f"token-{len(asked)}", 0.0, "principal", {"tenant": "t"}

    sasl = security(
        Cluster(
            "here",
            {
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "oauthbearer",
                "oauth_cb": tokens,
                "sasl.oauthbearer.config": "of mine",
            },
        )
    ).sasl

    assert sasl is not None
    assert [next(sasl.login("host")) for _ in range(2)] == [
        b"n,,\1auth=Bearer token-1\1tenant=t\1\1",
        b"n,,\1auth=Bearer token-2\1tenant=t\1\1",
    ]
    assert asked == ["of mine", "of mine"]


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [(None, ConfigError, "must return"), (OSError("no network"), Retryable, "oauth_cb failed: .*no network")],
)
def test_a_token_that_does_not_come(answer: Any, error: type[Exception], said: str) -> None:
    def tokens(config: str) -> Any:
        if answer is not None:
            raise answer
        return answer

    config = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "oauthbearer", "oauth_cb": tokens}
    sasl = security(Cluster("here", config)).sasl

    assert sasl is not None
    with pytest.raises(error, match=said):
        sasl.login("host")


@pytest.mark.parametrize(
    ("servers", "addresses"),
    [
        ("a:1,b:2", (("a", 1), ("b", 2))),
        ("a", (("a", 9092),)),
        ("[::1]:5,[fe80::1]", (("::1", 5), ("fe80::1", 9092))),
        ("SASL_SSL://a:1", (("a", 1),)),
    ],
)
def test_bootstrap_servers_are_written_as_for_librdkafka(servers: str, addresses: tuple[tuple[str, int], ...]) -> None:
    assert KafkaRequests(Cluster(servers))._brokers._bootstrap == addresses


def test_a_port_that_is_none_is_named() -> None:
    with pytest.raises(ConfigError, match="'here:there' is not host:port"):
        KafkaRequests(Cluster("here:there"))
