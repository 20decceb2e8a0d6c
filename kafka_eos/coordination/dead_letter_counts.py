"""Counts of a run over all its attempts: dead letters and their limit, rows set aside, late rows, filtered records.

Rule: an epoch is counted when it is decided, and no longer once it is undone. When its input is read again, its records
are rejected again, or are not. A decision may be known only when the job continues from it, because the response of the
store may be lost.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kafka_eos.core.errors import TooManyDeadLetters
from kafka_eos.core.ids import EpochId
from kafka_eos.core.records import RecordCounts, Rejection
from kafka_eos.protocol.dead_letter_limit import DeadLetterLimit, DeadLetterTotals, Excess
from kafka_eos.storage import object_names as paths


@dataclass
class _NewestCounts:
    epoch: EpochId
    tally: RecordCounts
    before: DeadLetterTotals
    is_reported: bool = False


class DeadLetterMonitor:
    """The counts of dead letters, late rows and filtered records, and the enforcement of the limit.

    ``keep`` receives the first few dead letters of the run, by source, with their contents.
    """

    def __init__(
        self, limit: str, window: int, observe: Callable[..., None], keep: Callable[[DeadLetterSamples], None]
    ) -> None:
        self._limit_text = limit
        self._limit = DeadLetterLimit.parse(limit, window)
        self._observe = observe
        self._keep = keep
        self._totals = DeadLetterTotals()
        """Totals including the newest epoch, which may not be decided yet."""
        self._newest: _NewestCounts | None = None
        """The newest epoch, the only one that may be undone."""
        self._set_aside: Counter[str] = Counter()
        self._newest_set_aside: EpochId | None = None

    def check_epoch(self, epoch: EpochId, tally: RecordCounts) -> None:
        """Count an epoch that is about to be decided; raise TooManyDeadLetters if it exceeds the limit."""
        excess = self._totals.find_excess(tally, self._limit)
        if excess is not None:
            raise TooManyDeadLetters(_sentence(excess, self._limit_text, share=self._limit.share is not None))
        self._newest, self._totals = (
            _NewestCounts(epoch, tally, self._totals),
            self._totals.with_epoch(tally, self._limit),
        )

    def confirm(self) -> None:
        """Report the counts of the newest epoch: it is decided now."""
        if self._newest is not None and not self._newest.is_reported:
            self._newest.is_reported = True
            if any(self._newest.tally.refused.values()):
                self._tell(self._newest.epoch, self._newest.tally)
            if self._newest.tally.late:
                self._tell_late(self._newest.epoch, self._newest.tally)
            if self._newest.tally.filtered:
                self._tell_left_out(self._newest.epoch, self._newest.tally)

    def rewind_to(self, base: EpochId | None) -> None:
        """Subtract the newest epoch if it turned out not to be decided; ``base``: the epoch the job continues from."""
        if self._newest is None:
            return
        if base is not None and base >= self._newest.epoch:
            self.confirm()
            return
        undone, after = self._newest, self._totals
        self._newest, self._totals = None, undone.before
        if undone.is_reported and undone.before.total.refused != after.total.refused:
            self._tell(undone.epoch, RecordCounts())
        if undone.is_reported and undone.tally.late:
            self._tell_late(undone.epoch, RecordCounts())
        if undone.is_reported and undone.tally.filtered:
            self._tell_left_out(undone.epoch, RecordCounts())

    def report_set_aside(self, epoch: EpochId, counts: Mapping[str, int]) -> None:
        """Report the rows of a committed epoch that receivers refused, by sink; once if a recovery commits it again."""
        if self._newest_set_aside is None or epoch > self._newest_set_aside:
            self._newest_set_aside = epoch
            self._set_aside.update(counts)
            self._observe("set-aside", epoch=epoch.epoch.n, counts=dict(counts), total=dict(self._set_aside))

    def _tell(self, epoch: EpochId, tally: RecordCounts) -> None:
        self._keep(self._totals.total.first)
        self._observe(
            "dead-letters",
            epoch=epoch.epoch.n,
            counts=tally.refused,
            total=self._totals.total.refused,
            first={
                source: list(map(_without_contents, refusals)) for source, refusals in self._totals.total.first.items()
            },
        )

    def _tell_late(self, epoch: EpochId, tally: RecordCounts) -> None:
        self._observe("late-rows", epoch=epoch.epoch.n, counts=tally.late, total=self._totals.total.late)

    def _tell_left_out(self, epoch: EpochId, tally: RecordCounts) -> None:
        self._observe("filtered", epoch=epoch.epoch.n, counts=tally.filtered, total=self._totals.total.filtered)


def _without_contents(refusal: Rejection) -> dict[str, str]:
    """Return a dead letter without the contents of its record."""
    return {"where": refusal.where, "operator": refusal.operator, "reason": refusal.reason}


def _sentence(excess: Excess, limit: str, *, share: bool) -> str:
    by = ", ".join(f"{count} by operator {operator!r}" for operator, count in excess.by.items())
    first = "; ".join(f"{refusal.where} in {refusal.operator!r}: {refusal.reason}" for refusal in excess.first)
    of = f"of the newest {excess.read} records" if share else f"of {excess.read} records in this run"
    return (
        f"{excess.refused} {of} of {excess.source!r} were rejected, more than max_dead_letters={limit} "
        f"allows: {by}. The first: {first}. Nothing is lost: the epoch with the newest of them is not decided, and "
        "the next start resumes from the last checkpoint. Fix the code or the producer of the records, or raise "
        "max_dead_letters"
    )


# ---------------------------------------------------------------- the file of the newest dead letters
#
# The contents of the first few dead letters of a run: a file of the job's directory, for its dashboard.
#
# Rule: no event contains the contents of records, because events are logged, and served to every client. Only the
# file's owner may read it. Like all files that only display a job it is not durable, and the job continues without it.


DeadLetterSamples = Mapping[str, Sequence[Rejection]]
"""The first dead letters of a run, by source."""


_decoder = msgspec.json.Decoder(dict[str, list[Rejection]])


class DeadLetterFile:
    """The file with the first dead letters of a run. It calls ``notice`` once if the file cannot be written."""

    def __init__(self, directory: Path, notice: Callable[[str], None]) -> None:
        self._path = directory / paths.DEAD_LETTER_SAMPLES
        self._notice = notice
        self._failing = False

    def begin(self) -> None:
        """Delete the file of the previous run."""
        self._path.unlink(missing_ok=True)

    def write(self, refused: DeadLetterSamples) -> None:
        """Replace the content of the file."""
        staged = self._path.with_suffix(".tmp")
        try:
            with open(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(refused))
            staged.replace(self._path)
        except OSError as error:
            if not self._failing:
                self._notice(f"{self._path} cannot be written: {error}. The dashboard does not show rejected records")
            self._failing = True
        else:
            self._failing = False


def read_dead_letter_file(directory: Path) -> DeadLetterSamples:
    """Return the first dead letters of the newest run. Raise OSError, or ValueError if the file is damaged."""
    try:
        return _decoder.decode((directory / paths.DEAD_LETTER_SAMPLES).read_bytes())
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise ValueError(f"{paths.DEAD_LETTER_SAMPLES} is damaged: {error}") from error
