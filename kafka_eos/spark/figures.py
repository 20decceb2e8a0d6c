"""What the driver shows of its epochs, for the terminal, ``status.json`` and the history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafka_eos.checkpoints.manifest import Manifest
from kafka_eos.ids import EpochId

if TYPE_CHECKING:
    from kafka_eos.spark.epochs import Outcome


class Figures:
    """Of one term. ``observe`` is told; all times are seconds since the epoch began."""

    def __init__(self, observe: Callable[..., None]) -> None:
        self._observe = observe
        self._in: Counter[str] = Counter()
        self._out: Counter[str] = Counter()

    def decided(self, epoch: EpochId, outcome: Outcome, seconds: float) -> None:
        self._in.update(outcome.records_in)
        self._out.update(outcome.records_out)
        self._observe(
            "progress",
            records_in=self._in.total(),
            records_out=self._out.total(),
            lag=outcome.lag,
            epoch=epoch.epoch.n,
            rows=dict(outcome.records_in),
            rows_per_second=_rate(outcome, seconds),
            duration_ms={name: round(spent * 1000) for name, spent in outcome.seconds.items()},
            positions={name: dict(splits) for name, splits in outcome.acked.positions.items()},
        )
        self._observe(
            "decided",
            epoch=epoch.epoch.n,
            seconds=seconds,
            blocked_ms=0.0,
            state_bytes=sum(file.size for handle in outcome.acked.states for file in handle.files),
        )

    def committed(self, manifest: Manifest, seconds: float) -> None:
        records = sum(committable.records for committable in manifest.committables)
        self._observe("committed", epoch=manifest.epoch, seconds=seconds, records=records)


def _rate(outcome: Outcome, seconds: float) -> float:
    """Records a second that the epoch read."""
    return round(sum(outcome.records_in.values()) / seconds, 1) if seconds > 0 else 0.0
