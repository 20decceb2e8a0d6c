"""The handler of rejected records and rows: each stops the job, or becomes a dead letter of its source.

A dead letter stays pending until its chain writes it, at the latest when the ``push`` in which it was rejected returns.
Rule: a record is rejected only if it is at fault; ``FaultAttribution.expect_record`` decides that first.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

from kafka_eos.core.error_messages import describe_error, format_message, summarize_error
from kafka_eos.core.errors import PoisonRecord
from kafka_eos.core.record_preview import RecordExcerpt
from kafka_eos.core.records import Batch, RawOrigin, RawRecord, RecordCounts, RejectedRecord, Rejection
from kafka_eos.plan import Plan
from kafka_eos.runtime.operators.timer_firing import make_output_error

_LONGEST = 200
"""Characters of a reason that are shown for a dead letter; the dead letter contains more of it."""


class RejectionHandler:
    """The rejections of one chain, handled by the policy of each source, and the dead letters that are pending."""

    def __init__(self, plan: Plan, counts: RecordCounts) -> None:
        """``counts``: where rejections are counted."""
        self._plan = plan
        self._counts = counts
        self._sources = {source.name for source in plan.sources}
        self._pending: dict[str, list[_PendingDeadLetter]] = {
            source: [] for source in self._sources if plan.find_dead_letter_sink(source)
        }

    @property
    def sources(self) -> Collection[str]:
        """Return the sources whose rejected records become dead letters."""
        return self._pending

    def reject_record(self, source: str, raw: RawRecord, error: Exception) -> None:
        """Handle a record that a reader cannot decode."""
        self._reject(source, source, raw, _make_branch(source, "", 0), error)
        self._counts.add_read(source, 1)

    def reject_row(self, batch: Batch[Any], index: int, operator: str, error: Exception) -> None:
        """Handle a row that an operator cannot process."""
        branch = "" if batch.branch is None else batch.branch[index]
        raw = batch.origin.raw(batch.origin_rows[index])
        self._reject(batch.origin.source, operator, raw, _make_branch(operator, branch, batch.lane), error)

    def reject_output(self, batch: Batch[Any], index: int, sink: str, error: Exception) -> None:
        """Handle a row that a writer cannot write.

        Raises PoisonRecord under policy "stop", and always for a dead letter, which cannot become another dead letter.
        """
        source, raw = batch.origin.source, batch.origin.raw(batch.origin_rows[index])
        letters = self._plan.find_dead_letter_sink(source)
        if letters is not None and letters.name == sink:
            self._plan.attribution(source).expect_record(error, sink, raw.location)
            raise PoisonRecord(
                raw.location,
                sink,
                f"its dead letter cannot be written: {describe_error(error)}",
                "Make the dead letter sink accept it (a larger max.message.bytes, another codec), or fix the record",
            ) from error
        self.reject_row(batch, index, sink, error)

    def expect_permitted(self, batch: Batch[Any], index: int, operator: str, error: Exception) -> None:
        """Return if the record at fault may become a dead letter.

        Raises PoisonRecord, or what ``expect_record`` does.
        """
        self._expect_permitted(batch.origin.source, operator, batch.origin.raw(batch.origin_rows[index]), error)

    def take_dead_letters(self, source: str) -> Batch[Any] | None:
        """Return the pending dead letters of a source, which are not pending any more; None if there are none."""
        pending = self._pending.get(source)
        if not pending:
            return None
        self._pending[source] = []
        return _as_batch(source, pending)

    def _reject(self, source: str, operator: str, raw: RawRecord, branch: str, error: Exception) -> None:
        self._expect_permitted(source, operator, raw, error)
        whole = f"{type(error).__name__}: {format_message(error)}"  # for those who may read the record itself
        excerpt = RecordExcerpt.of(raw.timestamp, raw.key, raw.value, raw.headers, whole)
        self._counts.add_rejection(
            source, Rejection(raw.location, operator, summarize_error(error)[:_LONGEST], excerpt)
        )
        self._pending[source].append(
            _PendingDeadLetter(branch, RejectedRecord(raw, operator, type(error).__name__, format_message(error)))
        )

    def _expect_permitted(self, source: str, operator: str, raw: RawRecord, error: Exception) -> None:
        self._plan.attribution(source).expect_record(error, operator, raw.location)
        if source in self._pending:
            return
        if source not in self._sources:
            raise make_output_error(source, raw, operator, error) from error
        raise PoisonRecord(raw.location, operator, describe_error(error)) from error


def hash_operator(operator: str) -> int:
    """Return the number that stands for an operator in its dead letters' branches."""
    return zlib.crc32(operator.encode())


def _make_branch(operator: str, branch: str, lane: int) -> str:
    """Return the branch of a dead letter, the same in every worker."""
    return f"{branch}{lane}-{hash_operator(operator)}-"


@dataclass(frozen=True, slots=True)
class _PendingDeadLetter:
    """A dead letter that is not written yet, and its branch; see provenance."""

    branch: str
    rejected: RejectedRecord

    @property
    def place(self) -> tuple[str, int, int]:
        raw = self.rejected.raw
        return raw.topic, raw.partition, raw.offset


def _as_batch(source: str, letters: Sequence[_PendingDeadLetter]) -> Batch[Any]:
    """Return dead letters as a batch of their own, each with the origin of the rejected record."""
    letters = sorted(letters, key=attrgetter("place", "branch"))
    # One row per record, so that several dead letters of it differ in their branches and ordinals.
    raws, rows = [letters[0].rejected.raw], [0]
    for before, letter in pairwise(letters):
        if letter.place != before.place:
            raws.append(letter.rejected.raw)
        rows.append(len(raws) - 1)
    values = [letter.rejected for letter in letters]
    return Batch(values, rows, RawOrigin(source, raws), branch=[letter.branch for letter in letters])
