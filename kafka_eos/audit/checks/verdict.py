"""Judge a pipeline from what the scans found.

Pure: reads nothing, waits for nothing. ``jobs`` gathers ``Observations``; ``judge`` turns them into a ``Verdict``.
Rule: absence of evidence is not a pass. A check that could not be made is listed with its reason, and if the
statement "nothing lost, nothing duplicated" rests on it the verdict is INCONCLUSIVE.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

SHOWN = 5
"""Number of violations kept for each check and sink."""


class Conclusion(enum.Enum):
    """The conclusion of an audit; the value of ``exit_code`` is the exit code of ``kafka-eos audit``."""

    PASS = "PASS"  # noqa: S105 - a verdict
    PARTIAL = "PARTIAL"
    """Nothing is wrong in what was compared, and some outputs were not compared."""
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def exit_code(self) -> int:
        return {Conclusion.PASS: 0, Conclusion.FAIL: 1, Conclusion.INCONCLUSIVE: 2, Conclusion.PARTIAL: 3}[self]

    @property
    def is_clean(self) -> bool:
        """Return whether outputs were compared, and nothing wrong was found."""
        return self in (Conclusion.PASS, Conclusion.PARTIAL)


class OutputClaim(enum.Enum):
    """The claims of a PASS about each output that it covers."""

    EXISTENCE = "existence"
    VALUES = "values"
    ORDER = "order"


class Check(enum.Enum):
    """The checks of an audit; each value names what the check finds."""

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
    MISPLACED = "wrong partition or file"
    MALFORMED = "malformed line"

    @property
    def question(self) -> str:
        return _QUESTIONS[self]


class StateCheck(enum.Enum):
    """The checks of an audit of state."""

    WRONG_STATE = "wrong state"
    LOST_STATE = "lost state"
    UNEXPECTED_STATE = "unexpected state"

    @property
    def question(self) -> str:
        return _OF_STATE[self]


AnyCheck: TypeAlias = Check | StateCheck

_OF_STATE: Mapping[StateCheck, str] = {
    StateCheck.WRONG_STATE: "Does the stored state of any key differ from the recompute?",
    StateCheck.LOST_STATE: "Is any state that the recompute expects missing?",
    StateCheck.UNEXPECTED_STATE: "Is any state stored that the recompute does not make?",
}
_QUESTIONS: Mapping[Check, str] = {
    Check.DUPLICATE: "Is any output visible more than once (same input record, path and ordinal)?",
    Check.LOST: "Is any output that the recompute expects missing?",
    Check.UNEXPECTED: "Is any output visible that the recompute does not make?",
    Check.WRONG_VALUE: "Does any output differ from the recompute in key, value or update number?",
    Check.WRONG_TOTAL: "Does the last value of any key differ from the recompute?",
    Check.UPDATE_GAP: "Do the update numbers of any key have a gap or a repeat?",
    Check.REORDERED: "Does any output overtake an earlier one of its key, or of its input partition?",
    Check.ABORTED_VISIBLE: "Is any output of an epoch that was never committed visible?",
    Check.COMMITTED_HIDDEN: "Is any output of a committed epoch hidden from read_committed readers?",
    Check.WRONG_COUNT: "Does the number of outputs of any epoch differ from the number that its commit recorded?",
    Check.WRONG_EPOCH: "Does any output name another epoch than the one that processed its input record?",
    Check.ALTERED_CHECKPOINT: "Does any stored checkpoint differ from the ledger of commits?",
    Check.FOREIGN: "Is any visible output not written by this pipeline?",
    Check.MISPLACED: "Is any record in the wrong partition, or any line in the file of another epoch?",
    Check.MALFORMED: "Is any line of a file not a complete output?",
}

_VITAL = (Check.DUPLICATE, Check.LOST)
"""A PASS requires these checks."""
_PROMISES: Mapping[Check, str] = {Check.LOST: "none lost", Check.DUPLICATE: "none duplicated"}


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """One record that violates a check: its position and the detail.

    For anything but a record, ``topic`` names its location, and ``partition`` and ``offset`` are -1.
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
    """The result of one check: the number of records checked and of violations, and the first violations."""

    looked_at: int
    count: int = 0
    examples: tuple[Violation, ...] = ()
    by_sink: Mapping[str, int] = field(default_factory=dict)
    """``count`` by sink (or topic), if the check covers each of them separately."""


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
    """Outputs of a sink that a PASS does not cover, and the reason."""

    sink: str
    what: str
    why: str
    outputs: int | None = None
    """Number of these outputs; None means all."""
    claims: tuple[OutputClaim, ...] = ()
    """The claims that a PASS would make about the outputs."""

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
    """Input records after that position: not read yet, hence not lost."""
    outputs: int = 0
    """Records that read_committed readers see in the audited output topics."""
    uncommitted: int = 0
    """Records that only read_uncommitted readers see."""
    expected: int = 0
    """Outputs that the recompute makes."""
    keys: int = 0
    """Keys with an update number."""
    committed_epochs: int | None = 0
    """The number of committed epochs; None in an audit of topics."""
    kills: int = 0
    restarts: int = 0
    evidence: Mapping[AnyCheck, Evidence | SkippedCheck] = field(default_factory=dict)
    obstacles: Sequence[str] = ()
    """Reasons why the scans prove nothing: open transactions, expired input, a running job …"""
    not_audited: Mapping[str, str] = field(default_factory=dict)
    """Sinks that no check covers, and why."""
    not_recomputed: Mapping[str, str] = field(default_factory=dict)
    """Sinks in which only the job's own counts show a missing output, and the reason."""
    uncompared: Sequence[UncomparedOutput] = ()
    """Parts of the outputs of other sinks that were not compared."""
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Number of outputs that each sink rejected; each has a dead letter."""
    without_interval: int = 0
    """Visible outputs of committed epochs whose input interval is unknown."""
    uncounted: int = 0
    """The number of epochs for which only the sum over all sinks is known."""
    before_savepoint: int = 0
    """Visible records that the job wrote before it started from a savepoint."""
    left_out: Sequence[str] = ()
    """Notes for the headline: records that were not judged, or that the user excluded."""
    notes: Sequence[str] = ()
    """Notes about the comparison, where it limits what the verdict proves."""
    state: StateFacts | None = None
    """Set for an audit of state, which checks no outputs."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The conclusion, with its reasons, findings and counts."""

    conclusion: Conclusion
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...]
    performed: tuple[AnyCheck, ...]
    skipped: Mapping[AnyCheck, str]
    facts: Observations
    traceback: str = field(default="", repr=False)
    """The traceback of the error that stopped the audit, or empty."""

    @property
    def checks(self) -> tuple[AnyCheck, ...]:
        """Return the checks that were made or skipped."""
        return tuple(check for check in (*Check, *StateCheck) if check in self.performed or check in self.skipped)

    @property
    def exit_code(self) -> int:
        return self.conclusion.exit_code

    @property
    def headline(self) -> str:
        """Return the verdict and its reasons in one line."""
        return f"{self.conclusion.value}: {'; '.join(self.reasons)}"


def judge(
    facts: Observations,
    *,
    allow_foreign: bool = False,
    expect_faults: bool = False,
    vital: Sequence[AnyCheck] = _VITAL,
    checks: Iterable[AnyCheck] = Check,
) -> Verdict:
    """Turn facts into a verdict. ``vital`` are the checks that a PASS rests on, ``checks`` all checks of this audit.

    The first of these rules that applies decides:

    - INCONCLUSIVE on an obstacle, without input, output or committed epoch, or if a vital check was skipped
    - FAIL if anything was found
    - INCONCLUSIVE if faults were expected and none is recorded
    - PARTIAL if existence or values of some outputs were not compared
    - PASS
    """
    ignored, checks = {Check.FOREIGN} if allow_foreign else set(), tuple(checks)
    found = tuple(
        Finding(check, evidence.count, evidence.examples, evidence.by_sink)
        for check in checks
        if isinstance(evidence := facts.evidence.get(check), Evidence) and evidence.count and check not in ignored
    )
    skipped = {check: e.reason for check in checks if isinstance(e := _evidence(facts, check), SkippedCheck)}
    if allow_foreign and isinstance(foreign := facts.evidence.get(Check.FOREIGN), Evidence) and foreign.count:
        facts = replace(facts, left_out=[*facts.left_out, f"{foreign.count:,} of others among the outputs, not judged"])
    conclusion, reasons = _conclude(facts, found, skipped, expect_faults, vital)
    performed = tuple(check for check in checks if check not in skipped)
    return Verdict(conclusion, reasons, found, performed, skipped, facts)


def _evidence(facts: Observations, check: AnyCheck) -> Evidence | SkippedCheck:
    return facts.evidence.get(check, SkippedCheck("the audit ended before this check"))


def _conclude(
    facts: Observations,
    found: Sequence[Finding],
    skipped: Mapping[AnyCheck, str],
    expect_faults: bool,
    vital: Sequence[AnyCheck],
) -> tuple[Conclusion, tuple[str, ...]]:
    if missing := _missing_ground(facts, skipped, vital):
        return Conclusion.INCONCLUSIVE, missing
    if found:
        return Conclusion.FAIL, tuple(f"{f.check.value}: {f.count}" for f in found)
    if expect_faults and not facts.kills:
        return Conclusion.INCONCLUSIVE, ("no kill is recorded in the job's history, so surviving kills is not proven",)
    if facts.state is not None:
        return Conclusion.PASS, (_said_of_state(facts, facts.state), *map(str, facts.state.uncompared))
    parts = [f"{facts.inputs} records in, {facts.outputs} out" if facts.inputs is not None else f"{facts.outputs} out"]
    uncovered = _uncovered(facts)
    scope = " of what was compared" if OutputClaim.EXISTENCE in uncovered else ""
    parts.append(", ".join(text for check, text in _PROMISES.items() if check not in skipped) + scope)
    clean = ", ".join(part for part in parts if part)
    blind = tuple(
        f"{count} output{'s' if count > 1 else ''} of sink {sink} rejected by it, each with a dead letter"
        for sink, count in facts.rejected.items()
    )
    if facts.without_interval:
        blind += (f"epochs of {facts.without_interval} outputs not compared: the ledger does not record their inputs",)
    if facts.uncounted:
        epochs = f"{facts.uncounted} epoch{'s' if facts.uncounted > 1 else ''}"
        blind += (f"counts by sink of {epochs} not compared, only their sums: the commits do not record them",)
    if facts.before_savepoint:
        blind += (f"{facts.before_savepoint} outputs from before the savepoint not judged",)
    blind += tuple(f"sink {sink} not audited: {why}" for sink, why in facts.not_audited.items())
    blind += tuple(f"sink {sink} not recomputed: {why}" for sink, why in facts.not_recomputed.items())
    blind += tuple(map(str, facts.uncompared))
    conclusion = Conclusion.PARTIAL if uncovered & {OutputClaim.EXISTENCE, OutputClaim.VALUES} else Conclusion.PASS
    return conclusion, (clean, *facts.left_out, *blind, *_unchecked(facts, skipped))


def _uncovered(facts: Observations) -> set[OutputClaim]:
    """Return the claims that do not hold for all outputs."""
    claims = {claim for uncompared in facts.uncompared for claim in uncompared.claims}
    return claims | ({*OutputClaim} if facts.not_audited or facts.not_recomputed else set())


def _said_of_state(facts: Observations, state: StateFacts) -> str:
    states = f"{state.states} state{'' if state.states == 1 else 's'}"
    stored = f"{_entries(state.stored)} of {states} of epoch {state.epoch}"
    return f"{facts.inputs} records in, {stored}, equal to the recompute"


def _unchecked(facts: Observations, skipped: Mapping[AnyCheck, str]) -> tuple[str, ...]:
    """Return the skipped checks of a job. An audit of topics skips checks that were not requested: it reports none."""
    if facts.committed_epochs is None:
        return ()
    by_reason: dict[str, list[str]] = {}
    for check, why in skipped.items():
        by_reason.setdefault(why, []).append(check.value)
    return tuple(f"{', '.join(checks)} not checked: {why}" for why, checks in by_reason.items())


def _missing_ground(facts: Observations, skipped: Mapping[AnyCheck, str], vital: Sequence[AnyCheck]) -> tuple[str, ...]:
    missing = list(facts.obstacles)
    unchecked = [f"{check.value} not checked: {skipped[check]}" for check in vital if check in skipped]
    if not missing:
        absent = {
            "no committed checkpoint": facts.committed_epochs == 0,
            "no input records before the last checkpoint": facts.inputs == 0 and not unchecked,
            "no visible output records": not facts.outputs and facts.state is None,
            "the checkpoint holds no state": facts.state is not None and facts.state.is_empty,
        }
        missing += [what for what, is_absent in absent.items() if is_absent]
    return tuple(missing or unchecked)
