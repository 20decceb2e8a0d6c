"""Plant every small mistake into a file and see whether a test of its area notices: ``make mutants AREA=protocol``.

What was found is kept in ``.mutants`` as long as neither the file nor its tests change, so a run that was stopped goes
on. Exit code 1 if a mutant survives that ``survivors.toml`` does not argue away, 2 if a file's tests fail without one.
"""

from __future__ import annotations

import argparse
import ast
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutation.areas import AREAS
from tests.mutation.operators import Mutant, mutants
from tests.mutation.results import Results
from tests.mutation.running import passes
from tests.mutation.survivors import argued

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--area", choices=list(AREAS), action="append", help="which (default: all)")
    parser.add_argument("--file", action="append", help="only files whose path ends so; may be repeated")
    options = parser.parse_args()
    chosen = {
        file: tests
        for area in options.area or AREAS
        for file, tests in AREAS[area].items()
        if not options.file or file.endswith(tuple(options.file))
    }
    if not chosen:
        parser.error("no file of the table is meant: see tests/mutation/areas.py")
    left: list[str] = []
    for file, tests in chosen.items():
        found = survivors(file, tests)
        if found is None:
            return 2
        left += [f"{file}:{mutant.line}: {mutant.name}" for mutant in found]
    print(f"\n{len(left)} mutants survive" if left else "\nno mutant survives", *left, sep="\n")
    return 1 if left else 0


def survivors(file: str, tests: Sequence[str]) -> list[Mutant] | None:
    """Mutants that no test notices and nobody has argued away; None if the tests fail by themselves."""
    source, harmless = (ROOT / file).read_text(encoding="utf-8"), argued(file)
    all_ = [mutant for mutant in mutants(source) if mutant.name not in harmless]
    results = Results.of(ROOT, file, tests)
    print(f"\n{file}: {len(all_)} mutants, {len(harmless)} argued away, {len(results.known)} known", flush=True)
    if any(mutant.name not in results.known for mutant in all_):
        begun = time.monotonic()
        if not passes(file, ast.parse(source), tests, None):
            print(f"the tests of {file} fail without a mutant: {' '.join(tests)}")
            return None
        patience = 20 + 5 * (time.monotonic() - begun)
        for number, mutant in enumerate(all_, 1):
            if mutant.name not in results.known:
                results.add(mutant.name, passes(file, mutant.tree, tests, patience))
                verdict = "SURVIVES" if results.known[mutant.name] else "noticed "
                print(f"{number:>5}/{len(all_)}  {verdict}  {mutant.name[:200]}", flush=True)
    return [mutant for mutant in all_ if results.known[mutant.name]]


if __name__ == "__main__":
    sys.exit(main())
