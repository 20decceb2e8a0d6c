"""A reader of the history file and the status file of a job while it runs.

Rule: it only reads. A line of the history counts once it is complete. An epoch counts once, however often its commit is
reported: if a killed process began it, its successor reports it again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kafka_eos.coordination.status_file import read_status
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest, load
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.storage.rolling_log import LocalLog


@dataclass
class HistoryFollower:
    """Follow one job's history and status; `poll` reads what is new.

    ``poll`` reads what is new; everything else is what was read so far.
    """

    directory: Path
    events: list[dict[str, Any]] = field(default_factory=list)
    outputs: dict[int, int] = field(default_factory=dict)
    """Records made visible, by epoch."""
    sessions: list[dict[str, Any]] = field(default_factory=list)
    """The ``running`` events: one for each time that the job was up again."""
    committed_epochs: int = 0
    """Epochs with output that were committed by the term that triggered them."""
    commits: int = 0
    """The same with epochs that had no output."""
    checkpoint: dict[str, Any] = field(default_factory=dict)
    """The latest ``decided`` event: seconds, state_bytes."""
    lag: int = 0
    """Records that the source had not read yet, as the job last reported."""
    _read: int = 0
    """Lines of the history that were read."""

    @property
    def epoch(self) -> int:
        return max(self.outputs, default=0)

    @property
    def visible(self) -> int:
        """Return the number of records that read_committed readers can see, according to the commits."""
        return sum(self.outputs.values())

    @property
    def parallelism(self) -> int:
        """Return the parallelism of the latest session; 0 before the first."""
        return int(self.sessions[-1]["parallelism"]) if self.sessions else 0

    @property
    def workers(self) -> list[int]:
        """Process ids of the workers of the latest session, by subtask."""
        return list(self.sessions[-1].get("workers", ())) if self.sessions else []

    @property
    def term(self) -> int:
        return int(self.sessions[-1]["term"]) if self.sessions else 0

    @cached_property
    def _storage(self) -> LocalStorage:
        return LocalStorage(self.directory)

    def read_up_to(self, sources: Collection[str]) -> int:
        """Return how many records of ``sources`` the newest checkpoint has read: the sum of its offsets."""
        newest = max(self._storage.list(paths.MANIFESTS), default=None)
        if newest is None:
            return 0
        manifest = load(self._storage, Manifest, newest, self.directory.name)
        splits = (manifest.sources.get(source, {}) for source in sources)
        offsets = (position["offset"] for positions in splits for position in positions.values())
        return sum(offset for offset in offsets if isinstance(offset, int))

    def poll(self) -> list[dict[str, Any]]:
        """Read on; returns the new events, oldest first."""
        lines = LocalLog(self.directory, paths.HISTORY).lines()
        new = [json.loads(line) for line in lines[self._read :]]
        self._read = len(lines)
        for event in new:
            self._note(event)
        self.events += new
        if status := read_status(self.directory):
            self._note_status(status)
        return new

    def _note(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "running":
                self.sessions.append(event)
            case "decided":
                self.checkpoint = event
            case "committed":
                records = sum(event["records"].values())
                self.outputs[event["epoch"]] = records
                self.commits += event["term"] == self.term
                self.committed_epochs += records > 0 and event["term"] == self.term

    def _note_status(self, status: Mapping[str, Any]) -> None:
        lag = status["last"].get("progress", {}).get("lag")
        if lag is not None:  # unknown for a moment after each start
            self.lag = lag
