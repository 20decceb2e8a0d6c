"""The dead letters, the late rows and what filters of sources left out, in one run, over all its attempts: shown, and
dead letters kept within the job's limit.

Rule: an epoch counts when it is decided, and no longer once it is undone. What was refused in an epoch that does not
count is refused again, or is not, when its input is read again. Whether it was decided may be known only when the job
goes on from it: the answer of the store may be lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kafka_eos.core.errors import TooManyDeadLetters
from kafka_eos.core.ids import EpochId
from kafka_eos.core.records import Refusal, Tally
from kafka_eos.protocol.dead_letter_limit import Books, Excess, Limit
from kafka_eos.storage import object_names as paths


@dataclass
class _Newest:
    epoch: EpochId
    tally: Tally
    before: Books
    told: bool = False


class Refusals:
    """``limit``: as the setting ``max_dead_letters``; ``observe`` is told of each epoch that has any of them.

    ``keep`` gets the first few dead letters of the run, by source, with what is in them.
    """

    def __init__(self, limit: str, window: int, observe: Callable[..., None], keep: Callable[[Refused], None]) -> None:
        self._said, self._limit, self._observe, self._keep = limit, Limit.parse(limit, window), observe, keep
        self._books = Books()
        """With the newest epoch, which may not be decided yet."""
        self._newest: _Newest | None = None
        """Only this one may be undone."""

    def deciding(self, epoch: EpochId, tally: Tally) -> None:
        """The epoch is to be decided now. TooManyDeadLetters if it must not be."""
        excess = self._books.excess(tally, self._limit)
        if excess is not None:
            raise TooManyDeadLetters(_sentence(excess, self._said, share=self._limit.share is not None))
        self._newest, self._books = _Newest(epoch, tally, self._books), self._books.after(tally, self._limit)

    def decided(self) -> None:
        """It is."""
        if self._newest is not None and not self._newest.told:
            self._newest.told = True
            if any(self._newest.tally.refused.values()):
                self._tell(self._newest.epoch, self._newest.tally)
            if self._newest.tally.late:
                self._tell_late(self._newest.epoch, self._newest.tally)
            if self._newest.tally.left_out:
                self._tell_left_out(self._newest.epoch, self._newest.tally)

    def goes_on_from(self, base: EpochId | None) -> None:
        """The job goes on from this epoch: if another one was to be decided after it, that is undone."""
        if self._newest is None:
            return
        if base is not None and base >= self._newest.epoch:
            self.decided()
            return
        undone, after = self._newest, self._books
        self._newest, self._books = None, undone.before
        if undone.told and undone.before.total.refused != after.total.refused:
            self._tell(undone.epoch, Tally())
        if undone.told and undone.tally.late:
            self._tell_late(undone.epoch, Tally())
        if undone.told and undone.tally.left_out:
            self._tell_left_out(undone.epoch, Tally())

    def _tell(self, epoch: EpochId, tally: Tally) -> None:
        self._keep(self._books.total.first)
        self._observe(
            "dead-letters",
            epoch=epoch.epoch.n,
            counts=tally.refused,
            total=self._books.total.refused,
            first={source: list(map(_told, refusals)) for source, refusals in self._books.total.first.items()},
        )

    def _tell_late(self, epoch: EpochId, tally: Tally) -> None:
        self._observe("late-rows", epoch=epoch.epoch.n, counts=tally.late, total=self._books.total.late)

    def _tell_left_out(self, epoch: EpochId, tally: Tally) -> None:
        self._observe("left-out", epoch=epoch.epoch.n, counts=tally.left_out, total=self._books.total.left_out)


def _told(refusal: Refusal) -> dict[str, str]:
    """Events say what was refused and why, and nothing of what is in it."""
    return {"where": refusal.where, "operator": refusal.operator, "reason": refusal.reason}


def _sentence(excess: Excess, limit: str, *, share: bool) -> str:
    by = ", ".join(f"{count} by operator {operator!r}" for operator, count in excess.by.items())
    first = "; ".join(f"{refusal.where} in {refusal.operator!r}: {refusal.reason}" for refusal in excess.first)
    of = f"of the newest {excess.read} records" if share else f"of {excess.read} records in this run"
    return (
        f"{excess.refused} {of} of source {excess.source!r} were refused, more than max_dead_letters={limit} allows: "
        f"{by}. The first: {first}. Nothing is lost: the epoch with the newest of them is not decided, and the job "
        "goes on at its last checkpoint when it is started again. Repair the code or what writes the records, or raise "
        "max_dead_letters"
    )


# ---------------------------------------------------------------- the file of the newest dead letters
#
# What is in the first few records that a run has sent aside: a file of the job's directory, for its dashboard.
#
# Rule: the contents of records are in no event, because those are logged, and served to whoever asks. The file is its
# owner's alone. Like all that only shows a job it is not durable, and the job goes on without it.


Refused = Mapping[str, Sequence[Refusal]]
"""By source."""


_decoder = msgspec.json.Decoder(dict[str, list[Refusal]])


class RefusedFile:
    """Of one run, which begins without any. ``notice`` is told, once, that the file cannot be written."""

    def __init__(self, directory: Path, notice: Callable[[str], None]) -> None:
        self._path, self._notice, self._failing = directory / paths.REFUSED, notice, False

    def begin(self) -> None:
        """Those of the run before are none of this one."""
        self._path.unlink(missing_ok=True)

    def write(self, refused: Refused) -> None:
        """Replace what is there."""
        staged = self._path.with_suffix(".tmp")
        try:
            with open(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(refused))
            staged.replace(self._path)
        except OSError as error:
            if not self._failing:
                self._notice(f"{self._path} cannot be written: {error}. The dashboard does not show what was refused")
            self._failing = True
        else:
            self._failing = False


def read_refused(directory: Path) -> Refused:
    """What the newest run has written; nothing if it refused nothing. OSError, or ValueError if it is damaged."""
    try:
        return _decoder.decode((directory / paths.REFUSED).read_bytes())
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise ValueError(f"{paths.REFUSED} is damaged: {error}") from error
