"""Checks of the user's functions before any crash: the pipeline runs in memory twice, in two processes.

    python -m kafka_eos.devtools.crash_test.code_checks APP RECORDS OUT    one run, which writes its traces to OUT

A function is not deterministic if the same call has another result in the other process, which has another seed of
hashes. It has a side effect if a call changes something outside of the job: a restart repeats the call.

Rule: what is not found is not proven to be absent. A side effect through a connection that was open before, or in a
library of another language, is not seen.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

import msgspec

from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef
from kafka_eos.core.records import RawRecord
from kafka_eos.devtools.crash_test.call_traces import CallTracer, Effect, FunctionTrace
from kafka_eos.monitoring.terminal.exit_codes import exit_on_error
from kafka_eos.plan import Node, Plan
from kafka_eos.plan.function_wrapping import wrap_functions
from kafka_eos.runtime.program import load_program
from kafka_eos.testing import run_local

SEEDS = ("1", "2")
_SECONDS = 300.0


class SourceRecords(msgspec.Struct):
    """The input of a run: records as (key, value, timestamp), by source."""

    records: dict[str, list[tuple[bytes | None, bytes | None, int]]]
    topics: dict[str, str]


class RunTrace(msgspec.Struct):
    """The traces of one run, and the number of rows that each sink got."""

    functions: list[FunctionTrace]
    rows: dict[str, int]


@dataclass(frozen=True, slots=True)
class CodeFinding:
    """A function that is not what exactly-once needs. ``line`` quotes the user's program."""

    kind: str
    operator: str
    function: str
    line: str
    detail: str
    fails: bool = True
    """Whether the finding alone fails the test."""

    @property
    def title(self) -> str:
        return f"{self.kind}: {self.function} of operator {self.operator!r} {self.detail}\n  {self.line}"


@dataclass(frozen=True, slots=True)
class CalledFunction:
    """A user's function, and its number of calls in a run without faults."""

    operator: str
    role: str
    function: str
    calls: int


@dataclass(frozen=True, slots=True)
class CodeReport:
    """The findings in the code, the functions that were called, and the number of rows of each sink."""

    findings: Sequence[CodeFinding] = ()
    functions: Sequence[CalledFunction] = ()
    rows: Mapping[str, int] = field(default_factory=dict)


def check_code(app: AppRef, given: SourceRecords, directory: Path) -> CodeReport:
    """Run the pipeline twice in memory, and report what was found.

    Raise ConfigError if a run fails, with its message.
    """
    directory.mkdir(parents=True, exist_ok=True)
    records = directory / "records.msgpack"
    records.write_bytes(msgspec.msgpack.encode(given))
    first, second = (_run(app, records, directory / f"trace-{seed}.msgpack", seed) for seed in SEEDS)
    count = sum(map(len, given.records.values()))
    found = [
        finding for pair in zip(first.functions, second.functions, strict=False) for finding in _judge(pair, count)
    ]
    called = [CalledFunction(each.operator, each.role, each.function, len(each.calls)) for each in first.functions]
    return CodeReport(found, called, first.rows)


def _run(app: AppRef, records: Path, out: Path, seed: str) -> RunTrace:
    command = [sys.executable, "-m", __name__, str(app), str(records), str(out)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONHASHSEED": seed},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        raise ConfigError(f"the pipeline fails in memory, before any crash:\n{done.stderr.strip()[-3000:]}")
    return msgspec.msgpack.decode(out.read_bytes(), type=RunTrace)


def _judge(pair: Sequence[FunctionTrace], records: int) -> list[CodeFinding]:
    """Compare the two traces of one function."""
    one, other = pair
    found = [_side_effect(one, effect, count, records) for effect, count in _list_effects(one)]
    for effect in one.changed:
        why = "after a restart it has its first value again"
        found.append(_finding("global variable", one, effect, f"{effect.what}; {why}", fails=False))
    for number, (call, again) in enumerate(zip_longest(one.calls, other.calls, fillvalue=("", ""))):
        if call[0] != again[0]:
            break  # another function, before this one, has made other rows
        if call[1] != again[1]:
            file, line, text = one.location
            detail = f"returned another result for the same arguments, at call {number + 1}; a restart changes outputs"
            found.append(_finding("not deterministic", one, Effect("", file, line, text), detail))
            break
    return found


def _list_effects(trace: FunctionTrace) -> list[tuple[Effect, int]]:
    return [(msgspec.json.decode(key, type=Effect), count) for key, count in trace.effects.items()]


def _side_effect(trace: FunctionTrace, effect: Effect, count: int, records: int) -> CodeFinding:
    detail = f"{effect.what} ({count:,} times for {records:,} records); a restart repeats it"
    return _finding("side effect", trace, effect, detail)


def _finding(kind: str, trace: FunctionTrace, at: Effect, detail: str, *, fails: bool = True) -> CodeFinding:
    return CodeFinding(kind, trace.operator, trace.function, f"{at.file}:{at.line}: {at.text}", detail, fails)


# ---------------------------------------------------------------- one run


def main() -> None:
    app, records, out = sys.argv[1:4]
    with exit_on_error():
        Path(out).write_bytes(msgspec.msgpack.encode(trace_run(AppRef.parse(app), Path(records))))


def trace_run(app: AppRef, records: Path) -> RunTrace:
    """Run the pipeline in this process with traced functions."""
    plan: Plan = load_program(app).plan()
    tracer = CallTracer(app.path.parent)

    def trace(node: Node) -> Node:
        return wrap_functions(node, lambda fn, role: tracer.watch(fn, node, role))

    traced = replace(plan, nodes=tuple(map(trace, plan.nodes)))
    given = msgspec.msgpack.decode(records.read_bytes(), type=SourceRecords)
    tracer.start()
    run = run_local(traced, {name: _raw(given.topics[name], rows) for name, rows in given.records.items()})
    return RunTrace(tracer.finish(), {name: len(rows) for name, rows in run.items()})


def _raw(topic: str, rows: Sequence[tuple[bytes | None, bytes | None, int]]) -> list[RawRecord]:
    return [RawRecord(topic, 0, offset, time, key, value, ()) for offset, (key, value, time) in enumerate(rows)]


if __name__ == "__main__":
    main()
