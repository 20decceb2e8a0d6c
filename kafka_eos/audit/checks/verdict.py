"""Judge a pipeline from what the scans found.

Pure: reads nothing, waits for nothing. ``jobs`` gathers ``Observations``; ``judge`` turns them into a ``Verdict``.
Rule: absence of evidence is not a pass. A check that could not be made is listed with its reason, and if the
promise "nothing lost, nothing doubled" rests on it the verdict is INVALID.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

SHOWN = 5
"""Offenders that are kept for each check and sink."""


class Conclusion(enum.Enum):
    """The conclusion of an audit; the value of ``exit_code`` is the exit code of ``kafka-eos audit``."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INVALID"

    @property
    def exit_code(self) -> int:
        return {Conclusion.PASS: 0, Conclusion.FAIL: 1, Conclusion.INCONCLUSIVE: 2}[self]


class Check(enum.Enum):
    """Every check by the name of what it finds."""

    DUPLICATE = "duplicate"
    LOST = "lost"
    UNEXPECTED = "unexpected"
    WRONG_VALUE = "wrong value"
    WRONG_TOTAL = "wrong total"
    UPDATE_GAP = "update gap"
    REORDERED = "reordered"
    ABORTED_VISIBLE = "aborted but visible"
    COMMITTED_HIDDEN = "committed but hidden"
    WRONG_COUNT = "wrong count"
    WRONG_EPOCH = "wrong epoch"
    ALTERED_CHECKPOINT = "altered checkpoint"
    FOREIGN = "foreign"
    MISPLACED = "misplaced"
    TORN = "torn"

    @property
    def question(self) -> str:
        return _QUESTIONS[self]


class StateCheck(enum.Enum):
    """The checks of an audit of state."""

    WRONG_STATE = "wrong state"
    LOST_STATE = "lost state"
    SURPLUS_STATE = "surplus state"

    @property
    def question(self) -> str:
        return _OF_STATE[self]


AnyCheck: TypeAlias = Check | StateCheck

_OF_STATE: Mapping[StateCheck, str] = {
    StateCheck.WRONG_STATE: "Is anything stored of a key other than what the input makes?",
    StateCheck.LOST_STATE: "Is anything of a key that the input makes not stored?",
    StateCheck.SURPLUS_STATE: "Is anything stored that the input does not make?",
}
_QUESTIONS: Mapping[Check, str] = {
    Check.DUPLICATE: "Is any output visible more than once (same input record, path and ordinal)?",
    Check.LOST: "Is any output that the recompute expects missing?",
    Check.UNEXPECTED: "Is any output visible that the recompute does not make?",
    Check.WRONG_VALUE: "Does any output differ from the recompute in key, value or update number?",
    Check.WRONG_TOTAL: "Does the last value of any key differ from the recompute?",
    Check.UPDATE_GAP: "Do the update numbers of every key follow one another without gap or repeat?",
    Check.REORDERED: "Does any output overtake an earlier one of its key, or of its input partition?",
    Check.ABORTED_VISIBLE: "Is any output of an epoch that was never committed visible?",
    Check.COMMITTED_HIDDEN: "Is any output of a committed epoch hidden from read_committed readers?",
    Check.WRONG_COUNT: "Does any epoch show another number of outputs than its commit recorded?",
    Check.WRONG_EPOCH: "Does any output say that another epoch wrote it than the one that processed its input record?",
    Check.ALTERED_CHECKPOINT: "Does any stored checkpoint say something else than the ledger of commits?",
    Check.FOREIGN: "Is any visible output not written by this pipeline?",
    Check.MISPLACED: "Is any record in a partition, or any line in the file of an epoch, that it does not belong to?",
    Check.TORN: "Is any line of a file not a whole output?",
}

_VITAL = (Check.DUPLICATE, Check.LOST)
"""Without these there is nothing to pass."""
_PROMISES: Mapping[Check, str] = {Check.LOST: "none lost", Check.DUPLICATE: "none doubled"}


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """One record that breaks a check: where it is and what is wrong with it.

    Of what is no record ``topic`` says where it is, and ``partition`` and ``offset`` are -1.
    """

    topic: str
    partition: int
    offset: int
    detail: str

    def __str__(self) -> str:
        place = self.topic if self.partition < 0 else f"{self.topic}/{self.partition}/{self.offset}"
        return f"{place}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The result of one check: how many records were looked at, how many break it, the first of those."""

    looked_at: int
    count: int = 0
    examples: tuple[Violation, ...] = ()
    by_sink: Mapping[str, int] = field(default_factory=dict)
    """``count`` by the sink (or topic) that is wrong, where the check looks at each of them."""


@dataclass(frozen=True, slots=True)
class SkippedCheck:
    """The reason why a check could not be made."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finding:
    check: AnyCheck
    count: int
    examples: tuple[Violation, ...]
    by_sink: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UncomparedOutput:
    """Outputs of a sink that a PASS says nothing about, and why."""

    sink: str
    what: str
    why: str
    outputs: int | None = None
    """Of how many outputs; None: of all, whatever their number."""

    def __str__(self) -> str:
        of = "" if self.outputs is None else f"{self.outputs} output{'s' if self.outputs > 1 else ''} of "
        return f"{self.what} of {of}sink {self.sink} not compared: {self.why}"


@dataclass(frozen=True, slots=True)
class UncomparedState:
    """State that a PASS does not cover: the number of its entries, and the reason."""

    state: str
    entries: int
    why: str

    def __str__(self) -> str:
        return f"{_entries(self.entries)} of state {self.state} not compared: {self.why}"


@dataclass(frozen=True, slots=True)
class StateFacts:
    """Counts of an audit of state: a key has one entry in a value state, maybe several in others."""

    states: int
    stored: int
    made: int
    epoch: int
    uncompared: Sequence[UncomparedState] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.stored or self.made or self.uncompared)


def _entries(n: int) -> str:
    return f"{n} entr{'y' if n == 1 else 'ies'}"


@dataclass(frozen=True, slots=True)
class Observations:
    """The observed counts, in records."""

    inputs: int | None = 0
    """Input records before the position of the last committed epoch; None if no input is audited."""
    not_yet_processed: int = 0
    """Input records after it: not lost, simply not read yet."""
    outputs: int = 0
    """Records that read_committed readers see in the audited output topics."""
    uncommitted: int = 0
    """Records that only read_uncommitted readers see."""
    expected: int = 0
    """Outputs that the recompute makes."""
    keys: int = 0
    """Keys with an update number."""
    committed_epochs: int | None = 0
    """None where topics are audited, not a job."""
    kills: int = 0
    restarts: int = 0
    evidence: Mapping[AnyCheck, Evidence | SkippedCheck] = field(default_factory=dict)
    obstacles: Sequence[str] = ()
    """Why the scans are no sound base: open transactions, expired input, a job that still runs …"""
    not_audited: Mapping[str, str] = field(default_factory=dict)
    """Sinks that no check covers, and why."""
    not_recomputed: Mapping[str, str] = field(default_factory=dict)
    """Sinks for which only the job's own counts tell whether an output is missing, and why."""
    uncompared: Sequence[UncomparedOutput] = ()
    """What of the outputs of other sinks nothing tells."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Outputs by sink that are not there because the sink refused them; a dead letter answers for each."""
    without_interval: int = 0
    """Visible outputs of committed epochs whose input interval is unknown."""
    uncounted: int = 0
    """Epochs of which only the sum of the outputs of all sinks is known."""
    before_savepoint: int = 0
    """Visible records that the job wrote before it started from a savepoint."""
    notes: Sequence[str] = ()
    """How the comparison was made, where that limits what it proves."""
    state: StateFacts | None = None
    """Of an audit of state, which looks at no outputs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The conclusion, and all that it rests on."""

    conclusion: Conclusion
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...]
    performed: tuple[AnyCheck, ...]
    skipped: Mapping[AnyCheck, str]
    facts: Observations
    traceback: str = field(default="", repr=False)
    """Of what broke the audit off, if anything did."""

    @property
    def checks(self) -> tuple[AnyCheck, ...]:
        """All that were made or could not be."""
        return tuple(check for check in (*Check, *StateCheck) if check in self.performed or check in self.skipped)

    @property
    def exit_code(self) -> int:
        return self.conclusion.exit_code

    @property
    def headline(self) -> str:
        """One line for people."""
        return f"{self.conclusion.value}: {'; '.join(self.reasons)}"


def judge(
    facts: Observations,
    *,
    allow_foreign: bool = False,
    expect_faults: bool = False,
    vital: Sequence[AnyCheck] = _VITAL,
    checks: Iterable[AnyCheck] = Check,
) -> Verdict:
    """Turn facts into a verdict. ``vital`` are the checks that a PASS rests on, ``checks`` all that there are.

    INVALID if the ground is missing (an obstacle, no input, no output, no committed epoch, a vital check not
    possible), else FAIL if anything was found, else INVALID if faults were expected and none is recorded, else PASS.
    """
    ignored, checks = {Check.FOREIGN} if allow_foreign else set(), tuple(checks)
    found = tuple(
        Finding(check, evidence.count, evidence.examples, evidence.by_sink)
        for check in checks
        if isinstance(evidence := facts.evidence.get(check), Evidence) and evidence.count and check not in ignored
    )
    not_possible = {check: e.reason for check in checks if isinstance(e := _evidence(facts, check), SkippedCheck)}
    conclusion, reasons = _conclude(facts, found, not_possible, expect_faults, vital)
    performed = tuple(check for check in checks if check not in not_possible)
    return Verdict(conclusion, reasons, found, performed, not_possible, facts)


def _evidence(facts: Observations, check: AnyCheck) -> Evidence | SkippedCheck:
    return facts.evidence.get(check, SkippedCheck("the scan did not get that far"))


def _conclude(
    facts: Observations,
    found: Sequence[Finding],
    not_possible: Mapping[AnyCheck, str],
    expect_faults: bool,
    vital: Sequence[AnyCheck],
) -> tuple[Conclusion, tuple[str, ...]]:
    if missing := _missing_ground(facts, not_possible, vital):
        return Conclusion.INCONCLUSIVE, missing
    if found:
        return Conclusion.FAIL, tuple(f"{f.check.value}: {f.count}" for f in found)
    if expect_faults and not facts.kills:
        return Conclusion.INCONCLUSIVE, ("no kill is recorded in the job's history, so surviving kills is not proven",)
    if facts.state is not None:
        return Conclusion.PASS, (_said_of_state(facts, facts.state), *map(str, facts.state.uncompared))
    parts = [f"{facts.inputs} records in, {facts.outputs} out" if facts.inputs is not None else f"{facts.outputs} out"]
    parts += [text for check, text in _PROMISES.items() if check not in not_possible]
    clean = ", ".join(parts)
    blind = tuple(
        f"{count} output{'s' if count > 1 else ''} of sink {sink} refused by it, each with its dead letter"
        for sink, count in facts.refused.items()
    )
    if facts.without_interval:
        blind += (
            f"epochs of {facts.without_interval} outputs not compared: the ledger does not tell what they processed",
        )
    if facts.uncounted:
        epochs = f"{facts.uncounted} epoch{'s' if facts.uncounted > 1 else ''}"
        blind += (f"counts by sink of {epochs} not compared, only their sums: the commits do not tell them",)
    if facts.before_savepoint:
        blind += (f"{facts.before_savepoint} outputs of before the savepoint not judged",)
    blind += tuple(f"sink {sink} not audited: {why}" for sink, why in facts.not_audited.items())
    blind += tuple(f"sink {sink} not recomputed: {why}" for sink, why in facts.not_recomputed.items())
    blind += tuple(map(str, facts.uncompared))
    return Conclusion.PASS, (clean, *blind, *_unchecked(facts, not_possible))


def _said_of_state(facts: Observations, state: StateFacts) -> str:
    states = f"{state.states} state{'' if state.states == 1 else 's'}"
    return f"{facts.inputs} records in, {_entries(state.stored)} of {states} of epoch {state.epoch} as they make them"


def _unchecked(facts: Observations, not_possible: Mapping[AnyCheck, str]) -> tuple[str, ...]:
    """The checks of a job that could not be made; of topics they are those that nobody asked for."""
    if facts.committed_epochs is None:
        return ()
    by_reason: dict[str, list[str]] = {}
    for check, why in not_possible.items():
        by_reason.setdefault(why, []).append(check.value)
    return tuple(f"{', '.join(checks)} not checked: {why}" for why, checks in by_reason.items())


def _missing_ground(
    facts: Observations, not_possible: Mapping[AnyCheck, str], vital: Sequence[AnyCheck]
) -> tuple[str, ...]:
    missing = list(facts.obstacles)
    unchecked = [f"{check.value} not checked: {not_possible[check]}" for check in vital if check in not_possible]
    if not missing:
        absent = {
            "no committed checkpoint": facts.committed_epochs == 0,
            "no input records before the last checkpoint": facts.inputs == 0 and not unchecked,
            "no visible output records": not facts.outputs and facts.state is None,
            "the checkpoint holds no state": facts.state is not None and facts.state.is_empty,
        }
        missing += [what for what, is_absent in absent.items() if is_absent]
    return tuple(missing or unchecked)
