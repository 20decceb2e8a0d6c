"""A worker's reports of its restore to the supervisor.

Rule: a report says that the restore has made progress. Without progress there is no report.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kafka_eos.core.errors import RestartFromCheckpoint
from kafka_eos.runtime.state.restore_progress import RestoreProgress
from kafka_eos.runtime.worker.control_messages import ControlMessage, RestoreReport

_REPORT_INTERVAL = 0.5
"""Seconds between two reports of one worker."""


class RestoreReporter:
    """A callback that reports restore progress to the supervisor at most twice a second; it raises if cancelled."""

    def __init__(self, say: Callable[[ControlMessage], None], session: int, called_off: Callable[[], bool]) -> None:
        self._say = say
        self._session = session
        self._called_off = called_off
        self._reported_at = 0.0

    def __call__(self, restored: RestoreProgress) -> None:
        if self._called_off():
            raise RestartFromCheckpoint("the restore was cancelled: the attempt has failed elsewhere")
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_INTERVAL:
            self._reported_at = now
            self._say(RestoreReport(session=self._session, restored=restored))
