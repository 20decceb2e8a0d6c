"""Files of provenance are packed while others read them, and whoever is interrupted: none is ever out of reach."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.abc.committer import UnstoredCommittable
from kafka_eos.abc.storage import FileRef
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch
from kafka_eos.core.limits import LIMITS
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import provenance_compaction as packing
from kafka_eos.storage import provenance_files as provenance
from kafka_eos.storage import provenance_packs as packs
from kafka_eos.storage.job_storage import JobStorage, LocalStorage, MemoryStorage
from kafka_eos.storage.object_names import ProvenanceFile, ProvenancePack
from kafka_eos.storage.provenance_compaction import ProvenancePacker
from kafka_eos.storage.provenance_files import ProvenanceReader

pytestmark = pytest.mark.limits("usual")

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
        provenance.store_provenance(storage, epoch, UnstoredCommittable("kafka", {}, 1, {}, {}, ref, content))


def all_there(storage: JobStorage, some: Files) -> bool:
    shelf = ProvenanceReader(storage)
    return all(shelf.load(ref, epoch) == content for epoch, ref, content in some)


def kinds(storage: JobStorage) -> tuple[int, int]:
    """How many files stand alone, and how many packs there are."""
    found = provenance.list_provenance(storage)
    return sum(not isinstance(file, ProvenancePack) for file in found), sum(
        isinstance(file, ProvenancePack) for file in found
    )


def pack(storage: JobStorage) -> None:
    ProvenancePacker(storage, pytest.fail).pack()


def test_many_files_become_few_and_every_one_is_found(storage: JobStorage) -> None:
    some = files(3 * LIMITS.files_per_pack + 5, each=2)
    store(storage, some)

    pack(storage)

    assert kinds(storage) == (5, 3)
    assert all_there(storage, some)
    assert all_there(storage, some[::-1])
    pack(storage)
    assert kinds(storage) == (5, 3)


@pytest.mark.limits(files_per_pack=4)
def test_many_packs_become_one(storage: JobStorage) -> None:
    some = files(4 * 4 * 4 + 4 + 1)
    store(storage, some)

    for _ in range(3):
        pack(storage)

    assert kinds(storage) == (1, 2)
    assert all_there(storage, some)


def test_what_is_large_stays_as_it_is(storage: JobStorage) -> None:
    large, small = files(2, size=LIMITS.pack_bytes), files(3, first=5, size=LIMITS.pack_bytes // 2)
    store(storage, [*large, *small])

    pack(storage)

    assert kinds(storage) == (3, 1)
    assert all_there(storage, [*large, *small])


def test_a_file_that_a_later_epoch_has_committed_is_found(storage: JobStorage) -> None:
    some = files(LIMITS.files_per_pack)
    store(storage, some)
    pack(storage)

    _, ref, content = some[0]

    assert ProvenanceReader(storage).load(ref, Epoch(1_000)) == content


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
    return lambda files: groups(file for file in files if isinstance(file, ProvenanceFile))


def away() -> None:
    raise OSError(errno.EIO, "away")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Files:
    """Files for two rounds of packing packs, read one after the other."""
    monkeypatch.setattr(packing, "MAX_CONCURRENT", 1)
    return files(3 * 3 + 2)


@pytest.mark.limits(files_per_pack=3)
def test_wherever_it_is_interrupted_every_file_is_found_and_the_next_round_goes_on(few: Files) -> None:
    ended = False
    for at in range(1, 100):
        storage, said = Interrupted(), list[str]()
        store(storage, few)
        storage.left, storage.then = at, away
        with suppress(OSError):
            ProvenancePacker(storage, said.append).pack()
        ended = storage.left > 0
        storage.left = -1

        assert all_there(storage, few), at
        pack(storage)
        assert max(kinds(storage)) < 3, at
        assert all_there(storage, few), at
        if ended:
            break
    assert ended
    assert at > 20


@pytest.mark.limits(files_per_pack=3)
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


@pytest.mark.limits(files_per_pack=3)
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
    some = files(LIMITS.files_per_pack)
    store(storage, some)
    packer = ProvenancePacker(storage, said.append)
    storage.left, storage.then = 1 + LIMITS.files_per_pack + 1, away  # where the pack is published

    packer.on_epochs_dropped(0)
    storage.left = -1
    packer.on_epochs_dropped(LIMITS.epochs_per_packing - 1)

    assert len(said) == 1
    assert "away" in said[0]
    assert kinds(storage) == (LIMITS.files_per_pack, 0)
    packer.on_epochs_dropped(1)
    assert kinds(storage) == (0, 1)
    assert all_there(storage, some)


class Unreadable(MemoryStorage):
    """Some of its objects cannot be read, as on a disk with bad blocks; counts those that are."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: frozenset[str] = frozenset()
        self.reads = list[str]()

    def read(self, name: str) -> bytes:
        self.reads.append(name)
        if name in self.bad:
            raise OSError(errno.EIO, "bad blocks", name)
        return super().read(name)


def test_a_file_that_cannot_be_read_keeps_no_other_from_being_packed_and_is_packed_when_it_can_be() -> None:
    storage, said, some = Unreadable(), list[str](), files(3 * LIMITS.files_per_pack)
    store(storage, some)
    packer = ProvenancePacker(storage, said.append)
    bad = provenance.provenance_name_of(some[0][1], some[0][0])
    storage.bad = frozenset([bad])

    packer.on_epochs_dropped(0)
    packer.on_epochs_dropped(LIMITS.epochs_per_packing)

    assert kinds(storage) == (1, 3)
    assert len(said) == 1, "it is said once"
    assert bad in said[0]
    assert "bad blocks" in said[0]
    storage.bad = frozenset()
    store(storage, more := files(LIMITS.files_per_pack, first=1_000))
    packer.on_epochs_dropped(LIMITS.epochs_per_packing)
    assert kinds(storage) == (1, 4)
    assert bad not in storage.list(paths.PROVENANCE)
    assert all_there(storage, [*some, *more])


@pytest.mark.limits(files_per_pack=4)
def test_as_many_as_make_a_pack_may_be_unreadable_and_others_are_packed() -> None:
    """The oldest are tried first, once, and from then on last: after the packs that are packed again, too."""
    storage, said, some = Unreadable(), list[str](), files(5 * 4)
    store(storage, some)
    storage.bad = frozenset(provenance.provenance_name_of(ref, epoch) for epoch, ref, _ in some[:4])
    packer = ProvenancePacker(storage, said.append)

    packer.on_epochs_dropped(0)
    first = kinds(storage), len(storage.reads)
    packer.on_epochs_dropped(LIMITS.epochs_per_packing)

    assert first == ((5 * 4, 0), 4), "a store that answers nothing is not asked for all that it has"
    assert kinds(storage) == (4, 1)
    assert len(said) == 1
    assert "and 3 more" in said[0]


@pytest.mark.limits(files_per_pack=4)
def test_a_file_that_cannot_be_deleted_keeps_no_other_from_being_packed() -> None:
    class Undeletable(MemoryStorage):
        def delete_all(self, names: Sequence[str]) -> None:
            if provenance.provenance_name_of(some[0][1], some[0][0]) in names:
                raise PermissionError(errno.EPERM, "immutable")
            super().delete_all(names)

    storage, said, some = Undeletable(), list[str](), files(5 * 4)
    store(storage, some)
    packer = ProvenancePacker(storage, said.append)

    for _ in range(4):
        packer.on_epochs_dropped(LIMITS.epochs_per_packing)

    alone, packed = kinds(storage)
    assert alone == 4
    assert packed < 4
    assert all("immutable" in each for each in said)
    assert all_there(storage, some)


@pytest.mark.limits(files_per_pack=4)
def test_what_fails_each_time_keeps_nothing_waiting_that_failed_once() -> None:
    class Immutable(MemoryStorage):
        def __init__(self) -> None:
            super().__init__()
            self.stuck = frozenset[str]()

        def delete_all(self, names: Sequence[str]) -> None:
            if not self.stuck.isdisjoint(names):
                raise PermissionError(errno.EPERM, "immutable")
            super().delete_all(names)

    storage, said, some = Immutable(), list[str](), files(3 * 4)
    store(storage, some)
    oldest_of_a_group = [provenance.provenance_name_of(ref, epoch) for epoch, ref, _ in some[::4]]
    storage.stuck = frozenset(oldest_of_a_group)
    packer = ProvenancePacker(storage, said.append)
    for _ in range(3):
        packer.on_epochs_dropped(LIMITS.epochs_per_packing)
    assert kinds(storage)[0] == 3 * 4
    storage.stuck = frozenset(oldest_of_a_group[:1])

    for _ in range(3):
        packer.on_epochs_dropped(LIMITS.epochs_per_packing)

    assert kinds(storage)[0] == 4, "only what goes with the one that still cannot be deleted"
    assert all_there(storage, some)


@pytest.mark.limits(files_per_pack=4)
def test_one_look_packs_no_more_than_its_share_and_the_next_call_goes_on() -> None:
    """No epoch begins before a look is done, and there may be a backlog of days."""
    storage, some = Unreadable(), files(3 * 4 * LIMITS.packs_per_round)
    store(storage, some)
    packer = ProvenancePacker(storage, pytest.fail)
    at_once = list[int]()

    for _ in range(4):
        before = len(storage.reads)
        packer.on_epochs_dropped(1)
        at_once.append(len(storage.reads) - before)

    assert at_once[:3] == [4 * LIMITS.packs_per_round] * 3
    assert kinds(storage)[0] == 0
    assert all(reads <= 4 * LIMITS.packs_per_round for reads in at_once)
    assert all_there(storage, some)


def test_what_is_not_of_this_package_is_said_once_and_left_as_it_is(storage: JobStorage) -> None:
    some, said = files(LIMITS.files_per_pack), list[str]()
    store(storage, some)
    made, content = packs.encode(Epoch(1), Epoch(1), {})
    stray = f"{paths.provenance_name(made)}.bak"
    storage.publish(stray, content)
    packer = ProvenancePacker(storage, said.append)

    packer.on_epochs_dropped(0)
    packer.on_epochs_dropped(LIMITS.epochs_per_packing)

    assert kinds(storage) == (0, 1)
    assert len(said) == 1
    assert stray in said[0]
    assert stray in storage.list(paths.PROVENANCE)
    assert all_there(storage, some)


def test_hidden_files_of_the_file_system_are_passed_over(tmp_path: Path) -> None:
    storage, some = LocalStorage(tmp_path / "job"), files(LIMITS.files_per_pack)
    store(storage, some)
    hidden = tmp_path / "job" / paths.PROVENANCE / ".nfs000000000000a1b200000001"
    hidden.write_bytes(b"deleted while somebody reads it")

    pack(storage)

    assert hidden.exists()
    assert kinds(storage) == (0, 1)


def test_who_misses_a_file_that_was_packed_reads_no_pack_that_cannot_hold_it() -> None:
    storage, some = Unreadable(), files(5 * LIMITS.files_per_pack + LIMITS.files_per_pack // 2)
    store(storage, some)
    pack(storage)
    shelf, (epoch, ref, content) = ProvenanceReader(storage), some[-1]
    assert shelf.load(ref, epoch) == content
    store(storage, files(LIMITS.files_per_pack // 2, first=1_000))
    pack(storage)
    storage.reads.clear()

    assert shelf.load(ref, epoch) == content

    (gone, into) = storage.reads
    assert gone == provenance.provenance_name_of(ref, epoch)
    assert into == max(name for name in storage.list(paths.PROVENANCE) if "pack" in name)


def test_who_misses_a_pack_that_is_listed_still_finds_the_file_in_another() -> None:
    """One who was replaced published it again, and another deletes it again."""

    class Gone(MemoryStorage):
        def read(self, name: str) -> bytes:
            if name == missed:
                raise FileNotFoundError(errno.ENOENT, "no such object", name)
            return super().read(name)

    storage, missed, ((epoch, ref, content), other) = Gone(), "", files(2)
    for last, held in ((1, [(epoch, ref, content)]), (9, [(epoch, ref, content), other])):
        made, stored = packs.encode(Epoch(1), Epoch(last), {ref.sha256: content for _, ref, content in held})
        storage.publish(paths.provenance_name(made), stored)
        missed = missed or paths.provenance_name(made)

    assert ProvenanceReader(storage).load(ref, epoch) == content


def test_a_damaged_file_is_left_as_it_is_and_said_once(storage: JobStorage) -> None:
    some, said = files(LIMITS.files_per_pack + 1), list[str]()
    store(storage, some)
    epoch, ref, content = some[3]
    name = provenance.provenance_name_of(ref, epoch)
    storage.delete(name)
    storage.publish(name, content.upper())
    packer = ProvenancePacker(storage, said.append)

    packer.pack()
    packer.pack()

    assert len(said) == 1
    assert name in said[0]
    assert name in storage.list(paths.PROVENANCE)
    assert all_there(storage, [each for each in some if each[1] != ref])
    with pytest.raises(CorruptCheckpoint, match=name):
        ProvenanceReader(storage).load(ref, epoch)


def test_files_are_not_deleted_for_a_pack_of_them_that_is_damaged(storage: JobStorage) -> None:
    """It was made before by a round that did not come to the deletion."""
    some, said = files(LIMITS.files_per_pack), list[str]()
    store(storage, some)
    made, content = packs.encode(
        Epoch(1), Epoch(LIMITS.files_per_pack), {ref.sha256: content for _, ref, content in some}
    )
    storage.publish(paths.provenance_name(made), content[:-1])

    ProvenancePacker(storage, said.append).pack()

    assert len(said) == 1
    assert kinds(storage) == (LIMITS.files_per_pack, 1)
    assert all_there(storage, some)


@pytest.mark.limits(files_per_pack=3)
def test_a_pack_that_holds_all_of_the_others_stays(few: Files, storage: JobStorage) -> None:
    """What was interrupted between publishing and deleting was packed again, with others."""
    for some in (few, few[:3], few[2:4]):
        made, content = packs.encode(Epoch(1), Epoch(11), {ref.sha256: content for _, ref, content in some})
        storage.publish(paths.provenance_name(made), content)

    pack(storage)

    assert kinds(storage) == (0, 1)
    assert all_there(storage, few)


@pytest.mark.campaign
def test_after_thousands_of_epochs_of_six_workers_there_are_a_few_hundred_files() -> None:
    storage, packer, some = MemoryStorage(), None, list[tuple[Epoch, FileRef, bytes]]()
    for epoch in range(1, 2_501):
        written = files(6, first=epoch, each=6, size=300)
        store(storage, written)
        some += written
        if packer is None or epoch % 600 == 0:  # a job that is started again now and then
            packer = ProvenancePacker(storage, pytest.fail)
        packer.on_epochs_dropped(1)

    alone, packed = kinds(storage)
    assert alone < LIMITS.files_per_pack + 6 * LIMITS.epochs_per_packing
    assert packed < LIMITS.files_per_pack + sum(ref.size for _, ref, _ in some) / LIMITS.pack_bytes + 1
    assert len(some) == 15_000
    assert all_there(storage, some[::7])
