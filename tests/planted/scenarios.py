"""What happens to a job while a bug is in it: the faults that make the bug matter, and the checks that must see it.

Rule: a scenario returns if the job kept its guarantee and raises AssertionError if not. A healthy engine passes every
scenario; ``test_planted.py`` runs each one on it too.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from tests.broker.kafka_kit import set_topic_config
from tests.chaos.harness import ACCOUNTS, APPS, Invalid, Job, check, create_topic, feed, read
from tests.chaos.running import frozen, running
from tests.chaos.test_table_joins import upsert
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
Scenario = Callable[[Job], None]


def unharmed(job: Job) -> None:
    """Nothing happens to the job."""
    job.run()
    check(job)


def killed_undecided(job: Job) -> None:
    """The supervisor dies when everything is prepared and the manifest is not published."""
    job.run("manifest.staged=kill@4")
    check(job)


def killed_decided(job: Job) -> None:
    """The supervisor dies after the decision and before the first commit, twice."""
    job.run("commit.before=kill@3;commit.before=kill@2")
    check(job)


def worker_killed(job: Job) -> None:
    """The worker dies after it has prepared its Kafka transaction."""
    job.run("sink.prepare.after=kill@5")
    check(job)


def killed_late(job: Job) -> None:
    """The worker dies in the fifth epoch that has output, when the first of them have been dropped already."""
    job.environment["TEST_PAUSE"] = "0.001"
    job.run("sink.prepare.before=kill@9")
    check(job)


def rules_keep_coming(job: Job) -> None:
    """Broadcast state changes in each of many unaligned checkpoints, while payments come."""
    job = replace(job, app=APPS / "rules.py")
    job.environment |= {"TEST_TABLE": f"{job.name}-table", "TEST_PAUSE": "0.004"}
    job.environment |= {"KAFKA_EOS_PARALLELISM": "2", "KAFKA_EOS_CHECKPOINT_MODE": "unaligned"}
    create_topic(job.bootstrap, job.environment["TEST_TABLE"], 3)
    upsert(job, [{"a0": 0}])
    with running(job) as started:
        started.until_output()
        upsert(job, [{f"a{n}": version for n in range(ACCOUNTS)} for version in range(1, 100)], 1)
        wanted = started.count("committed") + 10
        started.until(lambda: started.count("committed") >= wanted, "commit ten epochs with new rules")
    job.environment["TEST_PAUSE"] = "0"
    job.run()
    counts = Counter(json.loads(message.value())["id"] for message in read(job.bootstrap, job.output))
    payments = [json.loads(message.value())["id"] for message in read(job.bootstrap, job.input)]
    assert counts == dict.fromkeys(payments, 2), "a payment has not come out twice"


def topic_refuses(job: Job) -> None:
    """The topic takes nothing any more: the job must notice that nothing was delivered, and stop."""
    with running(job) as started:
        started.until_output()
        set_topic_config(job.bootstrap, job.output, "max.message.bytes", "100")
        feed(job.bootstrap, job.input, range(10_000, 10_200))
        with suppress(AssertionError):  # it has stopped
            started.until_all_committed()
    set_topic_config(job.bootstrap, job.output, "max.message.bytes", "1048588")
    job.run()
    check(job)


def transaction_expires(job: Job) -> None:
    """Between the decision and the first commit the coordinator aborts the Kafka transaction; the job is down."""
    _dies(job, "commit.before=kill@3")
    fenced = [c["payload"]["transactional_id"] for c in _newest(job)["committables"] if c["scope"].startswith("kafka:")]
    if not fenced:
        raise Invalid("the decided epoch has no Kafka transaction")
    for name in fenced:
        # Whoever takes an id aborts what is open under it, as the timeout would.
        Producer({"bootstrap.servers": job.bootstrap, "transactional.id": name}).init_transactions(20)
    job.run()
    check(job)


def sibling_vanishes(job: Job) -> None:
    """The Kafka part of an epoch is committed, the staged file vanishes: the job must stop."""
    _dies(job, "commit.between=kill@3")
    staged = list(job.files.glob(".staged.*"))
    if not staged:
        raise Invalid("no staged file was left to lose")
    for path in staged:
        path.unlink()
    _refuses(job, "was decided but cannot be completed")


def state_rots(job: Job) -> None:
    """One bit of each total in a stored state file flips: the job must stop and name the file."""
    job.environment["TEST_BACKEND"] = "memory"
    _dies(job, "receipt.after=kill@4")
    (file,) = (file for state in _newest(job)["states"] for file in state["files"])
    path = _directory(job) / "shared" / file["sha256"]
    # A total is the field before "id" in MessagePack; its last byte holds the lowest bit.
    damaged, count = re.subn(
        rb"(.)(?=\xa2id)", lambda last: bytes([last[1][0] ^ 1]), path.read_bytes(), flags=re.DOTALL
    )
    if count == 0:
        raise Invalid("the state file holds no total to damage")
    path.write_bytes(damaged)
    feed(job.bootstrap, job.input, range(10_000, 10_200))
    _refuses(job, file["sha256"])


def supervisor_sleeps(job: Job) -> None:
    """A supervisor stops just before it decides, another takes over where locks do not work, the first wakes up.

    It dies once it has committed an epoch, if it gets that far.
    """
    with _stopped(job, "old", "coordinator.acked=stop@3;receipt.after=kill") as old:
        (_directory(job) / "lock").unlink()
        with _stopped(job, "new", "recovery.based=stop") as new:
            old.send_signal(signal.SIGCONT)
            _until(lambda: old.poll() is not None)
            new.send_signal(signal.SIGCONT)
            _ends(job, new)
    check(job)


def power_is_cut(job: Job) -> None:
    """Every state of the disk that a power cut may leave is tried on a recorded publication, in another process."""
    test = "tests/unit/storage/test_power_cuts.py"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "manifest_is_absent_or_whole",
        test,
    ]
    done = subprocess.run(command, cwd=ROOT, env=job.environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


# ---------------------------------------------------------------- steps


def _dies(job: Job, failpoint: str) -> None:
    """Run until the supervisor dies at its failpoint."""
    with _running(job, failpoint) as process:
        code = process.wait(PATIENCE)
    if code != -signal.SIGKILL:
        raise Invalid(f"the job ended with {code} instead of dying at {failpoint}; log:\n{job.tail()}")


def _refuses(job: Job, reason: str) -> None:
    """Continuing would break the guarantee, so the job must stop and say why. If it continues, show the effect."""
    with _running(job) as process:
        code = process.wait(PATIENCE)
    if code == 0:
        check(job)
        raise AssertionError("the job went on, and nothing shows it")
    # The console wraps lines anywhere.
    said = "".join(job.tail().split())
    assert "".join(reason.split()) in said, f"refused for another reason:\n{job.tail()}"


@contextmanager
def _running(job: Job, failpoints: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor that does not outlive the block."""
    process = job.start(failpoints, "--until-caught-up")
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def _stopped(job: Job, name: str, failpoints: str) -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor with a local disk of its own that has stopped at its first failpoint."""
    log = job.directory / f"{name}.failpoints"
    own = {"KAFKA_EOS_FAILPOINT_LOG": str(log), "KAFKA_EOS_STATE_DIR": str(job.directory / name)}
    with _running(replace(job, environment={**job.environment, **own}), failpoints) as process:
        # The log is there before anything is in it, and something is in it before the process stops.
        _until(lambda: process.poll() is not None or (log.exists() and log.stat().st_size > 0 and frozen(process.pid)))
        if process.poll() is not None:
            raise Invalid(f"{name} ended before {failpoints}; log:\n{job.tail()}")
        yield process


def _ends(job: Job, process: subprocess.Popen[bytes]) -> None:
    code = process.wait(PATIENCE)
    assert code == 0, f"the job ended with {code}; log:\n{job.tail()}"


def _until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Invalid(f"nothing happened in {seconds:.0f} s")
        time.sleep(0.02)


def _directory(job: Job) -> Path:
    return job.checkpoints / job.name


def _history(job: Job) -> list[dict[str, Any]]:
    return job.history() if (_directory(job) / "history.jsonl").exists() else []


def _newest(job: Job) -> dict[str, Any]:
    """The newest manifest: one line of header, then JSON."""
    newest = max((_directory(job) / "manifests").glob("*.json"))
    found: dict[str, Any] = json.loads(newest.read_bytes().split(b"\n", 1)[1])
    return found
