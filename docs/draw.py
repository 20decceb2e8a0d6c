"""Draw what the code does into the pages that show it.

    python docs/draw.py           rewrite the drawings
    python docs/draw.py --check   exit 1, and name the pages that do not show what the code does

Rule: a drawing is made by letting the code play; pages hold copies that this script alone writes, and
``tests/test_docs.py`` checks them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kafka_eos.abc.committer import CommitStatus, Probe
from kafka_eos.core.ids import Epoch, EpochId, Term
from kafka_eos.protocol.barrier_alignment import (
    Channel,
    CheckpointMode,
    CompleteSnapshot,
    GateAction,
    InputGate,
    TakeSnapshot,
)
from kafka_eos.protocol.commit import COMMIT_MARGIN, authorize

# ---------------------------------------------------------------- what becomes of a decided epoch

_EPOCH = EpochId(Epoch(1), Term(1))
PREPARED, COMMITTED, LOST, UNKNOWN = (
    Probe(standing, "")
    for standing in (CommitStatus.PREPARED, CommitStatus.COMMITTED, CommitStatus.LOST, CommitStatus.UNKNOWN)
)
URGENT = Probe(CommitStatus.PREPARED, "", expires_in=COMMIT_MARGIN / 2)
SITUATIONS: tuple[tuple[str, tuple[tuple[Probe, ...], ...], str], ...] = (
    (
        "one is unknown, whatever the others are",
        tuple((UNKNOWN, *others) for others in ((), (PREPARED,), (COMMITTED,), (LOST,), (COMMITTED, LOST), (URGENT,))),
        "to go on could lose its output, to go back could make it visible twice: `CommittableLost`",
    ),
    (
        "none is lost or unknown",
        ((), (PREPARED,), (PREPARED, PREPARED), (PREPARED, COMMITTED), (COMMITTED,), (URGENT, COMMITTED), (URGENT,)),
        "all of them; the one that expires first goes first",
    ),
    (
        f"the same, but none committed, several of them, one expires within {COMMIT_MARGIN:g} s",
        ((URGENT, PREPARED), (URGENT, URGENT)),
        "it could expire between the first commit and the last",
    ),
    (
        "some lost, none committed",
        ((LOST,), (LOST, PREPARED), (LOST, URGENT)),
        "the epoch as a whole is undone, the job goes back to the one before",
    ),
    (
        "some lost, some committed",
        ((LOST, COMMITTED), (LOST, COMMITTED, PREPARED), (LOST, COMMITTED, URGENT)),
        "nothing automatic is right any more: `CommittableLost`",
    ),
)
"""What probes say, examples of it, and why it is decided so."""


def decisions() -> str:
    """One row a situation: what ``authorize`` answers to every example of it."""
    rows = [["probes", "decision", "because"], ["---"] * 3]
    for situation, examples, reason in SITUATIONS:
        answers = {_words(type(authorize(_EPOCH, probes, COMMIT_MARGIN))) for probes in examples}
        rows.append([situation, f"**{' or '.join(sorted(answers))}**", reason])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _words(decision: type) -> str:
    """Return the name of a decision as words: ``commit authorized``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", decision.__name__).lower()


# ---------------------------------------------------------------- the gate's story

STORY: tuple[tuple[str, Channel | None, float], ...] = (
    ("barrier on *a*", "a", 0.0),
    ("100 ms pass", None, 0.1),
    ("barrier on *b*", "b", 0.2),
    ("barrier on *loop*", "loop", 0.3),
)


def gates() -> dict[str, InputGate]:
    """The columns. Inputs are *a*, *b* and, in Algorithm 2, a back-edge *loop*."""
    plain = frozenset[Channel]({"a", "b"})
    loop = frozenset[Channel]({"loop"})
    return {
        "aligned (Algorithm 1)": InputGate(plain, CheckpointMode.ALIGNED),
        "aligned, with a loop (Algorithm 2)": InputGate(plain | loop, CheckpointMode.ALIGNED, feedback=loop),
        "unaligned": InputGate(plain, CheckpointMode.UNALIGNED),
        "unaligned after 100 ms": InputGate(plain, CheckpointMode.UNALIGNED, aligned_timeout=0.1),
        "at least once": InputGate(plain, CheckpointMode.AT_LEAST_ONCE),
    }


def story() -> str:
    """One row an event, one column a gate: what it orders, then which inputs wait and which are logged."""
    columns = gates()
    rows = [["", *columns], ["---"] * (len(columns) + 1)]
    for event, channel, now in STORY:
        cells = []
        for name, gate in columns.items():
            cell, columns[name] = _orders(gate, channel, now)
            cells.append(cell)
        rows.append([event, *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _orders(gate: InputGate, channel: Channel | None, now: float) -> tuple[str, InputGate]:
    if channel is not None and channel not in gate.channels:
        return "", gate
    after, actions = gate.on_tick(now) if channel is None else gate.on_barrier(channel, 1, now)
    words = [_word(action) for action in actions]
    words += [f"*{c}* waits" for c in sorted(map(str, after.blocked_channels))]
    words += [f"*{c}* is logged" for c in sorted(map(str, after.logged_channels))]
    return ", ".join(words) or "–", after


def _word(action: GateAction) -> str:
    if isinstance(action, TakeSnapshot):
        return "**snapshot**, barrier goes ahead of rows" if action.unaligned else "**snapshot**, barrier goes on"
    return "complete" if isinstance(action, CompleteSnapshot) else "abandoned"


# ---------------------------------------------------------------- pages


@dataclass(frozen=True)
class Drawing:
    """What stands in ``docs/<page>`` between the marks ``<!-- mark: begin -->`` and ``<!-- mark: end -->``."""

    page: str
    mark: str
    draw: Callable[[], str]

    @property
    def path(self) -> Path:
        return Path(__file__).with_name(self.page)

    def redrawn(self) -> str:
        """The page with the drawing of the present code."""
        before, begin, rest = self.path.read_text(encoding="utf-8").partition(f"<!-- {self.mark}: begin -->\n")
        _, end, after = rest.partition(f"<!-- {self.mark}: end -->\n")
        if not begin or not end:
            raise ValueError(
                f"{self.page} has lost its marks <!-- {self.mark}: begin --> and <!-- {self.mark}: end -->"
            )
        return before + begin + self.draw() + end + after


DRAWINGS = (Drawing("two-phase-commit.md", "decisions", decisions), Drawing("barriers.md", "story", story))


def stale() -> list[Drawing]:
    """Those whose page does not show what the code does."""
    return [drawing for drawing in DRAWINGS if drawing.path.read_text(encoding="utf-8") != drawing.redrawn()]


def main() -> int:
    """Returns the exit code."""
    wrong = stale()
    if "--check" in sys.argv[1:]:
        print(*(f"{drawing.page} does not show what the code does: make docs" for drawing in wrong), sep="\n", end="")
        return 1 if wrong else 0
    for drawing in wrong:
        drawing.path.write_text(drawing.redrawn(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
