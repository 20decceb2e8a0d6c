"""Rates of a job over the last seconds: records per second, and shares of time.

Rule: counters begin at 0 with each session, so no rate spans the start of a session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from kafka_eos.core.json_values import Json

_WINDOW_MS = 5_000


class Rates:
    """Derives rates from successive statuses of one job."""

    def __init__(self) -> None:
        self._heard: deque[tuple[int, Mapping[str, Any]]] = deque()
        self._session: object = None

    def update(self, status: Mapping[str, Any]) -> dict[str, Json] | None:
        """Add a status and return the rates of the last seconds; None while unknown."""
        last: Mapping[str, Any] = status["last"]
        progress, at = last.get("progress"), status.get("when", {}).get("progress")
        session = (status.get("pid"), last.get("running", {}).get("term"))
        if session != self._session:
            self._heard.clear()
            self._session = session
        if progress is None or at is None or at < status["when"].get("running", at):
            return None
        if not self._heard or self._heard[-1][0] < at:
            self._heard.append((at, progress))
        while len(self._heard) > 2 and at - self._heard[0][0] > _WINDOW_MS:
            self._heard.popleft()
        (since, before), (until, now) = self._heard[0], self._heard[-1]
        workers = last.get("running", {}).get("parallelism", 1)
        return None if until == since else _between(before, now, (until - since) / 1000, workers)


def _between(before: Mapping[str, Any], now: Mapping[str, Any], seconds: float, workers: int) -> dict[str, Json]:
    def read(progress: Mapping[str, Any]) -> dict[str, float]:
        return {source: source_progress["records"] for source, source_progress in progress.get("read", {}).items()}

    return {
        "in": _change(before.get("records_in"), now.get("records_in"), seconds),
        "out": _change(before.get("records_out"), now.get("records_out"), seconds),
        "read": _changes(read(before), read(now), seconds),
        "written": _changes(before.get("written", {}), now.get("written", {}), seconds),
        "segments": {
            segment: dict[str, Json](_changes(before.get("segments", {}).get(segment, {}), states, seconds * workers))
            for segment, states in now.get("segments", {}).items()
        },
        "operators": {
            name: dict[str, Json](_of_operator(before.get("operators", {}).get(name, {}), done, seconds))
            for name, done in now.get("operators", {}).items()
        },
    }


def _of_operator(before: Mapping[str, float], now: Mapping[str, float], seconds: float) -> dict[str, Json]:
    """Return rows and key look-ups per second, and the shares of the reported time.

    Each worker reports at its own moments, so the reported time is not the time that has passed here.
    """
    counted = {name: now[name] for name in ("rows_in", "rows_out", "cache_misses") if name in now}
    spent = {name: max(0.0, now[name] - before.get(name, 0.0)) for name in ("busy", "blocked", "idle") if name in now}
    total = sum(spent.values())
    return {**_changes(before, counted, seconds), **{name: each / total for name, each in spent.items() if total}}


def _changes(before: Mapping[str, float], now: Mapping[str, float], by: float) -> dict[str, Json]:
    return {name: _change(before.get(name, 0), count, by) for name, count in now.items()}


def _change(before: float | None, now: float | None, by: float) -> float | None:
    return None if before is None or now is None or now < before else (now - before) / by
