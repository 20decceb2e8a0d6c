"""Whether another incarnation runs now, where, and as which process: what a refused start says first."""

from __future__ import annotations

import os
import socket

import pytest

from kafka_eos.abc.incarnation import IncarnationSign, IncarnationState
from kafka_eos.coordination.incarnations import describe_activity, describe_refusal
from kafka_eos.core.ids import JobIdentity

IDENTITY = JobIdentity("0123456789ab")
HERE = socket.gethostname()
NOBODY = 2**30
"""No process has this id: it is above Linux's limit."""


def sign(age: float | None = None, process: tuple[str, int] | None = None) -> IncarnationSign:
    state = IncarnationState.ENDED if age is None else IncarnationState.OPEN
    return IncarnationSign(IDENTITY, "kafka://a", "offsets", state=state, age=age, process=process)


@pytest.mark.parametrize(
    ("signs", "said"),
    [
        (
            [sign(), sign(process=(HERE, os.getpid()))],
            f"is running with another directory: process {os.getpid()} on this",
        ),
        (
            [sign(3.0, (HERE, NOBODY))],
            f"3 s ago: it is running or was killed. Its last known process, {NOBODY} on this machine",
        ),
        ([sign(3.0), sign(process=("b", 7))], "s ago: it is running or was killed. Its last known process is 7 on b."),
        ([sign()], "has no open output: it has ended or is idle."),
    ],
    ids=["runs", "killed", "elsewhere", "ended"],
)
def test_a_refused_start_says_first_whether_the_other_one_runs(signs: list[IncarnationSign], said: str) -> None:
    assert said in describe_activity("orders", signs)
    assert describe_refusal("orders", "/b", signs).startswith(describe_activity("orders", signs))
