"""The course of a demo: broker, orders, job, faults, drain, a further recovery, audit, report.

Rule: the next fault waits until the job has recovered from the last one and committed under load again, and
nothing is believed that was not seen: a kill counts when the process is gone and the job is up again.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack

from rich.console import Console

from kafka_eos.app import load
from kafka_eos.audit import audit
from kafka_eos.audit.verdict import Outcome, Verdict
from kafka_eos.connectors.kafka.client import AdminClient, NewTopic
from kafka_eos.demo import home as places
from kafka_eos.demo.diary import Diary
from kafka_eos.demo.faults import Fault, FaultPlan, Victim, plan_faults
from kafka_eos.demo.feeder import Feeder
from kafka_eos.demo.home import Home, Options
from kafka_eos.demo.job import APP, CHECKPOINT_INTERVAL, Job
from kafka_eos.demo.report import write_report
from kafka_eos.demo.result import Ended, Result, Struck, conclude
from kafka_eos.demo.view import View
from kafka_eos.demo.watcher import Watcher
from kafka_eos.devbroker import Broker
from kafka_eos.ids import AppRef
from kafka_eos.settings import Settings

TOPICS = ("orders", "totals")
PARTITIONS = 4
_AWAY_SECONDS = 1.0
"""Seconds that a killed broker stays away before it is started; that takes two or more again."""
_PATIENCE = 90.0
"""Seconds that any single thing may take before the run is given up."""


def run_demo(options: Options, console: Console) -> Result:
    """Run the whole demo, write its report and return the result.

    Raises ConfigError if this machine cannot run it (no Java, port in use, disk full, a demo that runs already).
    Whatever else happens, Ctrl-C too, its processes are ended.
    """
    places.check_machine(options)
    home = Home(options.directory)
    with home.occupied(), ExitStack() as cleanup:
        places.check_port(options.port)
        return _Conductor(options, home, console, cleanup).run()


class _Conductor:
    """One run."""

    def __init__(self, options: Options, home: Home, console: Console, cleanup: ExitStack) -> None:
        self._options, self._home, self._cleanup = options, home, cleanup
        self._plan: FaultPlan = plan_faults(options.seed, options.step_kills, options.outside_kills)
        self._pipeline = load(AppRef(APP))
        self._settings = self._pipeline_settings("127.0.0.1:0")
        self._watcher = Watcher(Diary(self._settings.job_dir(self._pipeline.name)))
        self._diary = self._watcher.diary
        self._view = View(console, self._watcher, self._plan, options)
        self._broker = Broker(home.broker, options.port, daemon=options.keep_broker)
        self._last_fault_epochs = 0
        self._finished = False

    def run(self) -> Result:
        verdict, ended = None, None
        self._view.announce()
        with self._watcher, self._view:
            try:
                self._start()
                self._first_life()
                self._second_life()
                self._drain()
                self._recover_once_more()
                verdict = self._audit()
                self._finished = True
            except Ended as reason:
                ended = reason
            finally:
                self._cleanup.close()
        struck = self._watcher.recording.struck
        result = conclude(self._plan.faults, struck, self._options.orders, verdict, ended, self._watcher.now)
        write_report(self._home, self._options, self._plan, result, self._watcher.recording, verdict)
        return result

    # ------------------------------------------------------------ the beginning

    def _start(self) -> None:
        self._watcher.step("starting a Kafka broker")
        self._cleanup.callback(self._end_broker)
        self._broker.start()
        self._settings = self._pipeline_settings(self._broker.bootstrap)
        self._create_topics()
        self._feeder = Feeder(
            self._broker.bootstrap, TOPICS[0], self._options.seed, self._options.orders, self._options.seconds
        )
        self._watcher.feeder = self._feeder
        self._cleanup.callback(self._feeder.stop)
        self._job = Job(self._home, self._broker.bootstrap)
        self._cleanup.callback(self._job.end)
        self._watcher.step("starting the job")
        self._job.start(self._plan.script)
        self._feeder.start()
        self._expect(lambda: bool(self._diary.sessions), "start")
        self._watcher.step("running")

    def _pipeline_settings(self, bootstrap: str) -> Settings:
        options = {
            "bootstrap_servers": bootstrap,
            "checkpoint_dir": self._home.checkpoints,
            "checkpoint_interval": CHECKPOINT_INTERVAL,
        }
        return Settings.resolve(code=self._pipeline.code_settings, cli=options)

    def _create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap})
        for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in TOPICS]).values():
            future.result(_PATIENCE)

    def _end_broker(self) -> None:
        if not (self._options.keep_broker and self._finished):
            self._broker.kill()

    # ------------------------------------------------------------ faults

    def _first_life(self) -> None:
        """The worker dies at steps of a checkpoint, in the end the supervisor, and is started again."""
        for number, fault in enumerate(self._plan.first_life, start=1):
            self._watcher.step(f"waiting for the {fault.victim.value} to reach {fault.point}")
            self._expect(lambda n=number: len(self._job.fired) >= n, f"reach {fault.point}")  # type: ignore[misc]
            sessions = len(self._diary.sessions)
            struck = self._struck(fault)
            if fault.victim is Victim.SUPERVISOR:
                self._start_again()
            self._recovered(struck, lambda s=sessions: len(self._diary.sessions) > s)  # type: ignore[misc]

    def _start_again(self) -> None:
        if not self._watcher.until(lambda: self._job.code is not None, _PATIENCE):
            raise Ended(Outcome.INVALID, "the supervisor was to be killed, but lives")
        if self._job.code != -signal.SIGKILL:
            raise self._broken(f"the supervisor ended with code {self._job.code}")
        self._watcher.step("starting the job again")
        self._job.start()

    def _second_life(self) -> None:
        """Worker and broker are killed from outside, whatever the job is doing."""
        for fault in self._plan.second_life:
            wanted = self._last_fault_epochs + fault.epochs
            self._watcher.step(f"{fault.victim.value} goes next")
            self._expect(lambda n=wanted: self._diary.own_epochs >= n, "commit again")  # type: ignore[misc]
            self._watcher.pause(fault.delay)
            if fault.victim is Victim.BROKER:
                self._outage(fault)
            else:
                self._kill_worker(fault)
        self._feeder.finish()

    def _kill_worker(self, fault: Fault) -> None:
        sessions, worker = len(self._diary.sessions), self._diary.worker
        if worker is None or not self._job.kill_worker(worker):
            raise Ended(Outcome.INVALID, f"worker {worker} was not there to be killed")
        self._recovered(self._struck(fault), lambda: len(self._diary.sessions) > sessions)

    def _outage(self, fault: Fault) -> None:
        self._broker.kill()
        struck = self._struck(fault)
        epochs = self._diary.own_epochs
        self._watcher.step("the broker is away")
        self._watcher.pause(_AWAY_SECONDS)
        self._broker.start()
        self._watcher.step("the broker is back")
        self._recovered(struck, lambda: self._diary.own_epochs > epochs)

    def _struck(self, fault: Fault) -> Struck:
        """Note that a fault has happened, just now."""
        watcher = self._watcher
        since = self._diary.own_epochs - self._last_fault_epochs
        struck = Struck(fault, watcher.now, self._diary.epoch, since, watcher.written, not self._feeder.done)
        watcher.recording.struck.append(struck)
        watcher.step(fault.title)
        self._last_fault_epochs = self._diary.own_epochs
        return struck

    def _recovered(self, struck: Struck, condition: Callable[[], bool]) -> None:
        self._expect(condition, f"recover from: {struck.fault.title}")
        struck.recovered_in = self._watcher.now - struck.at
        self._last_fault_epochs = self._diary.own_epochs
        self._watcher.step(f"up again after {struck.recovered_in:.1f} s")

    # ------------------------------------------------------------ the end

    def _drain(self) -> None:
        """All orders written, lag 0, SIGTERM, exit code 0."""
        self._watcher.step("writing the rest of the orders")
        self._expect(lambda: self._feeder.done, "take all orders")
        written = time.time()
        self._watcher.step("waiting for lag 0")
        self._expect(lambda: self._diary.lag == 0 and self._diary.lag_at > written + 1, "reach lag 0")
        self._watcher.step("SIGTERM: the job drains")
        self._job.terminate()
        self._await_clean_end("drain")

    def _recover_once_more(self) -> None:
        """One more start must change nothing."""
        visible = self._diary.visible
        self._watcher.step("one more recovery, which must change nothing")
        self._job.start("", "--until-caught-up")
        self._await_clean_end("recover once more")
        if self._diary.visible != visible:
            added = self._diary.visible - visible
            raise Ended(Outcome.FAIL, f"a further recovery made {added:,} more records visible")

    def _await_clean_end(self, what: str) -> None:
        if not self._watcher.until(lambda: self._job.code is not None, _PATIENCE):
            raise self._broken(f"the job did not {what} in {_PATIENCE:.0f} s")
        if self._job.code != 0:
            raise self._broken(f"the job was to {what}, but ended with code {self._job.code}")
        self._watcher.look_now()

    def _audit(self) -> Verdict:
        self._watcher.step("auditing on Spark")
        return audit(
            self._pipeline,
            self._settings,
            report_dir=self._home.audit,
            progress=lambda text: self._watcher.step(f"audit: {text}"),
        )

    def _expect(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition; if the supervisor ends without it, or it takes too long, so does the demo."""
        dead = False

        def settled() -> bool:
            nonlocal dead
            dead = self._job.code is not None
            return dead or condition()

        if not self._watcher.until(settled, _PATIENCE):
            raise self._broken(f"the job did not {what} in {_PATIENCE:.0f} s")
        if dead and not condition():
            raise self._broken(f"the job ended with code {self._job.code}; it was to {what}")

    def _broken(self, reason: str) -> Ended:
        return Ended(Outcome.FAIL, f"{reason}; the end of {self._home.job_log}:\n{self._job.log_tail()}")
