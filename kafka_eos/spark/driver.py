"""One attempt on Spark: it runs one epoch after another in one term, until it stops or fails.

``protocol.attempt`` decides; this module executes its actions. An epoch is one Spark job, which reads up to given
positions (``epoch_inputs``) and leaves no rows in flight. The next epoch begins as soon as this one is decided, while
it is committed (``overlapping_epochs``), unless cleanup must run between the two (``cleanup``).

Rule: decisions, and all that follows from them, are made on one thread. Only Spark's job and the commits have threads
of their own, so that a stop or a timeout takes effect at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import RetryInterrupted
from kafka_eos.abc.state import InFlightRows, StateHandle
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.request_queue import RequestHandler
from kafka_eos.core.errors import Bug, InputLost, RestartFromCheckpoint
from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Positions
from kafka_eos.plan import TimestampsNode
from kafka_eos.plan.watermarks import WatermarkAlignment
from kafka_eos.protocol import actions as do
from kafka_eos.protocol import events as facts
from kafka_eos.protocol.actions import AttemptAction, JobOutcome
from kafka_eos.protocol.attempt import Attempt
from kafka_eos.protocol.checkpoint_schedule import Cadence
from kafka_eos.protocol.engine_policy import AttemptPolicy
from kafka_eos.protocol.events import AttemptEvent
from kafka_eos.runtime.epoch_reports import CommitResult, RestorePoint
from kafka_eos.spark.cleanup import CleanupRunner, create_cleanup_schedule
from kafka_eos.spark.epoch_figures import ProgressReporter
from kafka_eos.spark.epoch_inputs import EpochInputs
from kafka_eos.spark.messages import StageSpec
from kafka_eos.spark.overlapping_epochs import EpochThreads
from kafka_eos.storage.job_records import Manifest

if TYPE_CHECKING:
    from kafka_eos.spark.epoch_job import EpochRunner

_LOOK = 0.02
"""Seconds between two looks at what was asked for meanwhile, and at what there is to read."""
_JOB = 0
"""Who answers for an epoch: its Spark job, for all its tasks."""


@dataclass(frozen=True, slots=True)
class AttemptCallbacks:
    """Callbacks of an attempt: stop requested, time expired, event to observe."""

    stopping: Callable[[], bool]
    expired: Callable[[], bool]
    observe: Callable[..., None]


class SparkAttempt:
    """Runs one term; returns when the job has ended cleanly.

    ``run`` returns when the job has ended cleanly, and raises what ended the attempt.

    ``template`` is a spec whose positions, states, ends and numbers are filled in for each epoch. ``goal``: where each
    source may stop in a bounded run. ``aligned``, ``meets``, ``following``: see ``plan.Graph``. ``newest``: the newest
    committed epoch, from the storage.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        resumed: RestorePoint,
        runner: EpochRunner,
        template: StageSpec,
        cadence: Cadence,
        watch: AttemptCallbacks,
        goal: Mapping[str, Positions] | None,
        aligned: Sequence[tuple[TimestampsNode, WatermarkAlignment]],
        meets: Mapping[str, Collection[str]],
        following: Collection[str],
        request_handler: RequestHandler,
        newest: Callable[[], Manifest],
    ) -> None:
        now = time.monotonic()
        self._coordinator = coordinator
        self._template = template
        self._timeout = cadence.timeout
        self._watch = watch
        self._request_handler = request_handler
        self._newest = newest
        self._states: tuple[StateHandle, ...] = resumed.states
        self._in_flight: tuple[InFlightRows, ...] = resumed.in_flight
        self._finished = resumed.base.epoch.n
        self._ends: Mapping[str, Positions] = {}
        """Up to where the next epoch reads, or the one that runs."""
        self._attempt = Attempt.of(
            AttemptPolicy(
                frozenset({_JOB}),
                cadence,
                tolerated_failures=0,
                discovery_interval=_LOOK,
                is_batch=True,
                verifies_input=coordinator.sources.verifies_input,
            ),
            EpochId(resumed.first_epoch, resumed.term),
            resumed.base,
            create_cleanup_schedule(now),
            now,
            under_way=bool(resumed.in_flight),
        )
        self._commit_result = CommitResult()
        """How the epoch was committed that was committed last."""
        self._learned: deque[AttemptEvent] = deque()
        self._ended = False
        self._inputs = EpochInputs(
            coordinator.sources, resumed.positions, cadence, goal, aligned, meets, following, watch.observe
        )
        self._overlap = EpochThreads(runner.run, runner.cancel, self._commit)
        self._cleanup = CleanupRunner(coordinator, watch.observe)
        self._figures = ProgressReporter(watch.observe, resumed.positions)

    def run(self) -> None:
        try:
            self._apply(facts.SubtaskReady(_JOB))
            while not self._ended:
                self._step()
        except BaseException:
            # A commit that waits for a server would keep this attempt from ending; recovery takes it up again.
            self._coordinator.interrupt()
            self._overlap.cancel()
            raise
        finally:
            self._overlap.close()

    def _step(self) -> None:
        """Feed the next events to the state machine, and wait for more."""
        for fact in self._poll_facts():
            self._apply(fact)
        if not self._ended:
            self._overlap.wait(_LOOK)

    def _apply(self, fact: AttemptEvent) -> None:
        """Feed a fact to the state machine and carry out its actions."""
        self._learned.append(fact)
        while self._learned:
            self._attempt, actions = self._attempt.handle(self._learned.popleft(), time.monotonic())
            for action in actions:
                self._execute(action)

    # ------------------------------------------------------------ facts

    def _poll_facts(self) -> Iterator[AttemptEvent]:
        """Yield what has happened since the last step. Raises what ends the attempt at once."""
        if self._watch.expired():
            raise RetryInterrupted(
                "stopped before the current epoch was committed; nothing is lost, it is read again at the next start"
            )
        if (committed := self._overlap.poll_committed()) is not None:
            yield facts.EpochCommitted(committed.id)
        if (epoch := self._overlap.poll_finished()) is not None:
            yield facts.EpochAcked(epoch, _JOB)
        if self._watch.stopping():
            yield facts.StopSignalled()
        self._request_handler.poll(time.monotonic())
        yield self._request_handler.pending

    # ------------------------------------------------------------ actions

    def _execute(self, action: AttemptAction) -> None:
        match action:
            case do.StartProcessing():
                pass  # nothing is restored before the first job
            case do.TriggerEpoch(epoch):
                self._begin(epoch)
            case do.VerifyInput(epoch):
                self._verify_input(epoch)
            case do.DecideEpoch():
                self._decide(action)
            case do.CommitEpoch():
                self._overlap.start_commit()
            case do.NotifyCommit(epoch, seconds):
                self._committed(seconds)
            case do.DiscoverSplits(at_once):
                self._discover(at_once)
            case do.RunCleanup():
                self._cleanup.run(action)
                self._learned.append(facts.CleanupFinished())
            case do.AnswerRequests():
                manifest = self._newest()
                self._request_handler.on_triggered(manifest.id)
                self._request_handler.on_committed(manifest)
            case do.ReplaceAttempt(why) if not self._overlap.is_running:
                raise RestartFromCheckpoint(why)
            case do.ReplaceAttempt():
                raise RestartFromCheckpoint(
                    f"the epoch's Spark job did not end within {self._timeout:.0f} s (checkpoint_timeout, which must "
                    "be longer than a task needs to restore its state)"
                )
            case do.EndWithInputLost(cause, why):
                raise InputLost(why, cause)
            case do.EndJob(how):
                self._end(how)
            case do.AbortEpoch() | do.PauseSources() | do.RequestCounts() | do.ResumeSources():
                raise Bug(f"{action}: an epoch on Spark is never aborted and leaves no in-flight rows")

    def _discover(self, at_once: bool) -> None:
        # Who waits for all that has come does not wait for timers: one that sets the next would never end.
        try:
            ends = self._inputs.ends(timers=not at_once) if self._inputs.is_due(at_once) else None
        except InputLost as error:
            self._learned.append(facts.InputLossFound(error.cause, str(error)))
            return
        if ends is not None:
            self._ends = ends
        self._learned.append(facts.DiscoveryFinished(ends is not None, self._inputs.has_reached_goal))

    def _verify_input(self, epoch: EpochId) -> None:
        try:
            self._coordinator.sources.ensure_same_input(self._inputs.positions)
        except InputLost as error:
            self._learned.append(facts.InputLossFound(error.cause, str(error)))
        else:
            self._learned.append(facts.InputVerified(epoch))

    def _begin(self, epoch: EpochId) -> None:
        self._request_handler.on_triggered(epoch)
        self._watch.observe("triggered", epoch=epoch.epoch.n)
        spec = msgspec.structs.replace(
            self._template,
            epoch=epoch.epoch.n,
            finished=self._finished,
            generation=self._cleanup.generation,
            positions=self._inputs.positions,
            ends=dict(self._ends),
            states=self._states,
            in_flight=self._in_flight,
        )
        self._overlap.start_job(epoch, spec)

    def _decide(self, decision: do.DecideEpoch) -> None:
        """Publish the manifest. From here on the next epoch may begin, with this epoch's state and positions."""
        result = self._overlap.result()
        hit("coordinator.acked")
        self._overlap.set_decided(self._coordinator.epochs.decide(decision.epoch, result.acked))
        lag = None if self._inputs.holding else result.lag
        self._figures.decided(decision.epoch, result, lag, decision.seconds)
        self._inputs.record_epoch(result, self._ends)
        if result.retried:
            self._learned.append(facts.TaskAttemptsLost())
        self._states, self._in_flight = result.acked.states, ()

    def _commit(self, manifest: Manifest) -> None:
        """Commit an epoch, on the commit thread."""
        self._commit_result = self._coordinator.epochs.commit(manifest)
        for failed in self._coordinator.sources.report_offsets(manifest):
            self._watch.observe("notice", text=failed)

    def _committed(self, seconds: float) -> None:
        manifest = self._overlap.manifest
        self._finished = manifest.epoch
        self._figures.committed(manifest, seconds, self._commit_result)
        self._request_handler.on_committed(manifest)

    def _end(self, how: JobOutcome) -> None:
        if how is JobOutcome.CANCELLED:
            self._request_handler.on_job_end()
            raise RetryInterrupted("stopped on request without the current epoch; the next start reads it again")
        self._ended = True
