"""Services of the engine for the readers and writers of one session, and the resources that they share.

Rule: a row or a record is skipped only after the error policy of its source has accepted it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct, field

from kafka_eos.core.error_messages import describe_error
from kafka_eos.core.errors import PoisonRecord
from kafka_eos.core.fault_attribution import ErrorRules
from kafka_eos.core.records import Batch, RawRecord

R = TypeVar("R")

RejectRecord: TypeAlias = Callable[[str, RawRecord, Exception], None]
"""``reject(source, raw, error)``: accept a record that cannot be decoded as a dead letter.

It raises PoisonRecord instead if the job must stop, or EnvironmentFailed if the record is not to blame.
"""
RejectRow: TypeAlias = Callable[[Batch[Any], int, str, Exception], None]
"""``reject(batch, index, operator, error)``: the same for a row that a writer cannot write."""


def uncounted(source: str, records: int) -> None:
    """Ignore the count of records that a reader filters out."""


def stop_at_record(operator: str, raw: RawRecord, error: Exception) -> None:
    """Stop at a record: the default policy. Raises PoisonRecord or EnvironmentFailed; both name the record."""
    ErrorRules().expect_record(error, operator, raw.location)
    raise PoisonRecord(raw.location, operator, describe_error(error)) from error


def stop_at_row(batch: Batch[Any], index: int, operator: str, error: Exception) -> None:
    """Stop at a row, as ``stop_at_record`` does at its input record."""
    stop_at_record(operator, batch.origin.raw(batch.origin_rows[index]), error)


class Resources:
    """Resources shared by readers and writers of a session, such as clients. Who uses one closes it.

    The first caller of ``get`` creates each one.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[type[Any], str], Any] = {}

    def get(self, kind: type[R], key: str, make: Callable[[], R]) -> R:
        """Return the resource of this kind and key; call ``make`` if it does not exist. Two connectors use two kinds.

        Call it from the thread that opens readers and writers.
        """
        place = kind, key
        if place not in self._made:
            self._made[place] = make()
        found: R = self._made[place]
        return found


class Services(Struct, frozen=True):
    """The services of the engine for all readers and writers of one session of a worker.

    The defaults apply without an engine, as in a test of a sink: a record that cannot be processed stops the job.
    """

    reject_record: RejectRecord = stop_at_record
    """The handler of a record that cannot be decoded. Readers call it."""
    reject_row: RejectRow = stop_at_row
    """The handler of a row that cannot be written. Writers call it."""
    count_filtered: Callable[[str, int], None] = uncounted
    """Counts records that a source's filter has dropped."""
    session: Resources = field(default_factory=Resources)
    """Resources that operators of this session share."""
