"""Where a running job, on any engine, serves what other processes ask of it: checkpoints, savepoints, a stop.

Rule: a request is answered when what it asks for is durable. One that an attempt could not serve stays where it is, and
the next attempt takes it up.
"""

from __future__ import annotations

from pathlib import Path

from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.coordinator import requests
from kafka_eos.coordinator.requests import Answer, Request, Stop, TakeSavepoint
from kafka_eos.coordinator.savepointing import SavepointWriter
from kafka_eos.ids import EpochId

_EVERY = 0.2


class Desk:
    """The requests of one attempt. ``directory`` is the job's on this machine."""

    def __init__(self, directory: Path, savepoints: SavepointWriter) -> None:
        self._directory, self._savepoints = directory, savepoints
        self._looked = 0.0
        self._waiting: dict[str, Request] = {}
        self._served: dict[str, tuple[EpochId, Request]] = {}
        """Requests with the epoch that serves them; any later one does, too."""

    def look(self, now: float) -> None:
        """See what is asked, a few times a second."""
        if now - self._looked > _EVERY:
            self._looked = now
            for token, request in requests.pending(self._directory):
                if token not in self._served and token not in self._savepoints:
                    self._waiting.setdefault(token, request)

    @property
    def wants_epoch(self) -> bool:
        """Is anybody waiting for a checkpoint?"""
        return bool(self._waiting)

    @property
    def wants_stop(self) -> bool:
        """Is the next checkpoint to be the last?"""
        return any(isinstance(r, Stop) or (isinstance(r, TakeSavepoint) and r.stop) for r in self._waiting.values())

    @property
    def wants_savepoint(self) -> bool:
        """Is the next checkpoint to leave nothing under way?"""
        return any(isinstance(request, TakeSavepoint) for request in self._waiting.values())

    @property
    def wants_end(self) -> bool:
        """Is the job to end as it is?"""
        return any(isinstance(request, Stop) and not request.drain for request in self._waiting.values())

    def begun(self, epoch: EpochId) -> None:
        """An epoch begins that serves all who wait."""
        self._served |= {token: (epoch, request) for token, request in self._waiting.items()}
        self._waiting = {}

    def given_up(self, epoch: EpochId) -> None:
        """An epoch is not to be: those whom it was to serve wait again."""
        back = {token: request for token, (by, request) in self._served.items() if by == epoch}
        self._waiting |= back
        self._served = {token: kept for token, kept in self._served.items() if token not in back}

    def committed(self, manifest: Manifest) -> None:
        """An epoch is committed: answer, and have savepoints of it made beside the work."""
        served = {token: request for token, (epoch, request) in self._served.items() if epoch <= manifest.id}
        for token, request in served.items():
            if isinstance(request, TakeSavepoint):
                self._savepoints.begin(token, Path(request.path), manifest)
            else:
                requests.answer(self._directory, token, Answer(epoch=manifest.epoch))
        self._served = {token: kept for token, kept in self._served.items() if token not in served}

    def ended(self) -> None:
        """The job ends without another epoch: tell those who asked for that."""
        for token in self._waiting:
            requests.answer(self._directory, token, Answer())
        self._waiting = {}
