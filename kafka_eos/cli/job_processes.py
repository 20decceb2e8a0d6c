"""The processes of a job that runs on this machine, for commands that look into them."""

from __future__ import annotations

from typing import Final

from kafka_eos._util import thread_dumps as stacks
from kafka_eos._util.thread_dumps import Place
from kafka_eos.cli.options import home_of_jobs
from kafka_eos.coordination.job_lock import holder
from kafka_eos.core.errors import ConfigError
from kafka_eos.storage import object_names as paths

SUPERVISOR: Final = "supervisor"


def processes_of(job: str, checkpoint_dir: str | None) -> list[Place]:
    """The supervisor first, then the workers. ConfigError if the job does not run here, or tells nothing of itself."""
    home = home_of_jobs(checkpoint_dir)
    pid = holder(home / job / paths.LOCK)
    if pid is None:
        raise ConfigError(
            f"job {job!r} does not run on this machine with its directory in {home} (--checkpoint-dir). "
            "What runs here: kafka-eos list"
        )
    places = [place for each in (pid, *stacks.children(pid)) if (place := stacks.place_of(each)) is not None]
    if not places:
        raise ConfigError(
            f"process {pid}, which runs job {job!r}, does not tell where it stands: it is of another user, or runs the "
            "job without `kafka-eos run` and `pipeline.run()`"
        )
    return sorted(places, key=lambda place: (place.what != SUPERVISOR, place.what))
