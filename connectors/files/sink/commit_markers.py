"""Markers of commits and aborts, which remain when readers remove files.

Rule: a marker is deleted only when no process can need it any more. It is needed until the receipt of the epoch that
its commit was permitted for. An epoch is decided only after the receipt of the previous one, and no number is used
twice. So a permit for a later epoch proves the receipt, and a permit of a later term proves that all epochs of earlier
terms are finished, committed or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Protocol

from kafka_eos.connectors.files.file_names import PartId, PartState
from kafka_eos.core.ids import Epoch, EpochId, Term


class MarkerStore(Protocol):
    """The storage of markers."""

    def create(self, name: str) -> bool:
        """Create an empty file. Return False if it exists."""

    def hidden(self, job: str) -> Sequence[tuple[str, PartState, PartId]]:
        """Return a job's hidden files, by name."""

    def remove(self, name: str) -> None:
        """Delete a marker. An absent one is ignored."""


class CommitMarkers:
    """The commit and abort markers: creation and deletion. Thread-safe."""

    def __init__(self, markers: MarkerStore) -> None:
        self._store, self._lock = markers, Lock()
        self._noted: dict[str, Epoch] = {}
        self._settled: Epoch | None = None
        """The epoch whose first commit has deleted old markers; its other files need not repeat that."""
        self._cleaned_term: Term | None = None

    def make(self, part: PartId, permit: EpochId) -> bool:
        """Create the marker of a commit, without a sync. Return False if it exists."""
        first = self._store.create(part.build_hidden_name(PartState.COMMITTED))
        self.note(part, PartState.COMMITTED, permit)
        return first

    def note(self, part: PartId, kind: PartState, needed_by: EpochId) -> None:
        with self._lock:
            self._noted[part.build_hidden_name(kind)] = needed_by.epoch

    def forget(self, of: PartId, permit: EpochId) -> None:
        """Delete markers that are no longer needed. One that remains by accident is deleted in a later term."""
        with self._lock:
            settled = []
            if self._settled != permit.epoch:
                settled = [name for name, epoch in self._noted.items() if epoch < permit.epoch]
                self._settled = permit.epoch
            for name in settled:
                del self._noted[name]
            is_first = self._cleaned_term is None or self._cleaned_term < permit.term
            self._cleaned_term = permit.term
        if is_first:
            old = [each for each in self._store.hidden(of.job) if each[2].identity == of.identity]
            markers = (PartState.COMMITTED, PartState.ABORTED)
            settled += [name for name, kind, part in old if kind in markers and part.epoch.term < permit.term]
        for name in settled:
            self._store.remove(name)
