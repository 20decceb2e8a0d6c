"""What a pack is, and which files go into one together."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch
from kafka_eos.core.limits import LIMITS
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import provenance_packs as packs
from kafka_eos.storage.object_names import ProvenanceFile, ProvenancePack

SHA = "ab" * 32
FILES = {hashlib.sha256(content).hexdigest(): content for content in (b"", b"one", b"two", bytes(1000))}

epochs = st.integers(0, 10**14).map(Epoch)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
singles = st.builds(ProvenanceFile, epochs, st.integers(0, 2 * LIMITS.pack_bytes), digests)


@given(singles | st.builds(ProvenancePack, epochs, epochs, st.integers(0, 10**12), digests))
def test_names_tell_what_they_were_made_of(file: paths.ProvenanceObject) -> None:
    name = paths.provenance_name(file)

    assert paths.parse_provenance_name(name) == file
    assert paths.ensure_inside(name) == name


@pytest.mark.parametrize(
    "name",
    [
        f"provenance/1-2-{SHA}",
        f"provenance/000000000001-02-{SHA}",
        f"provenance/000000000001-2-{SHA[:-1]}",
        f"provenance/pack-000000000001-2-{SHA}",
        f"provenance/pack-{SHA}",
        f"provenance/{SHA.upper()}",
        f"shared/{SHA}",
    ],
)
def test_another_name_is_nobodys(name: str) -> None:
    with pytest.raises(CorruptCheckpoint):
        paths.parse_provenance_name(name)


def test_what_went_into_a_pack_comes_out_of_it_and_its_name_is_the_same_in_whatever_order_it_went_in() -> None:
    pack, content = packs.encode(Epoch(1), Epoch(4), FILES)
    again, _ = packs.encode(Epoch(1), Epoch(4), dict(reversed(FILES.items())))

    assert packs.decode(pack, content) == FILES
    assert (pack.first, pack.last, pack) == (Epoch(1), Epoch(4), again)


@pytest.mark.parametrize(
    ("altered", "said"),
    [
        (lambda content: b"kafka-eos provenance pack 2\n" + content[28:], "it begins with"),
        (lambda content: content[:-5], "cannot be inflated"),
        (lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:], "cannot be inflated"),
        (lambda content: packs.encode(Epoch(1), Epoch(4), {})[1], "does not match its checksum"),
    ],
)
def test_a_pack_that_is_not_what_was_stored_is_refused(altered: object, said: str) -> None:
    pack, content = packs.encode(Epoch(1), Epoch(4), FILES)

    with pytest.raises(ValueError, match=said):
        packs.decode(pack, altered(content))  # type: ignore[operator]


@given(st.lists(singles, max_size=300, unique=True))
def test_a_group_is_full_or_has_many_and_what_is_full_is_left_alone(files: list[ProvenanceFile]) -> None:
    found = packs.groups(files)

    packed = [file for group in found for file in group]
    assert packed == sorted(file for file in files if file.size < LIMITS.pack_bytes)[: len(packed)]
    for group in found:
        together = sum(file.size for file in group)
        assert len(group) == LIMITS.files_per_pack or (together >= LIMITS.pack_bytes and len(group) > 1)
        assert sum(file.size for file in group[:-1]) < LIMITS.pack_bytes
    left = sorted(set(files) - set(packed))
    assert sum(file.size < LIMITS.pack_bytes for file in left) < LIMITS.files_per_pack


def test_a_span_is_from_the_oldest_to_the_newest() -> None:
    files = [
        ProvenancePack(Epoch(3), Epoch(9), 1, SHA),
        ProvenancePack(Epoch(1), Epoch(4), 1, SHA),
        ProvenanceFile(Epoch(5), 1, SHA),
    ]

    assert packs.span(files) == (Epoch(1), Epoch(9))
