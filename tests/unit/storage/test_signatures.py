"""Records that are signed with a key outside the store: who can write there cannot write one that is accepted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from checkpoint_samples import JOB, MANIFEST

from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.storage import job_records as records
from kafka_eos.storage import record_signatures as signatures
from kafka_eos.storage.job_records import Manifest, TermClaim

OLD, NEW, FOREIGN = "ab" * 32, "cd" * 32, "ef" * 32


@pytest.fixture(autouse=True)
def _no_keys() -> Iterator[None]:
    yield
    signatures.use_keys(None)


def use(tmp_path: Path, *lines: str) -> None:
    file = tmp_path / "keys"
    file.write_text("".join(f"{line}\n" for line in lines))
    signatures.use_keys(file)


def decoded(data: bytes) -> Manifest:
    return records.decode(Manifest, MANIFEST.name, data, JOB)


def forged(data: bytes) -> bytes:
    """Another content under the signature of this record, with the right checksum."""
    line, _, body = data.partition(b"\n")
    other = body.replace(b'"parallelism":', b'"parallelism":1')
    head = b" ".join([*line.split(b" ")[:3], str(len(other)).encode()]) + b" "
    checksum = hashlib.sha256(head + other).hexdigest().encode()
    return head + b" ".join([checksum, *line.split(b" ")[5:]]) + b"\n" + other


def test_a_record_is_accepted_by_who_has_the_key_and_by_who_checks_nothing(tmp_path: Path) -> None:
    use(tmp_path, "# of 2026", "", OLD)
    signed = records.encode(MANIFEST)

    assert decoded(signed) == MANIFEST
    signatures.use_keys(None)
    assert decoded(signed) == MANIFEST
    assert records.encode(MANIFEST) != signed


def test_a_record_without_a_signature_is_refused_once_there_is_a_key(tmp_path: Path) -> None:
    plain = records.encode(MANIFEST)
    use(tmp_path, OLD)

    with pytest.raises(CorruptCheckpoint, match=f"{MANIFEST.name}: it has no signature"):
        decoded(plain)


def test_a_record_of_another_key_is_refused_and_every_kind_of_record_is_signed(tmp_path: Path) -> None:
    claim = TermClaim(job=JOB, term=3, host="h", pid=1, at=0)
    use(tmp_path, FOREIGN)
    written = [records.encode(MANIFEST), records.encode(claim)]
    use(tmp_path, OLD, NEW)

    with pytest.raises(CorruptCheckpoint, match="matches no key"):
        decoded(written[0])
    with pytest.raises(CorruptCheckpoint, match="matches no key"):
        records.decode(TermClaim, claim.name, written[1], JOB)


def test_a_signature_does_not_fit_another_content(tmp_path: Path) -> None:
    use(tmp_path, OLD)
    data = forged(records.encode(MANIFEST))

    with pytest.raises(CorruptCheckpoint, match="matches no key"):
        decoded(data)
    signatures.use_keys(None)
    assert decoded(data).parallelism == int(f"1{MANIFEST.parallelism}"), "nothing but the signature is wrong with it"


def test_a_signature_does_not_fit_another_kind_of_record(tmp_path: Path) -> None:
    use(tmp_path, OLD)
    signed = records.encode(MANIFEST)
    other = records.encode(msgspec.structs.replace(MANIFEST, epoch=MANIFEST.epoch + 1))

    with pytest.raises(CorruptCheckpoint):
        decoded(signed.partition(b"\n")[0] + b"\n" + other.partition(b"\n")[2])


def test_the_first_key_signs_and_all_verify_so_that_a_key_can_be_replaced(tmp_path: Path) -> None:
    use(tmp_path, OLD)
    before = records.encode(MANIFEST)
    use(tmp_path, NEW, OLD)
    after = records.encode(MANIFEST)

    assert decoded(before) == decoded(after) == MANIFEST
    use(tmp_path, NEW)
    assert decoded(after) == MANIFEST
    with pytest.raises(CorruptCheckpoint):
        decoded(before)


@pytest.mark.parametrize("text", ["", "# none\n", "secret\n", f"{OLD}\nx\n", "ab" * 31, "käse"])
def test_a_file_without_usable_keys_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)

    with pytest.raises(ConfigError, match="checkpoint_key_file="):
        signatures.use_keys(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        signatures.use_keys(tmp_path / "missing")


def test_keys_in_the_checkpoints_are_refused(tmp_path: Path) -> None:
    home = tmp_path / "checkpoints"

    with pytest.raises(ConfigError, match="is in the checkpoint directory"):
        Settings.resolve(code={"checkpoint_dir": home, "checkpoint_key_file": home / "orders" / "keys"})
    Settings.resolve(code={"checkpoint_dir": home, "checkpoint_key_file": tmp_path / "keys"})


def test_queries_of_one_program_share_their_keys(tmp_path: Path) -> None:
    """A process has one set of them; who uses other keys than an earlier query is told."""
    ours, others = tmp_path / "keys", tmp_path / "others"
    ours.write_text(OLD)
    others.write_text(NEW)
    signatures.use_keys(others)
    for _ in range(2):
        signatures.share_keys(ours)
    signed = signatures.sign(b"record")

    for file in (others, None):
        with pytest.raises(ConfigError, match="an earlier query of this program signs with other keys"):
            signatures.share_keys(file)

    assert signatures.sign(b"record") == signed
    signatures.use_keys(None)
    signatures.share_keys(others)
    assert signatures.sign(b"record") not in (signed, None)
