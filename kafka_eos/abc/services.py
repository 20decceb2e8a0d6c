"""What the engine does for the readers and writers of a session, and what these have in common.

Rule: a row or a record is left out only after the policy of its source has taken it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from kafka_eos.core.errors import PoisonRecord
from kafka_eos.core.fault_attribution import Attribution, told
from kafka_eos.core.ids import Epoch
from kafka_eos.core.records import Batch, RawRecord

R = TypeVar("R")

RejectRecord: TypeAlias = Callable[[str, RawRecord, Exception], None]
"""``reject(source, raw, error)``: takes a record that cannot be decoded as a dead letter and returns; or raises
PoisonRecord, or EnvironmentFailed if the record is not to blame."""
RejectRow: TypeAlias = Callable[[Batch[Any], int, str, Exception], None]
"""``reject(batch, index, operator, error)``: the same for a row that a writer cannot write."""


def uncounted(source: str, records: int) -> None:
    """Where nobody counts what a reader leaves out."""


def stop_at_record(operator: str, raw: RawRecord, error: Exception) -> None:
    """The policy where none is given. Raises PoisonRecord or EnvironmentFailed; both name the record."""
    Attribution().expect_record(error, operator, raw.where)
    raise PoisonRecord(raw.where, operator, told(error)) from error


def stop_at_row(batch: Batch[Any], index: int, operator: str, error: Exception) -> None:
    """As ``stop_at_record``, with the input record of the row."""
    stop_at_record(operator, batch.origin.raw(batch.rows[index]), error)


@runtime_checkable
class Lasting(Protocol):
    """A resource that outlives the session that made it, in the same process and term."""

    def committed(self, epoch: Epoch) -> None:
        """All epochs up to this one are finished for good. Called before each session, from its thread."""

    def close(self) -> None:
        """Let go, undo nothing."""


class Resources:
    """What several readers and writers of a worker use: clients, transactions. Each is made by who asks first."""

    def __init__(self) -> None:
        self._made: dict[tuple[type[Any], str], Any] = {}

    def get(self, kind: type[R], key: str, make: Callable[[], R]) -> R:
        """The one of this kind and key; ``make`` is called if there is none. Two connectors have two kinds.

        Call from the thread that opens readers and writers.
        """
        place = kind, key
        if place not in self._made:
            self._made[place] = make()
        found: R = self._made[place]
        return found

    def committed(self, epoch: Epoch) -> None:
        """Tell all that want to know, see ``Lasting``."""
        for each in self._lasting():
            each.committed(epoch)

    def close(self) -> None:
        """Close all that last, see ``Lasting``; what does not is closed by the writers that use it."""
        for each in self._lasting():
            each.close()

    def _lasting(self) -> list[Lasting]:
        return [each for each in self._made.values() if isinstance(each, Lasting)]


@dataclass(frozen=True, slots=True)
class Services:
    """What the engine gives to all readers and writers of one session of a worker.

    The defaults are for where no engine is, as in a test of a sink: what cannot be processed stops the job.
    """

    reject_record: RejectRecord = stop_at_record
    """For readers: what becomes of a record that cannot be decoded."""
    reject_row: RejectRow = stop_at_row
    """For writers: what becomes of a row that cannot be written."""
    left_out: Callable[[str, int], None] = uncounted
    """For readers: how many records of a source its filter has left out."""
    session: Resources = field(default_factory=Resources)
    """What operators of this session share."""
    term: Resources | None = None
    """What may serve later sessions of the term in this process too; None: nothing may."""

    @property
    def longest(self) -> Resources:
        """What lasts as long as it may."""
        return self.session if self.term is None else self.term
