"""Records of a query that somebody else wrote into its checkpoint: none makes a driver commit other output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import record_signatures as signatures
from kafka_eos.structured_streaming.batch_ledger import PreparedBatch, QueryIdentity
from kafka_eos.structured_streaming.sink import _keys_outside
from tests.micro_batches import Driver, MicroBatch
from tests.transactional_broker import TransactionalBroker

Made = Callable[..., Driver]
KEY, FOREIGN = "ab" * 32, "ef" * 32


@pytest.fixture(autouse=True)
def _no_keys() -> Iterator[None]:
    yield
    signatures.use_keys(None)


def keys(directory: Path, *lines: str) -> Path:
    file = directory / "keys"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def prepared(driver: Made) -> tuple[Driver, PreparedBatch]:
    """A driver that has prepared batch 0, which is decided, and died."""
    dead = driver()
    dead.prepare(0, MicroBatch.of(b"own"))
    dead.decide(0)
    (prepared_batch,) = dead.settling.list_prepared(0)
    return dead, prepared_batch


def forge(driver: Driver, record: records.StoredRecord) -> None:
    storage = driver.settling.ledger.storage
    storage.delete(record.name)
    records.publish(storage, record)


@pytest.mark.parametrize("whole", [True, False], ids=["of another query", "of another program"])
def test_a_batch_that_names_the_transaction_of_another_query_is_not_committed(
    whole: bool, driver: Made, kafka: TransactionalBroker
) -> None:
    dead, prepared_batch = prepared(driver)
    (own,) = prepared_batch.transactions
    theirs = [
        each.replace(prepared_batch.job, "payments-0123abcd") for each in (own.transactional_id, own.marker_group)
    ]
    name, group = theirs if whole else ("payments-app-1", own.marker_group)
    other = msgspec.structs.replace(own, transactional_id=name, marker_group=group)
    forge(dead, msgspec.structs.replace(prepared_batch, transactions=(other,)))

    with pytest.raises(CorruptCheckpoint, match=f"{name.split('.')[0]}.*nother program has written to the checkpoints"):
        driver()

    assert kafka.visible == []
    assert len(kafka.open) == 1


def test_with_keys_a_query_goes_on_and_refuses_what_another_key_has_signed(
    driver: Made, kafka: TransactionalBroker, tmp_path: Path
) -> None:
    signatures.share_keys(keys(tmp_path, KEY))
    dead, prepared_batch = prepared(driver)
    for key in ([], [FOREIGN]):
        signatures.use_keys(keys(tmp_path, *key) if key else None)
        forge(dead, prepared_batch)
        signatures.use_keys(keys(tmp_path, KEY))
        with pytest.raises(CorruptCheckpoint, match="signature"):
            driver()
        assert kafka.visible == []

    forge(dead, prepared_batch)
    driver()

    assert kafka.values == [b"own"]


def test_with_keys_the_name_of_the_query_is_believed_from_its_own_driver_only(driver: Made, tmp_path: Path) -> None:
    signatures.use_keys(keys(tmp_path, KEY))
    dead = driver()
    signatures.use_keys(None)
    forge(dead, QueryIdentity(job="totals-ffffffff"))
    signatures.use_keys(keys(tmp_path, KEY))

    with pytest.raises(CorruptCheckpoint, match=rf"{paths.IDENTITY}: it has no signature"):
        driver()


def test_queries_of_one_program_have_the_same_keys_outside_of_the_checkpoint(tmp_path: Path) -> None:
    file = keys(tmp_path, KEY)
    signatures.share_keys(file)
    signatures.share_keys(file)

    with pytest.raises(ConfigError, match="same file"):
        signatures.share_keys(None)
    with pytest.raises(ConfigError, match="is in the checkpoint"):
        _keys_outside(f"file:{tmp_path}", file)
    assert _keys_outside(tmp_path / "checkpoint", file) == file
