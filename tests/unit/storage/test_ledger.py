"""The epoch ledger: what is written is read again, whatever tears a line, and no manifest goes before its line."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from checkpoint_samples import FILE, JOB, MANIFEST
from msgspec.structs import replace

from kafka_eos.abc.committer import Committable, Spread
from kafka_eos.abc.state import StateHandle
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import EpochId, SplitId
from kafka_eos.storage import epoch_ledger as ledger
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import retention
from kafka_eos.storage import verification as verify
from kafka_eos.storage.epoch_ledger import EpochLedger, LedgerEntry, StateDigest, describe_difference, entry_of
from kafka_eos.storage.job_records import Manifest, Receipt, TermBase, TermClaim
from kafka_eos.storage.job_storage import JobStorage, LocalStorage, MemoryStorage

GOLDEN = Path(__file__).parents[2] / "golden"


def at(epoch: int, term: int = 1, **offsets: int) -> Manifest:
    """A manifest that has read the splits named to these offsets."""
    splits = {SplitId(f"in/{name[1:]}"): {"offset": offset, "topic_id": "x"} for name, offset in offsets.items()}
    committables = (Committable("kafka", {}, 5, {"totals": 2, "big": 1}), Committable("file", {}, 4, {"totals": 4}))
    return replace(MANIFEST, epoch=epoch, term=term, sources={"orders": splits}, committables=committables)


def write(storage: JobStorage, *manifests: Manifest) -> EpochLedger:
    written = EpochLedger(storage, JOB, pytest.fail)
    for manifest in manifests:
        written.write_epoch(manifest)
    return written


def expected(*manifests: Manifest) -> dict[EpochId, LedgerEntry]:
    return {manifest.id: entry_of(manifest) for manifest in manifests}


def test_an_entry_says_what_the_manifest_did() -> None:
    entry = entry_of(at(7, _0=12))

    assert (entry.id, entry.at, entry.parallelism, entry.in_flight) == (at(7).id, MANIFEST.created_at, 1, False)
    assert entry.sources == {"orders": {"in/0": {"offset": 12, "topic_id": "x"}}}
    assert (entry.outputs, entry.unattributed) == ({"totals": 6, "big": 1}, 2)
    assert [(part.first, part.last) for part in entry.states["total"]] == [(0, 127)]


TWO, FOUR = Spread("out", "murmur2", 2, 2), Spread("out", "murmur2", 4, 4)


def divided(epoch: int, totals: Spread | None, *more: Spread | None) -> Manifest:
    """An epoch with outputs of two sinks; ``totals`` are divided so by one subtask, and by others as in ``more``."""
    parts = [
        Committable("kafka", {}, 2, {"totals": 1, "big": 1}, {"big": TWO, **({} if each is None else {"totals": each})})
        for each in (totals, *more)
    ]
    return replace(at(epoch, _0=epoch), committables=tuple(parts))


@pytest.mark.parametrize(
    ("spreads", "together"),
    [
        ((TWO, TWO), TWO),
        ((TWO, FOUR), Spread("out", "murmur2", 2, 4)),
        ((FOUR, Spread("out", "murmur2", 2, 3)), Spread("out", "murmur2", 2, 4)),
        ((TWO, None), None),
        ((None, TWO), None),
        ((TWO, Spread("out", "fnv1a", 2, 2)), None),
        ((TWO, Spread("out", None, 2, 2)), None),
        ((TWO, Spread("elsewhere", "murmur2", 2, 2)), None),
    ],
)
def test_partitions_of_several_subtasks_are_known_if_those_of_each_are(
    spreads: tuple[Spread | None, ...], together: Spread | None
) -> None:
    expected = {"big": TWO} | ({} if together is None else {"totals": together})

    assert entry_of(divided(1, *spreads)).spread == expected


def test_partitions_are_written_where_they_change(storage: JobStorage) -> None:
    manifests = [
        divided(0, TWO),
        divided(1, TWO),
        at(2, _0=2),  # its committables do not tell
        divided(3, None),
        divided(4, TWO),
        divided(5, FOUR),
        replace(at(6, _0=6), committables=()),
        divided(7, FOUR),
        replace(divided(8, FOUR), sources={}),  # a line that must be full
        replace(divided(9, FOUR), sources={}),
    ]
    write(storage, *manifests)

    assert ledger.read(storage) == expected(*manifests)
    assert ["spread" in line for line in storage.lines(paths.LEDGER)] == [
        True,
        False,
        *[True] * 4,
        False,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"files": (replace(FILE, sha256="cd" * 32),)},
        {"states": ({"name": "sum", "key": {"name": "msgpack"}},)},
        {"key_groups": (0, 63)},
    ],
)
def test_another_state_has_another_digest(other: dict[str, Any]) -> None:
    handle = StateHandle("total", "rocksdb", (0, 127), (FILE,), ({"name": "sum", "key": {"name": "json"}},))
    altered = replace(MANIFEST, states=(replace(handle, **other),))

    assert entry_of(altered).states != entry_of(MANIFEST).states


def test_what_is_written_is_read_again_and_only_changes_are_written(storage: JobStorage) -> None:
    manifests = [
        at(0, _0=0, _1=0),
        at(1, _0=10, _1=0),
        at(2, _0=10, _1=0),
        at(3, _0=11, _1=7, _2=1),  # a new split
        at(4, _0=12, _2=1),  # one that is gone
    ]
    write(storage, *manifests)

    assert ledger.read(storage) == expected(*manifests)
    lines = storage.lines(paths.LEDGER)
    assert ["in/1" in line for line in lines] == [True, False, False, True, False]
    assert ["topic_id" in line for line in lines] == [True, False, False, True, True]


def test_writers_do_not_disturb_each_other(storage: JobStorage) -> None:
    one, two = EpochLedger(storage, JOB, pytest.fail), EpochLedger(storage, JOB, pytest.fail)
    manifests = [at(0, 1, _0=0), at(1, 1, _0=5), at(1, 1, _0=5), at(2, 2, _0=9), at(3, 2, _0=9)]
    for writer, manifest in zip((one, one, two, two, one), manifests, strict=True):
        writer.write_epoch(manifest)

    assert ledger.read(storage) == expected(*manifests)


@pytest.mark.limits(log_segment_bytes=8 << 20)
@pytest.mark.parametrize("cut", [0, 1, 40, -3, -1, '{"epoch":"}'])
@pytest.mark.parametrize("torn", [0, 1])
def test_a_torn_line_takes_itself_and_what_rests_on_it(tmp_path: Path, torn: int, cut: int | str) -> None:
    storage = LocalStorage(tmp_path / "job")
    manifests = at(0, _0=0), at(1, _0=10), at(2, _0=20)
    write(storage, *manifests)
    lines = list(storage.lines(paths.LEDGER))
    lines[torn] = cut if isinstance(cut, str) else lines[torn][:cut]
    (storage.root / paths.LEDGER).write_text("\n".join(lines) + "\n")
    later = at(3, 2, _0=30)
    write(storage, later)

    assert ledger.read(storage) == expected(*manifests[:torn], later)


@pytest.mark.parametrize(
    "after",
    [
        {"orders": {"in/0": {"offset": 1}, "in/1": {"offset": 2, "begin": 0}}},  # of one split a field is gone
        {"orders": {"in/1": {"offset": 1, "begin": 0}}},
        {},
        {"orders": {}, "more": {"in/0": {"offset": 1}}},
    ],
)
def test_what_no_change_can_say_is_written_whole(storage: JobStorage, after: dict[str, Any]) -> None:
    both = {"in/0": {"offset": 1, "begin": 0}, "in/1": {"offset": 1, "begin": 0}}
    before = replace(at(0), sources={"orders": both, "more": {"in/0": {"offset": 1}}})
    sources = {"more": {"in/0": {"offset": 1}}, **after} if after and "more" not in after else after
    now = replace(at(1), sources=sources)
    write(storage, before, now)

    assert ledger.read(storage) == expected(before, now)


def test_another_plan_is_written_whole(storage: JobStorage) -> None:
    """A successor with another plan writes the lines of epochs before it again."""
    old, new = at(0, p0=1), replace(at(1, p0=2), plan="f" * 64)
    write(storage, old)
    write(storage, new, old)

    assert ledger.read(storage) == expected(old, new)


@pytest.mark.parametrize(
    ("altered", "said"),
    [
        ({}, None),
        ({"states": {"total": (), "big": ()}}, "the state of total is not the one that was committed"),
        ({"states": {}}, "the state of big, total is not the one that was committed"),
        ({"sources": {}}, "its positions are not those that were committed"),
        ({"parallelism": 7}, "it was altered"),
    ],
)
def test_a_difference_is_told_in_words(altered: dict[str, Any], said: str | None) -> None:
    told = replace(entry_of(at(1, _0=1)), states={"total": (StateDigest(0, 127, "a", "b"),), "big": ()})

    assert describe_difference(told, replace(told, **altered)) == said


def test_an_altered_line_is_named(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "job")
    write(storage, at(0, _0=0), at(1, _0=10))
    path = storage.root / paths.LEDGER
    path.write_text(path.read_text().replace('"offset":10', '"offset":11'))

    with pytest.raises(CorruptCheckpoint, match=r"ledger\.jsonl: line 2 was altered"):
        ledger.read(storage)


def test_lines_that_contradict_each_other_are_named(storage: JobStorage) -> None:
    write(storage, at(0, _0=0), at(1, _0=10))
    write(storage, at(1, _0=11))

    with pytest.raises(CorruptCheckpoint, match="line 3 contradicts another one of epoch"):
        ledger.read(storage)


class Full(MemoryStorage):
    """Its disk is full now and then; it notes what is settled, and what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.settled = 0
        self.reads: list[str] = []

    def read(self, name: str) -> bytes:
        self.reads.append(name)
        return super().read(name)

    def append(self, name: str, line: str) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().append(name, line)

    def sync_log(self, name: str) -> None:
        assert name == paths.LEDGER
        self.settled = len(self.lines(name))


def test_a_line_that_cannot_be_written_is_told_and_written_before_its_manifest_goes() -> None:
    storage, told = Full(), list[str]()
    written = EpochLedger(storage, JOB, told.append)
    manifests = [at(0, _0=0), at(1, _0=10), at(2, _0=20)]
    written.write_epoch(manifests[0])
    storage.full = True
    written.write_epoch(manifests[1])
    storage.full = False
    written.write_epoch(manifests[2])

    assert len(told) == 1
    assert "ledger.jsonl cannot be written" in told[0]
    assert ledger.read(storage) == expected(manifests[0], manifests[2])
    records.publish(storage, manifests[1])
    written.make_durable([manifest.id for manifest in manifests[:2]])
    assert ledger.read(storage) == expected(*manifests)
    assert storage.reads == [manifests[1].name], "the lines of the others are there"
    assert storage.settled == len(storage.lines(paths.LEDGER)) == 3


def job(storage: JobStorage, epochs: int) -> list[Manifest]:
    """Committed epochs of one term."""
    records.publish(storage, TermClaim(job=JOB, term=1, host="h", pid=1, at=0))
    records.publish(storage, TermBase(job=JOB, term=1, resumed=None, reason="fresh", at=0))
    manifests = [replace(at(n, _0=n), states=()) for n in range(epochs)]
    for manifest in manifests:
        records.publish(storage, manifest)
        records.publish(storage, Receipt(job=JOB, epoch=manifest.epoch, term=1, created_at=0, outcomes=()))
    return manifests


def test_retention_drops_a_manifest_once_its_line_is_durable() -> None:
    storage = Full()
    manifests = job(storage, 5)
    written = write(storage, *manifests[:4])
    written.write_epoch(manifests[4])
    retention.apply_retention(storage, JOB, 2, _anybody, record=written.make_durable)

    assert [paths.parse_manifest_name(name).epoch.n for name in storage.list("manifests")] == [3, 4]
    assert storage.settled == 5
    assert ledger.read(storage) == expected(*manifests)


def test_a_successor_writes_the_lines_of_what_it_drops_again() -> None:
    storage = Full()
    manifests = job(storage, 4)
    write(storage, *manifests[:2])
    retention.apply_retention(storage, JOB, 1, _anybody, record=EpochLedger(storage, JOB, pytest.fail).make_durable)

    assert ledger.read(storage) == expected(*manifests[:3])


@pytest.mark.parametrize("fails", ["append", "sync_log"])
def test_no_manifest_goes_if_its_line_cannot_be_kept(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Full()
    job(storage, 4)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, fails, full)
    with pytest.raises(OSError, match="No space left"):
        retention.apply_retention(storage, JOB, 1, _anybody, record=EpochLedger(storage, JOB, pytest.fail).make_durable)

    assert len(storage.list("manifests")) == 4


def test_verify_names_a_checkpoint_that_is_not_the_one_that_was_committed_and_a_damaged_ledger(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "job")
    manifests = job(storage, 3)
    write(storage, *manifests)
    assert verify.verify_job(storage, JOB) == []
    storage.delete(manifests[2].name)
    records.publish(storage, replace(manifests[2], sources=manifests[1].sources))

    assert verify.verify_job(storage, JOB) == [
        verify.Problem(manifests[2].name, f"{manifests[2].name}: its positions are not those that were committed")
    ]
    path = storage.root / paths.LEDGER
    path.write_text(path.read_text().replace('"term":1', '"term":2', 1))
    assert [problem.object for problem in verify.verify_job(storage, JOB)] == [paths.LEDGER]


def test_verify_reads_each_record_once() -> None:
    storage = Full()
    write(storage, *job(storage, 3))

    assert verify.verify_job(storage, JOB) == []
    kinds = (paths.MANIFESTS, paths.RECEIPTS, paths.TERMS)
    assert sorted(storage.reads) == sorted(name for kind in kinds for name in storage.list(kind))


@pytest.mark.campaign
@pytest.mark.limits(log_segment_bytes=8 << 20)
def test_what_a_long_ledger_says_is_all_there_and_in_order(tmp_path: Path) -> None:
    """Entries are kept packed: each of ten thousand epochs comes out as it went in, twice, from both ends."""
    storage = LocalStorage(tmp_path / "job")
    manifests = [
        replace(divided(n, FOUR if n > 5000 else TWO), sources=at(n, _0=3 * n, _1=n // 7).sources)
        for n in range(10_000)
    ]
    write(storage, *manifests[5000:])
    write(storage, *manifests[:5001])
    found = ledger.read(storage)

    assert len(found) == 10_000
    assert list(found) == [manifest.id for manifest in manifests]
    assert all(entry == entry_of(manifest) for entry, manifest in zip(found.values(), manifests, strict=True))
    assert found[manifests[9_999].id] == entry_of(manifests[9_999])
    assert at(10_000).id not in found


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("job/golden-*")), ids=lambda path: path.name)
def test_the_golden_ledger_is_read(path: Path) -> None:
    storage, names = LocalStorage(path), sorted((path / paths.MANIFESTS).iterdir())
    found = ledger.read(storage)

    for name in names:
        manifest = records.load(storage, Manifest, f"{paths.MANIFESTS}/{name.name}", path.name)
        assert found[manifest.id] == entry_of(manifest)


def _anybody() -> None:
    """Nobody else claims the job."""
