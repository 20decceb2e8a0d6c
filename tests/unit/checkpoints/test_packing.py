"""Files of provenance are packed while others read them, and whoever is interrupted: none is ever out of reach."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kafka_eos.checkpoints import packing, packs, paths, provenance
from kafka_eos.checkpoints.packing import EPOCHS, Packer
from kafka_eos.checkpoints.packs import FULL, MANY
from kafka_eos.checkpoints.paths import Older, Pack, Single
from kafka_eos.checkpoints.provenance import Shelf
from kafka_eos.checkpoints.storage import JobStorage, MemoryStorage
from kafka_eos.errors import CorruptCheckpoint
from kafka_eos.ids import Epoch
from kafka_eos.interfaces import FileRef, Unstored

Files = Sequence[tuple[Epoch, FileRef, bytes]]


def files(number: int, *, first: int = 1, each: int = 1, size: int = 0) -> Files:
    """So many, ``each`` of every epoch."""
    made = []
    for n in range(number):
        content = b"of file %d from epoch %d " % (n, first) + bytes(size)
        ref = FileRef(f"{n}-0", hashlib.sha256(content).hexdigest(), len(content))
        made.append((Epoch(first + n // each), ref, content))
    return made


def store(storage: JobStorage, some: Files) -> None:
    for epoch, ref, content in some:
        provenance.stored(storage, epoch, Unstored("kafka", {}, 1, {}, {}, ref, content))


def all_there(storage: JobStorage, some: Files) -> bool:
    shelf = Shelf(storage)
    return all(shelf.load(ref, epoch) == content for epoch, ref, content in some)


def kinds(storage: JobStorage) -> tuple[int, int]:
    """How many files stand alone, and how many packs there are."""
    found = provenance.listed(storage)
    return sum(not isinstance(file, Pack) for file in found), sum(isinstance(file, Pack) for file in found)


def pack(storage: JobStorage) -> None:
    Packer(storage, pytest.fail).pack()


def test_many_files_become_few_and_every_one_is_found(storage: JobStorage) -> None:
    some = files(3 * MANY + 5, each=2)
    store(storage, some)

    pack(storage)

    assert kinds(storage) == (5, 3)
    assert all_there(storage, some)
    assert all_there(storage, some[::-1])
    pack(storage)
    assert kinds(storage) == (5, 3)


def test_many_packs_become_one(storage: JobStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "MANY", 4)
    some = files(4 * 4 * 4 + 4 + 1)
    store(storage, some)

    for _ in range(3):
        pack(storage)

    assert kinds(storage) == (1, 2)
    assert all_there(storage, some)


def test_what_is_large_stays_as_it_is(storage: JobStorage) -> None:
    large, small = files(2, size=FULL), files(3, first=5, size=FULL // 2)
    store(storage, [*large, *small])

    pack(storage)

    assert kinds(storage) == (3, 1)
    assert all_there(storage, [*large, *small])


def test_files_of_before_stay_and_are_found(storage: JobStorage) -> None:
    some = files(MANY + 1)
    for _, ref, content in some:
        storage.publish(paths.provenance_name(Older(ref.sha256)), content)

    pack(storage)

    assert kinds(storage) == (MANY + 1, 0)
    assert all_there(storage, some)


def test_a_file_that_a_later_epoch_has_committed_is_found(storage: JobStorage) -> None:
    some = files(MANY)
    store(storage, some)
    pack(storage)

    _, ref, content = some[0]

    assert Shelf(storage).load(ref, Epoch(1_000)) == content


class Interrupted(MemoryStorage):
    """Does ``then`` instead of, or before, one of its operations; half of a ``delete_all`` is done by then."""

    def __init__(self) -> None:
        super().__init__()
        self.left = -1
        self.then: Callable[[], None] = pytest.fail

    def _pass(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.then()

    def publish(self, name: str, data: bytes) -> None:
        self._pass()
        super().publish(name, data)

    def read(self, name: str) -> bytes:
        self._pass()
        return super().read(name)

    def list(self, prefix: str) -> Sequence[str]:
        self._pass()
        return super().list(prefix)

    def delete_all(self, names: Sequence[str]) -> None:
        half = len(names) // 2
        super().delete_all(names[:half])
        self._pass()
        super().delete_all(names[half:])


def no_packs(groups: Callable[..., Any]) -> Callable[..., Any]:
    return lambda files: groups(file for file in files if isinstance(file, Single))


def away() -> None:
    raise OSError(errno.EIO, "away")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Files:
    """Files for two rounds of packing packs, read one after the other."""
    monkeypatch.setattr(packs, "MANY", 3)
    monkeypatch.setattr(packing, "AT_ONCE", 1)
    return files(3 * 3 + 2)


def test_wherever_it_is_interrupted_every_file_is_found_and_the_next_round_goes_on(few: Files) -> None:
    ended = False
    for at in range(1, 100):
        storage = Interrupted()
        store(storage, few)
        storage.left, storage.then = at, away
        try:
            pack(storage)
            ended = True
        except OSError:
            pass
        storage.left = -1

        assert all_there(storage, few), at
        pack(storage)
        assert max(kinds(storage)) < 3, at
        assert all_there(storage, few), at
        if ended:
            break
    assert ended
    assert at > 20


def test_wherever_another_coordinator_packs_the_same_every_file_is_found(few: Files) -> None:
    """One that was replaced and does not know it yet."""
    for at in range(1, 30):
        storage = Interrupted()
        store(storage, few)
        storage.left, storage.then = at, lambda other=storage: pack(other)  # type: ignore[misc]

        pack(storage)

        storage.left = -1
        assert all_there(storage, few), at
        pack(storage)
        assert max(kinds(storage)) < 3, at


def test_wherever_it_is_packed_while_somebody_reads_every_file_is_found(few: Files) -> None:
    """First into packs, then into packs of packs: the reader knows the ones, and only the others are there."""
    for at in range(1, 40):
        for rounds in (1, 2):
            storage = Interrupted()
            store(storage, few)
            if rounds == 2:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(packs, "groups", no_packs(packs.groups))
                    pack(storage)
                assert kinds(storage) == (2, 3)
            storage.left, storage.then = at, lambda other=storage: pack(other)  # type: ignore[misc]

            assert all_there(storage, few), at


def test_what_cannot_be_packed_now_is_said_and_packed_later() -> None:
    storage, said = Interrupted(), list[str]()
    some = files(MANY)
    store(storage, some)
    packer = Packer(storage, said.append)
    storage.left, storage.then = 3, away

    packer.forgotten(0)
    storage.left = -1
    packer.forgotten(EPOCHS - 1)

    assert len(said) == 1
    assert "away" in said[0]
    assert kinds(storage) == (MANY, 0)
    packer.forgotten(1)
    assert kinds(storage) == (0, 1)
    assert all_there(storage, some)


def test_a_damaged_file_is_left_as_it_is_and_said_once(storage: JobStorage) -> None:
    some, said = files(MANY + 1), list[str]()
    store(storage, some)
    epoch, ref, content = some[3]
    name = provenance.name_of(ref, epoch)
    storage.delete(name)
    storage.publish(name, content.upper())
    packer = Packer(storage, said.append)

    packer.pack()
    packer.pack()

    assert len(said) == 1
    assert name in said[0]
    assert name in storage.list(paths.PROVENANCE)
    assert all_there(storage, [each for each in some if each[1] != ref])
    with pytest.raises(CorruptCheckpoint, match=name):
        Shelf(storage).load(ref, epoch)


def test_files_are_not_deleted_for_a_pack_of_them_that_is_damaged(storage: JobStorage) -> None:
    """It was made before by a round that did not come to the deletion."""
    some, said = files(MANY), list[str]()
    store(storage, some)
    made, content = packs.encode(Epoch(1), Epoch(MANY), {ref.sha256: content for _, ref, content in some})
    storage.publish(paths.provenance_name(made), content[:-1])

    Packer(storage, said.append).pack()

    assert len(said) == 1
    assert kinds(storage) == (MANY, 1)
    assert all_there(storage, some)


def test_a_pack_that_holds_all_of_the_others_stays(few: Files, storage: JobStorage) -> None:
    """What was interrupted between publishing and deleting was packed again, with others."""
    for some in (few, few[:3], few[2:4]):
        made, content = packs.encode(Epoch(1), Epoch(11), {ref.sha256: content for _, ref, content in some})
        storage.publish(paths.provenance_name(made), content)

    pack(storage)

    assert kinds(storage) == (0, 1)
    assert all_there(storage, few)


def test_after_ten_thousand_epochs_of_six_workers_there_are_a_few_hundred_files() -> None:
    storage, packer, some = MemoryStorage(), None, list[tuple[Epoch, FileRef, bytes]]()
    for epoch in range(1, 10_001):
        written = files(6, first=epoch, each=6, size=300)
        store(storage, written)
        some += written
        if packer is None or epoch % 2_500 == 0:  # a job that is started again now and then
            packer = Packer(storage, pytest.fail)
        packer.forgotten(1)

    alone, packed = kinds(storage)
    assert alone < MANY + 6 * EPOCHS
    assert packed < MANY + sum(ref.size for _, ref, _ in some) / FULL + 1
    assert len(some) == 60_000
    assert all_there(storage, some[::7])
