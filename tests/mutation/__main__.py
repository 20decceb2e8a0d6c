"""Make small mistakes in the library, and see whether a test notices: ``make mutants AREA=protocol``.

    AREA=protocol             every mistake in a decision, in each file of a room
    SAMPLE=300 SEED=1         so many of the mistakes that lose something, of all rooms, or of AREA or FILE

What was found is kept in ``.mutants`` as long as neither the file nor its tests change, so a run that was stopped goes
on. Exit code 1 if a mutant survives that ``survivors.toml`` does not explain, 2 if a test fails without one: its file
is left out, so the rates are at least those that are shown.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque

from tests.mutation.clean import CleanRuns
from tests.mutation.nearest import Stage, mutated, nearest
from tests.mutation.reporting import Found, rates, write_survivors
from tests.mutation.results import DIRECTORY, Results, is_of
from tests.mutation.running import Runs, Trial
from tests.mutation.sampling import Candidate, all_decisions, sample
from tests.mutation.services import services
from tests.mutation.signatures import ROOT, of_library
from tests.mutation.survivors import argued


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--area", action="append", help="a room, as coordinator or kafka/rpc (default: all)")
    parser.add_argument("--file", action="append", help="only files whose path ends so; may be repeated")
    parser.add_argument("--sample", type=int, help="so many mistakes that lose something")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2, help="how many mutants at the same time")
    options = parser.parse_args()
    chosen = {
        file: room
        for file, room in mutated().items()
        if not options.area or f"/{room}".endswith(tuple(f"/{area}" for area in options.area))
        if not options.file or file.endswith(tuple(options.file))
    }
    if not chosen:
        parser.error("no file of the table is meant: see tests/mutation/nearest.py")
    number, seed = options.sample, options.seed
    candidates = sample(chosen, number, seed, of_library()) if number else all_decisions(chosen)
    with services() as place:
        run = _Run(candidates, place, options.processes)
        found = run.found()
    survivors = [candidate for candidate, end in found.items() if end is None]
    path = ROOT / DIRECTORY / "survivors.toml"
    write_survivors(path, found)
    print("", *rates(found), "", *survivors, sep="\n")
    print(f"\n{len(survivors)} mutants survive: {path.relative_to(ROOT)}" if survivors else "\nno mutant survives")
    if run.failing:
        print("\ntests fail without a mutant:", *run.failing, sep="\n")
        return 2
    return 1 if survivors else 0


class _Run:
    """The mutants of a run, through one stage after the other."""

    def __init__(self, candidates: list[Candidate], place: str, at_once: int) -> None:
        self._candidates, self._place, self._at_once = candidates, place, at_once
        self._clean = CleanRuns(place)
        self._explained = {file: argued(file) for file in {candidate.file for candidate in candidates}}
        self.failing: list[str] = []
        """Tests that fail without a mutant."""

    def found(self) -> Found:
        """What became of each."""
        found: dict[Candidate, Stage | str | None] = {}
        for each in self._candidates:
            found[each] = self._explained[each.file].get(each.mutant.name)
        for stage in Stage:
            left = [candidate for candidate, end in found.items() if end is None]
            found.update(dict.fromkeys(self._noticed(stage, left), stage))
        return found

    def _noticed(self, stage: Stage, candidates: list[Candidate]) -> list[Candidate]:
        tests = {file: nearest(file, stage) for file in {candidate.file for candidate in candidates}}
        results = {file: Results.of(ROOT, file, stage.value, some) for file, some in tests.items() if some}
        asked = [each for each in candidates if each.file in results]
        unknown = [each for each in asked if each.mutant.name not in results[each.file].known]
        print(f"\n{stage.value} tests: {len(asked)} mutants, {len(asked) - len(unknown)} known", flush=True)
        self.failing += self._clean.add((test for each in unknown for test in tests[each.file]), self._at_once)
        self._ask(stage, unknown, tests, results)
        return [each for each in asked if results[each.file].known.get(each.mutant.name)]

    def _ask(
        self, stage: Stage, candidates: list[Candidate], tests: dict[str, list[str]], results: dict[str, Results]
    ) -> None:
        waiting, done = deque(candidates), 0
        with Runs(self._at_once) as runs:
            while waiting or not runs.idle:
                while waiting and not runs.full:
                    candidate = waiting.popleft()
                    runs.start(candidate, self._trial(stage, candidate, tests[candidate.file]))
                for candidate, result in runs.ended():
                    done += 1
                    if result.failed or self._clean.passed(tests[candidate.file]):
                        results[candidate.file].add(candidate.mutant.name, result.failed)
                    verdict = f"{result.seconds:6.1f} s  {'noticed ' if result.failed else 'SURVIVES'}"
                    print(f"{done:>5}/{len(candidates)} {verdict}  {str(candidate)[:200]}", flush=True)

    def _trial(self, stage: Stage, candidate: Candidate, tests: list[str]) -> Trial:
        call = f"{candidate.file}:{candidate.mutant.function}"
        seen = {
            name: each
            for name, each in self._clean.of(tests).items()
            if (call in each.calls if stage is Stage.CALLERS else each.reaches(candidate.file))
        }
        return Trial(
            tests=[test for test in tests if any(is_of(name, test) for name in seen)],
            seconds=30 + 4 * sum(each.seconds for each in seen.values()),
            file=candidate.file,
            tree=candidate.mutant.tree,
            function=candidate.mutant.function,
            seen=seen,
            services=self._place,
        )


if __name__ == "__main__":
    sys.exit(main())
