"""What the commands of this directory share: options, the facts of the machine, tables, and their place in the docs.

    python -m benchmarks.NAME --quick         a small size: does it work, roughly?
    python -m benchmarks.NAME --write-docs    the full size, into the docs, with its figures and picture

Rule: what is measured is a list of flat rows; tables and pictures are made from the rows alone, so that they can be
made again from the stored figures.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks import plots
from benchmarks.jobs import Unusable
from benchmarks.plots import PICTURES, Row
from benchmarks.trial import WrongOutput

PAGE = "benchmarks.md"
Tables: TypeAlias = Callable[[Sequence[Row]], str]
Measure: TypeAlias = Callable[[argparse.Namespace, Path], list[Row]]


@dataclass(frozen=True)
class Benchmark:
    """``sizes`` are defaults of options: name, full, quick. ``measure`` gets them and a directory of its own."""

    name: str
    about: str
    measure: Measure
    tables: Tables
    sizes: tuple[tuple[str, float | str, float | str], ...] = ()
    flags: tuple[tuple[str, str], ...] = ()
    """Switches of its own: name and what it does."""
    page: str = PAGE
    """Of the docs, that has its marks."""

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Prints Markdown; progress goes to stderr. Exit code 0."""
        given = sys.argv[1:] if arguments is None else list(arguments)
        options = self._options(given)
        facts = machine(" ".join([f"python -m benchmarks.{self.name}", *(a for a in given if a != "--write-docs")]))
        with tempfile.TemporaryDirectory(prefix="kafka-eos-bench-", dir=options.directory) as home:
            rows = self.measure(options, Path(home))
        text = f"{facts}\n\n{self.tables(rows)}"
        print(text)
        if options.out:
            options.out.write_text(document(facts, rows))
        if options.write_docs:
            pictures = options.write_docs / PICTURES.name
            pictures.mkdir(parents=True, exist_ok=True)
            (pictures / f"{self.name}.json").write_text(document(facts, rows))
            if self.name in plots.NAMES:
                plots.draw(self.name, rows, pictures)
                text += f"\n\n![{self.about}]({PICTURES.name}/{self.name}.png)"
            write_page(self.name, text, options.write_docs / self.page)
        return 0

    def _options(self, given: Sequence[str]) -> argparse.Namespace:
        parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{self.name}", description=self.about)
        parser.add_argument("--quick", action="store_true", help="small sizes: to see that it works")
        parser.add_argument("--out", type=Path, help="write everything measured to this JSON file")
        docs = PICTURES.parent
        parser.add_argument(
            "--write-docs", type=Path, nargs="?", const=docs, metavar="DIR", help="write to the docs; default: docs/"
        )
        parser.add_argument("--directory", type=Path, help="where jobs keep their state; default: the system's")
        for name, full, quick in self.sizes:
            parser.add_argument(f"--{name}", type=type(full), help=f"default: {full}, with --quick {quick}")
        for name, does in self.flags:
            parser.add_argument(f"--{name}", action="store_true", help=does)
        options = parser.parse_args(given)
        for name, full, quick in self.sizes:
            if getattr(options, name.replace("-", "_")) is None:
                setattr(options, name.replace("-", "_"), quick if options.quick else full)
        return options


def machine(command: str) -> str:
    """Return two lines for docs/benchmarks.md: the command and the date, the machine and its load at the start."""
    today = datetime.date.today()
    date = f"{today.day} {today:%B %Y}"
    return (
        f"`{command}`, {date}:\n{os.cpu_count()} processors, Python {platform.python_version()}, {platform.system()}, "
        f"load {os.getloadavg()[0]:.1f} at the start:"
    )


def table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    rows = [f"| {' | '.join(cells)} |" for cells in (headings, *lines)]
    return "\n".join([rows[0], "|---" * len(headings) + "|", *rows[1:]])


def shown(value: float | None, digits: int = 0, factor: float = 1.0) -> str:
    """A number for a cell; a dash for none."""
    return "–" if value is None else f"{value * factor:,.{digits}f}"


def attempts(points: Iterable[Callable[[], Row]]) -> list[Row]:
    """Measure one point after the other. One that cannot be measured is told, and has no row."""
    rows = []
    for point in points:
        try:
            rows.append(point())
        except (Unusable, WrongOutput) as error:
            print(f"no figure: {error}", file=sys.stderr)
    return rows


def middle(rows: Iterable[Row], of: str) -> float | None:
    """The median of a column over the rows that have it."""
    found = [row[of] for row in rows if row.get(of) is not None]
    return statistics.median(found) if found else None


def where(rows: Iterable[Row], **wanted: object) -> list[Row]:
    """The rows whose columns have these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in wanted.items())]


def tell(text: str) -> None:
    """Progress, with the load at that moment."""
    print(f"{text}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)


def document(facts: str, rows: Sequence[Row]) -> str:
    content: dict[str, Any] = {"facts": facts, "rows": list(rows)}
    return json.dumps(content, indent=1) + "\n"


def write_page(name: str, text: str, page: Path) -> None:
    """Put ``text`` between the marks of a benchmark. ValueError if the page has lost them."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{page.name} has lost the marks {begin.strip()} and {end.strip()}")
    page.write_text(f"{before}{begin}{text}\n{end}{after}", encoding="utf-8")
