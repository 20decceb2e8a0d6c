"""The names of all metrics. ``docs/metrics.md`` has the same table, and a test compares the two.

Rule: few labels, of which none grows with the data; base units; a counter counts from the start of the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

PREFIX: Final = "kafka_eos_"
BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Seconds of an epoch's phases."""


@dataclass(frozen=True, slots=True)
class Metric:
    """``name`` without the prefix, and of a counter without ``_total``."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str

    @property
    def full_name(self) -> str:
        """Return the metric's name as queries spell it."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


_ALL: Final = (
    Metric("info", "gauge", ("pipeline", "version"), "1: which job this is, and the version of kafka_eos."),
    Metric("running", "gauge", (), "1 while rows are processed, 0 while the job starts, recovers or ends."),
    Metric("standing_by", "gauge", (), "1 while another supervisor leads, and this one waits."),
    Metric("term", "gauge", (), "Number of the attempt; each recovery takes another."),
    Metric("subtasks", "gauge", (), "Workers; on Spark, tasks of a stage."),
    Metric(
        "read_records", "counter", ("source",), "Records read; those of an epoch that is not decided are read again."
    ),
    Metric("read_position", "gauge", ("source", "split"), "Offset at which reading goes on."),
    Metric("lag_records", "gauge", (), "Records that can be read and are not; absent while not all is known."),
    Metric("split_lag_records", "gauge", ("source", "split"), "The same of one partition; the embedded engine knows."),
    Metric(
        "split_waiting",
        "gauge",
        ("source", "split"),
        "1 while a partition waits for slower ones.",
    ),
    Metric("source_waiting", "gauge", ("source",), "1 while a source waits until others are read to their end."),
    Metric("written_records", "counter", ("sink",), "Records handed to writers; see read_records."),
    Metric("committed_records", "counter", ("sink",), "Records made visible, each once."),
    Metric("segment_seconds", "counter", ("segment", "state"), "Where time goes: busy, reading, blocked; all workers."),
    Metric("operator_rows", "counter", ("operator", "direction"), "Rows that came (in) and went on (out)."),
    Metric(
        "operator_seconds",
        "counter",
        ("operator", "state"),
        "Where an operator's time goes: busy, blocked, idle; all workers.",
    ),
    Metric("counted", "counter", ("operator", "name"), "What a process function counts with ctx.counter(name)."),
    Metric("watermark_timestamp_seconds", "gauge", ("operator", "split"), "Event time of the newest checkpoint."),
    Metric("checkpoints", "counter", ("outcome",), "Epochs: committed, given-up."),
    Metric("checkpoint_seconds", "histogram", ("phase",), "Epochs: align, snapshot, decide, commit, total."),
    Metric(
        "checkpoint_waiting_seconds",
        "gauge",
        (),
        "How long the oldest epoch is under way, over restarts, or overdue; 0 if none is.",
    ),
    Metric("last_checkpoint_epoch", "gauge", (), "The newest epoch that is committed in this run."),
    Metric("last_checkpoint_timestamp_seconds", "gauge", (), "When it was."),
    Metric("state_bytes", "gauge", ("operator",), "State in the newest checkpoint."),
    Metric("state_loads", "counter", ("operator",), "Keys of state that were not in memory, and were looked up."),
    Metric("state_cached_entries", "gauge", ("operator",), "Objects of state in memory."),
    Metric("in_flight_bytes", "gauge", (), "Rows under way in the newest checkpoint."),
    Metric("pending_timers", "gauge", ("operator",), "Timers in the newest checkpoint."),
    Metric("open_outputs", "gauge", ("sink",), "Writers with rows of no epoch yet: open transactions and files."),
    Metric("prepared_outputs", "gauge", (), "Transactions and staged files that wait for their commit."),
    Metric("uncommitted_seconds", "gauge", (), "No open transaction is older than this."),
    Metric(
        "transaction_margin_seconds",
        "gauge",
        (),
        "What was left of the transaction timeout at the newest commit.",
    ),
    Metric("transaction_timeout_seconds", "gauge", (), "After that an open transaction is aborted by its server."),
    Metric("sink_seconds", "histogram", ("sink", "phase"), "Epochs of one sink: prepare, commit."),
    Metric("restarts", "counter", ("reason",), "Attempts that ended: worker, environment, checkpoint."),
    Metric("observer_failures", "counter", ("observer",), "Times that something began to fail that shows the job."),
    Metric("dead_letters", "counter", ("source", "operator"), "Records written as dead letters in decided epochs."),
    Metric("late_records", "counter", ("operator",), "Rows that came when their time was over."),
    Metric("left_out_records", "counter", ("source",), "Records that the header filter of a source left out."),
)
METRICS: Final = {metric.name: metric for metric in _ALL}
