"""The processes of a job that runs on this machine, for the commands that inspect them."""

from __future__ import annotations

from typing import Final

from kafka_eos._util import thread_dumps as stacks
from kafka_eos._util.thread_dumps import DumpTarget
from kafka_eos.cli.options import resolve_jobs_dir
from kafka_eos.coordination.job_lock import find_holder
from kafka_eos.core.errors import ConfigError
from kafka_eos.storage import object_names as paths

SUPERVISOR: Final = "supervisor"


def list_job_processes(job: str, checkpoint_dir: str | None) -> list[DumpTarget]:
    """List a running job's processes: the supervisor first, then the workers.

    Raises ConfigError if the job does not run here, or has no status file.
    """
    home = resolve_jobs_dir(checkpoint_dir)
    pid = find_holder(home / job / paths.LOCK)
    if pid is None:
        raise ConfigError(
            f"job {job!r} does not run on this machine with its directory in {home} (--checkpoint-dir). "
            "To see the jobs of this machine: kafka-eos list"
        )
    places = [place for each in (pid, *stacks.child_pids(pid)) if (place := stacks.find_target(each)) is not None]
    if not places:
        raise ConfigError(
            f"process {pid}, which runs job {job!r}, does not expose its stacks: it belongs to another user, or was "
            "started neither by `kafka-eos run` nor by `pipeline.run()`"
        )
    return sorted(places, key=lambda place: (place.what != SUPERVISOR, place.what))
