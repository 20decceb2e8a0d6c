"""The catalogue of all metrics. ``docs/metrics.md`` has the same table, and a test compares the two.

Rule: few labels, none of which grows with the data; base units; a counter counts from the start of the process.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

PREFIX: Final = "kafka_eos_"
BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""Upper bounds of the histogram buckets, in seconds."""


class Metric(Struct, frozen=True):
    """A metric of a job. ``name`` has no prefix, and for a counter no ``_total``."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str

    @property
    def full_name(self) -> str:
        """Return the metric's name as queries spell it."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


_ALL: Final = (
    Metric(
        "info", "gauge", ("pipeline", "version"), "1, with the name of the job and the version of kafka_eos as labels."
    ),
    Metric("running", "gauge", (), "1 while rows are processed, 0 while the job starts, recovers or ends."),
    Metric("standby", "gauge", (), "1 while this supervisor is a standby and another one leads."),
    Metric("term", "gauge", (), "Number of the attempt; it grows with each recovery."),
    Metric("parallelism", "gauge", (), "Workers."),
    Metric(
        "read_records",
        "counter",
        ("source",),
        "Records read; after a recovery those of undecided epochs are read again.",
    ),
    Metric("read_position", "gauge", ("source", "split"), "Offset of the next record to read."),
    Metric("lag_records", "gauge", (), "Records available but not read yet; absent unless known for all partitions."),
    Metric("split_lag_records", "gauge", ("source", "split"), "Lag of one partition; embedded engine only."),
    Metric("split_paused", "gauge", ("source", "split"), "1 while watermark alignment pauses the partition."),
    Metric("source_waiting", "gauge", ("source",), "1 while a source waits until others are read to their end."),
    Metric(
        "written_records",
        "counter",
        ("sink",),
        "Records handed to writers; counted again after a recovery, as read_records.",
    ),
    Metric("committed_records", "counter", ("sink",), "Records made visible, each counted once."),
    Metric(
        "chain_seconds",
        "counter",
        ("chain", "state"),
        "Time of an operator chain by state: busy, reading, backpressured; summed over workers.",
    ),
    Metric("operator_rows", "counter", ("operator", "direction"), "Rows received (in) and emitted (out)."),
    Metric(
        "operator_seconds",
        "counter",
        ("operator", "state"),
        "Time of an operator by state: busy, backpressured, idle; summed over workers.",
    ),
    Metric(
        "user_counter",
        "counter",
        ("operator", "name"),
        "Counters of process functions, created with ctx.counter(name).",
    ),
    Metric(
        "watermark_timestamp_seconds",
        "gauge",
        ("operator", "split"),
        "Watermark of a partition in the newest checkpoint.",
    ),
    Metric("checkpoints", "counter", ("outcome",), "Epochs by outcome: committed, aborted."),
    Metric(
        "checkpoint_seconds",
        "histogram",
        ("phase",),
        "Duration of an epoch by phase: align, snapshot, decide, commit, total.",
    ),
    Metric(
        "checkpoint_pending_seconds",
        "gauge",
        (),
        "Age of the oldest uncommitted or overdue epoch, over restarts; 0 if none.",
    ),
    Metric("last_checkpoint_epoch", "gauge", (), "Newest epoch committed in this run."),
    Metric(
        "dependency_silent_seconds",
        "gauge",
        ("dependency",),
        "Seconds since a system that the job needs last answered; 0 while it answers.",
    ),
    Metric("last_checkpoint_timestamp_seconds", "gauge", (), "Time of the last commit."),
    Metric("state_bytes", "gauge", ("operator",), "Size of the state in the newest checkpoint."),
    Metric(
        "state_cache_misses",
        "counter",
        ("operator",),
        "Keys of state that were not in memory and were looked up in the backend.",
    ),
    Metric("state_cache_entries", "gauge", ("operator",), "State objects in memory."),
    Metric("in_flight_bytes", "gauge", (), "Size of the in-flight rows in the newest checkpoint."),
    Metric("pending_timers", "gauge", ("operator",), "Timers in the newest checkpoint."),
    Metric(
        "open_writers", "gauge", ("sink",), "Writers with output since their last barrier: open transactions and files."
    ),
    Metric(
        "pending_committables",
        "gauge",
        (),
        "Transactions and staged files of decided epochs that are not committed yet.",
    ),
    Metric("open_transaction_age_seconds", "gauge", (), "Upper bound on the age of any open transaction."),
    Metric("transaction_margin_seconds", "gauge", (), "Transaction timeout remaining at the last commit."),
    Metric("transaction_timeout_seconds", "gauge", (), "Time after which the server aborts an open transaction."),
    Metric(
        "sink_seconds", "histogram", ("sink", "phase"), "Duration of one epoch in one sink by phase: prepare, commit."
    ),
    Metric("restarts", "counter", ("reason",), "Failed attempts by reason: worker, environment, checkpoint."),
    Metric(
        "observer_failures",
        "counter",
        ("observer",),
        "Failures of observers, such as the live view or the metrics server.",
    ),
    Metric("dead_letters", "counter", ("source", "operator"), "Records written as dead letters in decided epochs."),
    Metric("set_aside_records", "counter", ("sink",), "Records that the receiver refused, set aside in the outbox."),
    Metric("late_records", "counter", ("operator",), "Late rows: rows that arrived behind the watermark."),
    Metric("filtered_records", "counter", ("source",), "Records dropped by the header filter of a source."),
)
METRICS: Final = {metric.name: metric for metric in _ALL}
