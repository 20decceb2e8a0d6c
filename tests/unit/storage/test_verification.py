"""What a look at all objects of a job finds: each damaged one, once, also where there are several."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from checkpoint_samples import JOB, MANIFEST

from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import verification as verify
from kafka_eos.storage.job_records import Receipt, TermBase, TermClaim, publish
from kafka_eos.storage.job_storage import MemoryStorage


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


def stored(storage: MemoryStorage, directory: Path, *contents: bytes) -> dict[str, FileRef]:
    found = {}
    for content in contents:
        file = directory / f"file-{len(list(directory.iterdir()))}"
        file.write_bytes(content)
        found[file.name] = storage.upload(file, file.name)
    return found


def name(ref: FileRef) -> str:
    return paths.shared_name(ref.sha256)


def test_every_damaged_object_of_every_kind_is_named_once(storage: MemoryStorage, tmp_path: Path) -> None:
    (shared,) = stored(storage, tmp_path, b"of all epochs").values()
    own = [*stored(storage, tmp_path, b"of epoch 0", b"of epoch 1", b"of epoch 2").values()]
    epochs = [EpochId(Epoch(number), Term(1)) for number in range(3)]
    for epoch, file in zip(epochs, own, strict=True):
        handle = StateHandle("total", "memory", (0, 127), (shared, file), ())
        publish(storage, msgspec.structs.replace(MANIFEST, epoch=epoch.epoch.n, term=1, states=(handle,)))
        publish(storage, Receipt(job=JOB, epoch=epoch.epoch.n, term=1, created_at=0, outcomes=()))
    for term in (1, 2, 3):
        publish(storage, TermClaim(job=JOB, term=term, host="h", pid=1, at=0))
        publish(storage, TermBase(job=JOB, term=term, resumed=None, reason="fresh", at=0))
    assert verify.verify_job(storage, JOB) == []

    damaged = [
        *(name(shared), name(own[0]), name(own[2]), paths.manifest_name(epochs[1])),
        *(paths.receipt_name(epochs[0]), paths.receipt_name(epochs[2])),
        *(paths.claim_name(Term(1)), paths.claim_name(Term(3)), paths.base_name(Term(2))),
    ]
    for each in damaged:
        storage.objects[each] = storage.objects[each][:-1] + b"?"
    problems = verify.verify_job(storage, JOB)

    assert sorted(problem.object for problem in problems) == sorted(damaged)
    assert all(str(problem) for problem in problems)


def test_a_record_that_goes_while_it_is_looked_at_is_no_problem(
    storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention of a running job deletes it between the list and the read."""
    claims = [TermClaim(job=JOB, term=term, host="h", pid=1, at=0) for term in (1, 2)]
    for claim in claims:
        publish(storage, claim)
    read = storage.read

    def late(asked: str) -> bytes:
        storage.objects.pop(claims[0].name, None)
        return read(asked)

    monkeypatch.setattr(storage, "read", late)

    assert verify.verify_job(storage, JOB) == []


def test_sizes_are_looked_at_without_the_content_and_contents_are_read_with_their_progress(
    storage: MemoryStorage, tmp_path: Path
) -> None:
    files = stored(storage, tmp_path, b"1", b"22", b"333", b"4444")
    first, second, _, fourth = map(name, files.values())
    del storage.objects[first]
    storage.objects[second] = b"2"
    storage.objects[fourth] = b"4??4"
    told: list[tuple[int, int]] = []

    assert [problem.object for problem in verify.check_sizes(storage, files)] == [first, second]
    found = verify.check_contents(storage, files, lambda done, total: told.append((done, total)))

    assert [problem.object for problem in found] == [first, second, fourth]
    assert told == [(1, 10), (3, 10), (6, 10), (10, 10)]


def test_whoever_is_told_of_the_progress_can_end_it(storage: MemoryStorage, tmp_path: Path) -> None:
    def refuse(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify.check_contents(storage, stored(storage, tmp_path, b"1", b"22"), refuse)


def test_what_is_no_damage_is_no_problem_of_a_file(storage: MemoryStorage, tmp_path: Path) -> None:
    files = stored(storage, tmp_path, b"1")

    def away(ref: FileRef) -> None:
        raise OSError("the store does not respond")

    storage.check_size = away  # type: ignore[method-assign]
    with pytest.raises(OSError, match="does not respond"):
        verify.check_sizes(storage, files)
    with pytest.raises(CorruptCheckpoint):
        storage.check_content(FileRef("x", "00" * 32, 1))
