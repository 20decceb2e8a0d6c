"""The snapshot of one operator chain in an epoch, and the logs of the rows that are in flight in it.

A snapshot is open from its capture until the barriers of all inputs have arrived. Meanwhile rows that arrive before the
barrier of their channel are added to its logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct, field

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.state import StateUpload
from kafka_eos.core.json_values import Positions
from kafka_eos.core.records import RecordCounts
from kafka_eos.runtime.epoch_reports import PhaseSpan, TimedPreCommit
from kafka_eos.runtime.exchange.in_flight_rows import InFlightLog


class ChainSnapshot(Struct):
    """The part of one operator chain in an epoch: positions, uploads, pre-commits, in-flight rows.

    The in-flight rows, by exchange, are complete when the gate says so. ``since``: when the first barrier arrived.
    ``open_log`` creates the log of an exchange, by a name.
    """

    epoch: int
    since: float
    open_log: Callable[[int, str], InFlightLog]
    positions: dict[str, Positions]
    uploads: list[StateUpload]
    precommits: list[TimedPreCommit]
    tally: RecordCounts
    """Counts of the chain since the session began."""
    timers: dict[str, int]
    """Pending timers by operator."""
    received: dict[int, InFlightLog] = field(default_factory=dict)
    """Rows that had arrived here, or arrived before the barrier of their channel."""
    overtaken: dict[int, InFlightLog] = field(default_factory=dict)
    """Rows that had not been sent yet: they come after those that the receivers had."""
    has_overdue_request: bool = False
    """Whether a row's request has been pending since the session's first barrier."""
    blocked: float = 0.0
    """Seconds that the snapshot kept the worker from processing."""
    aligning: float = 0.0
    """Seconds from the first barrier to the last."""
    spans: list[PhaseSpan] = field(default_factory=list)

    def log_received(self, edge: int, frames: Iterable[bytes]) -> None:
        """Log rows that had arrived by this exchange, or arrive before the barrier of their channel."""
        for frame in frames:
            self._log_of(edge, self.received, "received").add(frame)
            hit("in-flight.logged")

    def log_overtaken(self, edge: int, frames: Iterable[bytes]) -> None:
        """Log rows that had not been sent by this exchange."""
        for frame in frames:
            self._log_of(edge, self.overtaken, "overtaken").add(frame)

    def drop(self) -> None:
        """Delete its in-flight rows: they are stored, or not needed."""
        for log in (*self.received.values(), *self.overtaken.values()):
            log.drop()

    def _log_of(self, edge: int, logs: dict[int, InFlightLog], name: str) -> InFlightLog:
        if edge not in logs:
            logs[edge] = self.open_log(edge, name)
        return logs[edge]
