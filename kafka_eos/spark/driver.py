"""One attempt on Spark: one term, one batch after another, until it stops or fails.

``protocol.attempt`` decides; here its actions are carried out. An epoch is one Spark job, which reads up to given
positions (``inputs``) and leaves nothing under way. The next one begins as soon as it is decided, while it is
committed (``overlap``), unless something must be done between the two (``upkeep``).

Rule: decisions, and all that follows from them, are made on one thread; only Spark's job and the commits have
threads of their own, so that a stop, and a time limit, are noticed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kafka_eos._util.failpoints import hit
from kafka_eos._util.retry import Interrupted
from kafka_eos.abc.state import InFlight, StateHandle
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.coordination.request_queue import Desk
from kafka_eos.core.errors import Bug, RestartFromCheckpoint
from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Positions
from kafka_eos.plan import Timestamps
from kafka_eos.plan.watermarks import Alignment
from kafka_eos.protocol import actions as do
from kafka_eos.protocol import events as facts
from kafka_eos.protocol.actions import Action, Ending
from kafka_eos.protocol.attempt import Attempt
from kafka_eos.protocol.checkpoint_schedule import Cadence
from kafka_eos.protocol.engine_policy import Policy
from kafka_eos.protocol.events import Fact
from kafka_eos.runtime.epoch_reports import Finished, Resumed
from kafka_eos.spark.cleanup import Upkeep, housekeeping
from kafka_eos.spark.epoch_figures import Figures
from kafka_eos.spark.epoch_inputs import Inputs
from kafka_eos.spark.messages import Spec
from kafka_eos.spark.overlapping_epochs import Overlap
from kafka_eos.storage.job_records import Manifest

if TYPE_CHECKING:
    from kafka_eos.spark.epoch_job import EpochRunner

_LOOK = 0.02
"""Seconds between two looks at what was asked for meanwhile, and at what there is to read."""
_JOB = 0
"""Who answers for an epoch: its Spark job, for all its tasks."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What the attempt asks and tells around it."""

    stopping: Callable[[], bool]
    expired: Callable[[], bool]
    observe: Callable[..., None]


class Driver:
    """Runs one term. ``run`` returns when the job has ended cleanly, and raises what ended the attempt.

    ``template`` is a spec whose positions, states, ends and numbers are filled in for each epoch. ``goal``: where each
    source may stop in a bounded run. ``aligned``, ``meets``, ``following``: see ``plan.Graph``. ``newest``: the newest
    committed epoch, from the storage.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        resumed: Resumed,
        runner: EpochRunner,
        template: Spec,
        cadence: Cadence,
        watch: Watch,
        goal: Mapping[str, Positions] | None,
        aligned: Sequence[tuple[Timestamps, Alignment]],
        meets: Mapping[str, Collection[str]],
        following: Collection[str],
        desk: Desk,
        newest: Callable[[], Manifest],
    ) -> None:
        now = time.monotonic()
        self._coordinator, self._template, self._timeout = coordinator, template, cadence.timeout
        self._watch, self._desk, self._newest = watch, desk, newest
        self._states: tuple[StateHandle, ...] = resumed.states
        self._in_flight: tuple[InFlight, ...] = resumed.in_flight
        self._finished = resumed.base.epoch.n
        self._ends: Mapping[str, Positions] = {}
        """Up to where the next epoch reads, or the one that runs."""
        self._attempt = Attempt.of(
            Policy(frozenset({_JOB}), cadence, tolerated=0, search_every=_LOOK, batches=True),
            EpochId(resumed.first_epoch, resumed.term),
            resumed.base,
            housekeeping(now),
            now,
            under_way=bool(resumed.in_flight),
        )
        self._how = Finished()
        """How the epoch was committed that was committed last."""
        self._learned: deque[Fact] = deque()
        self._ended = False
        self._inputs = Inputs(coordinator, resumed.positions, cadence, goal, aligned, meets, following, watch.observe)
        self._overlap = Overlap(runner.run, runner.cancel, self._commit)
        self._upkeep = Upkeep(coordinator, watch.observe)
        self._figures = Figures(watch.observe, resumed.positions)

    def run(self) -> None:
        try:
            self._learn(facts.Ready(_JOB))
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
        """Learn what has happened, and wait for more."""
        for fact in self._happened():
            self._learn(fact)
        if not self._ended:
            self._overlap.wait(_LOOK)

    def _learn(self, fact: Fact) -> None:
        """Tell the machine, and do what it says; what is known of that at once it is told, too."""
        self._learned.append(fact)
        while self._learned:
            self._attempt, actions = self._attempt.on(self._learned.popleft(), time.monotonic())
            for action in actions:
                self._carry_out(action)

    # ------------------------------------------------------------ facts

    def _happened(self) -> Iterator[Fact]:
        """What has ended, and what is asked for. Raises what ends the attempt at once."""
        if self._watch.expired():
            raise Interrupted(
                "stopped before the epoch at hand was committed; nothing is lost, the next start reads it again"
            )
        if (committed := self._overlap.committed()) is not None:
            yield facts.Committed(committed.id)
        if (epoch := self._overlap.ended()) is not None:
            yield facts.Acked(epoch, _JOB)
        if self._watch.stopping():
            yield facts.Stop()
        self._desk.look(time.monotonic())
        yield self._desk.asked

    # ------------------------------------------------------------ actions

    def _carry_out(self, action: Action) -> None:
        match action:
            case do.Begin():
                pass  # nothing is restored before the first job
            case do.Trigger(epoch):
                self._begin(epoch)
            case do.Decide():
                self._decide(action)
            case do.Commit():
                self._overlap.commit()
            case do.Notify(epoch, seconds):
                self._committed(seconds)
            case do.Discover(at_once):
                self._discover(at_once)
            case do.Sweep():
                self._upkeep.run(action)
                self._learned.append(facts.Swept())
            case do.Answer():
                manifest = self._newest()
                self._desk.begun(manifest.id)
                self._desk.committed(manifest)
            case do.Replace():
                raise RestartFromCheckpoint(
                    f"the epoch's Spark job did not end within {self._timeout:.0f} s (checkpoint_timeout, which must "
                    "be more than it takes a task to restore its state)"
                )
            case do.End(how):
                self._end(how)
            case do.Abort() | do.Halt() | do.Count() | do.GoOn():
                raise Bug(f"{action}: a batch is not given up, and leaves nothing under way")

    def _discover(self, at_once: bool) -> None:
        # Who waits for all that has come does not wait for timers: one that sets the next would never end.
        ends = self._inputs.ends(timers=not at_once) if self._inputs.due(at_once) else None
        if ends is not None:
            self._ends = ends
        self._learned.append(facts.Found(ends is not None, self._inputs.at_goal))

    def _begin(self, epoch: EpochId) -> None:
        self._desk.begun(epoch)
        self._watch.observe("triggered", epoch=epoch.epoch.n)
        spec = msgspec.structs.replace(
            self._template,
            epoch=epoch.epoch.n,
            finished=self._finished,
            generation=self._upkeep.generation,
            positions=self._inputs.positions,
            ends=dict(self._ends),
            states=self._states,
            in_flight=self._in_flight,
        )
        self._overlap.begin(epoch, spec)

    def _decide(self, decision: do.Decide) -> None:
        """Publish the manifest. From here on the next epoch may begin: it goes on from what this one has made."""
        result = self._overlap.result()
        hit("coordinator.acked")
        self._overlap.decided(self._coordinator.decide(decision.epoch, result.acked))
        lag = None if self._inputs.holding else result.lag
        self._figures.decided(decision.epoch, result, lag, decision.seconds)
        self._inputs.decided(result, self._ends)
        if result.retried:
            self._learned.append(facts.Littered())
        self._states, self._in_flight = result.acked.states, ()

    def _commit(self, manifest: Manifest) -> None:
        """On the thread of the commits."""
        self._how = self._coordinator.finish(manifest)
        for failed in self._coordinator.tell_sources(manifest):
            self._watch.observe("notice", text=failed)

    def _committed(self, seconds: float) -> None:
        manifest = self._overlap.manifest
        self._finished = manifest.epoch
        self._figures.committed(manifest, seconds, self._how)
        self._desk.committed(manifest)

    def _end(self, how: Ending) -> None:
        if how is Ending.AS_IT_IS:
            self._desk.ended()
            raise Interrupted("ended on request, without the epoch at hand; the next start reads it again")
        self._ended = True
