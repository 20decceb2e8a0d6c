"""Handling of requests to a running job, on any engine: checkpoints, savepoints, a stop.

Rule: a request is answered when its result is durable, or when the epoch that was to serve it is aborted. Only a final
epoch is tried again. A request that an attempt could not serve stays pending for the next attempt; a request that is
withdrawn before its epoch begins is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kafka_eos.coordination import job_requests as requests
from kafka_eos.coordination.job_requests import JobRequest, RequestAnswer, StopJob, TakeCheckpoint, TakeSavepoint
from kafka_eos.coordination.savepoint_writer import SavepointWriter
from kafka_eos.core.ids import EpochId
from kafka_eos.protocol.actions import AbortEpoch
from kafka_eos.protocol.checkpoint_schedule import EpochKind
from kafka_eos.protocol.events import PendingRequests
from kafka_eos.storage.job_records import Manifest

_EVERY = 0.2


class RequestHandler:
    """The handler of requests to a job during one attempt. ``directory`` is the job's directory on this machine.

    ``on_request`` is called with the token of a request, the request, and who asks; by later attempts too.
    """

    def __init__(
        self,
        directory: Path,
        savepoints: SavepointWriter,
        on_request: Callable[[str, JobRequest, str], None] = lambda token, request, by: None,
    ) -> None:
        self._directory, self._savepoints = directory, savepoints
        self._on_request = on_request
        self._looked = -math.inf
        self._waiting: dict[str, JobRequest] = {}
        self._served: dict[str, tuple[EpochId, JobRequest]] = {}
        """Requests with the epoch that serves them; any later epoch serves them too."""

    def poll(self, now: float) -> None:
        """Read new requests, a few times a second."""
        if now - self._looked > _EVERY:
            self._looked = now
            # Read ``in_progress`` first: a savepoint that is finished by then is answered, so no longer pending below.
            taken = self._served.keys() | self._savepoints.in_progress
            found = [each for each in requests.list_pending(self._directory) if each[0] not in taken]
            for each in found:
                self._on_request(*each)
            self._waiting = {token: request for token, request, _ in found}

    @property
    def pending(self) -> PendingRequests:
        """Return the combination of all waiting requests."""
        waiting = self._waiting.values()
        wants = EpochKind.REQUESTED if waiting else None
        if any(isinstance(request, TakeSavepoint) for request in waiting):
            wants = EpochKind.SAVEPOINT
        return PendingRequests(
            checkpoint=wants,
            stop=any(isinstance(r, StopJob) or (isinstance(r, TakeSavepoint) and r.stop) for r in waiting),
            cancel=any(isinstance(request, StopJob) and not request.drain for request in waiting),
        )

    def on_triggered(self, epoch: EpochId) -> None:
        """Assign all waiting requests to an epoch that has started."""
        self._served |= {token: (epoch, request) for token, request in self._waiting.items()}
        self._waiting = {}

    def on_aborted(self, abort: AbortEpoch) -> None:
        """Answer the requests of an aborted epoch with the reason; requests of a final epoch stay pending."""
        for token, request in self._take_back(abort.epoch).items():
            if abort.kind is not EpochKind.FINAL:
                with suppress(OSError):  # on a full disk the request stays pending, and is tried again
                    refused = RequestAnswer(error=_refusal(request, abort.reason, abort.timed_out))
                    requests.write_answer(self._directory, token, refused)

    def _take_back(self, epoch: EpochId) -> dict[str, JobRequest]:
        back = {token: request for token, (by, request) in self._served.items() if by == epoch}
        self._served = {token: kept for token, kept in self._served.items() if token not in back}
        self._looked = -math.inf
        return back

    def on_committed(self, manifest: Manifest) -> None:
        """Answer requests of a committed epoch, and start its savepoints."""
        served = {token: request for token, (epoch, request) in self._served.items() if epoch <= manifest.id}
        for token, request in served.items():
            if isinstance(request, TakeSavepoint):
                self._savepoints.begin(token, Path(request.path), manifest)
            else:
                requests.write_answer(self._directory, token, RequestAnswer(epoch=manifest.epoch))
        self._served = {token: kept for token, kept in self._served.items() if token not in served}

    def on_job_end(self) -> None:
        """Answer requests to end the job without another epoch. Other clients see that the job ended."""
        for token, request in self._waiting.items():
            if isinstance(request, StopJob) and not request.drain:
                requests.write_answer(self._directory, token, RequestAnswer())
        self._waiting = {}


def describe_request(request: JobRequest) -> str:
    """Return what is asked, for the job's history."""
    match request:
        case TakeSavepoint(path=path, stop=stop):
            return f"{'a stop with ' if stop else ''}savepoint {path}"
        case StopJob(drain=drain):
            return "stop" if drain else "stop without a last checkpoint"
        case TakeCheckpoint():
            return "checkpoint"


def _refusal(request: JobRequest, why: str, late: bool) -> str:
    """Return the problem, its consequence, and the remedy."""
    if not isinstance(request, TakeSavepoint):
        return f"{why}; the job continues, and its output will be committed with the next epoch"
    advice = (
        "Its barriers wait for all in-flight rows: set a longer checkpoint_timeout, try again when there is less "
        "back-pressure, or stop the job with a savepoint (kafka-eos stop APP --savepoint), because it reads nothing "
        "meanwhile"
    )
    return f"{why}: no savepoint was taken, and the job continues. {advice if late else 'Repair that, and try again'}"
