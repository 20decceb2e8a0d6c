"""The epoch of a record, and the state before an epoch, are found in what the job has stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Epoch, EpochId, SplitId, Term
from kafka_eos.core.json_values import Json
from kafka_eos.ops.epoch_replay.stored_epochs import START, StoredEpochs
from kafka_eos.storage.epoch_ledger import LedgerEntry
from kafka_eos.storage.job_storage import MemoryStorage


def _entry(epoch: int, **ends: dict[str, Json]) -> LedgerEntry:
    positions = {"orders": {SplitId(f"{split}/0"): end for split, end in ends.items()}}
    facts = {"sources": positions, "outputs": {}, "unattributed": 0, "spread": {}, "states": {}}
    return LedgerEntry(id=EpochId(Epoch(epoch), Term(1)), at=epoch, plan="", parallelism=1, in_flight=False, **facts)  # type: ignore[arg-type]


def _epochs(*entries: LedgerEntry, stored: tuple[int, ...] = ()) -> StoredEpochs:
    manifests = {epoch: EpochId(Epoch(epoch), Term(1)) for epoch in stored}
    return StoredEpochs(MemoryStorage(), Path("orders"), {entry.id.epoch.n: entry for entry in entries}, manifests)


JOB = _epochs(
    _entry(0, orders={"offset": 5}, old={"row": 0}),
    _entry(2, orders={"offset": 5}, old={"row": 3}),
    _entry(3, orders={"offset": 8}, old={"done": True}),
    stored=(2, 3),
)


@pytest.mark.parametrize(
    ("record", "epoch"), [("orders/0/5", 3), ("orders/0/7", 3), ("orders/0/8", 4), ("old/0/2", 2), ("old/0/3", 3)]
)
def test_the_epoch_of_a_record_is_the_first_that_ended_behind_it(record: str, epoch: int) -> None:
    assert JOB.find_epoch(record) == epoch


@pytest.mark.parametrize("record", ["orders/0/4", "orders/1/7", "orders", "orders/0/x"])
def test_a_record_that_no_epoch_has_read_is_refused(record: str) -> None:
    with pytest.raises(ConfigError, match="no known epoch|topic, partition and offset"):
        JOB.find_epoch(record)


def test_an_epoch_without_a_state_before_it_is_refused_with_what_is_stored() -> None:
    later = _epochs(_entry(2, orders={"offset": 5}), _entry(3, orders={"offset": 8}), stored=(2, 3))
    with pytest.raises(ConfigError, match=r"those of epochs 2 to 3, so epochs from 3 on .*--from SAVEPOINT"):
        later.find_start("orders", 2, None)
    with pytest.raises(ConfigError, match=r"epoch 7 is unknown: .* epochs 0, 2 to 3, and 4 is the one"):
        JOB.find_start("orders", 7, None)
    with pytest.raises(ConfigError, match="epoch 0 only records where"):
        JOB.find_start("orders", 0, START)
    with pytest.raises(ConfigError, match="records begin with epoch 2"):
        _epochs(_entry(2, orders={"offset": 5})).find_start("orders", 2, START)


def test_the_whole_job_begins_without_state() -> None:
    start = JOB.find_start("orders", 3, START)

    assert JOB.find_start("orders", 2, None).epoch == 0, "no state before epoch 2 is stored"
    assert (start.epoch, start.operators(), start.sources["orders"]) == (
        0, [], {"orders/0": {"offset": 5}, "old/0": {"row": 0}},
    )  # fmt: skip
    assert [entry.id.epoch.n for entry in JOB.list_between(start.epoch, 3)] == [2, 3]
