"""One attempt to run a job on Spark: one term, one epoch after another, until it stops or fails.

An epoch begins when there is something to read and the interval is over, or at once while the last one could not read
all there was. Spark's job runs on a thread of its own, so that a stop, and a time limit, are noticed.

What other processes ask for is served between two epochs: by the newest if nothing came since, else by the next one,
which begins at once.

Rule: at most one epoch is on its way, from its job to its receipt; between two nothing of the job is open.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.coordinator import Coordinator, Interrupted, Resumed
from kafka_eos.coordinator.desk import Desk
from kafka_eos.errors import RestartFromCheckpoint, Retryable
from kafka_eos.failpoints import hit
from kafka_eos.ids import EpochId
from kafka_eos.interfaces import InFlight, Positions, StateHandle
from kafka_eos.spark.messages import Spec

if TYPE_CHECKING:
    from kafka_eos.spark.epochs import EpochRunner, Outcome

_LOOK = 0.02
"""Seconds between two looks at what was asked for meanwhile."""
_DISCOVERY_INTERVAL = 5.0
_LEFTOVERS_INTERVAL = 10.0


@dataclass(frozen=True, slots=True)
class Pace:
    """When epochs begin, how large they get, how long they may take; seconds and records."""

    interval: float
    timeout: float
    most_records: int


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
        pace: Pace,
        watch: Watch,
        goal: Mapping[str, Positions] | None,
        desk: Desk,
        newest: Callable[[], Manifest],
    ) -> None:
        self._coordinator, self._runner, self._template = coordinator, runner, template
        self._pace, self._watch, self._goal = pace, watch, goal
        self._desk, self._newest, self._asked_to_stop = desk, newest, False
        self._positions: dict[str, Positions] = {name: dict(splits) for name, splits in resumed.positions.items()}
        self._states: tuple[StateHandle, ...] = resumed.states
        self._in_flight: tuple[InFlight, ...] = resumed.in_flight
        self._finished, self._generation = resumed.base.epoch.n, 0
        self._read_up_to: Mapping[str, Positions] | None = None
        self._in: Counter[str] = Counter()
        self._out: Counter[str] = Counter()
        self._triggered = float("-inf")
        self._looked = self._searched = time.monotonic()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="spark-job")

    def run(self) -> None:
        try:
            while not self._told_to_stop():
                self._look_for_leftovers(_LEFTOVERS_INTERVAL)
                ends = self._next_ends()
                if ends is None:
                    time.sleep(_LOOK)
                    continue
                outcome = self._epoch(self._coordinator.next_epoch(), ends)
                if self._goal is not None and outcome.reached:
                    break
            self._look_for_leftovers(0.0)
            self._serve()
        finally:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._desk.close()

    # ------------------------------------------------------------ what others ask

    def _told_to_stop(self) -> bool:
        """Is the newest epoch to be the last? One with rows under way, of the other engine, is not: they go first."""
        self._look()
        return self._watch.stopping() or (self._asked_to_stop and not self._in_flight)

    def _look(self) -> None:
        self._desk.look(time.monotonic())
        self._asked_to_stop |= self._desk.wants_stop
        if self._desk.wants_end:
            self._runner.cancel()
            self._desk.ended()
            raise Interrupted("ended on request, without the epoch at hand; the next start reads it again")

    def _serve(self) -> None:
        """Nothing is to come, or has come, after the newest epoch: it is what was asked for."""
        if self._desk.wants_epoch:
            manifest = self._newest()
            self._desk.begun(manifest.id)
            self._desk.committed(manifest)

    # ------------------------------------------------------------ what to read

    def _next_ends(self) -> Mapping[str, Positions] | None:
        """Up to where the next epoch reads; None if it is not time for one."""
        if self._goal is not None:
            return self._goal
        at_once = self._read_up_to is None or self._desk.wants_epoch
        if not at_once and time.monotonic() < self._triggered + self._pace.interval:
            return None
        self._discover()
        ends = self._coordinator.ends()
        if ends == self._read_up_to:
            self._triggered = time.monotonic()  # nothing new: ask again after the interval
            self._serve()
            return None
        return ends

    def _discover(self) -> None:
        if time.monotonic() < self._looked + _DISCOVERY_INTERVAL:
            return
        self._looked = time.monotonic()
        try:
            found = self._coordinator.discover(self._positions)
        except Retryable as error:
            self._watch.observe("notice", text=f"could not look for new splits: {error}")
            return
        for source, positions in found.items():
            self._positions[source] = {**self._positions[source], **positions}
            self._watch.observe("splits", source=source, splits=sorted(positions))

    # ------------------------------------------------------------ one epoch

    def _epoch(self, epoch: EpochId, ends: Mapping[str, Positions]) -> Outcome:
        self._triggered = time.monotonic()
        self._desk.begun(epoch)
        outcome = self._wait(self._thread.submit(self._runner.run, self._spec(epoch, ends)))
        hit("coordinator.acked")
        manifest = self._coordinator.decide(epoch, outcome.acked)
        self._observe_decided(epoch, outcome)
        self._coordinator.finish(manifest)
        self._positions = {
            name: {**known, **outcome.acked.positions.get(name, {})} for name, known in self._positions.items()
        }
        self._states, self._in_flight = outcome.acked.states, ()
        self._read_up_to = ends if outcome.reached else None
        self._finished = epoch.epoch.n
        self._watch.observe(
            "committed",
            epoch=epoch.epoch.n,
            seconds=time.monotonic() - self._triggered,
            records=sum(committable.records for committable in manifest.committables),
        )
        self._desk.committed(manifest)
        self._tell_sources(manifest)
        if outcome.retried:
            self._sweep()
        return outcome

    def _wait(self, job: Future[Outcome]) -> Outcome:
        until = time.monotonic() + self._pace.timeout
        while True:
            try:
                return job.result(_LOOK)
            except NotYet:
                self._look()
                if self._watch.expired():
                    self._runner.cancel()
                    raise Interrupted(
                        "stopped before the epoch at hand was committed; nothing is lost, the next start reads it again"
                    ) from None
                if time.monotonic() > until:
                    self._runner.cancel()
                    raise RestartFromCheckpoint(
                        f"the epoch's Spark job did not end within {self._pace.timeout:.0f} s (checkpoint_timeout)"
                    ) from None

    def _spec(self, epoch: EpochId, ends: Mapping[str, Positions]) -> Spec:
        template = self._template
        return msgspec.structs.replace(
            template,
            epoch=epoch.epoch.n,
            finished=self._finished,
            generation=self._generation,
            positions=self._positions,
            ends=dict(ends),
            quota=max(1, self._pace.most_records // template.parallelism),
            states=self._states,
            in_flight=self._in_flight,
        )

    def _sweep(self) -> None:
        """Abort what attempts that lost have left open; the next epoch works with new producers."""
        self._coordinator.abort_left_over()
        self._generation += 1

    def _look_for_leftovers(self, interval: float) -> None:
        """Between epochs nothing is open, unless a task outlived its executor, or the driver before this one."""
        if time.monotonic() < self._searched + interval:
            return
        self._searched = time.monotonic()
        try:
            if self._coordinator.staged():
                self._sweep()
        except Retryable as error:
            self._watch.observe("notice", text=f"could not look for output that is left open: {error}")

    def _tell_sources(self, manifest: Manifest) -> None:
        try:
            self._coordinator.tell_sources(manifest)
        except Retryable as error:
            # The consumer group only shows lag; the next epoch tells it again.
            self._watch.observe("notice", text=f"offsets of epoch {manifest.epoch} not shown: {error}")

    def _observe_decided(self, epoch: EpochId, outcome: Outcome) -> None:
        seconds = time.monotonic() - self._triggered
        self._in.update(outcome.records_in)
        self._out.update(outcome.records_out)
        self._watch.observe(
            "progress",
            records_in=self._in.total(),
            records_out=self._out.total(),
            lag=outcome.lag,
            epoch=epoch.epoch.n,
            rows=dict(outcome.records_in),
            rows_per_second=outcome_rate(outcome, seconds),
            duration_ms={name: round(spent * 1000) for name, spent in outcome.seconds.items()},
            positions={name: dict(splits) for name, splits in outcome.acked.positions.items()},
        )
        self._watch.observe(
            "decided",
            epoch=epoch.epoch.n,
            seconds=seconds,
            blocked_ms=0.0,
            state_bytes=sum(file.size for handle in outcome.acked.states for file in handle.files),
        )


def outcome_rate(outcome: Outcome, seconds: float) -> float:
    """Records a second that the epoch read."""
    return round(sum(outcome.records_in.values()) / seconds, 1) if seconds > 0 else 0.0
