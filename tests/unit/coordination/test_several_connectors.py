"""Two sinks and two sources: each is asked, told, aborted and closed, and what one has is not taken for the other's."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier, RetryInterrupted
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.incarnation import IncarnationSign, IncarnationState
from kafka_eos.coordination import job_history as history
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.sinks import SinkCoordinator
from kafka_eos.core.errors import Bug, ConfigError, Fenced, Retryable
from kafka_eos.core.ids import EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.protocol.commit import COMMIT_MARGIN
from kafka_eos.runtime.epoch_reports import EpochContents
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink
from tests.unit.coordination.noted_job import JOB, NotedJob, NotedSink, split

OTHER = JobIdentity("0123456789ab")


@pytest.fixture
def job(tmp_path: Path) -> NotedJob:
    return NotedJob(tmp_path)


# ---------------------------------------------------------------- sinks


def test_what_is_open_is_told_of_every_sink_and_whose_it_is(job: NotedJob) -> None:
    running = job.begun()
    job.prepared(running, running.ownership.next_epoch(), "mine")
    for sink in (job.left, job.right):
        sink.begin(_of_another_incarnation(running))

    mine, all_ = running.list_staged(), running.list_all_staged()

    assert (len(mine), len(all_)) == (4, 6)
    assert {each.identity for each in mine} == {running.ownership.load_identity().identity}
    assert {each.identity for each in all_} == {running.ownership.load_identity().identity, OTHER}


def _of_another_incarnation(running: Coordinator) -> Any:
    return TaskContext(replace(running.ownership.load_identity(), identity=OTHER), 0, 1, "left")


def test_another_incarnation_is_ended_in_every_sink_and_by_its_name_alone(job: NotedJob) -> None:
    running = job.begun()
    job.prepared(running, running.ownership.next_epoch(), "mine")
    for sink in (job.left, job.right):
        sink.begin(_of_another_incarnation(running))

    names = running.end_incarnation(OTHER)

    assert len(names) == 2
    assert [(len(sink.staged), len(sink.prepared)) for sink in (job.left, job.right)] == [(0, 2), (0, 2)]
    with pytest.raises(Bug, match="cannot retire itself"):
        running.end_incarnation(running.ownership.load_identity().identity)


def test_what_an_attempt_has_left_is_aborted_in_every_sink_and_its_writers_are_fenced(job: NotedJob) -> None:
    running = job.begun()
    job.prepared(running, running.ownership.next_epoch(), "left over")

    running.abort_own_leftovers()

    assert job.noted() == ["abort left", "abort right"]
    assert (job.left.prepared, job.right.prepared) == ([], [])
    with pytest.raises(Fenced):
        job.prepared(running, running.ownership.next_epoch(), "too late")


def test_what_workers_of_an_earlier_term_open_after_recovery_is_aborted_and_output_of_this_term_is_not(
    job: NotedJob,
) -> None:
    earlier, running = job.begun(), job.coordinator()
    running.recovery.restore()
    job.prepared(running, running.ownership.next_epoch(), "mine")
    job.noted()
    running.abort_late_leftovers()
    assert job.noted() == [], "there is none"

    job.left.unfence()
    job.left.begin(TaskContext(earlier.ownership.load_identity(), 0, 2, "left"))
    running.abort_late_leftovers()

    assert job.noted() == ["abort left", "abort right"]
    assert {staged.term for staged in running.list_staged()} == {running.ownership.term}


def test_every_committer_is_closed(job: NotedJob) -> None:
    job.begun().close()

    assert job.noted() == ["close left", "close right"]


def test_who_is_interrupted_waits_for_no_server_any_longer(job: NotedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    running = job.begun()

    def away(*args: object) -> object:
        raise Retryable("away")

    monkeypatch.setattr(job.right, "abort", away)
    running.interrupt()

    with pytest.raises(RetryInterrupted, match="abort left-over output in memory:right: away"):
        running.abort_own_leftovers()


class _Margins(MemorySink):
    """Notes the margin that it is to leave before its timeout."""

    def __init__(self, told: list[object], name: str) -> None:
        super().__init__()
        self._told, self._name = told, name

    def scope(self, ctx: JobContext) -> str:
        return self._name

    def check(self, ctx: JobContext) -> Sequence[str]:
        self._told.append((ctx.settings["commit_margin"], ctx.settings.get("parallelism")))
        return ()


@pytest.mark.parametrize(
    ("scopes", "parallelism", "margin"),
    [("a", 1, 0.0), ("aa", 1, 0.0), ("ab", 1, COMMIT_MARGIN), ("a", 2, COMMIT_MARGIN), ("ab", 2, COMMIT_MARGIN)],
)
def test_an_epoch_with_one_committable_needs_no_margin(
    tmp_path: Path, scopes: str, parallelism: int, margin: float
) -> None:
    told: list[object] = []
    pipeline = Pipeline(JOB)
    numbers = pipeline.source(ListSource([1]), name="numbers")
    for number, scope in enumerate(scopes):
        numbers.sink(_Margins(told, scope), name=f"sink-{number}")
    ctx = JobContext(JOB, Term(1), {"parallelism": parallelism})

    SinkCoordinator(pipeline.plan(), ctx, History(MemoryStorage(), print), Retrier(threading.Event(), print)).check(ctx)

    assert told == [(margin, parallelism)] * len(scopes)


def test_each_system_is_asked_for_its_own_output_of_the_newest_epoch_that_is_finished(tmp_path: Path) -> None:
    """Not if it has some of the epoch that is not finished: then it lacks nothing of those before."""
    job = NotedJob(tmp_path, remembers=("left", "right"))
    running = job.begun()
    finished = job.decided(running, "two")
    running.epochs.commit(finished)
    later = job.decided(running, "three")
    job.left.commit(str(later.committables[1].payload["name"]))

    job.coordinator().recovery.restore()

    own = [each for each in finished.committables if each.scope == "memory:right"]
    assert job.left.asked == []
    assert job.right.asked == [(finished.id, own)]


@pytest.mark.parametrize("sink", ["left", "right"])
def test_a_system_that_was_put_back_is_named_and_nobody_goes_on(tmp_path: Path, sink: str) -> None:
    job = NotedJob(tmp_path, remembers=("left", "right"))
    job.begun()
    getattr(job, sink).lacking = f"{sink} has nothing of it"

    with pytest.raises(ConfigError, match=rf"^{sink} has nothing of it\. The checkpoints show that"):
        job.coordinator().recovery.restore()

    assert [len(each.asked) for each in (job.left, job.right)] == [1, 1]


def test_a_system_whose_output_is_long_ago_is_asked_for_that(tmp_path: Path) -> None:
    """The last epochs had output for the other one only, and of one subtask: they say nothing of it."""
    job = NotedJob(tmp_path, remembers=("left", "right"))
    running = job.begun()
    first = job.decided(running, "two")
    running.epochs.commit(first)
    for value in ("three", "four"):
        epoch = running.ownership.next_epoch()
        some = job.prepared(running, epoch, value)
        job.left.abort(JOB, {running.ownership.load_identity().identity}, Term(0))
        running.epochs.commit(running.epochs.decide(epoch, EpochContents(job.positions, (), some[3:])))

    job.coordinator().recovery.restore()

    (asked,) = job.left.asked
    assert [each.payload for each in asked[1]] == [each.payload for each in first.committables[:2]]
    (asked,) = job.right.asked
    assert [each.payload for each in asked[1]] == [each.payload for each in some[3:]]


# ---------------------------------------------------------------- sources


def test_new_splits_of_every_source_are_found_and_none_that_is_known(job: NotedJob) -> None:
    running = job.begun()
    known = job.positions
    for name in "nm":
        for number in (2, 3):
            job.sources[name].splits[split(name, number)] = [1]

    assert running.sources.discover_splits(known) == {
        name: {split(name, number): {"index": 0} for number in (2, 3)} for name in "nm"
    }


@pytest.mark.parametrize("away", ["n", "m"])
def test_a_source_that_has_no_answer_keeps_no_other_from_its_new_splits(
    job: NotedJob, away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, known = job.begun(), job.positions
    for name in "nm":
        job.sources[name].splits[split(name, 2)] = [1]

    def no_answer(ctx: JobContext, known: Positions | None) -> Positions:
        raise Retryable("away")

    monkeypatch.setattr(job.sources[away], "discover", no_answer)

    assert list(running.sources.discover_splits(known)) == [name for name in "nm" if name != away]
    assert job.said[-1] == f"new splits of {away} could not be discovered: away"


class _Ending(ListSource):
    """Its end is for good."""

    def bounds(self, positions: Positions) -> Positions | None:
        return {at: {"index": 1} for at in positions}


def test_the_ends_of_a_job_are_those_of_all_its_sources(job: NotedJob) -> None:
    job.sources["m"] = _Ending(range(4), splits=2, name="list-m")
    running = job.begun()

    assert running.sources.end_positions(job.positions) == {
        "n": {split("n", 0): {"index": 2}, split("n", 1): {"index": 2}},
        "m": {split("m", 0): {"index": 1}, split("m", 1): {"index": 1}},
    }
    assert not running.sources.is_bounded(job.positions)
    job.sources["n"] = _Ending(range(4), splits=2, name="list-n")
    assert job.coordinator().sources.is_bounded(job.positions)


class _Told(ListSource):
    """Is told how far the job is, unless ``error`` is in the way."""

    def __init__(self, name: str) -> None:
        super().__init__(range(4), splits=2, name=f"list-{name}")
        self.error: Exception | None = None
        self.told: list[tuple[EpochId, Positions]] = []

    def notify_committed(self, ctx: JobContext, epoch: EpochId, positions: Positions) -> None:
        if self.error is not None:
            raise self.error
        self.told.append((epoch, positions))


def test_every_source_is_told_of_its_own_positions_and_a_failure_is_said_once(job: NotedJob) -> None:
    job.sources = {name: _Told(name) for name in "nm"}
    running = job.begun()

    def tell(value: str) -> tuple[EpochId, list[str]]:
        manifest = job.decided(running, value)
        running.epochs.commit(manifest)
        return manifest.id, [text.split(" in epoch")[0] for text in running.sources.report_offsets(manifest)]

    first, said = tell("two")
    assert said == []
    assert {name: source.told for name, source in job.sources.items()} == {
        name: [(first, job.positions[name])] for name in "nm"
    }
    for source in job.sources.values():
        source.error = ConfigError("no right")
    assert tell("three")[1] == ["offsets of 'n'", "offsets of 'm'"]
    assert tell("four")[1] == []
    job.sources["n"].error = None
    assert tell("five")[1] == []
    job.sources["n"].error = ConfigError("no right")
    assert tell("six")[1] == ["offsets of 'n'"], "it has worked meanwhile; the other one has not"


class _Noticing(ListSource):
    def __init__(self, name: str, *answers: str | Exception) -> None:
        super().__init__(range(4), splits=2, name=f"list-{name}")
        self.answers, self.known = answers, list[Positions | None]()

    def check(self, ctx: JobContext, known: Positions | None) -> Sequence[str]:
        self.known.append(known)
        for answer in self.answers:
            if isinstance(answer, Exception):
                raise answer
        return [str(answer) for answer in self.answers]


def test_what_every_source_notices_is_told_and_all_that_is_wrong_is_said_at_once(job: NotedJob) -> None:
    job.begun()
    job.sources = {"n": _Noticing("n", "one", "two"), "m": _Noticing("m", "three", "four")}

    assert [text for text in job.coordinator().check() if text.startswith("source")] == [
        "source 'n': one", "source 'n': two", "source 'm': three", "source 'm': four",
    ]  # fmt: skip
    assert [source.known for source in job.sources.values()] == [[job.positions["n"]], [job.positions["m"]]]
    job.sources = {"n": _Noticing("n", ConfigError("bad")), "m": _Noticing("m", ConfigError("worse"))}
    with pytest.raises(ConfigError, match=r"^source 'n': bad\nsource 'm': worse$"):
        job.coordinator().check()
    job.sources = {"n": _Noticing("n", Retryable("away")), "m": _Noticing("m", "three")}
    told = [text for text in job.coordinator().check() if text.startswith("source")]
    assert told == ["source 'n' was not checked: away", "source 'm': three"]


class _Knowing(ListSource):
    """Knows which incarnations of the job read it."""

    def __init__(self, name: str, *identities: JobIdentity) -> None:
        super().__init__(range(4), splits=2, name=f"list-{name}")
        self.identities = identities

    def list_incarnations(self, ctx: JobContext) -> Sequence[IncarnationSign]:
        return [IncarnationSign(each, self.name, "reads it", None, IncarnationState.OPEN) for each in self.identities]


@pytest.mark.parametrize("name", ["n", "m"])
def test_another_incarnation_is_seen_by_any_sign_that_any_source_has_of_it(job: NotedJob, name: str) -> None:
    job.sources = {each: _Knowing(each) for each in "nm"}
    job.sources[name].identities = (OTHER, JobIdentity("ba9876543210"))

    with pytest.raises(ConfigError, match=rf"incarnation {OTHER}.* in list-{name}: reads it; incarnation ba9876543210"):
        job.coordinator().recovery.restore()

    assert job.left.list_signs(JOB) == job.right.list_signs(JOB) == [], "a start that is refused leaves no mark"


def test_a_source_that_comes_to_a_job_begins_once_and_the_others_go_on(job: NotedJob) -> None:
    """Where it begins is an epoch of its own, with the state of the one before."""
    running = job.begun()
    moved: dict[str, Positions] = {name: {split(name, at): {"index": 1} for at in range(2)} for name in "nm"}
    state = job.state("kept")
    running.epochs.commit(running.epochs.decide(running.ownership.next_epoch(), EpochContents(moved, state, ())))
    before = dict(job.sources)
    pipeline = job.pipeline

    def grown() -> Pipeline:
        made = pipeline()
        for name in "op":
            made.source(ListSource(range(2), name=f"list-{name}"), name=name).sink(MemorySink(), name=f"out-{name}")
        return made

    job.pipeline = grown  # type: ignore[method-assign]
    resumed = job.coordinator().recovery.restore()

    assert str(resumed.base) == "3/2"
    new = {name: {split(name, 0): {"index": 0}} for name in "op"}
    assert resumed.positions == {**moved, **new}
    assert resumed.states == state
    again = job.coordinator().recovery.restore()
    assert (str(again.base), again.positions) == ("3/2", resumed.positions)
    assert job.sources == before


def test_who_takes_over_ends_all_other_incarnations_and_the_history_tells_what_they_had_open(job: NotedJob) -> None:
    running = job.begun()
    job.prepared(running, running.ownership.next_epoch(), "mine")
    for sink in (job.left, job.right):
        sink.begin(_of_another_incarnation(running))
    job.incarnation = "b"

    job.coordinator(take_over=True).recovery.restore()

    assert (job.left.prepared, job.left.staged, job.right.prepared, job.right.staged) == ([], [], [], [])
    (event,) = (event for event in history.read_events(job.storage) if event["event"] == "took-over")
    assert event["count"] == 6
    assert sum("open rows" in str(name) for name in event["names"]) == 2  # type: ignore[union-attr]
    assert job.left.register(JOB, OTHER) is job.right.register(JOB, OTHER) is IncarnationState.OVER


def test_a_refused_start_removes_no_registration_of_an_incarnation_that_has_open_output_in_any_sink(
    job: NotedJob,
) -> None:
    """A start of the directory that was paused and has decided since is no start that has written nothing."""
    running, third = job.begun(), JobIdentity("ba9876543210")
    for sink in (job.left, job.right):
        sink.register(JOB, OTHER)
        sink.register(JOB, third)
    job.right.begin(_of_another_incarnation(running))

    running.recovery.incarnations.deregister(running.ownership.load_identity(), {OTHER, third})

    found = {sign.identity: sign.state for sign in job.left.list_signs(JOB)}
    assert (found[OTHER], found[third]) == (IncarnationState.ENDED, IncarnationState.OVER)
    assert job.right.register(JOB, third) is IncarnationState.OVER
    assert len(job.right.staged) == 0 and job.right.list_staged(JOB) != []


def test_a_system_that_is_new_to_a_job_is_not_asked_for_what_the_others_have_had(tmp_path: Path) -> None:
    job = NotedJob(tmp_path, remembers=("left",))
    job.begun()
    job.right = NotedSink("new", job.steps, remembers=True)

    job.coordinator(allow_dropped_state=True).recovery.restore()

    assert (len(job.left.asked), job.right.asked) == (1, [])
