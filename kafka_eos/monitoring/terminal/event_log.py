"""A running job as log lines, if ``log_format`` is ``json``: what the live view shows, for collectors.

Rule: events that need attention are warnings; events of every checkpoint are logged at level ``debug``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from kafka_eos._util import logging_setup as logs
from kafka_eos.monitoring.terminal.run_totals import Totals

LOG: Final = logging.getLogger(f"{logs.OURS}.job")
PROGRESS_SECONDS: Final = 10.0
REPEAT_SECONDS: Final = 30.0
"""Seconds between two lines with the same notice; a retry repeats its notice every two seconds."""
_WARNINGS = frozenset(
    {"restarting", "hung", "unresponsive", "aborted", "dead-letters", "set-aside", "late-rows", "observer-failed"}
)
_DEBUG_EVENTS = frozenset({"triggered", "phases", "decided", "committed", "restoring"})


class EventLog(Totals):
    """An observer that logs every event with its facts; ``progress`` every ten seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._last_progress = clock, -PROGRESS_SECONDS
        self._seen: set[tuple[str, str, str]] = set()
        self._notices: dict[str, float] = {}
        """The time at which each notice was last logged."""

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        super().__call__(event, facts)
        term, epoch = facts.get("term"), facts.get("epoch")
        logs.set_log_epoch(
            term=term if isinstance(term, int) else None, epoch=epoch if isinstance(epoch, int) else None
        )
        if event == "progress":
            if self._clock() - self._last_progress < PROGRESS_SECONDS:
                return
            self._last_progress = self._clock()
        if event == "notice" and self._repeats(str(facts["text"])):
            return
        if event == "dead-letters":
            self._log_rejected(facts)
        LOG.log(_level(event), "%s", _message(event, facts), extra={logs.EVENT_FIELD: (event, dict(facts))})

    def _repeats(self, text: str) -> bool:
        """Return whether the same text was logged a moment ago."""
        now = self._clock()
        self._notices = {each: at for each, at in self._notices.items() if now - at < REPEAT_SECONDS}
        return self._notices.setdefault(text, now) != now

    def _log_rejected(self, facts: Mapping[str, object]) -> None:
        """Log each of the first few rejected records once."""
        first: Any = facts.get("first", {})
        for source, refusals in first.items():
            for refusal in refusals:
                if (place := (source, refusal["operator"], refusal["where"])) not in self._seen:
                    self._seen.add(place)
                    line = "the record at %(where)s was rejected by operator %(operator)s: %(reason)s"
                    LOG.warning(line, refusal, extra={logs.EVENT_FIELD: ("rejected", {"source": source, **refusal})})


def _level(event: str) -> int:
    if event == "failed":
        return logging.ERROR
    if event in _WARNINGS:
        return logging.WARNING
    return logging.DEBUG if event in _DEBUG_EVENTS else logging.INFO


def _message(event: str, facts: Mapping[str, object]) -> str:
    """Return a line with the event and its reason, if it has one; the other fields are logged as fields."""
    if event in ("hung", "unresponsive"):
        where = f", at {facts['place']}" if "place" in facts else ""
        detail = f"worker {facts['worker']}, process {facts['process']}, for {facts['seconds']:g} s{where}"
    else:
        detail = str(facts.get("text", facts.get("reason", "")))
    return f"{event}: {detail}" if detail else event
