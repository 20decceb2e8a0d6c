"""Taking over: ``python -m benchmarks.takeover``. How long a job stands still when its whole host is lost.

Two supervisors with ``--standby`` share a checkpoint store: one leads a running sum, the other stands by. While new
records keep coming, all processes of the leader get SIGKILL at once. The clock stops when the broker has committed an
epoch with output of the other one, which leads from then on, and gets a new standby. On the same machine the kernel
frees the lock of the dead; on another one, and here without the file of that lock, the lease must pass.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.kafka import BrokerClient
from benchmarks.recovery import INPUT, OUTPUT, Job, Recovery, everything, new_records, until
from benchmarks.run import own_broker

PARTS = ("until the standby leads", "start a worker, recover, restore", "first epoch to its decision", "commit")
_LEASES = ("15s", "3s")


class Host:
    """One supervisor with its workers, in a process group of its own."""

    def __init__(self, bootstrap: str, home: Path, number: int, lease: str) -> None:
        self._home, self._log = home, home / f"log-{number}"
        self.job = Job(bootstrap, home, self._log, "--standby", KAFKA_EOS_STANDBY_LEASE=lease)

    def stands_by(self) -> bool:
        return "standby for process" in self._log.read_text()

    def lose(self) -> float:
        """All of its processes at once. Returns the moment, in milliseconds since the Unix epoch."""
        now = time.time() * 1000
        os.killpg(self.job.pid, signal.SIGKILL)
        return now

    def leave_the_machine(self) -> None:
        """Whoever comes next has a lock of its own, as on another machine."""
        (self._home / "bench" / "lock").unlink()


def takeovers(keys: int, losses: int, rate: int, lease: str, same_machine: bool) -> list[Recovery]:
    """Lose one host after the other; ``rate``: new records a second."""
    with tempfile.TemporaryDirectory(prefix="kafka-eos-bench-") as home, own_broker(Path(home)) as broker:
        cluster = BrokerClient(broker.bootstrap)
        for topic in (INPUT, OUTPUT):
            cluster.create(topic)
        cluster.load(INPUT, everything(keys))
        hosts = [Host(broker.bootstrap, Path(home), 0, lease)]
        try:
            until(lambda: cluster.visible(OUTPUT) >= keys)
            with new_records(broker.bootstrap, rate, keys):
                return [_lost(broker.bootstrap, Path(home), hosts, lease, same_machine) for _ in range(losses)]
        finally:
            hosts[-1].job.stop()


def _lost(bootstrap: str, home: Path, hosts: list[Host], lease: str, same_machine: bool) -> Recovery:
    leader = hosts[-1]
    if not same_machine:
        leader.leave_the_machine()
    standby = Host(bootstrap, home, len(hosts), lease)
    hosts.append(standby)
    until(standby.stands_by)
    before = len(leader.job.events("committed"))
    until(lambda: len(leader.job.events("committed")) > before + 1)
    load = os.getloadavg()[0]
    found = _measured(leader, standby.job)
    print(f"{found.total:.0f} ms, load before {load:.1f}", file=sys.stderr)
    return found


def _measured(lost: Host, job: Job) -> Recovery:
    starts, runs = len(job.events("started")), len(job.events("running"))
    killed = lost.lose()
    until(lambda: len(job.events("running")) > runs)
    term = job.events("running")[-1]["term"]
    found = job.first_output(term)
    marks = [killed, *(event["at"] for event in (job.events("started")[starts], job.events("running")[-1], *found))]
    return Recovery(tuple(later - earlier for earlier, later in pairwise(marks)), marks[-1] - killed)


def table(where: str, found: Sequence[Recovery]) -> str:
    """Markdown: each part and the whole, in milliseconds."""
    columns = [*zip(*(each.parts for each in found), strict=True), [each.total for each in found]]
    rows = [
        f"| {name} | {statistics.median(times):.0f} | {max(times):.0f} |"
        for name, times in zip((*PARTS, "host lost → new output committed"), columns, strict=True)
    ]
    return "\n".join([f"| {where}, ms | median | worst |", "|---|---|---|", *rows])


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table for each case; progress goes to stderr."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.takeover", description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000, help="keys of state (default: %(default)s)")
    parser.add_argument("--losses", type=int, default=3, help="hosts lost, one after another (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=2000, help="new records a second (default: %(default)s)")
    options = parser.parse_args(arguments)
    asked = options.keys, options.losses, options.rate
    print(table("the same machine", takeovers(*asked, _LEASES[0], same_machine=True)))
    for lease in _LEASES:
        print()
        print(table(f"another machine, standby_lease={lease}", takeovers(*asked, lease, same_machine=False)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
