"""The course of a demo: servers, orders, job, faults, another parallelism, drain, a further recovery, audit, report.

Rule: the next fault waits until the job has recovered from the last one and committed under load again, and
nothing is believed that was not seen: a kill counts when the process is gone and the job is up again.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack

from rich.console import Console

from kafka_eos.audit import audit
from kafka_eos.audit.checks.verdict import Conclusion, Verdict
from kafka_eos.audit.cluster.spark_session import PendingSession
from kafka_eos.config.settings import Settings
from kafka_eos.connectors.kafka.client.librdkafka import AdminClient, NewTopic
from kafka_eos.core.ids import AppRef
from kafka_eos.devtools.broker import Broker
from kafka_eos.devtools.demo import directory as places
from kafka_eos.devtools.demo.directory import DemoDirectory, Options
from kafka_eos.devtools.demo.faults import FaultPlan, PlannedFault, Victim, plan_faults
from kafka_eos.devtools.demo.job_history import HistoryFollower
from kafka_eos.devtools.demo.job_process import APP, CHECKPOINT_INTERVAL, EmbeddedJob, JobProcess, SparkJob
from kafka_eos.devtools.demo.order_feeder import LoadGenerator
from kafka_eos.devtools.demo.outputs import DemoOutputs, start_outputs
from kafka_eos.devtools.demo.report import write_report
from kafka_eos.devtools.demo.result import DemoAborted, DemoResult, InjectedFault, conclude
from kafka_eos.devtools.demo.run_watcher import Watcher
from kafka_eos.devtools.demo.spark_cluster import SparkCluster
from kafka_eos.devtools.demo.terminal_view import DemoView
from kafka_eos.runtime.program import load_program

TOPICS = ("orders", "totals")
PARTITIONS = 4
_AWAY_SECONDS = 1.0
"""Seconds that a killed broker stays away before it is started; that takes two or more again."""
_PATIENCE = 180.0
"""Seconds that any single step may take before the run is aborted."""


def run_demo(options: Options, console: Console) -> DemoResult:
    """Run the whole demo, write its report and return the result.

    Raises ConfigError if this machine cannot run it (no Java, port in use, disk full, a demo that runs already).
    Whatever else happens, Ctrl-C too, its processes are ended.
    """
    places.check_machine(options)
    home = DemoDirectory(options.directory)
    with home.lock(), ExitStack() as cleanup:
        places.check_port(options.port)
        outputs = start_outputs(home, cleanup)
        return _DemoRun(options, home, outputs, console, cleanup).run()


class _DemoRun:
    """One run of the demo."""

    def __init__(
        self, options: Options, home: DemoDirectory, outputs: DemoOutputs, console: Console, cleanup: ExitStack
    ) -> None:
        self._options = options
        self._home = home
        self._outputs = outputs
        self._cleanup = cleanup
        self._plan: FaultPlan = plan_faults(options.seed, options.step_kills, options.outside_kills, options.engine)
        self._parallelism = self._plan.parallelism
        self._pipeline = load_program(AppRef(APP))
        self._settings = self._pipeline_settings("127.0.0.1:0")
        self._watcher = Watcher(HistoryFollower(self._settings.job_dir(self._pipeline.name)))
        self._diary = self._watcher.diary
        self._view = DemoView(console, self._watcher, self._plan, options, outputs)
        self._broker = Broker(home.broker, options.port, daemon=options.keep_broker)
        self._last_fault_epochs = 0
        self._finished = False

    def run(self) -> DemoResult:
        verdict, ended = None, None
        self._view.announce(self._dashboard())
        with self._watcher, self._view:
            try:
                self._start()
                self._run_step_faults()
                self._run_outside_faults()
                self._drain()
                self._recover_once_more()
                verdict = self._audit()
                self._finished = True
            except DemoAborted as reason:
                ended = reason
            finally:
                self._cleanup.close()
        struck = self._watcher.recording.struck
        result = conclude(self._plan.faults, struck, self._options.orders, verdict, ended, self._watcher.now)
        write_report(self._home, self._options, self._plan, self._outputs, result, self._watcher.recording, verdict)
        return result

    # ------------------------------------------------------------ the beginning

    def _start(self) -> None:
        self._watcher.step("starting a Kafka broker")
        self._cleanup.callback(self._end_broker)
        self._broker.start()
        self._settings = self._pipeline_settings(self._broker.bootstrap)
        self._create_topics()
        seconds = self._options.seconds or self._plan.cast.seconds
        self._feeder = LoadGenerator(
            self._broker.bootstrap, TOPICS[0], self._options.seed, self._options.orders, seconds
        )
        self._watcher.feeder = self._feeder
        self._cleanup.callback(self._feeder.stop)
        self._job = self._watcher.job = self._make_job()
        self._cleanup.callback(self._job.end)
        self._watcher.step(f"starting the job with {self._parallelism} {self._plan.cast.unit}s")
        self._job.start(self._parallelism, self._plan.failpoint_spec)
        self._expect(lambda: bool(self._diary.sessions), "start")
        self._feeder.start()
        self._watcher.step("running")

    def _dashboard(self) -> str:
        """Serve the dashboard until the end of the demo; return its address."""
        from kafka_eos.monitoring.dashboard.routes import Pages
        from kafka_eos.monitoring.dashboard.server import serve_dashboard

        pages = Pages(self._home.checkpoints, self._pipeline.name)
        server = serve_dashboard(("127.0.0.1", 0), pages, "the dashboard")
        return f"watch it: {self._cleanup.enter_context(server)}/"

    def _make_job(self) -> JobProcess:
        if self._options.engine == "embedded":
            return EmbeddedJob(self._home, self._broker.bootstrap, self._diary)
        self._watcher.step("starting a Spark cluster: a master and two workers")
        cluster = SparkCluster(self._home.cluster)
        self._cleanup.callback(cluster.end)
        cluster.start()
        return SparkJob(self._home, self._broker.bootstrap, cluster)

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

    def _run_step_faults(self) -> None:
        """Wait for each failpoint to kill its process, and for the recovery."""
        for number, fault in enumerate(self._plan.step_faults, start=1):
            self._watcher.step(f"waiting for the {fault.victim.value} to reach {fault.point}")
            sessions = len(self._diary.sessions)
            self._expect(lambda n=number: len(self._job.fired) >= n, f"reach {fault.point}")  # type: ignore[misc]
            self._await_recovery(
                self._record_fault(fault, self._watcher.name_of(self._job.fired[number - 1])), sessions
            )

    def _run_outside_faults(self) -> None:
        """Kill processes and the broker from outside, and rescale in between."""
        for fault in self._plan.outside_faults:
            wanted = self._last_fault_epochs + fault.epochs
            self._watcher.step(f"next: {fault.title}")
            self._expect(lambda n=wanted: self._diary.committed_epochs >= n, "commit again")  # type: ignore[misc]
            self._watcher.pause(fault.delay)
            match fault.victim:
                case Victim.BROKER:
                    self._outage(fault)
                case Victim.JOB:
                    self._rescale(fault)
                case _:
                    self._kill(fault)
        self._feeder.finish()

    def _kill(self, fault: PlannedFault) -> None:
        sessions = len(self._diary.sessions)
        self._expect(lambda: fault.name in self._job.processes(), f"run {fault.name}")
        if not self._job.kill(fault.name):
            raise DemoAborted(Conclusion.INCONCLUSIVE, f"{fault.name} was not running and could not be killed")
        self._await_recovery(self._record_fault(fault), sessions)

    def _await_recovery(self, struck: InjectedFault, sessions: int) -> None:
        """Restart the job if its leader died, and wait until it has recovered. ``sessions``: the number of sessions
        before.
        """
        victim = struck.fault.victim
        if victim is self._plan.cast.leader:
            self._start_again()
        epochs = self._diary.committed_epochs
        if victim in self._plan.cast.new_session:
            self._recovered(struck, lambda: len(self._diary.sessions) > sessions)
        else:
            self._recovered(struck, lambda: self._diary.committed_epochs > epochs)

    def _start_again(self) -> None:
        leader = self._plan.cast.leader.value
        if not self._watcher.wait_until(lambda: self._job.code is not None, _PATIENCE):
            raise DemoAborted(Conclusion.INCONCLUSIVE, f"the {leader} was to be killed, but still runs")
        if self._job.code != -signal.SIGKILL:
            raise self._broken(f"the {leader} ended with code {self._job.code}")
        self._watcher.step("starting the job again")
        self._job.start(self._parallelism)

    def _rescale(self, fault: PlannedFault) -> None:
        """Drain the job while orders are written, and continue with more or fewer subtasks."""
        assert fault.parallelism is not None
        sessions = len(self._diary.sessions)
        struck = self._record_fault(fault)
        self._job.terminate()
        self._await_clean_end("drain")
        self._parallelism = fault.parallelism[1]
        self._watcher.step(f"drained; starting it with parallelism {self._parallelism}")
        self._job.start(self._parallelism)
        self._recovered(
            struck, lambda: len(self._diary.sessions) > sessions and self._diary.parallelism == self._parallelism
        )

    def _outage(self, fault: PlannedFault) -> None:
        self._broker.kill()
        struck = self._record_fault(fault)
        epochs = self._diary.committed_epochs
        self._watcher.step("the broker is away")
        self._watcher.pause(_AWAY_SECONDS)
        self._broker.start()
        self._watcher.step("the broker is back")
        self._recovered(struck, lambda: self._diary.committed_epochs > epochs)

    def _record_fault(self, fault: PlannedFault, name: str | None = None) -> InjectedFault:
        """Record that a fault has just happened."""
        watcher = self._watcher
        since = self._diary.committed_epochs - self._last_fault_epochs
        flowing = not self._feeder.done
        struck = InjectedFault(
            fault, watcher.now, self._diary.epoch, since, watcher.written, flowing, name or fault.name
        )
        watcher.recording.struck.append(struck)
        watcher.step(struck.title)
        self._last_fault_epochs = self._diary.committed_epochs
        return struck

    def _recovered(self, struck: InjectedFault, condition: Callable[[], bool]) -> None:
        self._expect(condition, f"recover from: {struck.title}")
        struck.recovered_in = self._watcher.now - struck.at
        self._last_fault_epochs = self._diary.committed_epochs
        self._watcher.step(f"recovered in {struck.recovered_in:.1f} s")

    # ------------------------------------------------------------ the end

    def _drain(self) -> None:
        """Wait until all orders are written and the lag is 0, send SIGTERM, and expect exit code 0.

        The audit's Spark starts meanwhile.
        """
        self._spark = PendingSession(python_path=[str(APP.parent)])
        self._cleanup.callback(self._spark.close)
        self._watcher.step("writing the rest of the orders")
        self._expect(lambda: self._feeder.done, "take all orders")
        self._watcher.step("waiting until the job has read all of them")
        self._expect(lambda: self._diary.read_up_to() >= self._options.orders, "read all orders")
        self._watcher.step("SIGTERM: the job drains")
        self._job.terminate()
        self._await_clean_end("drain")

    def _recover_once_more(self) -> None:
        """Start the job once more, and check that this changes nothing."""
        visible = self._diary.visible
        self._watcher.step("one more recovery, which must change nothing")
        self._job.start(self._parallelism, "", "--until-caught-up")
        self._await_clean_end("recover once more")
        if self._diary.visible != visible:
            added = self._diary.visible - visible
            raise DemoAborted(Conclusion.FAIL, f"a further recovery made {added:,} more records visible")

    def _await_clean_end(self, what: str) -> None:
        if not self._watcher.wait_until(lambda: self._job.code is not None, _PATIENCE):
            raise self._broken(f"the job did not {what} in {_PATIENCE:.0f} s")
        if self._job.code != 0:
            raise self._broken(f"the job was to {what}, but ended with code {self._job.code}")
        self._watcher.poll_now()

    def _audit(self) -> Verdict:
        self._watcher.step("auditing on Spark")
        return audit(
            self._pipeline,
            self._settings,
            report_dir=self._home.audit,
            progress=lambda text: self._watcher.step(f"audit: {text}"),
            spark=self._spark,
        )

    def _expect(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition; if the supervisor ends without it, or it takes too long, so does the demo."""
        dead = False

        def settled() -> bool:
            nonlocal dead
            dead = self._job.code is not None
            return dead or condition()

        if not self._watcher.wait_until(settled, _PATIENCE):
            raise self._broken(f"the job did not {what} in {_PATIENCE:.0f} s")
        if dead and not condition():
            raise self._broken(f"the job ended with code {self._job.code}; expected it to {what}")

    def _broken(self, reason: str) -> DemoAborted:
        return DemoAborted(Conclusion.FAIL, f"{reason}; the end of {self._home.job_log}:\n{self._job.log_tail()}")
