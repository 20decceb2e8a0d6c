"""Counts of the calls of user functions in the workers of a job, for crash tests.

Armed by ``KAFKA_EOS_CALL_COUNTS``, a directory. Each worker has a file per function there, which is memory of the
process: a worker that is killed loses no count.

Rule: without the variable a plan is returned as it is.
"""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, wraps
from pathlib import Path
from typing import Any, Final

from kafka_eos.plan import Node, Plan
from kafka_eos.plan.function_checks import asynchronous
from kafka_eos.plan.function_wrapping import wrap_functions

VARIABLE: Final = "KAFKA_EOS_CALL_COUNTS"


def count_calls(plan: Plan) -> Plan:
    """Return the plan with functions whose calls are counted, if that is armed."""
    directory = os.environ.get(VARIABLE)
    if directory is None:
        return plan
    return replace(plan, nodes=tuple(_counted(node, Path(directory)) for node in plan.nodes))


def read_call_counts(directory: Path) -> Counter[tuple[str, str]]:
    """Return the calls by operator and role of the function, of all workers together."""
    counts: Counter[tuple[str, str]] = Counter()
    for file in directory.glob("*.calls"):
        operator, role, _ = file.stem.split("+")
        counts[operator, role] += int.from_bytes(file.read_bytes()[:8], "little")
    return counts


def _counted(node: Node, directory: Path) -> Node:
    def wrap(fn: Callable[..., Any], role: str) -> Callable[..., Any]:
        if asynchronous(fn):
            return fn
        count = _open_counter(directory / f"{node.name}+{role}+{os.getpid()}.calls")

        @wraps(fn)
        def counted(*args: Any) -> Any:
            count[0] += 1
            return fn(*args)

        return counted

    return wrap_functions(node, wrap)


@cache
def _open_counter(file: Path) -> memoryview:
    """Return a number of 64 bits that the kernel writes to ``file``, even if this process is killed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(8))
    with file.open("r+b") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 8)).cast("Q")
