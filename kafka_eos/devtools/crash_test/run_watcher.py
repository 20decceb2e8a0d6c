"""Looks at the run from a thread of its own, and keeps what it saw for the terminal and the report.

Rule: the conductor acts, the watcher looks. Only the watcher reads the job's diary, so a look never waits for
an action that takes long (a broker that starts).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from kafka_eos.devtools.crash_test.job_history import HistoryFollower
from kafka_eos.devtools.crash_test.job_process import JobProcess
from kafka_eos.devtools.crash_test.load_generator import LoadGenerator
from kafka_eos.devtools.crash_test.result import ProcessLifetime, RunRecord

_LOOK_SECONDS = 0.05
_SAMPLE_SECONDS = 0.25


class Watcher:
    """The progress of a run. ``began`` is the zero of all times; ``recording`` grows while the run continues."""

    def __init__(self, diary: HistoryFollower) -> None:
        self.began = time.monotonic()
        self.diary, self.recording = diary, RunRecord()
        self.feeder: LoadGenerator | None = None
        self.job: JobProcess | None = None
        self.failure: Exception | None = None
        self._sampled = 0.0
        self._stop, self._looking = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True, name="watcher")

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def now(self) -> float:
        """Return the seconds since the test began."""
        return time.monotonic() - self.began

    @property
    def written(self) -> int:
        return self.feeder.delivered if self.feeder else 0

    @property
    def live_processes(self) -> list[ProcessLifetime]:
        """Return the processes of the job that were last seen running."""
        return [process for process in self.recording.processes if process.until is None]

    def name_of(self, pid: int) -> str | None:
        """Return the name of a running or ended process; None if it was not seen."""
        return next((process.name for process in reversed(self.recording.processes) if process.pid == pid), None)

    @property
    def rate(self) -> float:
        """Return the outputs made visible per second, over the last five seconds."""
        recent = self.recording.samples[-int(5 / _SAMPLE_SECONDS) :]
        if len(recent) < 2:
            return 0.0
        return max(recent[-1][2] - recent[0][2], 0) / (recent[-1][0] - recent[0][0])

    def step(self, text: str) -> None:
        """Record the step that the run begins."""
        self.recording.steps.append((self.now, text))

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition; False after the timeout. Raises failures of the run.

        Raises what went wrong meanwhile.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            if self.failure:
                raise self.failure
            if self.feeder:
                self.feeder.check()
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def pause(self, seconds: float) -> None:
        """Let time pass. Raises what went wrong meanwhile."""
        self.wait_until(lambda: False, seconds)

    def poll_now(self) -> None:
        """Read everything that the job has written so far."""
        with self._looking:
            self._look()

    def _look(self) -> None:
        for event in self.diary.poll():
            match event["event"]:
                case "committed":
                    self.recording.commits.append(self.now)
                case "running":
                    self.recording.sessions.append((self.now, self.diary.parallelism))
        if self.now - self._sampled >= _SAMPLE_SECONDS:
            self._sampled = self.now
            self.recording.samples.append((self.now, self.written, self.diary.visible, self.diary.lag))
            self._note_processes(self.job.processes() if self.job else {})

    def _note_processes(self, processes: Mapping[str, int]) -> None:
        known = {(process.name, process.pid): process for process in self.live_processes}
        for gone in known.keys() - processes.items():
            known[gone].until = self.now
        new = [ProcessLifetime(name, pid, self.now) for name, pid in processes.items() if (name, pid) not in known]
        self.recording.processes.extend(new)

    def _run(self) -> None:
        try:
            while not self._stop.wait(_LOOK_SECONDS):
                self.poll_now()
        except Exception as error:  # noqa: BLE001 - raised by ``wait_until`` in the conductor's thread
            self.failure = error
