"""The scope of one audit: everything is fixed before the first scan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kafka_eos.audit.facts.audit_subject import Subject
from kafka_eos.audit.facts.checkpoint_state import Checkpoint
from kafka_eos.audit.facts.code_changes import OtherCode
from kafka_eos.audit.facts.epoch_intervals import Spans, spans
from kafka_eos.audit.facts.job_ledger import Ledger
from kafka_eos.audit.facts.ledger_provenance import Files
from kafka_eos.audit.facts.starting_savepoint import StartingSavepoint
from kafka_eos.audit.tables.broadcast.judgeable_sinks import BroadcastSinks
from kafka_eos.audit.tables.plan_cut import Cut
from kafka_eos.audit.tables.topic_tables import Bounds
from kafka_eos.audit.tables.windows.judgeable_windows import JudgeableWindows


@dataclass(frozen=True, slots=True)
class FickleSinks:
    """Sinks whose outputs differ each time that the user's functions run: in their values, or in which there are."""

    values: frozenset[str] = frozenset()
    existence: frozenset[str] = frozenset()

    @property
    def found(self) -> bool:
        return bool(self.values or self.existence)


@dataclass(frozen=True)
class Scope:
    """The data to scan, and the data to compare it with."""

    app: str
    """The reference by which Spark's tasks find the user's file, as ``AppRef.parse`` reads it."""
    subject: Subject
    cut: Cut
    ledger: Ledger
    inputs: Mapping[str, Bounds]
    """By stream: from the job's start to the position of its last committed epoch."""
    ahead: Mapping[str, Bounds]
    """By stream: from there to the pinned end."""
    outputs: Mapping[str, Bounds]
    """By sink: the whole topic up to the pinned end."""
    files: Mapping[str, Sequence[str]]
    """By sink: the names of its files."""
    beginning: StartingSavepoint | None = None
    """The savepoint that the recompute begins with."""
    strict: bool = True
    """No epoch processed input that lies behind its barrier."""
    provenance: Files = field(default_factory=dict)
    """Provenance files of outputs without a provenance header."""
    windows: JudgeableWindows = field(default_factory=JudgeableWindows)
    ruled: BroadcastSinks = field(default_factory=BroadcastSinks)
    other_code: OtherCode | None = None
    """Code that processed a part of the input, if the audit has loaded other code."""
    fickle: FickleSinks = field(default_factory=FickleSinks)
    checkpoint: Checkpoint | None = None
    """The newest one that is committed."""

    @property
    def changed(self) -> bool:
        """Return whether a table was read beyond the end up to which it was read before any stream."""
        first = self.ledger.first_ends
        return any(
            end > first.get(source.stream, {}).get(partition, 0)
            for source in self.subject.sources
            if source.node in self.cut.tables
            for partition, (_, end) in self.inputs.get(source.stream, {}).items()
        )

    @property
    def rounded(self) -> frozenset[str]:
        """Return the sinks whose values were combined from parts in any order, so that floats may differ in the last
        digits.
        """
        return self.cut.totals | self.windows.sinks

    @property
    def spans(self) -> Spans:
        """Return the input cut into spans; see ``intervals.spans``. Empty if no output sums up an epoch."""
        return spans(self.ledger.entries.values()) if self.cut.totals and self.strict else {}

    @property
    def streams(self) -> int:
        """Return the number of input partitions with records."""
        return sum(end > start for bounds in self.inputs.values() for start, end in bounds.values())
