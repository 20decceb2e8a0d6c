"""The conclusion of a crash test, and the numbers that it is based on.

Pure. Rule: PASS needs the audits' PASS over every record, and every planned fault observed under load. A step that the
pipeline does not pass is no fault, and the report lists it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafka_eos.audit.checks.verdict import Check, Conclusion
from kafka_eos.devtools.crash_test.faults import PROCESSES, PlannedFault, Victim, counts

if TYPE_CHECKING:
    from kafka_eos.audit.checks.verdict import Verdict


class CrashTestAborted(Exception):
    """Raised if the test cannot be brought to its end; says what that means."""

    def __init__(self, conclusion: Conclusion, reason: str) -> None:
        super().__init__(reason)
        self.conclusion = conclusion


@dataclass(slots=True)
class InjectedFault:
    """A fault that happened, with its time, load and recovery time. Times are seconds since the test began."""

    fault: PlannedFault
    at: float
    epoch: int
    """The last committed epoch at that time."""
    epochs_since: int
    """Epochs that the job committed by itself since the fault before."""
    written: int
    """Records written at that time."""
    flowing: bool
    """Records were still to be written."""
    name: str
    """The name of the process that was hit."""
    recovered_in: float | None = None
    """Seconds until a new session ran, or until the next commit where the session went on."""

    @property
    def title(self) -> str:
        return self.fault.format_title(self.name)

    @property
    def under_load(self) -> bool:
        """Return whether records were flowing; a fault that needs no epochs before it may follow another at once."""
        return self.flowing and (self.fault.optional or self.epochs_since > 0)


@dataclass(slots=True)
class ProcessLifetime:
    """A process of the job, from when it was first seen until it was gone. Times are seconds since the test began."""

    name: str
    pid: int
    since: float
    until: float | None = None
    """The end time; None while it runs."""


@dataclass(slots=True)
class RunRecord:
    """Everything observed in a run. Times are seconds since the test began."""

    steps: list[tuple[float, str]] = field(default_factory=list)
    samples: list[tuple[float, int, int, int]] = field(default_factory=list)
    """Time, records written, outputs visible, lag."""
    commits: list[float] = field(default_factory=list)
    struck: list[InjectedFault] = field(default_factory=list)
    unreached: list[PlannedFault] = field(default_factory=list)
    """Steps that the pipeline does not pass."""
    processes: list[ProcessLifetime] = field(default_factory=list)
    sessions: list[tuple[float, int]] = field(default_factory=list)
    """The times at which the job ran again, each with its parallelism."""


@dataclass(frozen=True, slots=True)
class CrashTestResult:
    """The conclusion of a test with its reasons and numbers."""

    conclusion: Conclusion
    headline: str
    reasons: tuple[str, ...]
    numbers: dict[str, Any]

    @property
    def exit_code(self) -> int:
        """Return the exit code of the conclusion, as of an audit."""
        return self.conclusion.exit_code


def conclude(
    planned: tuple[PlannedFault, ...],
    recording: RunRecord,
    records: int,
    audits: Audits,
    ended: CrashTestAborted | None,
    seconds: float,
) -> CrashTestResult:
    """Put the verdicts of the audits, the findings in the code and what happened to the job together."""
    numbers = _numbers(recording.struck, records, audits.outputs, seconds)
    if ended is not None:
        return _result(ended.conclusion, (str(ended),), numbers)
    if (outputs := audits.outputs) is None:
        return _result(Conclusion.INCONCLUSIVE, ("the audit did not run",), numbers)
    if outputs.conclusion is not Conclusion.PASS:
        return _result(outputs.conclusion, (*outputs.reasons, *audits.lines), numbers)
    if audits.state is not None and audits.state.conclusion is Conclusion.FAIL:
        return _result(Conclusion.FAIL, tuple(f"state: {reason}" for reason in audits.state.reasons), numbers)
    if doubts := _doubts(planned, recording, records, outputs):
        return _result(Conclusion.INCONCLUSIVE, doubts, numbers)
    return _result(Conclusion.PASS, (), numbers)


@dataclass(frozen=True, slots=True)
class Audits:
    """The verdicts about outputs and state. ``lines``: the user's lines of the sinks that have findings."""

    outputs: Verdict | None = None
    state: Verdict | None = None
    lines: tuple[str, ...] = ()


def _doubts(planned: tuple[PlannedFault, ...], recording: RunRecord, records: int, verdict: Verdict) -> tuple[str, ...]:
    """Return the reasons why a clean audit would still prove nothing."""
    struck = recording.struck
    missing = Counter(planned) - Counter(recording.unreached) - Counter(one.fault for one in struck)
    doubts = [f"planned, but did not happen: {fault.title}" for fault in missing.elements()]
    doubts += [f"not under load: {one.title} at {one.at:.0f} s" for one in struck if not one.under_load]
    if (seen := verdict.facts.inputs or 0) != records:
        doubts.append(f"the audit saw {seen:,} records; the input topics have {records:,}")
    return tuple(doubts)


def _numbers(struck: list[InjectedFault], records: int, verdict: Verdict | None, seconds: float) -> dict[str, Any]:
    found = {} if verdict is None else {finding.check: finding.count for finding in verdict.findings}
    return {
        "records": records,
        "inputs": None if verdict is None else verdict.facts.inputs,
        "outputs": None if verdict is None else verdict.facts.outputs,
        "duplicated": None if verdict is None else found.get(Check.DUPLICATE, 0),
        "lost": None if verdict is None else found.get(Check.LOST, 0),
        "kills": sum(one.fault.victim in PROCESSES for one in struck),
        "killed": counts([one.fault for one in struck if one.fault.victim in PROCESSES]),
        "broker_outages": sum(one.fault.victim is Victim.BROKER for one in struck),
        "rescaled": [one.fault.parallelism for one in struck if one.fault.parallelism and one.recovered_in is not None],
        "seconds": round(seconds, 1),
    }


def _result(conclusion: Conclusion, reasons: tuple[str, ...], numbers: dict[str, Any]) -> CrashTestResult:
    short = all("\n" not in reason for reason in reasons)
    parts = list(reasons) if short else []
    if numbers["inputs"] is not None:
        parts += [
            f"{_spaced(numbers['inputs'])} in",
            f"{_spaced(numbers['outputs'])} out",
            f"{_spaced(numbers['duplicated'])} duplicated",
            f"{_spaced(numbers['lost'])} lost",
        ]
    parts += [
        _count(numbers["kills"], "kill"),
        _count(numbers["broker_outages"], "broker outage"),
        *(f"rescaled {before} → {after}" for before, after in numbers["rescaled"]),
        f"{numbers['seconds']:.0f} s",
    ]
    lines = [f"{name_of(conclusion)}: {', '.join(parts)}", *(() if short else reasons)]
    return CrashTestResult(conclusion, "\n".join(lines), reasons, numbers)


def name_of(conclusion: Conclusion) -> str:
    """Return the word of a crash test for a conclusion: a test that proves nothing is INVALID."""
    return "INVALID" if conclusion is Conclusion.INCONCLUSIVE else conclusion.value


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
