"""What a job's events come to: counters that never fall, gauges that forget, and whether it is ready."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kafka_eos.coordination.dependencies import Outage
from kafka_eos.core.records import MIN_EVENT_TIME
from kafka_eos.monitoring.metrics.catalogue import METRICS
from kafka_eos.monitoring.metrics.job_observer import MetricsObserver


class Job:
    """A job whose clock is in the test's hands."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.observed = MetricsObserver("orders", "1.0", lambda: self.now, lambda: self.now)

    def tells(self, event: str, **facts: object) -> None:
        self.observed(event, facts)

    def runs(self, term: int = 1, base: int = 0, **more: object) -> None:
        self.tells("running", term=term, base=base, parallelism=2, **more)

    def reads(self, records: int, lags: Mapping[str, int | None] | None = None, **more: object) -> None:
        splits = {split: {"position": {"offset": records}, "lag": lag} for split, lag in (lags or {}).items()}
        read = {"in": {"records": records, "splits": splits}}
        self.tells("progress", **{"records_in": records, "lag": 7, "read": read, "written": {"out": records}, **more})

    def decides(self, epoch: int, records: int = 0, **more: Any) -> None:
        facts = {"epoch": epoch, "seconds": 0.2, "state_bytes_by_operator": {}, "committables": 3, **more}
        self.tells("decided", **facts, records_by_sink={"out": records})

    def commits(self, epoch: int, records: int = 0, expires_in: float | None = None) -> None:
        by_sink = {"out": records}
        self.tells("committed", epoch=epoch, seconds=0.3, records_by_sink=by_sink, expires_in=expires_in)

    def value(self, name: str, *labels: str) -> float | None:
        with self.observed.samples() as samples:
            return samples.value(name, *labels)


@pytest.fixture
def job() -> Job:
    return Job()


def test_counters_of_sessions_are_summed_up(job: Job) -> None:
    job.runs()
    job.reads(10, user_counters={"op": {"big": 1}})
    job.reads(25, user_counters={"op": {"big": 3, "small": 2}})
    job.runs(term=2)
    job.reads(5, user_counters={"op": {"big": 1}})

    assert job.value("read_records", "in") == 30
    assert (job.value("user_counter", "op", "big"), job.value("user_counter", "op", "small")) == (4, 2)
    assert job.value("written_records", "out") == 30


def test_a_partition_that_is_not_read_any_more_is_gone(job: Job) -> None:
    job.reads(1, {"a-0": 5, "a-1": None})
    job.reads(2, {"a-1": 3})

    assert job.value("split_lag_records", "in", "a-0") is None
    assert job.value("split_lag_records", "in", "a-1") == 3
    assert job.value("read_position", "in", "a-1") == 2


def test_a_lag_that_nobody_knows_is_not_shown_as_none(job: Job) -> None:
    job.reads(1)
    assert job.value("lag_records") == 7
    job.reads(1, lag=None)
    assert job.value("lag_records") is None


def test_a_source_that_waits_for_a_table_is_one_until_that_is_whole(job: Job) -> None:
    job.tells("tables", waiting={"orders": ["rates"], "clicks": []})
    assert [job.value("source_waiting", source) for source in ("orders", "clicks")] == [1, 0]
    job.tells("tables", waiting={"orders": [], "clicks": []})
    assert job.value("source_waiting", "orders") == 0


def test_who_waits_is_one_and_who_does_not_is_zero(job: Job) -> None:
    job.reads(1, {"a-0": 5, "a-1": None})
    assert job.value("split_paused", "in", "a-0") is None

    job.reads(1, {"a-0": 5, "a-1": None}, waiting={"default": {"slowest": None, "waiting": {"in": ["a-1"]}}})

    assert [job.value("split_paused", "in", split) for split in ("a-0", "a-1")] == [0, 1]


def test_splits_that_are_over_have_no_watermark(job: Job) -> None:
    for epoch in (1, 2):
        job.decides(epoch, watermarks={"times": {f"file-{epoch}": 5000, f"none-{epoch}": MIN_EVENT_TIME}})

    with job.observed.samples() as samples:
        values = {metric.name: found for metric, found in samples.values()}
    assert values["watermark_timestamp_seconds"] == {("times", "file-2"): 5.0}


def test_commits_are_counted_each_once(job: Job) -> None:
    job.runs()
    for epoch in (1, 2):
        job.tells("triggered", epoch=epoch)
        job.decides(epoch)
        assert job.value("pending_committables") == 3
        job.commits(epoch, records=100, expires_in=50.0)

    assert job.value("committed_records", "out") == 200
    assert job.value("checkpoints", "committed") == 2
    assert job.value("last_checkpoint_epoch") == 2
    assert job.value("transaction_margin_seconds") == 50
    assert job.value("pending_committables") == 0
    with job.observed.samples() as samples:
        phases = {labels: found for _, by in samples.distributions() for labels, found in by.items()}
    assert {labels: sum(found.counts) for labels, found in phases.items()} == dict.fromkeys(
        [("decide",), ("total",), ("commit",)], 2
    )
    assert phases["commit",].sum == pytest.approx(0.2)


@pytest.mark.parametrize(("base", "committed"), [(5, 100), (4, None)])
def test_what_recovery_commits_is_counted_and_what_it_revokes_is_not(
    job: Job, base: int, committed: float | None
) -> None:
    job.runs()
    job.decides(5, records=100)
    job.tells("restarting", what="worker ended", reason="killed", in_a_row=1)
    job.runs(term=2, base=base)
    job.runs(term=3, base=base)

    assert job.value("committed_records", "out") == committed


def test_what_is_open_is_as_old_as_the_barrier_before_it(job: Job) -> None:
    job.runs()
    job.now += 10
    assert job.value("open_transaction_age_seconds") == 10
    job.tells("triggered", epoch=1)
    job.now += 1
    job.commits(1)
    assert job.value("open_transaction_age_seconds") == 1


def test_a_restart_does_not_make_a_late_checkpoint_young(job: Job) -> None:
    """A job that dies in each epoch anew is not ready, however short each attempt is."""
    job.runs()
    for term in (2, 3, 4):
        job.tells("triggered", epoch=1)
        job.now += 20
        job.tells("restarting", what="worker ended", reason="killed", in_a_row=term)
        assert not job.observed.readiness(60).ready
        job.runs(term=term)

    assert job.value("restarts", "worker") == 3
    assert job.observed.readiness(60).ready
    job.tells("triggered", epoch=1)
    job.now += 1
    assert not job.observed.readiness(60).ready
    job.commits(1)
    assert job.observed.readiness(60).ready


def test_a_restarted_job_is_ready_until_its_next_checkpoint_is_due(job: Job) -> None:
    """However long the interval is: the epoch that died with its attempt is nobody's fault meanwhile."""
    job.runs()
    job.tells("triggered", epoch=7)
    job.now += 1
    job.tells("restarting", what="worker ended", reason="killed", in_a_row=1)
    job.now += 9
    job.runs(term=2)

    job.now += 600
    assert job.observed.readiness(60).ready
    assert job.value("checkpoint_pending_seconds") == 10
    job.tells("triggered", epoch=7)
    job.now += 50
    assert job.observed.readiness(60).ready
    job.now += 1
    assert not job.observed.readiness(60).ready


def test_an_epoch_that_does_not_begin_is_overdue(job: Job) -> None:
    """The files of old ones are dropped first, and a store that hangs meanwhile fails nothing."""
    job.tells(
        "plan",
        settings=[{"name": "checkpoint_interval", "value": "10.0"}, {"name": "checkpoint_min_pause", "value": "2.0"}],
    )
    job.runs()
    job.now += 70
    assert job.observed.readiness(60).ready
    job.now += 1
    assert not job.observed.readiness(60).ready
    job.tells("triggered", epoch=1)
    job.now += 9
    assert job.observed.readiness(60).ready
    job.commits(1)
    job.now += 2
    assert job.value("checkpoint_pending_seconds") == 0
    job.now += 61
    assert job.value("checkpoint_pending_seconds") == 61
    job.tells("restarting", what="attempt failed", reason="", in_a_row=1)
    assert job.value("checkpoint_pending_seconds") == 0


def test_a_job_that_has_ended_owes_no_epoch(job: Job) -> None:
    job.tells(
        "plan",
        settings=[{"name": "checkpoint_interval", "value": "1.0"}, {"name": "checkpoint_min_pause", "value": "0.0"}],
    )
    job.runs()
    job.tells("stopped")
    job.now += 600
    assert job.value("checkpoint_pending_seconds") == 0


def test_attempts_that_die_before_their_first_epoch_are_no_rest(job: Job) -> None:
    job.runs()
    job.tells("triggered", epoch=1)
    for term in (2, 3, 4):
        job.tells("restarting", what="worker ended", reason="killed", in_a_row=term)
        job.runs(term=term)
        job.now += 31

    assert job.observed.readiness(60).reason.startswith("no checkpoint was committed for 62 s")


def test_an_epoch_that_recovery_has_finished_is_waited_for_no_longer(job: Job) -> None:
    job.runs()
    job.tells("triggered", epoch=1)
    job.runs(term=2, base=1)
    job.now += 100
    assert job.observed.readiness(60).ready


def test_a_job_is_ready_from_its_first_row_to_its_end(job: Job) -> None:
    assert job.observed.readiness(60).reason == "starting or recovering"
    job.runs()
    assert job.observed.readiness(60).ready
    job.tells("failed", error="PoisonRecord", reason="it cannot be read")
    assert job.observed.readiness(60).reason == "ended: PoisonRecord: it cannot be read"


def test_dead_letters_and_late_rows_are_those_of_the_run(job: Job) -> None:
    job.tells("dead-letters", total={"in": {"parse": 5}})
    job.tells("dead-letters", total={"in": {"parse": 3}})
    job.tells("late-rows", total={"windows": 4})
    job.tells("set-aside", total={"ship": 2})

    assert job.value("set_aside_records", "ship") == 2
    assert job.value("dead_letters", "in", "parse") == 5
    assert job.value("late_records", "windows") == 4


def test_operators_are_counted_over_sessions(job: Job) -> None:
    done = {"rows_in": 10, "rows_out": 4, "busy": 1.0, "blocked": 2.0, "idle": 3.0, "cache_misses": 5, "entries": 7}
    job.reads(1, operators={"sum": done})
    job.reads(1, operators={"sum": {**done, "rows_in": 12, "idle": 2.5}})
    assert job.value("operator_seconds", "sum", "idle") == 3, "clocks differ a little, and a counter never falls"
    job.runs(term=2)
    job.reads(1, operators={"sum": {**done, "entries": 1}})

    assert [job.value("operator_rows", "sum", way) for way in ("in", "out")] == [22, 8]
    assert [job.value("operator_seconds", "sum", state) for state in ("busy", "backpressured", "idle")] == [2, 4, 6]
    assert job.value("state_cache_misses", "sum") == 10
    assert job.value("state_cache_entries", "sum") == 1


def test_what_functions_count_is_added_up_over_sessions(job: Job) -> None:
    job.reads(1, user_counters={"op": {"big": 3}})
    job.reads(1, user_counters={"op": {"big": 5, "small": 1}})
    job.runs(term=2)
    job.reads(1, user_counters={"op": {"big": 2}})

    assert job.value("user_counter", "op", "big") == 7
    assert job.value("user_counter", "op", "small") == 1


def test_operators_without_state_have_no_cache_and_those_of_spark_are_never_blocked(job: Job) -> None:
    job.reads(1, operators={"map": {"rows_in": 1, "rows_out": 1, "busy": 1.0, "cache_misses": 0, "entries": 0}})

    assert job.value("operator_seconds", "map", "busy") == 1
    assert job.value("operator_seconds", "map", "backpressured") is None
    assert job.value("state_cache_misses", "map") is None


def test_a_standby_is_one_until_it_leads_or_ends(job: Job) -> None:
    job.tells("standby", text="stands by for process 7")
    assert job.value("standby") == 1
    job.tells("started", job="orders")
    assert job.value("standby") == 0
    job.tells("standby", text="stands by for process 8")
    job.tells("standby-ended", text="the job was stopped")
    assert job.value("standby") == 0


def test_open_outputs_are_those_that_writers_have_told_of(job: Job) -> None:
    job.reads(1, open={"out": 2})
    assert job.value("open_writers", "out") == 2
    job.reads(1, open={"out": 0})
    assert job.value("open_writers", "out") == 0
    job.reads(1, open={"out": 1})
    job.tells("restarting", what="worker ended", reason="killed", in_a_row=1)
    assert job.value("open_writers", "out") == 0, "its writers are gone, and what they held with them"


def test_how_long_sinks_take_is_told_by_phase(job: Job) -> None:
    spans = [
        {"worker": n, "phase": "prepare", "started": 10.0, "ended": 10.0 + n, "operator": "out"} for n in (1, 3, 2)
    ]
    job.tells("phases", epoch=1, spans=[*spans, {"worker": 0, "phase": "upload", "started": 0.0, "ended": 50.0}])
    job.tells(
        "committed",
        epoch=1,
        seconds=0.3,
        records_by_sink={"out": 1},
        expires_in=50.0,
        timeout=60.0,
        commits={"out": [10.0, 10.5]},
    )

    with job.observed.samples() as samples:
        found = {m.name: {labels: each.sum for labels, each in by.items()} for m, by in samples.distributions()}
    assert found["sink_seconds"] == {("out", "prepare"): 3, ("out", "commit"): 0.5}
    assert job.value("transaction_timeout_seconds") == 60


def test_an_event_that_nobody_counts_is_no_matter(job: Job) -> None:
    job.tells("notice", text="hello")


def test_names_are_those_of_prometheus() -> None:
    for metric in METRICS.values():
        assert metric.full_name.endswith("_total") == (metric.kind == "counter")
        assert not set(metric.labels) & {"job", "instance", "le"}
        assert metric.help.endswith(".")


def test_a_job_that_a_system_does_not_answer_is_not_ready(job: Job) -> None:
    """It may be idle: then no epoch is late, however long Kafka is gone."""
    job.runs()
    job.tells("dependencies", answering=["kafka://a", "store"], silent={})
    assert job.value("dependency_silent_seconds", "kafka://a") == 0

    job.now += 10
    silent = {"kafka://a": {"since": (job.now - 4) * 1000, "reason": "refused"}}
    job.tells("dependencies", answering=["store"], silent=silent)
    job.now += 56
    assert job.observed.readiness(60).ready
    job.now += 1
    found = job.observed.readiness(60)
    assert not found.ready
    assert found.reason == "kafka://a has not responded for 61 s: refused (http_ready_within=60)"
    assert (job.value("dependency_silent_seconds", "kafka://a"), job.value("dependency_silent_seconds", "store")) == (
        61,
        0,
    )

    job.now += 1_000
    assert (
        job.observed.readiness(60).reason == f"{Outage(1_061, 'refused').describe('kafka://a')} (http_ready_within=60)"
    )
    job.tells("dependencies", answering=["kafka://a", "store"], silent={})
    assert job.observed.readiness(60).ready
    assert job.value("dependency_silent_seconds", "kafka://a") == 0
