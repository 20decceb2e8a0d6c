"""Addresses are shown without what may be a secret in them; other settings as they are."""

from __future__ import annotations

import pytest

from kafka_eos.errors import ConfigError
from kafka_eos.schemas import Registry
from kafka_eos.secrets import masked, without_login


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://app:hunter2@host:1/a", "https://host:1/a"),
        ("https://app:p@ss:hunter2@host/a", "https://host/a"),
        ("https://host/a?token=hunter2", "https://host/a"),
        ("https://a:b@one,https://c:d@two", "https://one,https://two"),
        ("https://host/a@b", "https://host/a@b"),
        ("ada@example.com", "ada@example.com"),
        ("what?", "what?"),
    ],
)
def test_an_address_is_shown_without_its_login_and_its_question(text: str, shown: str) -> None:
    assert without_login(text) == shown


def test_of_settings_only_secrets_are_hidden() -> None:
    assert masked({"sasl.username": "ada@example.com", "sasl.password": "x", "url": "http://a:b@c"}) == {
        "sasl.username": "ada@example.com",
        "sasl.password": "********",
        "url": "http://c",
    }


def test_an_address_of_a_registry_that_is_none_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="names no registry") as caught:
        Registry("app:hunter2@host")
    assert "hunter2" not in str(caught.value)
