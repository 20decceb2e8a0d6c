"""Let the gate play one story in every mode, and write what it does into ``docs/barriers.md``.

    python docs/draw_barriers.py           rewrite the table
    python docs/draw_barriers.py --check   exit 1 if the page does not show what the code does

Rule: the page's table is made by ``kafka_eos.protocol.alignment`` itself; this script alone writes it, and
``tests/protocol/test_alignment.py`` checks it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kafka_eos.protocol.alignment import Action, Channel, Complete, Gate, Mode, Snapshot

PAGE = Path(__file__).with_name("barriers.md")
BEGIN, END = "<!-- story: begin -->\n", "<!-- story: end -->\n"

STORY: tuple[tuple[str, Channel | None, float], ...] = (
    ("barrier on *a*", "a", 0.0),
    ("100 ms pass", None, 0.1),
    ("barrier on *b*", "b", 0.2),
    ("barrier on *loop*", "loop", 0.3),
)


def gates() -> dict[str, Gate]:
    """The columns. Inputs are *a*, *b* and, in Algorithm 2, a back-edge *loop*."""
    plain = frozenset[Channel]({"a", "b"})
    loop = frozenset[Channel]({"loop"})
    return {
        "aligned (Algorithm 1)": Gate(plain, Mode.ALIGNED),
        "aligned, with a loop (Algorithm 2)": Gate(plain | loop, Mode.ALIGNED, feedback=loop),
        "unaligned": Gate(plain, Mode.UNALIGNED),
        "unaligned after 100 ms": Gate(plain, Mode.UNALIGNED, aligned_timeout=0.1),
        "at least once": Gate(plain, Mode.AT_LEAST_ONCE),
    }


def drawing() -> str:
    """One row an event, one column a gate: what it orders, then which inputs wait and which are logged."""
    columns = gates()
    rows = [["", *columns], ["---"] * (len(columns) + 1)]
    for event, channel, now in STORY:
        cells = []
        for name, gate in columns.items():
            cell, columns[name] = _cell(gate, channel, now)
            cells.append(cell)
        rows.append([event, *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(gate: Gate, channel: Channel | None, now: float) -> tuple[str, Gate]:
    if channel is not None and channel not in gate.channels:
        return "", gate
    after, actions = gate.tick(now) if channel is None else gate.barrier(channel, 1, now)
    words = [_word(action) for action in actions]
    words += [f"*{c}* waits" for c in sorted(map(str, after.blocked))]
    words += [f"*{c}* is logged" for c in sorted(map(str, after.logging))]
    return ", ".join(words) or "–", after


def _word(action: Action) -> str:
    if isinstance(action, Snapshot):
        return "**snapshot**, barrier goes ahead of rows" if action.unaligned else "**snapshot**, barrier goes on"
    return "complete" if isinstance(action, Complete) else "abandoned"


def redrawn(page: str) -> str:
    """The page with the table of the present code."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has lost the marks {BEGIN.strip()} and {END.strip()}")
    return before + begin + drawing() + end + after


def main() -> int:
    """Returns the exit code."""
    page = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        return 0 if redrawn(page) == page else 1
    PAGE.write_text(redrawn(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
