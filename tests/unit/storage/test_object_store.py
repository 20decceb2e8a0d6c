"""What an object store's client says, in words of ours."""

from __future__ import annotations

import pytest
from obstore.exceptions import GenericError

from kafka_eos.storage.object_store import _own_errors


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
