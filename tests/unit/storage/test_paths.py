"""Names of durable objects parse back to what they were made from, and nothing else parses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.storage import object_names as paths

numbers = st.integers(min_value=0, max_value=10**14)


@given(epoch=numbers, term=numbers)
def test_names_round_trip(epoch: int, term: int) -> None:
    epoch_id = EpochId(Epoch(epoch), Term(term))

    assert paths.parse_manifest_name(paths.manifest_name(epoch_id)) == epoch_id
    assert paths.parse_receipt_name(paths.receipt_name(epoch_id)) == epoch_id
    assert paths.parse_term_name(paths.claim_name(epoch_id.term)) == (epoch_id.term, "claim")
    assert paths.parse_term_name(paths.base_name(epoch_id.term)) == (epoch_id.term, "base")


@given(name=st.text(max_size=40) | st.from_regex(r"(manifests|shared|\.\.)/[./a-f0-9-]{1,30}"))
def test_whatever_parses_is_exactly_the_name_that_would_be_formed(name: str) -> None:
    """No second spelling of a name, so no object can be mistaken for another."""
    try:
        epoch_id = paths.parse_manifest_name(name)
    except CorruptCheckpoint:
        return

    assert paths.manifest_name(epoch_id) == name


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "a/../../b",
        "shared/..",
        "shared/a/b",
        "",
        ".",
        "..",
        "shared/",
        "shared/a\0",
        "other/x",
        ".x",
    ],
)
def test_no_name_leaves_the_directory(name: str) -> None:
    with pytest.raises(CorruptCheckpoint):
        paths.ensure_inside(name)


@pytest.mark.parametrize("name", ["../000010.sst", "a/b", "..", ".hidden", "", "x\n", "é"])
def test_a_file_name_is_one_plain_component(name: str) -> None:
    with pytest.raises(CorruptCheckpoint):
        paths.ensure_plain_name(name)


@pytest.mark.parametrize("sha256", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "../" + "0" * 61, "0" * 64 + "\n"])
def test_only_a_checksum_names_a_stored_file(sha256: str) -> None:
    with pytest.raises(CorruptCheckpoint):
        paths.shared_name(sha256)
