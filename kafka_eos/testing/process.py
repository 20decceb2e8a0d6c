"""A second process for the sink contract: it reads a request from its input and prints the answer.

    prepare   write rows, seal, pre-commit, print the committables, die by SIGKILL: nothing gets to clean up
    commit    commit what another process prepared, print the outcomes

Rule: only JSON crosses, so whatever a committable needs is in its payload or in the sink's arguments.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from kafka_eos.interfaces import Committable, committed
from kafka_eos.testing.trial import ContractBroken, SinkUnderTest, Trial, epoch_id, from_json, to_json

_TIMEOUT = 120.0


def prepare_and_die(trial: Trial, term: int, epoch: int, start: int, stop: int) -> list[Committable]:
    """Prepare rows ``start`` to ``stop`` in a process that is then killed."""
    answer = _ask(trial, {"do": "prepare", "term": term, "epoch": epoch, "rows": [start, stop]}, -signal.SIGKILL)
    return [from_json(each) for each in answer]


def commit_elsewhere(trial: Trial, term: int, epoch: int, committables: Sequence[Committable]) -> list[str]:
    """Commit in a fresh process. Returns the outcomes' values."""
    request = {"do": "commit", "term": term, "epoch": epoch, "committables": [to_json(each) for each in committables]}
    return [str(outcome) for outcome in _ask(trial, request, 0)]


def _ask(trial: Trial, request: dict[str, Any], expected: int) -> list[Any]:
    target = trial.target
    request |= {
        "factory": target.factory,
        "arguments": dict(target.arguments),
        "settings": dict(target.settings),
        "all_rows": list(target.rows),
        "job": trial.job,
    }
    done = subprocess.run(
        [sys.executable, "-c", "from kafka_eos.testing import process; process.main()"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    if done.returncode != expected:
        what = f"{request['do']} in another process failed (exit {done.returncode}, expected {expected})"
        raise ContractBroken(f"{what}:\n{done.stderr.strip()}")
    answer: list[Any] = json.loads(done.stdout)
    return answer


def main() -> None:
    """What the second process runs."""
    request = json.load(sys.stdin)
    target = SinkUnderTest(request["factory"], request["arguments"], list, request["all_rows"], request["settings"])
    trial = Trial(target, request["job"])
    term, epoch = request["term"], epoch_id(request["epoch"], request["term"])
    if request["do"] == "prepare":
        committables = trial.prepare(trial.writer(term, first=epoch.epoch.n), epoch, *request["rows"])
        _print([to_json(each) for each in committables])
        os.kill(os.getpid(), signal.SIGKILL)
    committables = [from_json(each) for each in request["committables"]]
    committer = trial.committer(term)
    permit = trial.permit(epoch, committer, committables)
    _print([outcome.value for outcome in committed(committer, permit, committables)])


def _print(answer: list[Any]) -> None:
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
