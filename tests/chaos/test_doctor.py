"""``kafka-eos doctor`` looks at a real broker, a real store and this machine."""

from __future__ import annotations

from collections.abc import Callable

from tests.chaos.harness import Job
from tests.chaos.test_savepoints import kafka_eos

NewJob = Callable[..., Job]


def test_what_a_job_needs_is_checked_and_what_lacks_has_a_remedy(new_job: NewJob) -> None:
    job = new_job(20)
    before = kafka_eos(job, "doctor", str(job.app))
    job.run()
    code, shown, _ = kafka_eos(job, "doctor", str(job.app))

    assert "so it was not tested" in before[1]
    assert (code, shown.splitlines()[0]) == (0, "no open output")
    table = [[cell.strip() for cell in line.split("│")[1:]] for line in shown.splitlines() if line.count("│") > 3]
    rows = {cells[0]: cells[1:] for cells in table}
    assert rows["clock"][0] == "ok", "one machine has one clock"
    assert "never overwrites, lists new objects at once" in rows["checkpoint store"][1]
    assert rows["disk of checkpoint_dir"][0] == rows["open files"][0] == "ok"
    assert "has one replica" in shown

    job.environment["KAFKA_EOS_STATE_MEMORY"] = "9000GB"
    code, shown, _ = kafka_eos(job, "doctor", str(job.app))
    assert code == 1
    assert "lower state_memory, kafka_memory or parallelism" in shown
    assert kafka_eos(job, "doctor", str(job.app), "--no-checks")[:2] == (0, "no open output\n")
