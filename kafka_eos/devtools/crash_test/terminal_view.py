"""A crash test on the terminal: drawn in place there, plain lines in a log file.

Rule: it shows what the watcher has seen and knows nothing else.
"""

from __future__ import annotations

import threading

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kafka_eos.devtools.crash_test.faults import Victim, counts
from kafka_eos.devtools.crash_test.report import TestFacts
from kafka_eos.devtools.crash_test.run_watcher import Watcher

_LINE_SECONDS = 3.0
_SHOWN_FAULTS = 12


class CrashTestView:
    """Show the progress of a test on the terminal."""

    def __init__(self, console: Console, watcher: Watcher, facts: TestFacts, records: int) -> None:
        self._console = console
        self._watcher = watcher
        self._facts, self._plan = facts, facts.plan
        self._records = records
        self._printed = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._live: Live | None = None

    def announce(self, watch: str) -> None:
        """Print what will happen. ``watch``: where it can be watched."""
        facts, plan = self._facts, self._plan
        self._say(watch)
        self._say(f"{facts.options.app.path.name}: {facts.load}, {facts.options.engine} engine, seed {plan.seed}")
        self._say(f"it writes, each epoch everywhere or nowhere: {', '.join(facts.outputs)}")
        if facts.missing:
            self._say(f"no table: {facts.missing}")
        self._say("what will happen to the job:")
        for number, fault in enumerate(plan.faults, start=1):
            self._say(f"  {number}. {fault.title} ({fault.when})")

    def __enter__(self) -> CrashTestView:
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._draw, refresh_per_second=4)
            self._live.start()
        else:
            self._thread = threading.Thread(target=self._tell, daemon=True, name="lines")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._live:
            self._live.stop()
        if self._thread:
            self._thread.join()
            self._tell_steps()

    # ------------------------------------------------------------ lines

    def _tell(self) -> None:
        last, last_line = 0.0, ""
        while not self._stop.wait(0.1):
            self._tell_steps()
            if self._watcher.now - last >= _LINE_SECONDS:
                last = self._watcher.now
                line = ", ".join(f"{name} {value}" for name, value in self._cells() if name != "time")
                if line != last_line:
                    last_line = line
                    self._say(f"{last:6.1f} s  {line}")

    def _tell_steps(self) -> None:
        steps = self._watcher.recording.steps
        while self._printed < len(steps):
            at, text = steps[self._printed]
            self._printed += 1
            self._say(f"{at:6.1f} s  {text}")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    # ------------------------------------------------------------ drawn

    def _draw(self) -> RenderableType:
        facts = Table(show_edge=False, pad_edge=False, box=None)
        for name, _ in self._cells():
            facts.add_column(name, justify="right", style="bold", header_style="dim")
        facts.add_row(*(value for _, value in self._cells()))
        # Padding ends the line, which a bar does not.
        bar = Padding(ProgressBar(total=self._records, completed=self._watcher.written, width=60), 0)
        steps = self._watcher.recording.steps
        now = Text(f"▶ {steps[-1][1]}" if steps else "", style="bold cyan")
        return Group(facts, bar, self._processes(), self._faults(), now)

    def _processes(self) -> Text:
        """Return one dot per process of the job, running or missing."""
        living = {process.name for process in self._watcher.live_processes}
        seen = dict.fromkeys(process.name for process in self._watcher.recording.processes)
        parts = [("● ", "green") if name in living else ("○ ", "dim") for name in seen]
        return Text.assemble(*(piece for part, name in zip(parts, seen, strict=True) for piece in (part, f"{name}  ")))

    def _faults(self) -> Table:
        """Return the last faults, and the number of those that are left."""
        table = Table(show_header=False, show_edge=False, pad_edge=False, box=None)
        struck, unreached = self._watcher.recording.struck, self._watcher.recording.unreached
        for one in struck[-_SHOWN_FAULTS:]:
            up = "[yellow]recovering …" if one.recovered_in is None else f"[green]recovered in {one.recovered_in:.1f} s"
            mark = "[cyan]⇄" if one.fault.victim is Victim.JOB else "[red]✗"
            table.add_row(mark, one.title, f"at {one.at:.0f} s, {up}")
        left = len(self._plan.faults) - len(struck) - len(unreached)
        table.add_row("·", Text(f"{left} more planned", style="dim"), "")
        return table

    def _cells(self) -> list[tuple[str, str]]:
        watcher, diary = self._watcher, self._watcher.diary
        done = diary.checkpoint
        return [
            ("time", f"{watcher.now:.0f} s"),
            ("written", f"{watcher.written:,}"),
            ("visible", f"{diary.visible:,}"),
            ("rate", f"{watcher.rate:,.0f}/s"),
            ("lag", f"{diary.lag:,}"),
            ("epoch", str(diary.epoch)),
            ("workers", str(diary.parallelism)),
            ("checkpoint", f"{done['seconds'] * 1000:.0f} ms {done['state_bytes'] / 1e6:.1f} MB" if done else "–"),
            ("killed", self._killed()),
        ]

    def _killed(self) -> str:
        struck = counts([one.fault for one in self._watcher.recording.struck])
        return " ".join(f"{name} {count}" for name, count in struck.items()) or "–"
