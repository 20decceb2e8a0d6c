"""Errors of files and buckets: what waiting may resolve is retried, and anything else ends the start with a remedy."""

from __future__ import annotations

import errno

import pytest

from kafka_eos.connectors.files.os_errors import map_errors, refuse_permanent_errors
from kafka_eos.core.errors import ConfigError, Retryable


@pytest.mark.parametrize(
    "error",
    [PermissionError(errno.EACCES, "denied"), OSError("When getting x: AWS Error ACCESS_DENIED during HeadObject")],
    ids=["file", "bucket"],
)
def test_what_waiting_cannot_resolve_is_refused_with_the_remedy(error: OSError) -> None:
    expected = pytest.raises(ConfigError, match=r"could not write a: .*\. Grant it\.")
    with expected, refuse_permanent_errors("Grant it."), map_errors(Retryable, "write a"):
        raise error


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "bad disk"), OSError("AWS Error NETWORK_CONNECTION during HeadObject")], ids=str
)
def test_what_may_pass_is_retried(error: OSError) -> None:
    expected = pytest.raises(Retryable, match="could not write a")
    with expected, refuse_permanent_errors("Grant it."), map_errors(Retryable, "write a"):
        raise error


def test_what_has_another_cause_is_retried() -> None:
    with pytest.raises(Retryable, match="later"), refuse_permanent_errors("Grant it."):
        raise Retryable("later")
