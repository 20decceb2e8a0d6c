"""Traces of commits and aborts, which outlive what readers take away.

Rule: a trace goes only when nobody can ask for it any more. One is needed until the receipt of the epoch that its
commit was permitted for. An epoch is decided only after the receipt of the one before it, and no number is used twice:
so a permit for a later epoch proves the receipt, and a permit of a later term proves that everything of the terms
before it is settled, whatever became of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Protocol

from kafka_eos.connectors.files.file_names import Kind, Part
from kafka_eos.core.ids import Epoch, EpochId, Term


class Shelf(Protocol):
    """Where traces are."""

    def create(self, name: str) -> bool:
        """An empty file. False if it was there."""

    def hidden(self, job: str) -> Sequence[tuple[str, Kind, Part]]:
        """A job's hidden files, by name."""

    def remove(self, name: str) -> None:
        """One that is not there is fine."""


class Traces:
    """Makes and removes them. May be used from threads."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf, self._lock = shelf, Lock()
        self._noted: dict[str, Epoch] = {}
        self._settled: Epoch | None = None
        """What an epoch's first commit found settled is not looked for at each of its files."""
        self._swept: Term | None = None

    def make(self, part: Part, permit: EpochId) -> bool:
        """Leave the trace of a commit, not synced. False if it was there."""
        first = self._shelf.create(part.hidden(Kind.COMMITTED))
        self.note(part, Kind.COMMITTED, permit)
        return first

    def note(self, part: Part, kind: Kind, needed_by: EpochId) -> None:
        with self._lock:
            self._noted[part.hidden(kind)] = needed_by.epoch

    def forget(self, of: Part, permit: EpochId) -> None:
        """Remove those of a life that nobody can ask for any more. One that stays by accident goes in a later term."""
        with self._lock:
            settled = []
            if self._settled != permit.epoch:
                settled = [name for name, epoch in self._noted.items() if epoch < permit.epoch]
                self._settled = permit.epoch
            for name in settled:
                del self._noted[name]
            sweep = self._swept is None or self._swept < permit.term
            self._swept = permit.term
        if sweep:
            old = [each for each in self._shelf.hidden(of.job) if each[2].identity == of.identity]
            traces = (Kind.COMMITTED, Kind.ABORTED)
            settled += [name for name, kind, part in old if kind in traces and part.epoch.term < permit.term]
        for name in settled:
            self._shelf.remove(name)
