"""One attempt to run a job on Spark: one term, one epoch after another, until it stops or fails.

An epoch begins as soon as the one before it is decided, while that is committed (``overlap``), if there is something
to read (``inputs``) and nothing must be done between the two (``upkeep``).

What other processes ask for is served by the newest epoch if nothing came since, else by the next one, which begins at
once. Rule: decisions, and all that follows from them, are made on one thread; only Spark's job and the commits have
threads of their own, so that a stop, and a time limit, are noticed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.coordinator import Coordinator, Interrupted, Resumed
from kafka_eos.coordinator.desk import Desk
from kafka_eos.errors import RestartFromCheckpoint
from kafka_eos.failpoints import hit
from kafka_eos.ids import EpochId
from kafka_eos.interfaces import InFlight, Positions, StateHandle
from kafka_eos.protocol.checkpoint import Cadence
from kafka_eos.spark.figures import Figures
from kafka_eos.spark.inputs import Inputs
from kafka_eos.spark.messages import Spec
from kafka_eos.spark.overlap import Committing, Flight, Overlap
from kafka_eos.spark.upkeep import Upkeep

if TYPE_CHECKING:
    from kafka_eos.spark.epochs import EpochRunner

_LOOK = 0.02
"""Seconds between two looks at what was asked for meanwhile."""


@dataclass(frozen=True, slots=True)
class Watch:
    """What the attempt asks and tells around it."""

    stopping: Callable[[], bool]
    expired: Callable[[], bool]
    observe: Callable[..., None]


class Driver:
    """Runs one term. ``run`` returns when the job has ended cleanly, and raises what ended the attempt.

    ``template`` is a spec whose positions, states, ends and numbers are filled in for each epoch. ``goal``: where each
    source may stop in a bounded run. ``newest``: the newest committed epoch, from the storage.
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
        desk: Desk,
        newest: Callable[[], Manifest],
    ) -> None:
        self._coordinator, self._template, self._timeout = coordinator, template, cadence.timeout
        self._watch, self._desk, self._newest, self._asked_to_stop = watch, desk, newest, False
        self._states: tuple[StateHandle, ...] = resumed.states
        self._in_flight: tuple[InFlight, ...] = resumed.in_flight
        self._finished = resumed.base.epoch.n
        self._inputs = Inputs(coordinator, resumed.positions, cadence, goal, watch.observe)
        self._overlap = Overlap(runner.run, runner.cancel, self._commit, cadence)
        self._upkeep = Upkeep(coordinator, watch.observe)
        self._figures = Figures(watch.observe, resumed.positions)

    def run(self) -> None:
        try:
            while not (self._ending and self._overlap.quiet):
                self._look()
                self._step()
            self._upkeep.run()
            self._serve()
        except BaseException:
            # A commit that waits for a server would keep this attempt from ending; recovery takes it up again.
            self._coordinator.interrupt()
            self._overlap.cancel()
            raise
        finally:
            self._overlap.close()

    def _step(self) -> None:
        """Do the first of all that can be done now; else wait."""
        if (committed := self._overlap.committed()) is not None:
            self._committed(committed)
        elif (ended := self._overlap.ready()) is not None:
            self._decide(ended)
        elif self._overlap.quiet and self._upkeep.due:
            self._upkeep.run()
        elif (ends := self._next_ends()) is not None:
            self._begin(ends)
        else:
            if self._overlap.quiet:
                self._serve()
                self._upkeep.drop()
            self._overlap.wait(_LOOK)

    # ------------------------------------------------------------ what others ask

    @property
    def _ending(self) -> bool:
        """Is no epoch to begin? One with rows under way, of the other engine, must not be the last: they go first."""
        asked = (self._asked_to_stop or self._desk.wants_stop) and not self._in_flight
        return asked or self._watch.stopping() or self._inputs.at_goal

    def _look(self) -> None:
        """Notice what was asked for. Raises what ends the attempt at once."""
        self._desk.look(time.monotonic())
        if self._desk.wants_end:
            self._desk.ended()
            raise Interrupted("ended on request, without the epoch at hand; the next start reads it again")
        if self._watch.expired():
            raise Interrupted(
                "stopped before the epoch at hand was committed; nothing is lost, the next start reads it again"
            )
        if self._overlap.late(time.monotonic()):
            raise RestartFromCheckpoint(
                f"the epoch's Spark job did not end within {self._timeout:.0f} s (checkpoint_timeout, which must be "
                "more than it takes a task to restore its state)"
            )

    def _serve(self) -> None:
        """Nothing is to come, or has come, after the newest epoch, which has its receipt: it is what was asked for."""
        if self._desk.wants_epoch:
            manifest = self._newest()
            self._take_on(manifest.id)
            self._desk.committed(manifest)

    def _take_on(self, epoch: EpochId) -> None:
        """Whoever waits is served by this epoch. Until now a stop may be withdrawn."""
        self._asked_to_stop |= self._desk.wants_stop
        self._desk.begun(epoch)

    # ------------------------------------------------------------ one epoch

    def _next_ends(self) -> Mapping[str, Positions] | None:
        """Up to where the next epoch reads; None if none is to begin now."""
        if self._ending or not self._overlap.may_begin or self._upkeep.due:
            return None
        return self._inputs.ends() if self._inputs.due(at_once=self._desk.wants_epoch) else None

    def _begin(self, ends: Mapping[str, Positions]) -> None:
        epoch = self._coordinator.next_epoch()
        self._take_on(epoch)
        spec = msgspec.structs.replace(
            self._template,
            epoch=epoch.epoch.n,
            finished=self._finished,
            generation=self._upkeep.generation,
            positions=self._inputs.positions,
            ends=dict(ends),
            states=self._states,
            in_flight=self._in_flight,
        )
        self._overlap.begin(epoch, ends, spec)

    def _decide(self, ended: Flight) -> None:
        """Publish the manifest. From here on the next epoch may begin: it goes on from what this one has made."""
        outcome = ended.job.result()
        hit("coordinator.acked")
        manifest = self._coordinator.decide(ended.epoch, outcome.acked)
        self._figures.decided(ended.epoch, outcome, time.monotonic() - ended.began)
        self._overlap.decided(ended, manifest)
        self._inputs.decided(outcome, ended.ends)
        self._upkeep.decided(outcome.retried)
        self._states, self._in_flight = outcome.acked.states, ()

    def _commit(self, manifest: Manifest) -> None:
        """On the thread of the commits. Files of the next epoch are being stored: old ones go later."""
        self._coordinator.finish(manifest, sweep=False)
        for failed in self._coordinator.tell_sources(manifest):
            self._watch.observe("notice", text=failed)

    def _committed(self, committed: Committing) -> None:
        manifest = committed.manifest
        self._finished = manifest.epoch
        self._figures.committed(manifest, time.monotonic() - committed.began)
        self._desk.committed(manifest)
