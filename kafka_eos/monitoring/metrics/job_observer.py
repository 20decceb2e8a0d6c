"""An observer that turns job events into metrics and readiness.

Rule: the clock is a constructor argument, events may arrive from any thread, and reading changes nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from msgspec import Struct

from kafka_eos.coordination.dependencies import Outage
from kafka_eos.core.records import MIN_EVENT_TIME
from kafka_eos.monitoring.metrics.samples import Labels, Samples

_REASONS: Final = {
    "worker ended": "worker",
    "the environment failed": "environment",
    "attempt failed": "checkpoint",
}
_STATES: Final = {"blocked": "backpressured"}
"""States of operators and chains whose label value differs from the worker's name."""


class Readiness(Struct, frozen=True):
    """The readiness of a job, always with its reason."""

    ready: bool
    reason: str


class MetricsObserver:
    """An observer that keeps the metrics and the readiness of a job."""

    def __init__(
        self,
        pipeline: str,
        version: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._lock = threading.Lock()
        self._samples = Samples()
        self._before: dict[tuple[str, Labels], float] = {}
        """Counters of the current session, as last reported; they start at 0 in each session."""
        self._uncommitted: dict[int, float] = {}
        """Epochs that are not committed, aborted or not, and when they first began, in any session."""
        self._triggered: dict[int, float] = {}
        """The same epochs, and when they began last."""
        self._idle_since: float | None = None
        """The time at which the current attempt began to process rows; reset when it begins an epoch."""
        self._open_since: float | None = None
        """The time at which the newest committed epoch, or the session, began: no open transaction is older."""
        self._interval = self._least_pause = math.inf
        """Seconds from one epoch to the next, and at least between the end of one and the beginning of the next."""
        self._due = math.inf
        """The time at which the next epoch is due, if none runs: no event reports an epoch that does not begin."""
        self._decided: dict[int, Mapping[str, int]] = {}
        """Records by sink of decided epochs for which no commit was reported."""
        self._decide_seconds = 0.0
        self._silent: dict[str, tuple[float, str]] = {}
        """Systems that do not answer: the time of the last answer, and the error."""
        self._ended: str | None = None
        self._starting = "starting or recovering"
        self._handlers: Final[Mapping[str, Callable[[Mapping[str, Any]], None]]] = {
            "standby": self._on_standby,
            "started": self._on_started,
            "plan": self._on_plan,
            "running": self._on_running,
            "restarting": self._on_restarting,
            "failed": self._on_failed,
            "standby-ended": self._on_standby_ended,
            "stopped": self._on_stopped,
            "progress": self._on_progress,
            "tables": self._on_tables,
            "triggered": self._on_triggered,
            "aborted": self._on_aborted,
            "decided": self._on_decided,
            "phases": self._on_phases,
            "committed": self._on_committed,
            "dependencies": self._on_dependencies,
            "observer-failed": self._on_observer_failed,
            "dead-letters": self._on_dead_letters,
            "set-aside": self._on_set_aside,
            "late-rows": self._on_late_rows,
            "filtered": self._on_filtered,
        }
        """The handlers of the events that change metrics or readiness."""
        self._samples.set("info", 1, pipeline, version)
        self._samples.set("running", 0)
        for outcome in ("committed", "aborted"):
            self._samples.add("checkpoints", 0, outcome)
        for reason in _REASONS.values():
            self._samples.add("restarts", 0, reason)

    def __call__(self, event: str, facts: Mapping[str, Any]) -> None:
        handle = self._handlers.get(event)
        if handle is not None:
            with self._lock:
                handle(facts)

    @contextmanager
    def samples(self) -> Iterator[Samples]:
        """Yield all samples as of now; they do not change meanwhile."""
        with self._lock:
            now = self._clock()
            self._samples.set("checkpoint_pending_seconds", self._measure_pending())
            if self._open_since is not None:
                self._samples.set("open_transaction_age_seconds", now - self._open_since)
            for name, (since, _) in self._silent.items():
                self._samples.set("dependency_silent_seconds", now - since, name)
            yield self._samples

    def readiness(self, within: float) -> Readiness:
        """Return the readiness, with the reason.

        A job is ready if it processes rows, every system that it needs has answered within ``within`` seconds, and no
        epoch has been pending or overdue for longer.
        """
        with self._lock:
            if self._ended is not None:
                return Readiness(False, self._ended)
            now = self._clock()
            silent = [
                Outage(now - since, reason).describe(name)
                for name, (since, reason) in self._silent.items()
                if now - since > within
            ]
            if not self._samples.value("running"):
                return Readiness(False, "; ".join([self._starting, *silent]))
            waits = self._measure_pending()
        if silent:
            return Readiness(False, f"{'; '.join(silent)} (http_ready_within={within:g})")
        if waits > within:
            return Readiness(False, f"no checkpoint was committed for {waits:.0f} s (http_ready_within={within:g})")
        return Readiness(True, "processing rows")

    def _measure_pending(self) -> float:
        """Return for how long the oldest uncommitted epoch has been pending or overdue.

        The time between a restart and the next epoch does not count: it is as long as the interval, and no epoch is
        late.
        """
        now = self._clock()
        until = now if self._idle_since is None else self._idle_since
        return max([0.0, now - self._due, *(until - at for at in self._uncommitted.values())])

    # ------------------------------------------------------------ events

    def _on_standby(self, facts: Mapping[str, Any]) -> None:
        self._starting = str(facts["text"])
        self._samples.set("standby", 1)

    def _on_started(self, facts: Mapping[str, Any]) -> None:
        self._starting = "starting or recovering"
        self._samples.set("standby", 0)

    def _on_plan(self, facts: Mapping[str, Any]) -> None:
        settings = {each["name"]: each["value"] for each in facts["settings"]}
        self._interval = float(settings["checkpoint_interval"])
        self._least_pause = float(settings["checkpoint_min_pause"])

    def _on_running(self, facts: Mapping[str, Any]) -> None:
        self._samples.set("running", 1)
        self._samples.set("term", facts["term"])
        self._samples.set("parallelism", facts["parallelism"])
        self._before.clear()
        self._idle_since = self._open_since = self._clock()
        self._due = self._open_since + self._interval
        # An attempt may end between the two. Then its successor commits, and reports only the epoch it resumes from.
        for epoch, records in self._decided.items():
            if epoch <= facts["base"]:
                self._commit(records)
        self._decided.clear()
        self._forget(facts["base"])

    def _on_restarting(self, facts: Mapping[str, Any]) -> None:
        self._samples.add("restarts", 1, _REASONS[facts["what"]])
        self._idle_since = None  # an attempt that dies before its first epoch is no rest
        self._due = math.inf
        self._samples.set("running", 0)
        self._samples.set("pending_committables", 0)
        self._samples.zero("open_writers")

    def _on_failed(self, facts: Mapping[str, Any]) -> None:
        self._end(f"ended: {facts['error']}: {facts['reason']}")

    def _on_standby_ended(self, facts: Mapping[str, Any]) -> None:
        self._end(f"ended: {facts['text']}")

    def _on_stopped(self, facts: Mapping[str, Any]) -> None:
        self._end("ended: drained and committed")

    def _end(self, how: str) -> None:
        self._ended, self._due = how, math.inf
        self._samples.set("running", 0)
        self._samples.set("standby", 0)

    def _on_progress(self, facts: Mapping[str, Any]) -> None:
        read: Mapping[str, Any] = facts["read"]
        for source, source_progress in read.items():
            self._count("read_records", source_progress["records"], source)
        for sink, records in facts["written"].items():
            self._count("written_records", records, sink)
        for chain, states in facts.get("segments", {}).items():
            for state, seconds in states.items():
                self._count("chain_seconds", seconds, chain, _STATES.get(state, state))
        self._work(facts.get("operators", {}))
        for operator, counters in facts.get("user_counters", {}).items():
            for name, n in counters.items():
                self._count("user_counter", n, operator, name)
        for sink, n in facts.get("open", {}).items():
            self._samples.set("open_writers", n, sink)
        splits: dict[Labels, Any] = {
            (source, split): at for source, progress in read.items() for split, at in progress["splits"].items()
        }
        offsets = {labels: at["position"].get("offset") for labels, at in splits.items()}
        self._samples.replace("read_position", {at: n for at, n in offsets.items() if isinstance(n, int)})
        lags = {labels: at["lag"] for labels, at in splits.items() if at["lag"] is not None}
        self._samples.replace("split_lag_records", lags)
        self._samples.replace("lag_records", {} if facts["lag"] is None else {(): facts["lag"]})
        self._hold(facts.get("waiting", {}), splits)

    def _work(self, operators: Mapping[str, Mapping[str, float]]) -> None:
        for operator, done in operators.items():
            for direction, field_name in (("in", "rows_in"), ("out", "rows_out")):
                self._count("operator_rows", done[field_name], operator, direction)
            for state in ("busy", "blocked", "idle"):
                if state in done:
                    self._count("operator_seconds", done[state], operator, _STATES.get(state, state))
            if done.get("cache_misses") or done.get("entries"):
                self._count("state_cache_misses", done["cache_misses"], operator)
                self._samples.set("state_cache_entries", done["entries"], operator)

    def _on_tables(self, facts: Mapping[str, Any]) -> None:
        waiting: Mapping[str, Any] = facts["waiting"]
        self._samples.replace("source_waiting", {(source,): float(bool(tables)) for source, tables in waiting.items()})

    def _hold(self, groups: Mapping[str, Any], splits: Mapping[Labels, Any]) -> None:
        """Set the gauge of paused splits. In jobs with alignment groups other splits get zeros, because gaps make a
        graph unreadable.
        """
        held = {(s, split) for g in groups.values() for s, each in g["waiting"].items() for split in each}
        self._samples.replace("split_paused", {labels: float(labels in held) for labels in splits} if groups else {})

    def _on_triggered(self, facts: Mapping[str, Any]) -> None:
        self._triggered[facts["epoch"]] = now = self._clock()
        self._due = math.inf
        if self._idle_since is not None:
            rest = now - self._idle_since
            self._uncommitted = {epoch: at + rest for epoch, at in self._uncommitted.items()}
            self._idle_since = None
        self._uncommitted.setdefault(facts["epoch"], now)

    def _on_aborted(self, facts: Mapping[str, Any]) -> None:
        self._samples.add("checkpoints", 1, "aborted")

    def _on_decided(self, facts: Mapping[str, Any]) -> None:
        self._decide_seconds = facts["seconds"]
        self._decided[facts["epoch"]] = facts["records_by_sink"]
        self._samples.observe("checkpoint_seconds", facts["seconds"], "decide")
        for phase, name in (("align", "aligning_ms"), ("snapshot", "blocked_ms")):
            if name in facts:
                self._samples.observe("checkpoint_seconds", facts[name] / 1000, phase)
        self._samples.replace("state_bytes", {(name,): size for name, size in facts["state_bytes_by_operator"].items()})
        self._samples.set("in_flight_bytes", facts.get("in_flight_bytes", 0))
        timers: Mapping[str, int] = facts.get("pending_timers", {})
        self._samples.replace("pending_timers", {(name,): count for name, count in timers.items()})
        self._samples.set("pending_committables", facts["committables"])
        times: Mapping[str, Mapping[str, int]] = facts.get("watermarks", {})
        reached = {(operator, split): at for operator, splits in times.items() for split, at in splits.items()}
        known: dict[Labels, float] = {labels: at / 1000 for labels, at in reached.items() if at > MIN_EVENT_TIME}
        self._samples.replace("watermark_timestamp_seconds", known)

    def _on_phases(self, facts: Mapping[str, Any]) -> None:
        """Record the phases: a sink is prepared when the slowest of its writers is."""
        longest: dict[str, float] = {}
        for span in facts["spans"]:
            if span["phase"] == "prepare":
                seconds = max(0.0, span["ended"] - span["started"])
                longest[span["operator"]] = max(seconds, longest.get(span["operator"], 0.0))
        for sink, seconds in longest.items():
            self._samples.observe("sink_seconds", seconds, sink, "prepare")

    def _on_committed(self, facts: Mapping[str, Any]) -> None:
        epoch = facts["epoch"]
        self._decided.pop(epoch, None)
        self._commit(facts["records_by_sink"])
        self._samples.observe("checkpoint_seconds", facts["seconds"], "total")
        self._samples.observe("checkpoint_seconds", max(0.0, facts["seconds"] - self._decide_seconds), "commit")
        self._samples.set("last_checkpoint_epoch", epoch)
        self._samples.set("last_checkpoint_timestamp_seconds", self._wall())
        self._samples.set("pending_committables", 0)
        if facts["expires_in"] is not None:
            self._samples.set("transaction_margin_seconds", facts["expires_in"])
        if facts.get("timeout") is not None:
            self._samples.set("transaction_timeout_seconds", facts["timeout"])
        for sink, (began, ended) in facts.get("commits", {}).items():
            self._samples.observe("sink_seconds", max(0.0, ended - began), sink, "commit")
        self._open_since = self._triggered.get(epoch, self._open_since)
        if epoch >= max(self._triggered, default=epoch):
            now = self._clock()
            self._due = max(now + self._least_pause, self._triggered.get(epoch, now) + self._interval)
        self._forget(epoch)

    def _commit(self, records: Mapping[str, int]) -> None:
        self._samples.add("checkpoints", 1, "committed")
        for sink, count in records.items():
            self._samples.add("committed_records", count, sink)

    def _on_dependencies(self, facts: Mapping[str, Any]) -> None:
        self._samples.replace("dependency_silent_seconds", {(name,): 0.0 for name in facts["answering"]})
        now, wall = self._clock(), self._wall()
        before, self._silent = self._silent, {}
        for name, of in facts["silent"].items():
            since = before[name][0] if name in before else now - max(0.0, wall - of["since"] / 1000)
            self._silent[name] = since, of["reason"]

    def _on_observer_failed(self, facts: Mapping[str, Any]) -> None:
        self._samples.add("observer_failures", 1, facts["observer"])

    def _on_dead_letters(self, facts: Mapping[str, Any]) -> None:
        for source, by in facts["total"].items():
            for operator, count in by.items():
                self._samples.set("dead_letters", count, source, operator)

    def _on_set_aside(self, facts: Mapping[str, Any]) -> None:
        for sink, count in facts["total"].items():
            self._samples.set("set_aside_records", count, sink)

    def _on_late_rows(self, facts: Mapping[str, Any]) -> None:
        for operator, count in facts["total"].items():
            self._samples.set("late_records", count, operator)

    def _on_filtered(self, facts: Mapping[str, Any]) -> None:
        for source, count in facts["total"].items():
            self._samples.set("filtered_records", count, source)

    def _forget(self, epoch: int) -> None:
        """Forget epochs up to this one, which are committed."""
        self._uncommitted = {other: at for other, at in self._uncommitted.items() if other > epoch}
        self._triggered = {other: at for other, at in self._triggered.items() if other > epoch}

    def _count(self, name: str, total: float, *labels: str) -> None:
        """Add what is new of a counter of the session. One that is a difference of clocks may go back a little."""
        before = self._before.get((name, labels), 0.0)
        self._samples.add(name, max(0.0, total - before), *labels)
        self._before[name, labels] = max(total, before)
