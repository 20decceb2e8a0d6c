"""Addresses are shown without what may be a secret in them; other settings as they are."""

from __future__ import annotations

import pytest

from kafka_eos._util.secrets import mask_config, show_address, strip_credentials
from kafka_eos.codecs import Registry
from kafka_eos.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://app:hunter2@host:1/a", "https://host:1/a"),
        ("https://app:p@ss:hunter2@host/a", "https://host/a"),
        ("https://host/a?token=hunter2", "https://host/a"),
        ("https://a:b@one,https://c:d@two", "https://one,https://two"),
        ("postgresql://ada:hun,ter2@host/a", "postgresql://host/a"),
        ("https://host/a?token=hun,ter2", "https://host/a"),
        ("https://host/a,b?token=hunter2", "https://host/a,b"),
        ("https://one/a?token=hunter2,https://two/b?c=d", "https://one/a,https://two/b"),
        ("https://host/a@b", "https://host/a@b"),
        ("ada@example.com", "ada@example.com"),
        ("what?", "what?"),
        ("postgresql://app:hun/ter2@db:5432/shop", "postgresql://db:5432/shop"),
        ("postgresql://app:hun/t?er@2@db/shop", "postgresql://db/shop"),
        ("https://a:hun/ter2@one,https://b:hun/ter2@two/x", "https://one,https://two/x"),
        ("https://host:8081/a/b", "https://host:8081/a/b"),
        ("https://host:8081/a@b", "https://host:********@b"),
        ("postgresql://app:12/hunter2@db/shop", "postgresql://app:********@db/shop"),
        ("host=db password=hunter2 user=app", "host=db password=******** user=app"),
        ("host=db password='hun ter\\'2' user=app", "host=db password=******** user=app"),
        ("host=db PASSWORD = hunter2", "host=db PASSWORD = ********"),
        ("Server=db;User=app;Password=hunter2;Port=1", "Server=db;User=app;Password=********;Port=1"),
        ("Server=db;AccountKey=aHVu/dGVy==;Port=1", "Server=db;AccountKey=********;Port=1"),
        ("a = b, rate=5", "a = b, rate=5"),
        ("Server=db;UID=app;PWD=hunter2;Port=1", "Server=db;UID=app;PWD=********;Port=1"),
        ("401 for Authorization: Bearer eyJhbGci.hunter2-_", "401 for Authorization: Bearer ********"),
        ("SharedAccessSignature=sv=2024;Port=1", "SharedAccessSignature=********;Port=1"),
        ("SharedAccessSignature sr=a&sig=hunter2", "SharedAccessSignature ********"),
        ("SharedAccessKeyName=root;SharedAccessKey=aHVu=", "SharedAccessKeyName=root;SharedAccessKey=********"),
        ("se=2026&sig=hunter2", "se=2026&sig=********"),
        ('{"user": "app", "password": "hun\\"ter2", "n": 1}', '{"user": "app", "password": ********, "n": 1}'),
        ("{'user': 'app', 'api_key': 'hunter2'}", "{'user': 'app', 'api_key': ********}"),
    ],
)
def test_an_address_is_shown_without_its_login_and_its_question(text: str, shown: str) -> None:
    assert strip_credentials(text) == shown


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://app:hunter2@db:5432/shop?sslpassword=hunter2", "postgresql://db:5432/shop"),
        ("https://hooks.example.com/services/a-b/c", "https://hooks.example.com/services/a-b/c"),
        ("https://hooks.example.com/services;hunter2", "https://hooks.example.com********"),
        ("postgresql://app@db/shop#hunter2", "postgresql://db/shop"),
        ("postgresql://a:hunter2@one:1,two:2/shop", "postgresql://one:1,two:2/shop"),
        ("postgresql://app:hunter@2@db/shop", "postgresql://db/shop"),
        ("sqlite:////var/a@b/catalog.db", "sqlite:////var/a@b/catalog.db"),
        ("thrift://[::1]:9083", "thrift://[::1]:9083"),
    ],
)
def test_of_an_address_only_scheme_hosts_and_path_are_shown(address: str, shown: str) -> None:
    assert show_address(address) == shown


@pytest.mark.parametrize("mark", "/?#")
@pytest.mark.parametrize("address", ["postgresql://app:hunter{}2@db/shop", "https://app:12{}hunter2@db/shop"])
def test_where_a_password_ends_is_not_guessed(address: str, mark: str) -> None:
    with pytest.raises(ValueError, match="percent-encode") as caught:
        show_address(address.format(mark))
    assert "hunter" not in str(caught.value)


def test_the_path_of_a_webhook_is_not_shown() -> None:
    assert show_address("https://app:x@hooks.example.com:8/T0/hunter2", path=False) == "https://hooks.example.com:8"


@pytest.mark.parametrize("address", ["hunter2", "://hunter2", "app:hunter2@host", "https://app:hunter2"])
def test_what_is_no_address_is_not_shown(address: str) -> None:
    with pytest.raises(ValueError, match="it is not an address|whose end is ambiguous") as caught:
        show_address(address)
    assert "hunter2" not in str(caught.value)


def test_of_settings_only_secrets_are_hidden() -> None:
    assert mask_config({"sasl.username": "ada@example.com", "sasl.password": "x", "url": "http://a:b@c"}) == {
        "sasl.username": "ada@example.com",
        "sasl.password": "********",
        "url": "http://c",
    }


@pytest.mark.parametrize(
    "name", ["azure_storage_account_key", "accountKey", "api_key", "X-Api-Key", "apikey", "ssl_key"]
)
def test_a_key_that_lets_in_is_hidden(name: str) -> None:
    assert mask_config({name: "hunter2"}) == {name: "********"}


@pytest.mark.parametrize("name", ["s3.access-key-id", "key.serializer", "keyspace", "monkey"])
def test_a_name_that_only_has_key_in_it_is_shown(name: str) -> None:
    assert mask_config({name: "a"}) == {name: "a"}


def test_an_address_of_a_registry_that_is_none_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="does not name a registry") as caught:
        Registry("app:hunter2@host")
    assert "hunter2" not in str(caught.value)
