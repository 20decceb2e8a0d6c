"""Figures of the driver's epochs, for the terminal, ``status.json`` and the history."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kafka_eos.core.ids import EpochId
from kafka_eos.core.json_values import Positions
from kafka_eos.runtime.epoch_reports import CommitResult, commit_metrics, sum_counters
from kafka_eos.storage.job_records import Manifest

if TYPE_CHECKING:
    from kafka_eos.spark.epoch_job import EpochResult


class ProgressReporter:
    """Reports each epoch with the fields of StreamingQueryProgress, as far as they apply.

    ``observe`` is called with the report. Times are seconds since the epoch began.
    """

    def __init__(self, observe: Callable[..., None], positions: Mapping[str, Positions]) -> None:
        self._observe, self._positions = observe, positions
        self._in: Counter[str] = Counter()
        self._out: Counter[str] = Counter()
        self._operators: dict[str, dict[str, float]] = {}
        self._counted: dict[str, dict[str, int]] = {}

    def decided(self, epoch: EpochId, result: EpochResult, lag: int | None, seconds: float) -> None:
        """Report a decided epoch. ``lag`` is None if splits with unread input are paused: it was not measured then."""
        self._in.update(result.records_in)
        self._out.update(result.records_out)
        for name, did in result.operators.items():
            so_far = self._operators.get(name, {})
            # Not the entries: what a task holds in memory, it holds for its epoch.
            kept = {figure: so_far.get(figure, 0) for figure in did if figure != "entries"}
            self._operators[name] = {figure: n + kept.get(figure, 0) for figure, n in did.items()}
        self._counted = sum_counters((self._counted, result.counted))
        self._observe(
            "progress",
            records_in=self._in.total(),
            records_out=self._out.total(),
            lag=lag,
            read={
                name: {
                    "records": self._in.get(name, 0),
                    "splits": {split: {"position": at, "lag": None} for split, at in splits.items()},
                }
                for name, splits in result.acked.positions.items()
            },
            written=dict(self._out),
            operators={name: dict(done) for name, done in self._operators.items()},
            **({"user_counters": self._counted} if self._counted else {}),
            **self._progress(epoch, result, seconds),
        )
        self._positions = result.acked.positions
        self._observe("phases", epoch=epoch.epoch.n, spans=result.spans)
        self._observe(
            "decided",
            epoch=epoch.epoch.n,
            seconds=seconds,
            blocked_ms=0.0,
            **result.acked.metrics,
        )

    def _progress(self, epoch: EpochId, result: EpochResult, seconds: float) -> dict[str, Any]:
        read = sum(result.records_in.values())
        return {
            "batchId": epoch.epoch.n,
            "timestamp": datetime.fromtimestamp(time.time() - seconds, UTC).isoformat(timespec="milliseconds"),
            "numInputRows": read,
            "processedRowsPerSecond": round(read / seconds, 1) if seconds > 0 else 0.0,
            "durationMs": {name: round(spent * 1000) for name, spent in result.seconds.items()},
            "sources": [
                {
                    "description": name,
                    "startOffset": dict(self._positions.get(name, {})),
                    "endOffset": dict(splits),
                    "numInputRows": result.records_in.get(name, 0),
                }
                for name, splits in result.acked.positions.items()
            ],
            "sink": {"numOutputRows": sum(result.records_out.values())},
        }

    def committed(self, manifest: Manifest, seconds: float, finished: CommitResult) -> None:
        self._observe("committed", seconds=seconds, **commit_metrics(manifest, finished))
