"""The handler of rejected records, rows and results: each stops the job, or becomes a dead letter of its source.

A *result* combines several records: the output of a timer, or a partial accumulator. Its dead letter names the timer,
or the last of the records, and has the result as JSON.

A dead letter stays pending until its chain writes it, at the latest when the ``push``, or the slice of due work, in
which it was rejected returns.
Rule: a record is rejected only if it is at fault; ``FaultAttribution.expect_record`` decides that first.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kafka_eos.codecs.type_inspection import to_plain
from kafka_eos.core.error_messages import describe_error, format_message, make_text, summarize_error
from kafka_eos.core.errors import PoisonRecord
from kafka_eos.core.record_preview import RecordExcerpt
from kafka_eos.core.records import Batch, RawOrigin, RawRecord, RecordCounts, RejectedRecord, Rejection
from kafka_eos.plan import Plan
from kafka_eos.runtime.operators.timer_firing import FiringOrigin, describe_timers, make_output_error

_LONGEST = 200
"""Characters of a reason that are shown for a dead letter; the dead letter contains more of it."""


class RejectionHandler:
    """The rejections of one chain, handled by the policy of each source, and the dead letters that are pending."""

    def __init__(self, plan: Plan, counts: RecordCounts) -> None:
        """``plan``: the complete one. ``counts``: where rejections are counted."""
        self._plan = plan
        self._counts = counts
        names = (node.name for node in (*plan.sources, *plan.timer_operators))
        self._pending: dict[str, list[_PendingDeadLetter]] = {
            name: [] for name in names if plan.find_dead_letter_sink(name)
        }

    @property
    def sources(self) -> Collection[str]:
        """Return the sources, and the operators with timers, whose rejected rows become dead letters."""
        return self._pending

    def reject_record(self, source: str, raw: RawRecord, error: Exception) -> None:
        """Handle a record that a reader cannot decode."""
        self._expect_permitted(source, source, raw, error)
        self._add(source, raw.topic, _make_branch(source, "", 0), source, raw, error, is_result=False)
        self._counts.add_read(source, 1)

    def reject_row(self, batch: Batch[Any], index: int, operator: str, error: Exception) -> None:
        """Handle a row that an operator cannot process."""
        self._reject_row(batch, index, operator, error, is_result=not self._plan.has_records(batch.origin.source))

    def reject_result(self, batch: Batch[Any], index: int, operator: str, error: Exception) -> None:
        """Handle a row that combines several records, the last of which is its origin."""
        self._reject_row(batch, index, operator, error, is_result=True)

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

    def take_dead_letters(self, source: str) -> Iterator[Batch[Any]]:
        """Yield the pending dead letters of a source, or of an operator's timers; they are not pending any more."""
        pending = self._pending.get(source)
        if pending:
            self._pending[source] = []
            pending.sort(key=_by_place)
            for _, letters in groupby(pending, key=attrgetter("topic")):
                yield _as_batch(source, list(letters))

    def _reject_row(self, batch: Batch[Any], index: int, operator: str, error: Exception, *, is_result: bool) -> None:
        origin, row = batch.origin, batch.origin_rows[index]
        raw = origin.raw(row)
        self._expect_permitted(origin.source, operator, raw, error)
        if is_result:
            raw = replace(raw, key=None, value=_as_json(batch.values[index]), headers=())
        branch = _make_branch(operator, "" if batch.branch is None else batch.branch[index], batch.lane)
        self._add(origin.source, origin.topic, branch, operator, raw, error, is_result=is_result)

    def _add(
        self, source: str, topic: str, branch: str, operator: str, raw: RawRecord, error: Exception, *, is_result: bool
    ) -> None:
        if not self._plan.has_records(source):
            raw = replace(raw, topic=describe_timers(source, topic))
            if operator == source:  # what else it has made was counted when it was emitted
                self._counts.add_fired(source, 1)
        whole = f"{type(error).__name__}: {format_message(error)}"  # for those who may read the record itself
        excerpt = RecordExcerpt.of(raw.timestamp, raw.key, raw.value, raw.headers, whole)
        self._counts.add_rejection(
            source, Rejection(raw.location, operator, summarize_error(error)[:_LONGEST], excerpt)
        )
        rejected = RejectedRecord(raw, operator, type(error).__name__, format_message(error), is_result)
        self._pending[source].append(_PendingDeadLetter(topic, branch, rejected))

    def _expect_permitted(self, source: str, operator: str, raw: RawRecord, error: Exception) -> None:
        self._plan.attribution(source).expect_record(error, operator, raw.location)
        if source in self._pending:
            return
        if not self._plan.has_records(source):
            raise make_output_error(source, raw, operator, error) from error
        raise PoisonRecord(raw.location, operator, describe_error(error)) from error


def hash_operator(operator: str) -> int:
    """Return the number that stands for an operator in its dead letters' branches."""
    return zlib.crc32(operator.encode())


def _make_branch(operator: str, branch: str, lane: int) -> str:
    """Return the branch of a dead letter, the same in every worker."""
    return f"{branch}{lane}-{hash_operator(operator)}-"


def _as_json(result: object) -> bytes:
    """Return a result for people: JSON, or its ``repr`` if it has no JSON."""
    try:
        return msgspec.json.encode(result, enc_hook=to_plain)
    except Exception:  # noqa: BLE001 (a user's class may raise anything)
        return make_text(repr, result).encode(errors="backslashreplace")


class _PendingDeadLetter(Struct, frozen=True):
    """A dead letter that is not written yet, and its topic and branch; see provenance."""

    topic: str
    branch: str
    rejected: RejectedRecord

    @property
    def place(self) -> tuple[str, int, int]:
        raw = self.rejected.raw
        return self.topic, raw.partition, raw.offset


_by_place = attrgetter("place", "branch")


def _as_batch(source: str, letters: Sequence[_PendingDeadLetter]) -> Batch[Any]:
    """Return dead letters of one topic, in the order of their places, as a batch of their own.

    Each has the origin of what was rejected.
    """
    # One row per record, so that several dead letters of it differ in their branches and ordinals.
    raws, rows = [letters[0].rejected.raw], [0]
    for before, letter in pairwise(letters):
        if letter.place != before.place:
            raws.append(letter.rejected.raw)
        rows.append(len(raws) - 1)
    topic, origin = letters[0].topic, RawOrigin(source, raws)
    return Batch(
        [letter.rejected for letter in letters],
        rows,
        origin if origin.topic == topic else FiringOrigin(source, topic, origin.partitions, origin.offsets),
        branch=[letter.branch for letter in letters],
    )
