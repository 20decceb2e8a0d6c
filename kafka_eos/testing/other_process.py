"""A second process for the sink contract: it prepares epochs, prints their committables, and is killed by SIGKILL.

Rule: only JSON is exchanged. So everything that a committable needs is in its payload or in the sink's arguments.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from kafka_eos.abc.committer import Committable
from kafka_eos.testing.sink_harness import ContractBroken, SinkHarness, SinkUnderTest, epoch_id, from_json, to_json

_TIMEOUT = 120.0


def prepare_and_die(trial: SinkHarness, term: int, epochs: Sequence[tuple[int, int]]) -> list[list[Committable]]:
    """Prepare epochs in a process that is then killed. ``epochs``: first row and end of each, from the first epoch on.

    Returns the committables of each.
    """
    target = trial.target
    request = {
        "factory": target.factory,
        "arguments": dict(target.arguments),
        "settings": dict(target.settings),
        "all_rows": list(target.rows),
        "job": trial.job,
        "term": term,
        "epochs": list(epochs),
    }
    done = subprocess.run(
        [sys.executable, "-c", "from kafka_eos.testing import other_process as process; process.main()"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    if done.returncode != -signal.SIGKILL:
        raise ContractBroken(
            f"preparing in another process failed (exit {done.returncode}, expected {-signal.SIGKILL}):\n"
            f"{done.stderr.strip()}"
        )
    return [[from_json(each) for each in committables] for committables in json.loads(done.stdout)]


def main() -> None:
    """Run the second process."""
    request = json.load(sys.stdin)
    target = SinkUnderTest(request["factory"], request["arguments"], list, request["all_rows"], request["settings"])
    trial, term = SinkHarness(target, request["job"]), request["term"]
    writer = trial.writer(term)
    answer = [
        [to_json(each) for each in trial.prepare(writer, epoch_id(number, term), *rows)]
        for number, rows in enumerate(request["epochs"], 1)
    ]
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
