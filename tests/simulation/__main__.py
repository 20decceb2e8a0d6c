"""Run many seeds of the simulation and say what they have been through: ``make simulation SEEDS=10000``.

Stops at the first seed that fails: prints it, what is wrong, and the smallest scenario that is wrong as well.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.simulation.scenario import Scenario, generate
from tests.simulation.shrink import shrink
from tests.simulation.world import FAILURES, World, run


def explain(scenario: Scenario, error: Exception) -> str:
    """A report on a failing scenario, shrunk."""
    small = shrink(scenario, run)
    return (
        f"seed {scenario.seed}: {type(error).__name__}: {error}\n{scenario}\nsmallest that fails: {run(small)}\n{small}"
    )


def main() -> int:
    """Returns the exit code: 1 if a seed fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: %(default)s)")
    options = parser.parse_args()
    seen: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.seeds):
        world = World(generate(seed))
        try:
            world.run()
        except FAILURES as error:
            print(explain(world.scenario, error))
            return 1
        seen.update(world.job.seen)
        seen["steps"] += world.steps
        seen["a person needed"] += world.stopped
        if (seed + 1) % 1000 == 0:
            print(f"{seed + 1 - options.first} seeds", flush=True)
    for what, times in sorted(seen.items()):
        print(f"{times:>10}  {what}")
    print(f"{options.seeds} seeds, no invariant broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
