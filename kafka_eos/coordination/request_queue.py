"""Where a running job, on any engine, serves what other processes ask of it: checkpoints, savepoints, a stop.

Rule: a request is answered when what it asks for is durable, or when the epoch that was to serve it is given up. Only
the last epoch is tried again. One that an attempt could not serve stays where it is, and the next attempt takes it up;
one that is withdrawn before its epoch begins is forgotten.
"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.job_requests import Answer, Request, Stop, TakeSavepoint
from kafka_eos.coordination.savepoint_writer import SavepointWriter
from kafka_eos.core.ids import EpochId
from kafka_eos.protocol.actions import Abort
from kafka_eos.protocol.checkpoint_schedule import Kind
from kafka_eos.protocol.events import Asked
from kafka_eos.storage.job_records import Manifest

_EVERY = 0.2


class Desk:
    """The requests of one attempt. ``directory`` is the job's on this machine."""

    def __init__(self, directory: Path, savepoints: SavepointWriter) -> None:
        self._directory, self._savepoints = directory, savepoints
        self._looked = -math.inf
        self._waiting: dict[str, Request] = {}
        self._served: dict[str, tuple[EpochId, Request]] = {}
        """Requests with the epoch that serves them; any later one does, too."""

    def look(self, now: float) -> None:
        """See what is asked, a few times a second."""
        if now - self._looked > _EVERY:
            self._looked = now
            # In this order: what is no longer being made when we ask is answered, and so not pending, when we look.
            taken = self._served.keys() | self._savepoints.making
            self._waiting = {t: request for t, request in requests.pending(self._directory) if t not in taken}

    @property
    def asked(self) -> Asked:
        """What those who wait ask for together."""
        waiting = self._waiting.values()
        wants = Kind.ASKED if waiting else None
        if any(isinstance(request, TakeSavepoint) for request in waiting):
            wants = Kind.SAVEPOINT
        return Asked(
            wants=wants,
            stop=any(isinstance(r, Stop) or (isinstance(r, TakeSavepoint) and r.stop) for r in waiting),
            end=any(isinstance(request, Stop) and not request.drain for request in waiting),
        )

    def begun(self, epoch: EpochId) -> None:
        """An epoch begins that serves all who wait."""
        self._served |= {token: (epoch, request) for token, request in self._waiting.items()}
        self._waiting = {}

    def given_up(self, abort: Abort) -> None:
        """An epoch is not to be. A last one is tried again, and whoever waits for it goes on; others are told why."""
        for token, request in self._take_back(abort.epoch).items():
            if abort.kind is not Kind.LAST:
                with suppress(OSError):  # a full disk: it is still pending, and so tried again
                    refused = Answer(error=_refusal(request, abort.why, abort.late))
                    requests.answer(self._directory, token, refused)

    def _take_back(self, epoch: EpochId) -> dict[str, Request]:
        back = {token: request for token, (by, request) in self._served.items() if by == epoch}
        self._served = {token: kept for token, kept in self._served.items() if token not in back}
        self._looked = -math.inf
        return back

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
        """The job ends without another epoch: tell those who asked for that. The others see it end."""
        for token, request in self._waiting.items():
            if isinstance(request, Stop) and not request.drain:
                requests.answer(self._directory, token, Answer())
        self._waiting = {}


def _refusal(request: Request, why: str, late: bool) -> str:
    """What was wrong, what became of it, and what to do."""
    if not isinstance(request, TakeSavepoint):
        return f"{why}; the job goes on, and its output goes into the next one"
    advice = (
        "Its barriers wait for all rows under way: give it a longer checkpoint_timeout, ask when there is less "
        "back-pressure, or let the job stop with one (kafka-eos stop APP --savepoint): it reads nothing meanwhile"
    )
    return f"{why}: there is no savepoint, and the job goes on. {advice if late else 'Repair that, and ask again'}"
