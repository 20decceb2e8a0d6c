"""What a checkpoint holds and the pipeline has no use for any more: refused, or dropped with leave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_eos import Pipeline
from kafka_eos.abc.state import InFlightRows
from kafka_eos.codecs import exchange_codec
from kafka_eos.coordination import job_history as history
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.core.errors import ConfigError, Fenced
from kafka_eos.runtime.epoch_reports import EpochContents
from kafka_eos.runtime.exchange import in_flight_rows as in_flight
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.storage.upload_batch import UploadBatch
from kafka_eos.testing import ListSource, MemorySink

Make = Callable[..., Coordinator]


def total(source: str = "numbers", exchange: str = "by-key", *, local: bool = False) -> Pipeline:
    pipeline = Pipeline("orders")
    keyed = pipeline.source(ListSource([1, 2, 3]), name=source).key_by(str, name=exchange, local=local)
    keyed.fold(name="total", init=int, step=lambda acc, n: acc + n).sink(MemorySink(), name="sums")
    return pipeline


@pytest.fixture
def under_way(storage: LocalStorage, coordinator: Make, tmp_path: Path) -> InFlightRows:
    """Rows on their way through "by-key" in the newest checkpoint of the job, which is committed."""
    running = coordinator(total())
    resumed = running.recovery.restore()
    log = in_flight.InFlightLog(tmp_path / "frames")
    log.add(b"frame")
    batch = UploadBatch(storage)
    get_rows = log.add_to(batch, "by-key", exchange_codec(int), False)
    batch.store()
    kept = get_rows()
    running.epochs.commit(
        running.epochs.decide(running.ownership.next_epoch(), EpochContents(resumed.positions, (), (), (kept,)))
    )
    return kept


def dropped(storage: LocalStorage) -> list[object]:
    return [event["names"] for event in history.read_events(storage) if event["event"] == "dropped"]


def test_rows_under_way_are_handed_on(coordinator: Make, under_way: InFlightRows) -> None:
    assert coordinator(total()).recovery.restore().in_flight == (under_way,)


@pytest.mark.parametrize("changed", [total(exchange="other"), total(local=True)])
def test_rows_under_way_to_an_exchange_that_is_gone_need_leave(
    storage: LocalStorage, coordinator: Make, under_way: InFlightRows, changed: Pipeline
) -> None:
    with pytest.raises(ConfigError, match=r"epoch .* contains state of 'by-key'.*exchange.*--allow-dropped-state"):
        coordinator(changed).recovery.restore()
    assert dropped(storage) == []
    assert coordinator(total()).recovery.restore().in_flight == (under_way,)

    assert coordinator(changed, allow_dropped_state=True).recovery.restore().in_flight == ()
    assert dropped(storage) == [["by-key"]]


def test_a_source_that_gets_its_old_name_back_goes_on(coordinator: Make) -> None:
    """The refused start has left nothing behind that would be refused in turn."""
    coordinator(total()).recovery.restore()
    with pytest.raises(ConfigError, match="contains state of 'numbers'"):
        coordinator(total(source="figures")).recovery.restore()

    assert list(coordinator(total()).recovery.restore().positions) == ["numbers"]


def test_a_supervisor_that_was_replaced_does_not_replace_its_successor_to_clean_up(coordinator: Make) -> None:
    """It was paused after it had found that it owns the job, and before it aborts what it has open."""
    pipeline = total()
    failed, successor = coordinator(pipeline), coordinator(pipeline)
    failed.recovery.restore()
    failed.ownership.ensure_owner()
    successor.recovery.restore()

    with pytest.raises(Fenced, match="another supervisor took over"):
        coordinator(pipeline).abort_open_output(failed.ownership.term)

    successor.ownership.ensure_owner()


def test_a_supervisor_that_fails_cleans_up_under_the_next_term(coordinator: Make) -> None:
    failed, later = coordinator(total()), coordinator(total())
    failed.recovery.restore()

    later.abort_open_output(failed.ownership.term)

    assert later.ownership.term == failed.ownership.term.next()
