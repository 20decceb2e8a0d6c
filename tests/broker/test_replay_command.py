"""An epoch of a job on a broker is replayed exactly: its rows, its state, and a test that is written from it."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kafka_eos.cli import app
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.devtools.broker.topics import RecordToSend, produce_records

APP = """
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource


def add(total, order):
    if order["refund"]:
        return total + order["amount"]  # should be -
    return total + order["amount"]


pipeline = Pipeline("{name}", retained_checkpoints=10)
orders = pipeline.source(KafkaSource("{orders}", value=dict), name="orders")
totals = orders.key_by(lambda order: order["user"], name="by-user").fold(name="total", init=int, step=add, state=int)
totals.map(lambda pair: dict(user=pair[0], total=12 // (pair[1] - 99) and pair[1]), name="row").sink(
    KafkaSink("{totals}", value=dict), name="totals"
)
"""


def _order(user: str, amount: int, *, refund: bool = False) -> RecordToSend:
    return RecordToSend(None, json.dumps({"user": user, "amount": amount, "refund": refund}).encode(), (), 0)


class _Job:
    """A job in a directory, and the command."""

    def __init__(self, directory: Path, bootstrap: str, name: str, orders: str, totals: str) -> None:
        self.directory, self.bootstrap, self._orders = directory, bootstrap, orders
        self.app = directory / "orders.py"
        self.app.write_text(APP.format(name=name, orders=orders, totals=totals))

    def options(self) -> list[str]:
        return ["--bootstrap-servers", self.bootstrap, "--checkpoint-dir", str(self.directory / "checkpoints")]

    def process(self, *orders: RecordToSend, rc: int = 0) -> None:
        """Write orders, and run the job until it has read them."""
        produce_records(Cluster(self.bootstrap), self._orders, orders)
        command = [sys.executable, "-m", "kafka_eos", "run", str(self.app), "--until-caught-up", *self.options()]
        command += ["--checkpoint-interval", "30s", "--parallelism", "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == rc, done.stdout + done.stderr

    def replay(self, *arguments: str, rc: int = 0) -> dict[str, Any]:
        command = ["replay", str(self.app), "--json", *self.options(), *arguments]
        done = CliRunner().invoke(app, command)
        assert done.exit_code == rc, (done.output, done.exception)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def _rows(steps: Sequence[dict[str, Any]]) -> list[tuple[list[Any], list[Any]]]:
    return [([row["value"] for row in step["rows"]], [row["value"] for row in step["out"]]) for step in steps]


def test_from_a_wrong_output_to_a_failing_test(tmp_path: Path, topic: Callable[..., str], bootstrap: str) -> None:
    orders, totals = topic(), topic()
    job = _Job(tmp_path, bootstrap, f"job-{orders}", orders, totals)
    job.process(_order("ann", 5), _order("bob", 7))
    job.process(_order("ann", 2, refund=True), _order("cid", 1))

    # the epoch of a record, from the whole history of the job: exactly its records and its state
    of_record = job.replay("--record", f"{orders}/0/3")
    assert [each["state"][0]["key"] for each in of_record["operators"] if each["state"]] == ["cid"]
    second = job.replay("--epoch", str(of_record["epoch"]), "--from", "start")
    assert second["equal"]
    by_name = {each["operator"]: each for each in second["operators"]}
    refund = {"user": "ann", "amount": 2, "refund": True}
    assert _rows(by_name["total"]["steps"]) == [
        ([refund], [["ann", 7]]),
        ([{"user": "cid", "amount": 1, "refund": False}], [["cid", 1]]),
    ]
    assert [step["rows"][0]["record"] for step in by_name["total"]["steps"]] == [f"{orders}/0/2", f"{orders}/0/3"]
    assert [(each["key"], each["before"], each["after"]) for each in by_name["total"]["state"]] == [
        ("ann", {"updates": 1, "accumulator": 5}, {"updates": 2, "accumulator": 7}),
        ("cid", None, {"updates": 1, "accumulator": 1}),
    ]
    # the same from the stored checkpoint before the epoch, whose state is compared with that of the epoch
    stored = job.replay("--epoch", str(second["epoch"]), "--operator", "total", "--key", "ann")
    assert (stored["state_of_epoch"], stored["other_state"]) == (second["epoch"] - 1, [])
    assert _rows(stored["operators"][0]["steps"]) == [([refund], [["ann", 7]])]

    # the test passes as it is written, fails once the expected row is right, and passes once the pipeline is right
    test = tmp_path / "tests" / "test_refund.py"
    job.replay("--epoch", str(second["epoch"]), "--key", "ann", "--write-test", str(test))
    _run_test(test)
    written = test.read_text()
    assert "{'user': 'ann', 'total': 7}" in written
    test.write_text(written.replace("'total': 7}", "'total': 3}").replace("'accumulator': 7}", "'accumulator': 3}"))
    with pytest.raises(AssertionError):
        _run_test(test)
    job.app.write_text(job.app.read_text().replace('total + order["amount"]  # should be -', 'total - order["amount"]'))
    _run_test(test)

    # the corrected code makes another state than the job has stored, and that is said
    changed = job.replay("--epoch", str(second["epoch"]), rc=1)
    assert [(each["key"], each["replayed"], each["stored"]) for each in changed["other_state"]] == [
        ("ann", {"updates": 2, "accumulator": 3}, {"updates": 2, "accumulator": 7})
    ]
    assert "orders.py has changed since" in " ".join(changed["notes"])
    # so are the rows, and the test of the record expects those that the job committed
    before, now = [{"user": "ann", "total": 7}], [{"user": "ann", "total": 3}]
    assert changed["other_rows"] == {"totals": {"only_committed": before, "only_replayed": now}}
    of_ann = tmp_path / "tests" / "test_ann.py"
    job.replay("--record", f"{orders}/0/2", "--write-test", str(of_ann), rc=1)
    assert "assert run.outputs['totals'] == [{'user': 'ann', 'total': 7}]" in of_ann.read_text()
    with pytest.raises(AssertionError):
        _run_test(of_ann)

    # a key with a line that looks like one of the view
    job.process(_order("eve\nepoch 9 of job x", 1))
    shown = CliRunner().invoke(app, ["replay", str(job.app), *job.options()]).output
    assert "\n  epoch 9 of job x" in shown
    assert "\nepoch 9" not in shown


def test_the_record_that_stopped_the_job_is_a_failing_test(
    tmp_path: Path, topic: Callable[..., str], bootstrap: str
) -> None:
    orders, totals = topic(), topic()
    job = _Job(tmp_path, bootstrap, f"job-{orders}", orders, totals)
    job.process(_order("ann", 90), _order("ann", 9), rc=2)

    found = job.replay("--epoch", "1", rc=1)

    assert found["failure"]["record"] == f"{orders}/0/1"
    assert found["failure"]["operator"] == "row"
    test = tmp_path / "test_stop.py"
    job.replay("--epoch", "1", "--write-test", str(test), rc=1)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"the record at {orders}/0/1" in done.stdout


@pytest.mark.campaign
@pytest.mark.spark
def test_a_finding_of_the_audit_leads_to_a_failing_test(
    tmp_path: Path, topic: Callable[..., str], bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch is an old one, whose state is not stored any more, as for most findings."""
    orders, totals = topic(), topic()
    job = _Job(tmp_path, bootstrap, f"job-{orders}", orders, totals)
    text = (
        job.app.read_text()
        .replace(", retained_checkpoints=10", "")
        .replace('order["amount"]  #', "SIGN * order['amount']  #")
    )
    job.app.write_text(f"import os\n\nSIGN = int(os.environ.get('SIGN', '1'))\n{text}")
    job.process(_order("ann", 5), _order("bob", 7))
    job.process(_order("ann", 2, refund=True), _order("cid", 1))
    for amount in range(3):
        job.process(_order("bob", amount))
    monkeypatch.setenv("SIGN", "-1")  # the function depends on more than its row: the same code makes other rows

    command = [sys.executable, "-m", "kafka_eos", "audit", str(job.app), *job.options()]
    audit = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert audit.returncode == 1, audit.stdout + audit.stderr
    (line,) = re.findall(r"the first one as a test: kafka-eos (.*)", audit.stdout)
    replay = [sys.executable, "-m", "kafka_eos", *shlex.split(line)]
    written = subprocess.run(replay, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert written.returncode == 1, written.stdout + written.stderr
    assert "it fails: sink totals: the job committed {'user': 'ann', 'total': 7}" in written.stderr
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(test, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "1 failed" in done.stdout, done.stdout + done.stderr
    assert "At index 0 diff: {'user': 'ann', 'total': 3} != {'user': 'ann', 'total': 7}" in done.stdout, done.stdout


def _run_test(test: Path) -> None:
    """Call the functions that pytest finds in a file."""
    for name, function in runpy.run_path(str(test)).items():
        if name.startswith("test_"):
            function()
