"""The terminal: one console for messages, and the live view of a running job.

Rule: the result of a command goes to stdout, messages go to stderr. A message is never wrapped, so that its paths and
commands can be copied and found with grep.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kafka_eos._util import logging_setup as logs
from kafka_eos._util.printable_text import as_message, printable
from kafka_eos.monitoring.terminal.event_log import LOG
from kafka_eos.monitoring.terminal.run_totals import Totals
from kafka_eos.protocol.dead_letter_limit import format_counts
from kafka_eos.protocol.source_dependencies import describe_waiting


class _EscapedRenderable:
    """A renderable whose text has its unprintable characters escaped. Styles and cursor moves stay."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text, "\n"))


class _EscapeHook(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_EscapedRenderable(each) for each in renderables]


def _open_console(**given: Any) -> Console:
    """Return a console that escapes unprintable characters."""
    made = Console(**given)
    made.push_render_hook(_EscapeHook())
    return made


console = _open_console(stderr=True)
_WIDE = 1000
"""Columns of output that does not go to a terminal."""

_PRINTED_EVENTS = {
    "notice": "{text}",
    "observer-failed": "{text}",
    "standby": "{text}",
    "restarting": "{what}: {reason} — restarting from the last checkpoint",
    "backing-off": "the next attempt starts in {seconds:g} s",
    "hung": "worker {worker} (process {process}) is alive but has made no progress for {seconds:g} s: it is at "
    "{place}. It will be replaced after worker_timeout. Its stacks:\n{stacks}",
    "unresponsive": "worker {worker} (process {process}) has not responded for {seconds:g} s: it is stopped, or a C "
    "call holds the GIL. It will be replaced after worker_timeout. Its stacks:\n{stacks}",
    "splits": "found new splits of {source}: {count}, such as {splits}",
}


def format_bytes(size: float) -> str:
    """Format a size with a fitting unit, such as `49.8 kB`."""
    return decimal(int(size))


def print_message(*parts: str | tuple[str, str], level: int = logging.INFO) -> None:
    """Print a message to stderr, or log it at ``level`` if ``log_format`` is ``json``. Markup is not interpreted.

    An error of the output, such as a full disk, is ignored: the console prints the text with the next message.
    """
    text = Text.assemble(
        *(as_message(part) if isinstance(part, str) else (as_message(part[0]), part[1]) for part in parts)
    )
    if logs.is_json():
        LOG.log(level, "%s", text.plain)
    else:
        with suppress(OSError):  # the console keeps it
            console.print(text, soft_wrap=True)


def open_stdout_console() -> Console:
    """Return a console for stdout, with very wide lines if stdout is not a terminal."""
    found = _open_console()
    return found if found.is_terminal else _open_console(width=_WIDE)


def print_output(asked: RenderableType) -> None:
    """Print the result of a command to stdout."""
    open_stdout_console().print(asked)


class LiveView(Totals):
    """An observer that draws rate, lag, epoch and checkpoints, and prints unusual events.

    On a terminal it redraws in place; elsewhere (a log file, CI) it prints a line every ten seconds once records flow.
    """

    _LOG_EVERY = 10.0
    _RATE_OVER = 0.5
    """Shortest period of a rate in seconds: workers may report directly after each other, for example after an outage.
    """
    _RESTORE_EVERY = 5.0
    """Seconds between two lines about a restore, and before the first line: a short restore prints none."""

    def __init__(self, job: str) -> None:
        super().__init__()
        self._job = job
        self._facts: dict[str, Any] = {"records_in": 0, "records_out": 0, "lag": None}
        self._rate = 0.0
        self._counted = 0
        self._since = time.monotonic()
        """Records per second; the time and the record count at which the next rate begins."""
        self._restarts = 0
        self._restore_told: float | None = None
        """The time of the last line about the restore, or of its begin; None if no restore is running."""
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
            print_message(("some records became dead letters; see the column dead letters", "yellow"))
        if event == "set-aside" and not self.set_aside:
            print_message(("a receiver refused some rows; they are set aside in the outbox", "yellow"))
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
        """Print the progress of a restore, rarely. ``text`` is empty when the restore is over."""
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
            *([("set aside", f"{sum(self.set_aside.values()):,}")] if self.set_aside else ()),
            *([("late", f"{sum(self.late.values()):,}")] if self.late else ()),
            *([("timers", f"{sum(self.timers.values()):,}")] if self.timers else ()),
        ]
