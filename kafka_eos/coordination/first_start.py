"""A start where nothing was ever decided: it looks for other lives, and decides epoch 0.

Rule: a start that is refused has decided nothing, and takes its own mark away.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kafka_eos.coordination import savepoint_start as origin
from kafka_eos.coordination.epochs import Epochs
from kafka_eos.coordination.incarnations import Lives
from kafka_eos.coordination.inputs import Inputs
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.ownership import Ownership
from kafka_eos.core.errors import ConfigError, Fenced
from kafka_eos.core.ids import Epoch, JobIdentity, Term
from kafka_eos.core.json_values import Json
from kafka_eos.plan import Plan
from kafka_eos.runtime.epoch_reports import Acked
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage


@dataclass(frozen=True, slots=True)
class FirstStart:
    """``heir_of``: starts of this directory that have decided nothing. ``take_over``: it may end other lives."""

    plan: Plan
    storage: JobStorage
    ownership: Ownership
    lives: Lives
    inputs: Inputs
    epochs: Epochs
    history: History
    heir_of: frozenset[JobIdentity]
    take_over: bool
    allow_dropped: bool

    def begin(self, start_from: Path | None) -> Manifest:
        """Decide epoch 0, the start positions, before anything is read; ``start_from``: those of a savepoint.

        First the base record: what an earlier start of this directory still decides must not count any more when its
        life is ended here.
        """
        self.ownership.rebase(None, "first start" if start_from is None else f"first start, from {start_from}")
        if start_from is not None:
            return self._begin_from(origin.Start.read(start_from))
        self._enter(frozenset())
        self.storage.delete(paths.ORIGIN)  # of a start with a savepoint that did not get as far as epoch 0
        positions = self.inputs.look_up(self.ownership.context, {source.name: None for source in self.plan.sources})
        return self._first(Acked(positions, (), ()))

    def _begin_from(self, start: origin.Start) -> Manifest:
        """As ``begin``, with the positions and the state of a savepoint."""
        savepoint, what = start.savepoint, f"savepoint {start.path}"
        origin.drop(self.history, self.allow_dropped, what, start.unclaimed(self.plan))
        with self._withdrawn_if_refused():
            self.lives.admitted(self.ownership.context, start.heir_of | self.heir_of, self.take_over)
        states, in_flight = start.bring(self.storage, self.plan)
        origin.ensure_tables_come_first(self.plan, savepoint.sources, in_flight)
        origin.ensure_joins_know_their_tables(self.plan, savepoint.sources, states)
        # The sinks may know the savepoint's job: what they have of it must look older than what they get now.
        self.ownership.next = max(self.ownership.next, Epoch(savepoint.epoch).next())
        if self.ownership.term <= Term(savepoint.term):
            self.ownership.take_term(Term(savepoint.term))
            self.ownership.rebase(None, f"first start, from {what}")
        self._enter(start.heir_of)  # now that nothing is wrong with the savepoint: the life that it is of ends here
        names, known = [source.name for source in self.plan.sources], savepoint.sources
        positions = self.inputs.look_up(self.ownership.context, {name: known.get(name) for name in names})
        return self._first(Acked(positions, states, (), in_flight), savepoint=savepoint.id)

    def _enter(self, heir_of: frozenset[JobIdentity | None]) -> None:
        """Raises ConfigError if another life of the job's name may go on."""
        with self._withdrawn_if_refused():
            ended = self.lives.enter(self.ownership.context, heir_of | self.heir_of, self.take_over)
        if ended:
            self.history.write("took-over", term=self.ownership.term.n, count=len(ended), names=list(ended[:20]))

    @contextmanager
    def _withdrawn_if_refused(self) -> Iterator[None]:
        """A start that is refused has decided nothing. Its mark would refuse the others, and theirs this one, for ever.

        The mark is that of this start alone: nobody goes on with it, whoever has started in this directory since. The
        same holds for the starts before it here, which may have died.
        """
        try:
            yield
        except (ConfigError, Fenced):
            self.lives.withdraw(self.ownership.context, {self.ownership.identity.id, *self.heir_of})
            self.ownership.ensure()  # the other life may be that of a newer supervisor of this directory
            raise

    def _first(self, acked: Acked, **facts: Json) -> Manifest:
        began: dict[str, Json] = {
            name: {str(split): at for split, at in splits.items()} for name, splits in acked.positions.items()
        }
        identity = self.ownership.identity.identity
        self.history.write("began", term=self.ownership.term.n, identity=identity, positions=began, **facts)
        manifest = self.epochs.decide(self.ownership.next_epoch(), acked)
        self.ownership.keep_identity()
        self.epochs.finish(manifest)
        return manifest
