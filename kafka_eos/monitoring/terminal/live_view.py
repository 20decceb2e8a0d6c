"""The terminal: one console for messages, and the live view of a running job.

Rule: what a command was asked for goes to stdout, what it says besides to stderr. A message is printed as it is, in one
piece: paths and commands in it can be copied, and found with grep.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from rich.console import Console, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kafka_eos._util import logging_setup as logs
from kafka_eos.monitoring.terminal.event_log import LOG
from kafka_eos.monitoring.terminal.run_totals import Totals
from kafka_eos.protocol.dead_letter_limit import format_counts
from kafka_eos.protocol.source_dependencies import describe_waiting

console = Console(stderr=True)
_WIDE = 1000
"""Columns of a place that is no terminal."""

_PRINTED_EVENTS = {
    "notice": "{text}",
    "unshown": "{text}",
    "standing-by": "{text}",
    "restarting": "{what}: {reason} — going back to the last checkpoint",
    "backing-off": "the next attempt begins in {seconds:g} s",
    "hung": "worker {worker} (process {process}) lives, but has taken no step for {seconds:g} s: it is at {place}. "
    "It is replaced after worker_timeout. Its threads stand here:\n{stacks}",
    "silent": "worker {worker} (process {process}) has given no sign of life for {seconds:g} s: it is stopped, or a "
    "call in C holds the interpreter. It is replaced after worker_timeout. Its threads stand here:\n{stacks}",
    "splits": "found new splits of {source}: {splits}",
}


def format_bytes(size: float) -> str:
    """Format a size with a fitting unit, such as `49.8 kB`."""
    return decimal(int(size))


def print_message(*parts: str | tuple[str, str], level: int = logging.INFO) -> None:
    """Print a message to stderr, or log it where log_format is json. Nothing in it is taken for markup.

    A running job whose ``log_format`` is ``json`` logs it, at ``level``. As with a log line, nothing depends on it:
    what cannot be written, because the disk below a log file is full, comes with the next message that can be.
    """
    text = Text.assemble(*parts)
    if logs.is_json():
        LOG.log(level, "%s", text.plain)
    else:
        with suppress(OSError):  # the console keeps it
            console.print(text, soft_wrap=True)


def open_stdout_console() -> Console:
    """Return a console for stdout, wide enough if it is no terminal."""
    found = Console()
    return found if found.is_terminal else Console(width=_WIDE)


def print_output(asked: RenderableType) -> None:
    """Print the result of a command to stdout."""
    open_stdout_console().print(asked)


class LiveView(Totals):
    """An observer that draws rate, lag, epoch and checkpoints, and prints what is out of the ordinary.

    On a terminal it redraws in place; elsewhere (a log file, CI) it prints a line every ten seconds once records flow.
    """

    _LOG_EVERY = 10.0
    _RATE_OVER = 0.5
    """Seconds that a rate is of, at least: workers may report one right after the other, after an outage even all."""
    _RESTORE_EVERY = 5.0
    """Seconds between two lines about a restore, and before the first: a short one says nothing."""

    def __init__(self, job: str) -> None:
        super().__init__()
        self._job = job
        self._facts: dict[str, Any] = {"records_in": 0, "records_out": 0, "lag": None}
        self._rate = 0.0
        self._counted = 0
        self._since = time.monotonic()
        """Records a second, and since when and from how many records the next rate is of."""
        self._restarts = 0
        self._restore_told: float | None = None
        """When a line about the restore was printed last, or it began; None while nothing is restored."""
        self._logged = 0.0
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None

    def __enter__(self) -> LiveView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, event: str, facts: Mapping[str, object]) -> None:
        if event == "dead-letters" and not self.dead_letters:
            print_message(("records are rejected; the column dead letters counts them", "yellow"))
        super().__call__(event, facts)
        if event == "progress":
            self._measure(facts)
        if event == "restarting":
            self._restarts += 1
        if event in ("restoring", "running"):
            self._restore(str(facts.get("text", "")))
        if event == "tables" and (awaited := describe_waiting(cast("Mapping[str, list[str]]", facts["waiting"]))):
            print_message(awaited)
        if event in _PRINTED_EVENTS:
            print_message((_PRINTED_EVENTS[event].format(**facts), "yellow" if event == "restarting" else ""))
        self._facts.update({f"{event}.{name}": value for name, value in facts.items()})
        self._draw()

    def _restore(self, text: str) -> None:
        """``text``: how far the restore is; empty when it is over."""
        now = time.monotonic()
        if not text or self._restore_told is None:
            self._restore_told = now if text else None
        elif now - self._restore_told >= self._RESTORE_EVERY:
            self._restore_told = now
            print_message(text)

    def _measure(self, facts: Mapping[str, object]) -> None:
        now, done = time.monotonic(), int(str(facts["records_in"]))
        if done < self._counted:  # a restart counts from 0
            self._rate = 0.0
            self._counted = done
            self._since = now
        elif now - self._since >= self._RATE_OVER:
            self._rate = (done - self._counted) / (now - self._since)
            self._counted, self._since = done, now
        self._facts.update(facts)

    def _draw(self) -> None:
        if self._live:
            self._live.update(self._table())
        elif "running.term" in self._facts and time.monotonic() - self._logged > self._LOG_EVERY:
            self._logged = time.monotonic()
            print_message(" ".join(f"{name}={value}" for name, value in self._cells()))

    def _table(self) -> Table:
        table = Table(title=f"{self._job}", title_justify="left", show_edge=False, pad_edge=False)
        for name, _ in self._cells():
            table.add_column(name, justify="right")
        table.add_row(*(value for _, value in self._cells()))
        return table

    def _cells(self) -> list[tuple[str, str]]:
        facts = self._facts
        seconds = facts.get("committed.seconds")
        size = facts.get("decided.state_bytes")
        return [
            ("records/s", f"{self._rate:,.0f}"),
            ("lag", "–" if facts["lag"] is None else f"{facts['lag']:,}"),
            ("in", f"{facts['records_in']:,}"),
            ("out", f"{facts['records_out']:,}"),
            ("epoch", str(facts.get("committed.epoch", "–"))),
            ("checkpoint", "–" if seconds is None else f"{seconds * 1000:,.0f} ms"),
            ("state", "–" if size is None else format_bytes(size)),
            ("restarts", str(self._restarts)),
            *([("dead letters", format_counts(self.dead_letters))] if self.dead_letters else ()),
            *([("late", f"{sum(self.late.values()):,}")] if self.late else ()),
            *([("timers", f"{sum(self.timers.values()):,}")] if self.timers else ()),
        ]
