"""Workers that are connected by TCP, as on other machines: whole jobs, killed, and over a network that does harm.

Rule: what comes out is the same as over the sockets of one machine: everything, and once.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from kafka_eos.config.settings import Settings
from kafka_eos.core.ids import AppRef
from kafka_eos.embedded.launched_worker import WorkerTask
from kafka_eos.embedded.supervisor import Supervisor
from kafka_eos.embedded.tcp_process_pool import ENVIRONMENT, TcpProcessPool
from kafka_eos.plan import Plan
from kafka_eos.runtime.program import load_program
from kafka_eos.runtime.transport.data_socket import DataSocket
from kafka_eos.runtime.transport.tcp_sockets import TcpAddress
from kafka_eos.runtime.worker.tcp_connections import WorkerHello
from kafka_eos.runtime.worker.worker_ticket import WorkerTicket
from tests.chaos.harness import Job
from tests.chaos.running import check_all, running, signal_worker
from tests.chaos.storm import Storm
from tests.marks import campaign
from tests.waiting import eventually
from tests.wires import FaultProxy

NewJob = Callable[..., Job]
PAYMENTS = 300
KEYS = 7
APP = f"""
import time

from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink
from kafka_eos.testing import ListSource

def slowly(n: int) -> int:
    time.sleep(0.001)
    return n

pipeline = Pipeline("over-tcp")
(
    pipeline.source(ListSource(list(range({{rows}})), splits=2), name="numbers")
    .map(slowly, name="slowly")
    .map(lambda n: f"payment {{n}}", name="text")
    .key_by(lambda payment: int(payment.split()[1]) % {KEYS}, values=str)
    .fold(name="count", init=lambda: 0, step=lambda n, payment: n + 1, emit=lambda key, n: dict(key=key, n=n))
    .sink(FileSink("{{out}}"), name="out")
)
"""


@pytest.mark.parametrize(
    "faults",
    [
        ("align.barrier=kill@2", "coordinator.acked=kill@2", "sink.prepare.after=kill@3", "recovery.opened=kill"),
        campaign(("source.capture.after=kill@3", "worker.ack.before=kill@2", "commit.between=kill@2")),
        campaign(("in-flight.logged=kill@2", "in-flight.stored=kill@3", "recovery.restored=kill")),
    ],
)
def test_a_storm_over_tcp_loses_and_doubles_nothing(new_job: NewJob, faults: tuple[str, ...]) -> None:
    settings = {"KAFKA_EOS_PARALLELISM": 3, "KAFKA_EOS_CHECKPOINT_MODE": "unaligned", ENVIRONMENT: "127.0.0.1"}
    job = new_job(PAYMENTS, **settings, TEST_PAUSE=0.001)

    with Storm(job, PAYMENTS).through(*faults):
        pass

    job.run()
    check_all(job)


@pytest.mark.campaign
def test_a_worker_that_is_killed_is_replaced_over_ipv6_too(new_job: NewJob) -> None:
    job = new_job(PAYMENTS, KAFKA_EOS_PARALLELISM=2, **{ENVIRONMENT: "::1"})
    with running(job) as run:
        run.until_committed()
        signal_worker(run.worker, signal.SIGKILL)
        run.until(lambda: len(run.events("running")) == 2, "begin again")
        run.drain()

    check_all(job)


# ---------------------------------------------------------------- a network that does harm


class ProxiedPool(TcpProcessPool):
    """All connections, to the supervisor and between workers, go through proxies."""

    def __init__(self, plan: Plan, app: AppRef, settings: Settings) -> None:
        super().__init__(plan, app, settings, "127.0.0.1")
        self.keeps_workers_out = False
        self.control: list[FaultProxy] = []
        self.data: list[FaultProxy] = []

    def launch(self, subtask: int, ticket: WorkerTicket, replaced: WorkerTask | None) -> WorkerTask:
        self.control.append(FaultProxy(TcpAddress(ticket.host, ticket.port)))
        if self.keeps_workers_out:
            self.control[-1].freeze()
        through = self.control[-1].address
        return super().launch(subtask, msgspec.structs.replace(ticket, host=through.host, port=through.port), replaced)

    def _accept(self, hello: bytes, sock: DataSocket) -> None:
        known = msgspec.msgpack.decode(hello, type=WorkerHello)
        self.data.append(FaultProxy(TcpAddress(known.host, known.port)))
        through = self.data[-1].address
        super()._accept(msgspec.msgpack.encode(msgspec.structs.replace(known, port=through.port)), sock)

    def close(self) -> None:
        super().close()
        for proxy in self.control + self.data:
            proxy.close()


class ProxiedJob:
    """A job in this process. ``harm`` is done once, after some epochs; ``mend`` when the attempt has failed."""

    def __init__(self, directory: Path, rows: int = 3000, **settings: object) -> None:
        self.rows, self.out = rows, directory / "out"
        path = directory / "app.py"
        path.write_text(APP.replace("{out}", str(self.out)).replace("{rows}", str(rows)))
        app = AppRef(path)
        given = {
            "parallelism": 2,
            "checkpoint_dir": directory / "checkpoints",
            "checkpoint_interval": 0.1,
            "batch_size": 50,
            "restart_backoff_initial": 0.05,
            **settings,
        }
        self._settings, self._plan = Settings.resolve(code=given), load_program(app).plan()
        self.pool = ProxiedPool(self._plan, app, self._settings)
        self._supervisor = Supervisor(self._plan, app, self._settings, self.pool, (self._observe,), True)
        self.restarts: list[str] = []
        self._committed = 0
        self._harm: Callable[[], None] = lambda: None
        self._mend: Callable[[], None] = lambda: None

    def run(self, harm: Callable[[], None], mend: Callable[[], None] = lambda: None) -> None:
        self._harm, self._mend = harm, mend
        self._supervisor.run()

    def _observe(self, event: str, facts: Mapping[str, object]) -> None:
        if event == "committed":
            self._committed += 1
            if self._committed == 3:
                self._harm()
        if event == "restarting":
            self.restarts.append(f"{facts['what']}: {facts['reason']}")
            self._mend()

    def check(self) -> None:
        lines = [line for part in self.out.glob("part-*") for line in part.read_text().splitlines()]
        found = Counter((row["key"], row["n"]) for row in map(json.loads, lines))
        wanted = Counter((key, n) for key in range(KEYS) for n in range(1, len(range(key, self.rows, KEYS)) + 1))
        assert found == wanted


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Callable[..., ProxiedJob]]:
    made: list[ProxiedJob] = []

    def make(rows: int = 3000, **settings: object) -> ProxiedJob:
        made.append(ProxiedJob(tmp_path, rows, **settings))
        return made[-1]

    yield make
    for job in made:
        job.pool.close()


def test_rows_and_secrets_between_workers_cannot_be_read_on_the_wire(proxied: Callable[..., ProxiedJob]) -> None:
    job = proxied(rows=300)

    job.run(harm=lambda: None)

    job.check()
    (rows,) = [proxy.recorded for proxy in job.pool.data if proxy.recorded]
    assert len(rows) > 300 * len("payment 100") / 4, "half of the rows go to the other worker"
    assert b"payment" not in rows
    secret = job.pool._credentials.secret
    assert all(proxy.recorded and secret not in proxy.recorded for proxy in job.pool.control)


def test_a_cut_between_two_workers_takes_all_back_and_is_told(proxied: Callable[..., ProxiedJob]) -> None:
    job = proxied()

    job.run(harm=lambda: [proxy.cut() for proxy in job.pool.data].clear())

    job.check()
    assert len(job.restarts) == 1
    assert "the environment failed: the connection to worker" in job.restarts[0]
    assert job.restarts[0].endswith("but that worker still runs: the network between them failed")


def test_a_cut_between_a_worker_and_its_supervisor_is_the_end_of_the_worker(
    proxied: Callable[..., ProxiedJob],
) -> None:
    job = proxied()

    job.run(harm=lambda: job.pool.control[0].cut())

    job.check()
    assert len(job.restarts) == 1 and job.restarts[0].startswith("worker ended: worker ")


def test_a_stop_is_heard_at_once_while_workers_are_waited_for(proxied: Callable[..., ProxiedJob]) -> None:
    job = proxied()
    job.pool.keeps_workers_out = True

    def stop() -> None:
        eventually(lambda: len(job.pool.control) == 2, "both are started")
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    job.run(harm=lambda: None)
    stopping.join()

    assert (job.restarts, job.pool.data) == ([], [])
    assert list(job.out.glob("part-*")) == []


def test_workers_that_never_connect_are_replaced(proxied: Callable[..., ProxiedJob]) -> None:
    job = proxied(worker_timeout=6.0)
    job.pool.keeps_workers_out = True

    def let_in() -> None:
        job.pool.keeps_workers_out = False

    job.run(harm=lambda: None, mend=let_in)

    job.check()
    assert job.restarts == ["worker ended: worker 0, 1 did not connect within 6 s (worker_timeout)"]


@pytest.mark.campaign
def test_half_open_connections_between_workers_fail_checkpoints_and_nothing_else(
    proxied: Callable[..., ProxiedJob],
) -> None:
    job = proxied(checkpoint_timeout=2.0, tolerated_checkpoint_failures=1)

    def freeze() -> None:
        for proxy in job.pool.data:
            proxy.freeze()

    def thaw() -> None:
        for proxy in job.pool.data:
            proxy.thaw()

    job.run(harm=freeze, mend=thaw)

    job.check()
    assert job.restarts
