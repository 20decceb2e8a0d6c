"""A checkpoint store that is away: what is waited for, what is not, and what is never taken for a new job."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier, RetryInterrupted
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.ownership import call_store
from kafka_eos.core.errors import ConfigError, Fenced, Retryable
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.testing import ListSource, MemorySink

Make = Callable[..., Coordinator]


def orders() -> Pipeline:
    pipeline = Pipeline("orders")
    pipeline.source(ListSource([1]), name="numbers").sink(MemorySink(), name="out")
    return pipeline


def _raising(number: int) -> Callable[[], None]:
    def call() -> None:
        raise OSError(number, "as the store says")

    return call


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT, errno.ESTALE, errno.ETIMEDOUT, errno.ENOSPC])
def test_an_outage_may_be_asked_again(number: int) -> None:
    with pytest.raises(Retryable, match="does not respond.*as the store says"):
        call_store(_raising(number))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_rights_are_for_a_person(number: int) -> None:
    with pytest.raises(ConfigError, match="permissions"):
        call_store(_raising(number))


def _away(root: Path) -> None:
    root.rename(root.with_name("away"))


def _not_mounted(root: Path) -> None:
    """The mount point is there, and somebody has made the job's directories in it."""
    _away(root)
    LocalStorage(root)


def _a_file(root: Path) -> None:
    _away(root)
    root.write_text("")


@pytest.mark.parametrize("outage", [_away, _not_mounted, _a_file])
@pytest.mark.parametrize("claimed", [True, False], ids=["after-its-claim", "before-its-claim"])
def test_a_store_that_is_away_is_asked_until_it_is_back(
    storage: LocalStorage, coordinator: Make, outage: Callable[[Path], None], claimed: bool
) -> None:
    """Also by an attempt that has no term yet: an empty directory must not be taken for a job that never was."""
    first = coordinator(orders())
    first.recovery.restore()
    asking = first if claimed else coordinator(orders())
    outage(storage.root)
    heard: list[str] = []

    def back_at_the_third(text: str) -> None:
        heard.append(text)
        if len(heard) == 3:
            if storage.root.is_dir():
                shutil.rmtree(storage.root)
            else:
                storage.root.unlink(missing_ok=True)
            storage.root.with_name("away").rename(storage.root)

    asking.ownership.wait_for_answer(
        Retrier(threading.Event(), back_at_the_third), first.ownership.term, OSError("why")
    )

    assert len(heard) == 3
    assert all("the checkpoint store does not respond" in text and "why" in text for text in heard)


def test_the_wait_ends_when_the_job_is_told_to_stop(storage: LocalStorage, coordinator: Make) -> None:
    asking = coordinator(orders())
    asking.recovery.restore()
    _away(storage.root)
    patience = Retrier(threading.Event(), print)
    patience.interrupt()

    with pytest.raises(RetryInterrupted, match="checkpoint store"):
        asking.ownership.wait_for_answer(patience, asking.ownership.term, OSError("why"))


def test_who_was_replaced_during_the_outage_is_fenced(storage: LocalStorage, coordinator: Make) -> None:
    asking = coordinator(orders())
    asking.recovery.restore()
    coordinator(orders()).recovery.restore()

    with pytest.raises(Fenced):
        asking.ownership.wait_for_answer(Retrier(threading.Event(), print), asking.ownership.term, OSError("why"))
