"""Sums over a run's events, for the summary at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast


class Totals:
    """An observer that sums up a run for the summary at its end."""

    def __init__(self) -> None:
        self.dead_letters: Mapping[str, Mapping[str, int]] = {}
        """Dead letters of the run so far, by source and operator."""
        self.set_aside: Mapping[str, int] = {}
        """Rows of the run so far that receivers refused, by sink."""
        self.late: Mapping[str, int] = {}
        """Late rows of the run so far, by operator."""
        self.read: dict[str, int] = {}
        """Records read by the committed epochs of this run, by source."""
        self.filtered: Mapping[str, int] = {}
        """Records of the run so far that a header filter dropped, by source."""
        self.written: dict[str, int] = {}
        """Records that this run has committed, by sink."""
        self.state: Mapping[str, int] = {}
        """Bytes of state in the newest checkpoint, by operator."""
        self.timers: Mapping[str, int] = {}
        """Pending timers in the newest checkpoint, by operator."""
        self.watermarks: Mapping[str, Mapping[str, int]] = {}
        """Watermarks in the newest checkpoint, by the operator that generates them and by split."""
        self.splits: dict[str, frozenset[str]] = {}
        """Splits that are read, by source."""
        self.event_time: Mapping[str, Mapping[str, object]] = {}
        """The watermark that each operator has emitted, and the split that holds it back; embedded engine only."""
        self.standby_ended: str | None = None
        """The reason why this run ended without ever leading the job."""
        self._decided: dict[object, Mapping[str, int]] = {}
        """Records read by epochs that are decided but not committed yet, by epoch and source."""

    @property
    def wrote_only_dead_letters(self) -> bool:
        """Return whether the run has read records, at least as many became dead letters, and nothing else was written.

        A record has several dead letters if it passes several operators or yields several results.
        """
        refused = sum(sum(self.dead_letters.get(source, {}).values()) for source in self.read)
        return 0 < sum(self.read.values()) <= refused and sum(self.written.values()) <= refused

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        if event == "dead-letters":
            self.dead_letters = cast("Mapping[str, Mapping[str, int]]", facts["total"])
        if event == "committed":
            _add(self.read, self._decided.pop(facts["epoch"], {}))
            _add(self.written, cast("Mapping[str, int]", facts["records_by_sink"]))
        if event == "set-aside":
            self.set_aside = cast("Mapping[str, int]", facts["total"])
        if event == "late-rows":
            self.late = cast("Mapping[str, int]", facts["total"])
        if event == "filtered":
            self.filtered = cast("Mapping[str, int]", facts["total"])
        if event == "decided":
            self.state = cast("Mapping[str, int]", facts["state_bytes_by_operator"])
            self.timers = cast("Mapping[str, int]", facts.get("pending_timers", {}))
            self.watermarks = cast("Mapping[str, Mapping[str, int]]", facts.get("watermarks", {}))
            self._decided[facts["epoch"]] = cast("Mapping[str, int]", facts.get("read", {}))
        if event == "progress":
            read = cast("Mapping[str, Mapping[str, Mapping[str, object]]]", facts.get("read", {}))
            self.splits |= {source: frozenset(source_progress["splits"]) for source, source_progress in read.items()}
            self.event_time = cast("Mapping[str, Mapping[str, object]]", facts.get("event_time", {}))
        if event == "standby-ended":
            self.standby_ended = str(facts["text"])


def _add(to: dict[str, int], counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        to[name] = to.get(name, 0) + count
