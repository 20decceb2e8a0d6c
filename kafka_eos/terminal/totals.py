"""What a run has come to, added up from its events: told when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast


class Totals:
    """An observer that adds up a run: what is told when it ends."""

    def __init__(self) -> None:
        self.dead_letters: Mapping[str, Mapping[str, int]] = {}
        """Of the run so far, by source and operator."""
        self.late: Mapping[str, int] = {}
        """Rows of the run so far that came when their time was over, by operator."""
        self.written: dict[str, int] = {}
        """Records that this run has committed, by sink."""
        self.state: Mapping[str, int] = {}
        """Bytes of the newest checkpoint, by operator."""
        self.timers: Mapping[str, int] = {}
        """Those that are pending there, by operator."""
        self.stood_down: str | None = None
        """Why this run ended without ever leading the job."""

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        if event == "dead-letters":
            self.dead_letters = cast("Mapping[str, Mapping[str, int]]", facts["total"])
        if event == "committed":
            for sink, records in cast("Mapping[str, int]", facts["records_by_sink"]).items():
                self.written[sink] = self.written.get(sink, 0) + records
        if event == "late-rows":
            self.late = cast("Mapping[str, int]", facts["total"])
        if event == "decided":
            self.state = cast("Mapping[str, int]", facts["state_bytes_by_operator"])
            self.timers = cast("Mapping[str, int]", facts.get("pending_timers", {}))
        if event == "stood-down":
            self.stood_down = str(facts["text"])
