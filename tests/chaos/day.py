"""A day in production: ``python -m tests.chaos.day --speed 6`` makes one of two hours in twenty minutes.

A job with a standby on another host, a broker that asks for certificates, checkpoints in S3, records at a steady pace,
a Prometheus with the alert rules of ``docker/``, and the job's dashboard open in a Chromium. One thing after the other
goes wrong, as it does in production; each is put right when the alerts that should have fired have.

Rule: of each fault it is said which alerts must fire, at which host. All of them must, and no other may, before the
next one begins. At the end every output is compared with the input, and the audit on Spark judges the topics.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from tests.browser import CHROMIUM, Page, browser
from tests.chaos.harness import APPS, Job, create_topic, differences, expected, open_transactions, read, row_of
from tests.chaos.hosts import Host
from tests.chaos.running import signal_worker
from tests.chaos.small_disk import SmallDisk, small_disk
from tests.chaos.soak import Feeder, commit
from tests.contract import s3_server
from tests.contract.s3_server import free_port
from tests.monitoring.prometheus import SERVER, Prometheus, prometheus
from tests.secured import Secured, secured
from tests.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "production-day.md"
SPEED: Final = 6.0
RATE: Final = 60
"""Records a second: few enough that no outage of the day makes a job fall 10,000 behind."""
_PATIENCE: Final = 40 * 60.0
"""Seconds of the day until an alert has fired that must, or all is well again."""
_DISK_MEGABYTES: Final = 64
_FLOOD: Final = 12_000
"""Records that come at once, more than a job may lag."""
_TRANSACTION_MINUTES: Final = 20.0
"""The timeout of transactions: longer than twice any outage of the day but that of the broker."""
_QUIET_MINUTES: Final = 6.0
"""Minutes of the day between two faults: with them it has two hours. No alert may fire in them either."""


@dataclass
class Input:
    """What is written next. Numbers come in order."""

    refused: int = 0
    """So many of the next payments no function takes."""
    currency: bool = False

    def record(self, number: int) -> tuple[str, bytes]:
        account, amount = f"a{number % 50}", number % 13
        if self.refused:
            self.refused, amount = self.refused - 1, -1
        payment = {"id": number, "account": account, "amount": amount}
        return account, json.dumps({**payment, "currency": "CHF"} if self.currency else payment).encode()


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, and is put right. ``must`` and ``may`` are names of alerts at the host that leads."""

    name: str
    begin: Callable[[Host], None]
    end: Callable[[Host], None]
    must: Collection[str] = ()
    may: Collection[str] = ()


@dataclass
class Day:
    """The processes of a day, and ``allowed``: the alerts that fired and were allowed, but not required."""

    speed: float
    job: Job
    hosts: list[Host]
    disks: dict[str, SmallDisk]
    store: s3_server.Server
    broker: Secured
    certificate: Path
    input: Input
    watched: Prometheus
    page: Page
    feeder: Feeder
    allowed: list[str] = field(default_factory=list)

    # ------------------------------------------------------------ what happens

    def faults(self) -> list[Fault]:
        nothing: Callable[[Host], None] = lambda leader: None  # noqa: E731
        return [
            Fault("rejected records", self._write_refused, nothing, must={"KafkaEosDeadLetters"}),
            Fault(
                "overload of a slow function",
                self._flood,
                lambda leader: (leader.home / "slow").unlink(),
                must={"KafkaEosLagGrows"},
            ),
            Fault(
                "a stalled function",
                lambda leader: (leader.home / "hang").touch(),
                nothing,
                must={"KafkaEosCheckpointLate"},
            ),
            Fault(
                "an unavailable checkpoint store",
                lambda leader: self.store.kill(),
                lambda leader: self.store.start(),
                must={"KafkaEosCheckpointLate"},
            ),
            Fault(
                "a frozen broker",
                lambda leader: self.broker.broker.pause(),
                lambda leader: self.broker.broker.resume(),
                must={"KafkaEosCheckpointLate", "KafkaEosTransactionNearTimeout"},
            ),
            Fault(
                "a full disk",
                lambda leader: self.disks[leader.name].keep_full(),
                lambda leader: self.disks[leader.name].make_room(),
                must={"KafkaEosNotRunning"},
                may={"KafkaEosCheckpointLate", "KafkaEosRestartLoop"},
            ),
            Fault("a lost host", self._lose, lambda leader: leader.start("1"), must={"KafkaEosDown"}),
            Fault("a rolling upgrade with new schemas", self._upgrade, nothing),
            Fault(
                "an expired client certificate",
                self._expire,
                lambda leader: self.certify(self.broker.client.both),
                must={"KafkaEosNotRunning", "KafkaEosRestartLoop"},
                may={"KafkaEosCheckpointLate"},
            ),
        ]

    def _write_refused(self, leader: Host) -> None:
        self.input.refused = 5

    def _flood(self, leader: Host) -> None:
        (leader.home / "slow").touch()
        self.feeder.flood += _FLOOD

    def _lose(self, leader: Host) -> None:
        leader.lose()
        if leader is self.hosts[0]:
            eventually(lambda: "connection lost" in self.page.text, "the dashboard says that its job is away")

    def _upgrade(self, leader: Host) -> None:
        """First who stands by, then who leads, which hands over; then those who write."""
        (standby,) = (host for host in self.hosts if host is not leader)
        standby.stop()
        standby.start("2")
        eventually(lambda: self.stands_by(standby), "the upgraded host stands by")
        leader.stop()
        eventually(lambda: self.leader() is standby, "the upgraded host leads")
        leader.start("2")
        self.input.currency = True

    def _expire(self, leader: Host) -> None:
        """Connections outlive their certificate. So one worker dies, and must come in again."""
        self.certify(self.broker.over.both)
        workers = json.loads((leader.home / ".kafka-eos" / self.job.name / "status.json").read_text())
        signal_worker(int(workers["last"]["running"]["workers"][0]), signal.SIGKILL)

    def certify(self, pair: Path) -> None:
        """From now on this is the job's certificate, and its key; nobody sees half of it."""
        beside = self.certificate.with_suffix(".new")
        shutil.copyfile(pair, beside)
        beside.replace(self.certificate)

    # ------------------------------------------------------------ how it is watched

    def sleep(self, *, minutes: float) -> None:
        """Minutes of the day."""
        time.sleep(minutes * 60 / self.speed)

    def leader(self) -> Host | None:
        """Who processes rows, if one does."""
        running = {address for address, value in self.watched.value("kafka_eos_running == 1").items() if value}
        return next((host for host in self.hosts if running == {host.address}), None)

    def stands_by(self, host: Host) -> bool:
        return bool(self.watched.value("kafka_eos_standby == 1").get(host.address))

    def well(self) -> bool:
        """One leads and keeps up, the other stands by, nothing fires."""
        leader = self.leader()
        if leader is None or self.watched.firing() or not all(map(self._answers, self.hosts)):
            return False
        others = [host for host in self.hosts if host is not leader]
        lag = self.watched.value("kafka_eos_lag_records").get(leader.address)
        return lag is not None and lag < 10 * RATE and all(map(self.stands_by, others))

    @staticmethod
    def _answers(host: Host) -> bool:
        try:
            with urlopen(f"http://{host.address}/healthz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def live(self, fault: Fault) -> None:
        """Some quiet minutes, and one fault: from all being well to all being well."""
        began = time.time()
        self.sleep(minutes=_QUIET_MINUTES)
        leader = self._well()
        names = {host.address: host.name for host in self.hosts}
        must = {(alert, leader.address) for alert in fault.must}
        may = {(alert, leader.address) for alert in fault.may}
        print(f"{datetime.now(UTC):%H:%M:%S} {fault.name}; {leader.name} leads", flush=True)
        fault.begin(leader)
        eventually(
            lambda: must <= self.watched.firing(), f"{fault.name}: {must} fire, not {self.watched.firing()}",
            _PATIENCE / self.speed,
        )  # fmt: skip
        fault.end(leader)
        self._well()
        fired = self.watched.fired(began, time.time())
        seen = ", ".join(sorted(f"{alert} ({names[at]})" for alert, at in fired)) or "none"
        print(f"{datetime.now(UTC):%H:%M:%S}   alerts: {seen}", flush=True)
        assert must <= fired, f"{fault.name}: {must - fired} did not fire"
        assert fired <= must | may, f"{fault.name}: {fired - must - may} fired as well"
        self.allowed += [f"{fault.name}: {alert}" for alert, _ in sorted(fired - must)]

    def _well(self) -> Host:
        eventually(self.well, f"all is well; {self.watched.firing()} fires", _PATIENCE / self.speed)
        leader = self.leader()
        assert leader is not None
        return leader

    def look(self, host: Host) -> None:
        """Open the dashboard of the job on this host, and leave it open."""
        self.page.open(f"http://{host.address}/job/{self.job.name}")
        eventually(lambda: self.job.name in self.page.text, "the dashboard shows the job")


# ---------------------------------------------------------------- before it begins


def missing() -> str | None:
    """What a day needs and this machine lacks, in words."""
    needs = {
        "chromium (Debian, Ubuntu: apt-get install chromium)": CHROMIUM,
        "prometheus (Debian, Ubuntu: apt-get install prometheus)": SERVER,
        s3_server.MISSING: s3_server.binary(),
        "the right to mount a file system, for a small disk": "root" if os.geteuid() == 0 else None,
    }
    return "; ".join(name for name, found in needs.items() if not found) or None


@contextmanager
def production(directory: Path, speed: float) -> Iterator[Day]:
    """All that a day needs, with two hosts of which the first leads."""
    with ExitStack() as around:
        (directory / "broker").mkdir()
        (directory / "browser").mkdir()
        longest = {"transaction.max.timeout.ms": str(round(_TRANSACTION_MINUTES * 60_000 / speed))}
        broker = around.enter_context(secured(directory / "broker", longest))
        store = s3_server.Server(directory / "s3")
        around.callback(store.kill)
        name = f"day-{os.getpid()}"
        job = Job(name, broker.open, f"{name}-in", f"{name}-out", directory, APPS / "day.py")
        for topic, partitions in ((job.input, 3), (job.output, 3), (f"{job.input}-refused", 1)):
            create_topic(broker.open, topic, partitions)
        certificate = directory / "client.pem"
        job.environment |= _settings(speed, broker, certificate, s3_server.address(store.port, "jobs"))
        disks = {each: around.enter_context(small_disk(directory / f"disk-{each}", _DISK_MEGABYTES)) for each in NAMES}
        hosts = [_host(job, directory / each, disks[each]) for each in NAMES]
        for host in hosts:
            around.callback(host.close)
        watched = around.enter_context(prometheus(directory / "prometheus", [h.address for h in hosts], speed))
        page = around.enter_context(browser(directory / "browser" / "profile"))
        given = Input()
        day = Day(
            speed, job, hosts, disks, store, broker, certificate, given, watched, page, Feeder(job, given.record, RATE)
        )
        day.certify(broker.client.both)
        hosts[0].start("1")
        eventually(lambda: day.leader() is hosts[0], "the first host leads")
        hosts[1].start("1")
        yield day


NAMES: Final = ("north", "south")


def _host(job: Job, home: Path, disk: SmallDisk) -> Host:
    home.mkdir()
    where = {
        "KAFKA_EOS_STATE_DIR": str(disk.where / "state"),
        "TEST_HANG": str(home / "hang"),
        "TEST_SLOW": str(home / "slow"),
    }
    return Host(job, home, free_port(), where)


def _settings(speed: float, broker: Secured, certificate: Path, checkpoints: str) -> dict[str, str]:
    """What people would set, on a clock that runs so much faster."""
    shown = {"ssl_certificate_location": str(certificate), "ssl_key_location": str(certificate)}
    times = {
        "CHECKPOINT_INTERVAL": 10.0,
        "WORKER_TIMEOUT": 120.0,
        "RESTART_BACKOFF_INITIAL": 5.0,
        "RESTART_BACKOFF_MAX": 60.0,
        "RESTART_BACKOFF_RESET": 600.0,
        "STANDBY_LEASE": max(15.0, 2 * speed),
    }
    many = ("MAX_RESTARTS", "MAX_ENVIRONMENT_FAILURES", "TOLERATED_CHECKPOINT_FAILURES")
    return {
        **s3_server.CREDENTIALS,
        "KAFKA_EOS_BOOTSTRAP_SERVERS": broker.addresses["MUTUAL"],
        "KAFKA_EOS_KAFKA_CONFIG": json.dumps(broker.config("MUTUAL", **shown)),
        "KAFKA_EOS_LOG_FORMAT": "json",
        "KAFKA_EOS_BATCH_SIZE": "100",  # a barrier waits for a batch, also for one whose rows are slow
        "TEST_CHECKPOINTS": checkpoints,
        **{f"KAFKA_EOS_{name}": f"{seconds / speed:g}s" for name, seconds in times.items()},
        **dict.fromkeys((f"KAFKA_EOS_{name}" for name in many), "10000"),
    }


# ---------------------------------------------------------------- from morning to evening


def live(directory: Path, speed: float) -> list[str]:
    """One day; the cells of its row. Raises AssertionError if an alert, an output or a line is not as it should be."""
    began, load, code = time.monotonic(), os.getloadavg()[0], commit()
    with production(directory, speed) as day:
        day.look(day.hosts[0])
        for fault in day.faults():
            day.live(fault)
        day.feeder.finish()
        eventually(lambda: not any(day.watched.value("kafka_eos_lag_records").values()), "all is read")
        eventually(lambda: "connection lost" not in day.page.text, "the dashboard, open all day, is connected again")
        for host in sorted(day.hosts, key=lambda host: host is day.leader()):
            host.stop()
        records = _exact(day)
        headline = _audited(day.hosts[0])
        _logs_are_json(day)
        assert _uncaught(day.page) == []
    minutes = (time.monotonic() - began) / 60
    now, loads = datetime.now(UTC), f"{load:.1f} … {os.getloadavg()[0]:.1f}"
    return [
        f"{now:%Y-%m-%d %H:%M}",
        code,
        f"{speed:g}",
        f"{minutes:.0f}",
        f"{records:,}",
        "; ".join(day.allowed) or "–",
        headline,
        loads,
    ]


def _exact(day: Day) -> int:
    """Every total is that of the input, in order, and nothing is left open; the number of records."""
    job, records = day.job, read(day.broker.open, day.job.input)
    written = sorted(read(day.broker.open, job.output), key=lambda m: (m.partition(), m.offset()))
    assert differences("Kafka", [row_of(m.value()) for m in written], expected(records)) == []
    refused = sum(json.loads(m.value())["amount"] < 0 for m in records)
    assert len(read(day.broker.open, f"{job.input}-refused")) == refused == 5
    assert open_transactions(job) == []
    return len(records)


def _audited(host: Host) -> str:
    """The audit on Spark, by its command, with the newest code; its headline."""
    command = [sys.executable, "-m", "kafka_eos", "audit", str(host.job.app), "--report-dir", str(host.home / "audit")]
    done = subprocess.run(command, env=host.environ(), cwd=host.home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"audit: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout.splitlines()[0]


def _logs_are_json(day: Day) -> None:
    """Each line of each process, whatever went wrong, is an object that says whose it is."""
    for host in day.hosts:
        lines = [json.loads(line) for line in host.said.splitlines()]
        assert lines and {line["job"] for line in lines} == {day.job.name}


def _uncaught(page: Page) -> list[str]:
    """What the console says that is wrong, but that a server was away, which the browser says by itself."""
    return [problem for problem in page.problems() if "net::ERR_" not in problem]


def main() -> None:
    """Live through a day, print it, and add a row to docs/production-day.md. Exit code 1 if anything is not right."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--speed", type=float, default=SPEED, help="how many times as fast as the clock")
    chosen = options.parse_args()
    if lacks := missing():
        sys.exit(f"a day in production needs {lacks}")
    directory = Path(tempfile.mkdtemp(prefix="kafka-eos-day-"))
    print(f"in {directory}", flush=True)
    try:
        cells = live(directory, chosen.speed)
    except AssertionError as error:
        sys.exit(f"FAIL (everything is kept in {directory}): {error}")
    with PAGE.open("a") as page:
        page.write(f"| {' | '.join(cells)} |\n")
    print(" | ".join(cells))
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
