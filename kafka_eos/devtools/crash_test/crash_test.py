"""The course of a crash test: code checks, servers, load, job, faults, another parallelism, drain, audit, report.

Rule: the next fault waits until the job has recovered from the last one and committed under load again, and
nothing is believed that was not seen: a kill counts when the process is gone and the job is up again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from rich.console import Console

from kafka_eos.abc.auditable import AuditableTopic
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.audit import audit
from kafka_eos.audit.checks.verdict import Conclusion, Verdict
from kafka_eos.audit.cluster.spark_session import PendingSession
from kafka_eos.audit.state.state_audit import audit_state
from kafka_eos.config.settings import Settings
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import Term
from kafka_eos.devtools.broker import Broker
from kafka_eos.devtools.broker.topics import (
    KEEP_OLD_RECORDS,
    count_records,
    create_topics,
    delete_topics,
    list_topics,
)
from kafka_eos.devtools.crash_test import directory as places
from kafka_eos.devtools.crash_test.code_checks import CodeFinding, CodeReport, check_code
from kafka_eos.devtools.crash_test.directory import CrashTestDirectory
from kafka_eos.devtools.crash_test.faults import FaultPlan, PlannedFault, Victim, failpoint_script
from kafka_eos.devtools.crash_test.input_records import topics_of_sources
from kafka_eos.devtools.crash_test.job_history import HistoryFollower
from kafka_eos.devtools.crash_test.job_process import EmbeddedJob, JobProcess, SparkJob
from kafka_eos.devtools.crash_test.load_generator import LoadGenerator
from kafka_eos.devtools.crash_test.options import CrashTestOptions
from kafka_eos.devtools.crash_test.private_servers import start_servers
from kafka_eos.devtools.crash_test.report import TestFacts, write_report
from kafka_eos.devtools.crash_test.result import Audits, CrashTestAborted, CrashTestResult, InjectedFault, conclude
from kafka_eos.devtools.crash_test.run_watcher import Watcher
from kafka_eos.devtools.crash_test.spark_cluster import SparkCluster
from kafka_eos.devtools.crash_test.terminal_view import CrashTestView
from kafka_eos.plan import KeyByNode, Plan
from kafka_eos.runtime.program import load_program

_AWAY_SECONDS: Final = 1.0
"""Seconds that a killed broker stays away before it is started; that takes two or more again."""
_PATIENCE: Final = 180.0
"""Seconds that any single step may take before the run is aborted."""
_UNREACHED_AFTER: Final = 6
"""Epochs after which a step that was not reached is one that the pipeline does not pass."""


def run_crash_test(options: CrashTestOptions, console: Console) -> CrashTestResult:
    """Run the whole test, write its report and return the result.

    Raises ConfigError if this machine cannot run it (no Java, port in use, disk full, a test that runs already), or if
    the pipeline cannot be tested. Whatever else happens, Ctrl-C too, its processes are ended.
    """
    places.check_machine(options.directory)
    home = CrashTestDirectory(options.directory)
    with home.lock(), ExitStack() as cleanup:
        places.check_port(options.port)
        missing = start_servers(home, options.servers, cleanup)
        return _CrashTest(options, home, missing, console, cleanup).run()


class _CrashTest:
    """One run of the test."""

    def __init__(
        self,
        options: CrashTestOptions,
        home: CrashTestDirectory,
        missing: str | None,
        console: Console,
        cleanup: ExitStack,
    ) -> None:
        self._options = options
        self._home = home
        self._cleanup = cleanup
        self._pipeline = load_program(options.app)
        self._plan = self._pipeline.plan()
        self._settings = self._pipeline_settings(options.bootstrap or "127.0.0.1:0")
        self._load = options.make_load(self._plan, self._settings)
        self._faults: FaultPlan = options.make_faults(self._plan)
        self._parallelism = self._faults.parallelism
        self._script: list[PlannedFault] = list(self._faults.step_faults)
        self._watcher = Watcher(HistoryFollower(self._settings.job_dir(self._pipeline.name)))
        self._diary = self._watcher.diary
        self._code = CodeReport()
        outputs = [
            f"{node.name} ({node.sink.describe().get('connector', type(node.sink).__name__)})"
            for node in self._plan.sinks
        ]
        self._facts = TestFacts(options, self._faults, self._load.description, tuple(outputs), missing)
        self._view = CrashTestView(console, self._watcher, self._facts, self._load.count)
        self._broker = None if options.bootstrap else Broker(home.broker, options.port, daemon=options.keep_broker)
        self._last_fault_epochs = 0
        self._inputs = self._load.count
        """Records of the input topics, as far as they were counted."""
        self._finished = False

    def run(self) -> CrashTestResult:
        audits, ended = Audits(), None
        self._view.announce(self._dashboard())
        with self._watcher, self._view:
            try:
                self._check_code()
                self._start()
                self._run_step_faults()
                self._run_outside_faults()
                self._drain()
                self._recover_once_more()
                audits = self._audit()
                self._finished = True
            except CrashTestAborted as reason:
                ended = reason
            finally:
                self._watcher.step("ending all processes of the test")
                self._cleanup.close()
        recording = self._watcher.recording
        result = conclude(self._faults.faults, recording, self._inputs, audits, ended, self._watcher.now)
        write_report(self._home, self._facts, result, recording, audits, self._code)
        return result

    # ------------------------------------------------------------ the beginning

    def _check_code(self) -> None:
        """Look for side effects and functions that are not deterministic, in memory."""
        if self._load.sample is None:
            return
        self._watcher.step("checking the functions: two runs in memory")
        found = check_code(self._options.app, self._load.sample, self._home.run / "code-checks")
        findings = [_weigh(each, self._plan) for each in found.findings]
        self._code = replace(found, findings=findings)
        if failing := [each for each in findings if each.fails]:
            raise CrashTestAborted(Conclusion.FAIL, "\n".join(each.title for each in failing))
        varying = [each for each in findings if each.kind == "not deterministic"]
        if varying and self._options.ends_at_findings:
            titles = "\n".join(each.title for each in varying)
            raise CrashTestAborted(
                Conclusion.INCONCLUSIVE, f"outputs cannot be compared with a recomputation\n{titles}"
            )
        if empty := [name for name in found.rows if self._needs_rows(name)]:
            raise CrashTestAborted(
                Conclusion.INCONCLUSIVE,
                f"the input ({self._load.description}) makes no row for {', '.join(empty)}, so nothing would be "
                "compared. Give rows that pass: --input FILE, or --input topic",
            )

    def _needs_rows(self, sink: str) -> bool:
        """Return whether no other sink has rows: a test with at least one proves something."""
        return not any(self._code.rows.values()) and not any(
            node.is_dead_letter_sink for node in self._plan.sinks if node.name == sink
        )

    def _start(self) -> None:
        self._cleanup.callback(self._end_broker)
        if self._broker is not None:
            self._watcher.step("starting a Kafka broker")
            self._broker.start()
        self._settings = self._pipeline_settings(self._bootstrap)
        self._create_topics()
        self._feeder = LoadGenerator(self._bootstrap, self._load.records, self._load.count, self._options.seconds)
        self._watcher.feeder = self._feeder
        self._cleanup.callback(self._feeder.stop)
        self._job = self._watcher.job = self._make_job()
        self._cleanup.callback(self._job.end)
        self._watcher.step(f"starting the job with {self._parallelism} workers")
        self._job.start(self._parallelism, failpoint_script(self._script))
        self._expect(lambda: bool(self._diary.sessions), "start")
        self._feeder.start()
        self._watcher.step("running")

    @property
    def _bootstrap(self) -> str:
        return self._options.bootstrap or (self._broker.bootstrap if self._broker else "")

    def _dashboard(self) -> str:
        """Serve the dashboard until the end of the test; return its address."""
        from kafka_eos.monitoring.dashboard.routes import Pages
        from kafka_eos.monitoring.dashboard.server import serve_dashboard

        pages = Pages(self._home.checkpoints, self._pipeline.name)
        server = serve_dashboard(("127.0.0.1", 0), pages, "the dashboard")
        return f"watch it: {self._cleanup.enter_context(server)}/"

    def _make_job(self) -> JobProcess:
        given = self._home, self._options.app, self._bootstrap, self._options.interval
        if self._options.engine == "embedded":
            return EmbeddedJob(*given, self._diary)
        self._watcher.step("starting a Spark cluster: a master and two workers")
        cluster = SparkCluster(self._home.cluster)
        self._cleanup.callback(cluster.end)
        cluster.start()
        return SparkJob(*given, self._diary, cluster)

    def _pipeline_settings(self, bootstrap: str) -> Settings:
        options = {
            "bootstrap_servers": bootstrap,
            "checkpoint_dir": self._home.checkpoints,
            "checkpoint_interval": self._options.interval,
        }
        return Settings.resolve(code=self._pipeline.code_settings, cli=options)

    def _create_topics(self) -> None:
        """Create the topics of all sources and sinks. Raise ConfigError if one exists, or is of another cluster."""
        self._topics = topics_of_sources(self._plan, self._bootstrap)
        wanted = set(self._topics.values())
        context = JobContext(self._plan.name, Term(0), self._settings.connector_defaults())
        for node in self._plan.sinks:
            if isinstance(node.sink, AuditableTopic):
                topic, address, _ = node.sink.audit_log(context)
                if address != self._bootstrap:
                    raise ConfigError(
                        f"sink {node.name!r} has bootstrap_servers={address!r} in its code, so the test would write to "
                        f"the real cluster. Leave it out, and set KAFKA_EOS_BOOTSTRAP_SERVERS\n  {node.code_line}"
                    )
                wanted.add(topic)
        cluster = Cluster(self._bootstrap)
        if existing := sorted(wanted & list_topics(cluster).keys()):
            raise ConfigError(
                f"{', '.join(existing)} exist on {self._bootstrap}; a crash test writes only topics that it creates. "
                "Use another broker, or leave out --bootstrap-servers for one of its own"
            )
        create_topics(cluster, sorted(wanted), self._options.partitions, KEEP_OLD_RECORDS)
        if self._broker is None:
            self._cleanup.callback(delete_topics, cluster, sorted(wanted))

    def _end_broker(self) -> None:
        if self._broker is not None and not (self._options.keep_broker and self._finished):
            self._broker.kill()

    # ------------------------------------------------------------ faults

    def _run_step_faults(self) -> None:
        """Wait for each failpoint to kill its process, and for the recovery.

        A failpoint that acted is known by its number: the next one may have acted before this one was seen. Sessions
        are counted before the wait, because the one that follows the kill may have begun before the kill was seen.
        """
        number = 0
        for fault in self._faults.step_faults:
            self._watcher.step(f"waiting for the {fault.victim.value} to reach {fault.point}")
            sessions = len(self._diary.sessions)
            if not self._await_step(fault, number):
                self._leave_out(fault, number)
                continue
            pid = self._job.fired[number]
            number += 1
            is_leader = pid == self._job.pid
            victim = self._faults.profile.leader if is_leader else Victim.WORKER
            struck = self._record_fault(fault, self._watcher.name_of(pid) or victim.value)
            if is_leader:
                self._start_again()
            if not self._dies_in_recovery(number):
                self._await_recovery(struck, sessions, victim, lambda: len(self._job.fired) > number)  # noqa: B023

    def _dies_in_recovery(self, number: int) -> bool:
        """Return whether the next step is one of the recovery, so that the job will not run before it."""
        following = self._script[number].point if number < len(self._script) else None
        return following is not None and following.startswith("recovery.")

    def _await_step(self, fault: PlannedFault, number: int) -> bool:
        """Wait until the failpoint has acted. Return False if the job commits on and on without reaching it."""
        commits = self._diary.commits

        def is_over() -> bool:
            passed = fault.optional and self._diary.commits >= commits + fault.epochs + _UNREACHED_AFTER
            return len(self._job.fired) > number or passed

        self._expect(is_over, f"reach {fault.point}")
        return len(self._job.fired) > number

    def _leave_out(self, fault: PlannedFault, number: int) -> None:
        """Continue with the next step: restart the job with a script that does not contain this one."""
        self._watcher.step(f"not reached by this pipeline: {fault.point}")
        self._watcher.recording.unreached.append(fault)
        sessions = len(self._diary.sessions)
        self._job.end()
        del self._script[number]
        self._job.start(self._parallelism, failpoint_script(self._script))
        self._expect(lambda: len(self._diary.sessions) > sessions, "start again")

    def _run_outside_faults(self) -> None:
        """Kill processes and the broker from outside, and rescale in between."""
        self._spark = PendingSession(python_path=[str(self._options.app.path.parent)])  # starts meanwhile
        self._cleanup.callback(self._spark.close)
        self._script = []  # jobs that are started from now on have no failpoints, whose log a frozen one could lock
        for fault in self._faults.outside_faults:
            wanted = self._last_fault_epochs + fault.epochs
            self._watcher.step(f"next: {fault.title}")
            self._expect(lambda n=wanted: self._epochs >= n, "commit again")  # type: ignore[misc]
            self._watcher.pause(fault.delay)
            match fault.victim:
                case Victim.BROKER:
                    self._outage(fault)
                case Victim.JOB:
                    self._rescale(fault)
                case Victim.SAVEPOINT:
                    self._take_savepoint(fault)
                case Victim.ZOMBIE:
                    self._freeze(fault)
                case _:
                    self._kill(fault)
        self._feeder.finish()

    def _kill(self, fault: PlannedFault) -> None:
        sessions = len(self._diary.sessions)
        self._expect(lambda: fault.name in self._job.processes(), f"run {fault.name}")
        if not self._job.kill(fault.name):
            raise CrashTestAborted(Conclusion.INCONCLUSIVE, f"{fault.name} was not running and could not be killed")
        self._after_kill(self._record_fault(fault), sessions)

    def _after_kill(self, struck: InjectedFault, sessions: int) -> None:
        """Restart the job if its leader died, and wait until it has recovered."""
        if struck.fault.victim is self._faults.profile.leader:
            self._start_again()
        self._await_recovery(struck, sessions, struck.fault.victim)

    def _await_recovery(
        self, struck: InjectedFault, sessions: int, victim: Victim, or_else: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until the job has recovered, or until the next fault. ``sessions``: the number of sessions before."""
        epochs = self._epochs
        if victim in self._faults.profile.new_session:
            self._recovered(struck, lambda: len(self._diary.sessions) > sessions or or_else())
        else:
            self._recovered(struck, lambda: self._epochs > epochs or or_else())

    @property
    def _epochs(self) -> int:
        """Return the number of committed epochs that count: with rows, unless the pipeline may have none for long."""
        return self._diary.commits if self._faults.step_faults[0].optional else self._diary.committed_epochs

    def _start_again(self) -> None:
        leader = self._faults.profile.leader.value
        if not self._watcher.wait_until(lambda: self._job.code is not None, _PATIENCE):
            raise CrashTestAborted(Conclusion.INCONCLUSIVE, f"the {leader} still runs after its kill")
        if self._job.code != -signal.SIGKILL:
            raise self._broken(f"the {leader} ended with code {self._job.code}")
        self._watcher.step("starting the job again")
        self._job.start(self._parallelism, failpoint_script(self._script))

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
        assert self._broker is not None
        self._broker.kill()
        struck = self._record_fault(fault)
        epochs = self._epochs
        self._watcher.step("the broker is away")
        self._watcher.pause(_AWAY_SECONDS)
        self._broker.start()
        self._watcher.step("the broker is back")
        self._recovered(struck, lambda: self._epochs > epochs)

    def _take_savepoint(self, fault: PlannedFault) -> None:
        struck, epochs = self._record_fault(fault), self._epochs
        command = [sys.executable, "-m", "kafka_eos", "savepoint", "trigger", self._pipeline.name]
        command += ["--checkpoint-dir", str(self._home.checkpoints), "--path", str(self._home.run / "savepoint")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
        if done.returncode:
            raise self._broken(f"a savepoint failed: {(done.stdout + done.stderr).strip()}")
        self._recovered(struck, lambda: self._epochs > epochs)

    def _freeze(self, fault: PlannedFault) -> None:
        """Freeze the whole job, start another one in its place, and resume the frozen one beside it."""
        assert isinstance(self._job, EmbeddedJob)
        sessions = len(self._diary.sessions)
        struck = self._record_fault(fault)
        zombie = self._job.freeze()
        self._cleanup.callback(zombie.end)
        self._job.start(self._parallelism)
        self._expect(lambda: len(self._diary.sessions) > sessions, "replace the frozen one")
        code = zombie.resume(_PATIENCE)
        if code != 1:
            raise self._broken(
                f"the frozen job was replaced, so it had to end as Fenced (exit code 1), not with {code}"
            )
        epochs = self._epochs
        self._recovered(struck, lambda: self._epochs > epochs)

    def _record_fault(self, fault: PlannedFault, name: str | None = None) -> InjectedFault:
        """Record that a fault has just happened."""
        watcher = self._watcher
        since = self._epochs - self._last_fault_epochs
        flowing = not self._feeder.done
        struck = InjectedFault(
            fault, watcher.now, self._diary.epoch, since, watcher.written, flowing, name or fault.name
        )
        watcher.recording.struck.append(struck)
        watcher.step(struck.title)
        self._last_fault_epochs = self._epochs
        return struck

    def _recovered(self, struck: InjectedFault, condition: Callable[[], bool]) -> None:
        self._expect(condition, f"recover from: {struck.title}")
        struck.recovered_in = self._watcher.now - struck.at
        self._last_fault_epochs = self._epochs
        self._watcher.step(f"recovered in {struck.recovered_in:.1f} s")

    # ------------------------------------------------------------ the end

    def _drain(self) -> None:
        """Wait until all records are written and read, send SIGTERM, and expect exit code 0."""
        self._watcher.step("writing the rest of the records")
        self._expect(lambda: self._feeder.done, "take all records")
        written = {topic: count_records(Cluster(self._bootstrap), topic) for topic in {*self._topics.values()}}
        self._inputs = sum(written[topic] for topic in self._topics.values())
        if again := sum(written.values()) - self._load.count:
            self._watcher.step(f"{again:,} records were written again when the broker was killed: input like any other")
        self._watcher.step("waiting until the job has read all of them")
        self._expect(lambda: self._diary.read_up_to(self._topics) >= self._inputs, "read all records")
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
            raise CrashTestAborted(Conclusion.FAIL, f"a further recovery made {added:,} more records visible")

    def _await_clean_end(self, what: str) -> None:
        if not self._watcher.wait_until(lambda: self._job.code is not None, _PATIENCE):
            raise self._broken(f"the job did not {what} in {_PATIENCE:.0f} s")
        if self._job.code != 0:
            raise self._broken(f"the job did not {what}: it ended with code {self._job.code}")
        self._watcher.poll_now()

    def _audit(self) -> Audits:
        self._watcher.step("auditing the outputs on Spark")
        outputs = audit(
            self._pipeline,
            self._settings,
            report_dir=self._home.audit,
            progress=lambda text: self._watcher.step(f"audit: {text}"),
            spark=self._spark,
        )
        return Audits(outputs, self._audit_state(), tuple(self._list_lines(outputs)))

    def _audit_state(self) -> Verdict | None:
        if not self._options.audits_state or not any(node.keyed for node in self._plan.nodes):
            return None
        self._watcher.step("auditing the state on Spark")
        return audit_state(self._pipeline, self._settings, spark=self._spark)

    def _list_lines(self, verdict: Verdict) -> list[str]:
        """Return the user's line of each sink that has a finding, or that no check covers."""
        names = {name for finding in verdict.findings for name, count in finding.by_sink.items() if count}
        names |= verdict.facts.not_audited.keys() | verdict.facts.not_recomputed.keys()
        return [f"sink {node.name!r}: {node.code_line}" for node in self._plan.sinks if node.name in names]

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

    def _broken(self, reason: str) -> CrashTestAborted:
        return CrashTestAborted(Conclusion.FAIL, f"{reason}; the end of {self._home.job_log}:\n{self._job.log_tail()}")


def _weigh(finding: CodeFinding, plan: Plan) -> CodeFinding:
    """Decide whether a function that is not deterministic breaks the guarantee, or only the comparison."""
    if finding.kind != "not deterministic":
        return finding
    node = plan.node(finding.operator)
    if isinstance(node, KeyByNode) or finding.function.startswith("process_broadcast"):
        return replace(finding, detail=f"{finding.detail}, and it decides which worker keeps the state of a row")
    weak = [sink.name for sink in plan.sinks if sink.sink.guarantee is Guarantee.AT_LEAST_ONCE]
    if weak:
        return replace(finding, detail=f"{finding.detail}; at-least-once sinks ({', '.join(weak)}) show both")
    return replace(finding, fails=False)
