"""Three workers, an exchange between source and state, and a death at every named step: nothing lost or doubled.

`make test` runs a storm of what one worker alone does not meet; `make chaos` gives every fault a job of its own, twice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.harness import Job
from tests.chaos.offline import check_checkpoints
from tests.chaos.running import check_all
from tests.chaos.storm import Storm
from tests.chaos.test_failpoints import plans
from tests.marks import campaign

NewJob = Callable[..., Job]

WORKERS = 3
PAYMENTS = 300
MODES = ("aligned", "unaligned")
CAPTURE = (
    "source.capture.after=kill@3",
    "snapshot.linked=kill@4",
    "snapshot.uploaded=kill@2",
    "sink.prepare.after=kill@3",
    "worker.ack.before=kill@2",
    "recovery.restored=kill",
)
DECISION = (
    "align.complete=kill@5",
    "coordinator.ack=kill@5",
    "coordinator.acked=kill@2",
    "recovery.aborted=kill",
    "manifest.published=kill@2",
    "commit.between=kill@2",
    "recovery.opened=kill",
)


def make(new_job: NewJob, mode: str, **environment: object) -> Job:
    return new_job(PAYMENTS, KAFKA_EOS_PARALLELISM=WORKERS, KAFKA_EOS_CHECKPOINT_MODE=mode, **environment)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("faults", "mode"),
    [
        campaign(CAPTURE, "unaligned", named="capture-unaligned"),
        campaign(DECISION, "aligned", named="decision-aligned"),
        campaign(CAPTURE, "aligned", named="capture-aligned"),
        campaign(DECISION, "unaligned", named="decision-unaligned"),
    ],
)
def test_a_storm_loses_and_doubles_nothing(new_job: NewJob, faults: tuple[str, ...], mode: str) -> None:
    job = make(new_job, mode, TEST_PAUSE=0.001)

    with Storm(job, PAYMENTS).through(*faults):
        pass

    job.run()
    check_all(job)


ALIGNMENT = {f"barrier-{k}": f"align.barrier=kill@{k};recovery.opened=kill" for k in range(1, WORKERS + 2)}
"""The first barrier, the next ones, and the first of the epoch after."""
UNDER_WAY = {
    "logged": "in-flight.logged=kill@2;recovery.restored=kill",
    "stored": "in-flight.stored=kill@3;in-flight.logged=kill",
    "replayed": "in-flight.decided=kill;in-flight.replayed=kill",
    "replayed-again": "in-flight.decided=kill;in-flight.replayed=kill;in-flight.replayed=kill",
}
ALL = "align.barrier=kill@2;in-flight.logged=kill@2;in-flight.stored=kill@3;" + UNDER_WAY["replayed-again"]
CELLS = [
    *((mode, name, faults) for mode in MODES for name, faults in (*plans(), *ALIGNMENT.items())),
    *(("unaligned", name, faults) for name, faults in UNDER_WAY.items()),
]


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("mode", "faults"),
    [
        pytest.param("unaligned", ALL, id="all-unaligned"),
        *(campaign(mode, faults, named=f"{name}-{mode}") for mode, name, faults in CELLS),
    ],
)
def test_every_fault_alone_and_again_while_recovering(new_job: NewJob, tmp_path: Path, mode: str, faults: str) -> None:
    job = make(new_job, mode, TEST_PAUSE=0.001, TEST_PAUSE_AFTER=0.001, KAFKA_EOS_RETAINED_CHECKPOINTS=6)

    with Storm(job, PAYMENTS).through(*faults.split(";")):
        pass

    check_checkpoints(job, tmp_path)
    job.run()
    check_all(job)
