"""What a job's events tell of an epoch: each is told once, with its parts, however it ends."""

from __future__ import annotations

from kafka_eos.monitoring.metrics.epoch_traces import EpochTrace, EpochTracer, TraceSpan

SPANS = [
    {"worker": 0, "phase": "align", "started": 101.0, "ended": 102.0, "operator": "orders"},
    {"worker": 1, "phase": "upload", "started": 102.0, "ended": 104.0, "operator": ""},
]


class Job:
    """A job whose clock is in the test's hands."""

    def __init__(self) -> None:
        self.now = 100.0
        self.told: list[EpochTrace] = []
        self._epochs = EpochTracer(self.told.append, lambda: self.now)
        self.tells("running", term=3, base=6, parallelism=2)

    def tells(self, event: str, /, **facts: object) -> None:
        self._epochs(event, facts)

    def decides(self, epoch: int, at: float) -> None:
        self.tells("triggered", epoch=epoch)
        self.now = at
        self.tells("phases", epoch=epoch, spans=SPANS)
        self.tells("decided", epoch=epoch, records_by_sink={"out": 5, "files": 2})

    def dies(self, at: float) -> None:
        self.now = at
        self.tells("restarting", what="worker ended", reason="killed", in_a_row=1)

    def ends(self) -> list[tuple[int, str | None]]:
        return [(trace.epoch, trace.failed) for trace in self.told]


def test_an_epoch_is_what_it_was_made_of() -> None:
    job = Job()
    job.decides(7, at=105.0)
    job.now = 107.0
    job.tells("committed", epoch=7, records=7, commits={"out": [105.5, 106.0], "files": [105.5, 106.5]})

    assert job.told == [
        EpochTrace(
            epoch=7,
            term=3,
            began=100.0,
            ended=107.0,
            records=7,
            parts=(
                TraceSpan("trigger", 100.0, 101.0),
                TraceSpan("align", 101.0, 102.0, {"worker": 0, "operator": "orders"}),
                TraceSpan("upload", 102.0, 104.0, {"worker": 1}),
                TraceSpan("decide", 104.0, 105.0),
                TraceSpan("commit", 105.5, 106.0, {"sink": "out"}),
                TraceSpan("commit", 105.5, 106.5, {"sink": "files"}),
            ),
        )
    ]


def test_an_epoch_that_is_given_up_or_lost_says_why() -> None:
    job = Job()
    job.tells("triggered", epoch=7)
    job.tells("aborted", epoch=7, term=3)
    job.tells("triggered", epoch=8)
    job.dies(at=110.0)
    job.tells("running", term=4, base=6, parallelism=2)
    job.tells("triggered", epoch=9)
    job.tells("failed", error="PoisonRecord", reason="it cannot be read")

    assert job.ends() == [
        (7, "aborted: its output is part of the next epoch"),
        (8, "worker ended: killed"),
        (9, "PoisonRecord: it cannot be read"),
    ]
    assert [trace.term for trace in job.told] == [3, 3, 4]


def test_an_epoch_that_was_decided_is_what_recovery_makes_of_it() -> None:
    committed, revoked = Job(), Job()
    for job, base in ((committed, 7), (revoked, 6)):
        job.decides(7, at=105.0)
        job.dies(at=106.0)
        job.dies(at=107.0)
        assert not job.told
        job.now = 109.0
        job.tells("running", term=5, base=base, parallelism=2)

    assert committed.ends() == [(7, None)]
    assert committed.told[0].parts[-1] == TraceSpan("recover", 106.0, 109.0)
    assert (committed.told[0].ended, committed.told[0].records) == (109.0, 7)
    assert revoked.ends() == [(7, "worker ended: killed")]


def test_a_job_that_ends_before_it_recovers_says_so_of_what_was_decided() -> None:
    job = Job()
    job.decides(7, at=105.0)
    job.tells("failed", error="Fatal", reason="gone")
    assert job.ends() == [(7, "Fatal: gone")]


def test_the_clock_of_a_worker_that_is_behind_makes_no_part_of_negative_length() -> None:
    job = Job()
    job.now = 103.0
    job.decides(7, at=103.5)
    job.tells("committed", epoch=7, commits={})

    (trace,) = job.told
    assert all(part.began <= part.ended for part in trace.parts)
    assert (trace.parts[0], trace.parts[-1]) == (TraceSpan("trigger", 103.0, 103.0), TraceSpan("decide", 103.5, 103.5))
