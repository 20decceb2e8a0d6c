"""OpenLineage: which datasets a job reads and writes, sent to a data catalog as run events.

Imported only where it is asked for. The client reads its destination from ``OPENLINEAGE_*`` variables or
``openlineage.yml``; see https://openlineage.io/docs/client/python.

A run is one start of a job: START with its first attempt, RUNNING once a minute with the rows committed since, then
COMPLETE or FAIL. A killed supervisor sends no last event; its successor begins a new run.

Rule: sending is for those who watch. It has a thread of its own, forgets what the catalog does not take, and a job that
ends waits for a few seconds at most. Events contain no records: of an error, only its class.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeAlias

from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
)
from openlineage.client.transport.http import HttpTransport
from openlineage.client.uuid import generate_new_uuid

from kafka_eos._util.logging_setup import RepeatFilter
from kafka_eos.abc.dataset import JobDataset
from kafka_eos.core.errors import ConfigError
from kafka_eos.monitoring.status_session import StatusSession

Emit: TypeAlias = Callable[[RunEvent], None]
_EVERY: Final = 60.0
"""Seconds between two RUNNING events."""
_WAITING: Final = 100
"""Most events that wait for the catalog; of more, the oldest are forgotten."""
_GOODBYE: Final = 3.0
"""Seconds that a job which ends waits for its last events to be sent."""
_QUIET: Final = 600.0
"""Seconds between two lines of one kind about a catalog that takes nothing."""
_LOG: Final = logging.getLogger(__name__)
_LOG.addFilter(RepeatFilter(_QUIET))


class JobName(NamedTuple):
    """A job as a data catalog knows it."""

    namespace: str
    name: str


@contextmanager
def start_lineage(
    job: JobName, inputs: Iterable[JobDataset], outputs: Iterable[JobDataset], version: str
) -> Iterator[LineageObserver]:
    """Send the run events of a job while the block runs. Raise ConfigError if no destination is configured."""
    client = OpenLineageClient()
    if client.transport.kind == "console":
        raise ConfigError("openlineage needs a destination: set OPENLINEAGE_URL, or write openlineage.yml")
    if isinstance(client.transport, HttpTransport):
        client.transport.session = StatusSession()
    sender = _Sender(lambda event: client.emit(event))
    observer = LineageObserver(job, inputs, outputs, version, sender.send)
    try:
        yield observer
    finally:
        sender.close()
        with suppress(Exception):  # the catalog may be away
            client.close(_GOODBYE)


class LineageObserver:
    """An observer that makes run events of the events of one run of a job."""

    def __init__(
        self,
        job: JobName,
        inputs: Iterable[JobDataset],
        outputs: Iterable[JobDataset],
        version: str,
        emit: Emit,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._emit, self._clock = emit, clock
        self._producer = f"urn:kafka-eos:{version}"
        self._run_id = str(generate_new_uuid())
        streaming = job_type_job.JobTypeJobFacet("STREAMING", "KAFKA_EOS", "JOB")
        self._job = Job(job.namespace, job.name, {"jobType": streaming})
        self._engine = processing_engine_run.ProcessingEngineRunFacet(version, "kafka_eos", version)
        self._inputs = [
            InputDataset(each.dataset.namespace, each.dataset.name, facets=_schema(each.fields)) for each in inputs
        ]
        self._outputs = [(each.operator, each.dataset, _schema(each.fields)) for each in outputs]
        self._rows: Counter[str] = Counter()
        self._started = self._ended = False
        self._sent_at = 0.0

    def __call__(self, event: str, facts: Mapping[str, Any]) -> None:
        match event:
            case "running" if not self._started:
                self._started = True
                self._send(RunState.START)
            case "committed":
                self._rows.update(facts["records_by_sink"])
                if self._started and self._clock() - self._sent_at >= _EVERY:
                    self._send(RunState.RUNNING)
            case "failed" if not self._ended:
                self._ended = True
                self._send(RunState.FAIL, error_message_run.ErrorMessageRunFacet(str(facts["error"]), "python"))
            case "stopped" if self._started and not self._ended:
                self._ended = True
                self._send(RunState.COMPLETE)

    def _send(self, state: RunState, error: error_message_run.ErrorMessageRunFacet | None = None) -> None:
        self._sent_at = now = self._clock()
        rows, self._rows = self._rows, Counter()
        facets = {"processing_engine": self._engine, **({} if error is None else {"errorMessage": error})}
        self._emit(
            RunEvent(
                eventTime=datetime.fromtimestamp(now, UTC).isoformat(),
                producer=self._producer,
                run=Run(self._run_id, facets),
                job=self._job,
                eventType=state,
                inputs=self._inputs,
                outputs=[
                    OutputDataset(found.namespace, found.name, _statistics(rows[sink]), facets=facets)
                    for sink, found, facets in self._outputs
                ],
            )
        )


def _statistics(rows: int) -> dict[str, Any]:
    return {"outputStatistics": output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rows)}


def _schema(fields: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the facet with these fields; none without fields."""
    if not fields:
        return {}
    listed = [
        schema_dataset.SchemaDatasetFacetFields(name, tp, ordinal_position=position)
        for position, (name, tp) in enumerate(fields, start=1)
    ]
    return {"schema": schema_dataset.SchemaDatasetFacet(listed)}


class _Sender:
    """Sends events one after another on a thread of its own."""

    def __init__(self, emit: Emit) -> None:
        self._emit_now = emit
        self._waiting: queue.Queue[RunEvent | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._run, daemon=True, name="openlineage")
        self._thread.start()

    def send(self, event: RunEvent | None) -> None:
        while True:
            try:
                self._waiting.put_nowait(event)
            except queue.Full:
                with suppress(queue.Empty):
                    self._waiting.get_nowait()
            else:
                return

    def close(self) -> None:
        self.send(None)
        self._thread.join(_GOODBYE)

    def _run(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                self._emit_now(event)
            except Exception as error:  # noqa: BLE001 - whatever the client raises must not end the sending
                _LOG.warning("an OpenLineage event was not sent: %s", type(error).__name__)
