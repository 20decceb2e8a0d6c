"""Names that share a coordinator."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.connectors.kafka.job_names import TransactionalId, parse_registration_id
from kafka_eos.connectors.kafka.rpc.twin_names import hash_code, twin_of


@pytest.mark.parametrize(
    ("text", "code"),
    [("", 0), ("a", 97), ("Aa", 2112), ("BB", 2112), ("hello world", 1794106052), ("\U0001f600", 1772899)],
)
def test_a_hash_is_javas(text: str, code: int) -> None:
    assert hash_code(text) == code


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_twin_has_the_same_hash_under_another_name(name: str) -> None:
    assert hash_code(twin_of(name)) == hash_code(name)
    assert twin_of(name).startswith(name)
    assert twin_of(name) != name


def test_a_twin_is_no_output_of_the_job() -> None:
    """Or the next recovery would fence it, and a takeover would wait for it."""
    assert TransactionalId.parse(twin_of("job.00000000000a.1.0.0")) is None
    assert parse_registration_id(twin_of("job.00000000000a")) is None
