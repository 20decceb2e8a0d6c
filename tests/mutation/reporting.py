"""What a run has found: the rate of each room, and the list of survivors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.mutation.nearest import Stage
from tests.mutation.sampling import Candidate

Found = Mapping[Candidate, Stage | str | None]
"""The stage that has noticed a mutant, the reason why none can, or None: it survives."""


def rates(found: Found) -> Iterable[str]:
    """A table in Markdown, a line for each room."""
    yield "| room | mutants | own fast tests | other fast tests | slow tests | explained | survive | noticed |"
    yield "|---|---|---|---|---|---|---|---|"
    rooms = sorted({candidate.room for candidate in found})
    for room in rooms:
        yield _line(room, [end for candidate, end in found.items() if candidate.room == room])
    if len(rooms) > 1:
        yield _line("all", list(found.values()))


def _line(room: str, ends: list[Stage | str | None]) -> str:
    noticed, survive = [ends.count(stage) for stage in Stage], ends.count(None)
    explained = len(ends) - sum(noticed) - survive
    rate = f"{sum(noticed) / (len(ends) - explained):.0%}" if len(ends) > explained else "–"
    return f"| `{room}` | {len(ends)} | {' | '.join(map(str, noticed))} | {explained} | {survive} | {rate} |"


def write_survivors(path: Path, found: Found) -> None:
    """In the form of ``survivors.toml``, without reasons."""
    lines: dict[str, list[str]] = {}
    for candidate, end in found.items():
        if end is None:
            mutant = candidate.mutant
            lines.setdefault(candidate.file, []).append(
                f'# line {mutant.line}\n{json.dumps(mutant.name, ensure_ascii=False)} = ""'
            )
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "\n".join(f'["{file}"]\n' + "\n".join(some) + "\n" for file, some in sorted(lines.items())), encoding="utf-8"
    )
