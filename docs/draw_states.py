"""Draw the two-phase commit's state diagram from its transition table, into ``docs/two-phase-commit.md``.

    python docs/draw_states.py           rewrite the drawing
    python docs/draw_states.py --check   exit 1 if the page does not show the table of the code

Rule: the table in ``kafka_eos.protocol.commit`` is the only description of the states; the page holds a copy
that this script alone writes, and ``tests/test_docs.py`` checks it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kafka_eos.protocol.commit import NEXT, Event, State

PAGE = Path(__file__).with_name("two-phase-commit.md")
BEGIN, END = "<!-- drawing: begin -->\n", "<!-- drawing: end -->\n"


def drawing() -> str:
    """The diagram in Mermaid, then the same as a table: rows are states, columns are events."""
    return f"```mermaid\n{diagram()}```\n\n{table()}"


def diagram() -> str:
    """One arrow a pair of states, labelled with every event that leads from one to the other."""
    arrows: dict[tuple[State, State], list[Event]] = {}
    for (state, event), after in NEXT.items():
        arrows.setdefault((state, after), []).append(event)
    lines = ["stateDiagram-v2", f"    [*] --> {_name(next(iter(State)))}"]
    for (before, after), events in arrows.items():
        lines.append(f"    {_name(before)} --> {_name(after)} : {', '.join(event.value for event in events)}")
    lines += [f"    {_name(state)} --> [*]" for state in State if _is_final(state)]
    return "\n".join(lines) + "\n"


def table() -> str:
    """Every pair of state and event. A dash is a pair that does not exist: ``step`` raises Bug."""
    head = ["state", *(event.value for event in Event)]
    rows = [head, ["---"] * len(head)]
    for state in State:
        rows.append([f"**{state.value}**", *(_cell(state, event) for event in Event)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(state: State, event: Event) -> str:
    after = NEXT.get((state, event))
    return "–" if after is None else after.value


def _is_final(state: State) -> bool:
    """No event leads away from it."""
    return all(after is state for (before, _), after in NEXT.items() if before is state)


def _name(state: State) -> str:
    return state.value.capitalize()


def redrawn(page: str) -> str:
    """The page with the drawing of the present table."""
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
