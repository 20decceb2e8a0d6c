"""What an object store's client says, in words of ours."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from obstore.exceptions import GenericError

from kafka_eos.storage.object_store import _own_errors, _plain_http


@pytest.mark.parametrize(
    ("said", "advised"),
    [
        ("Error performing PUT http://169.254.169.254/latest/api/token in 1s: no answer", True),
        ("Error performing GET http://127.0.0.1:1/b in 1s: connection refused", False),
    ],
)
def test_one_that_has_no_credentials_is_told_where_they_belong(said: str, advised: bool) -> None:
    with pytest.raises(OSError, match="Error performing") as raised, _own_errors("terms"):
        raise GenericError(said)

    assert ("AWS_ACCESS_KEY_ID" in str(raised.value)) == advised


@pytest.mark.parametrize(
    ("options", "environment", "plain"),
    [
        ({}, {}, False),
        ({"endpoint": "http://a"}, {}, True),
        ({"AWS_ENDPOINT_URL": "http://a", "region": "b"}, {}, True),
        ({"endpoint": "https://a", "proxy": "http://b"}, {}, False),
        ({}, {"AWS_ENDPOINT_URL_S3": "http://a", "AWS_ENDPOINT_URL": "https://b"}, True),
        ({}, {"AWS_ENDPOINT_URL": "http://a"}, True),
    ],
)
def test_only_who_names_an_endpoint_without_tls_talks_to_one(
    options: Mapping[str, str], environment: Mapping[str, str], plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert _plain_http(options) is plain
