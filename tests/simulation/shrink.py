"""Make a failing scenario small: drop faults and turn off what is not needed, as long as it still fails.

Rule: every candidate is a complete scenario that is run from its beginning; the answer fails by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from kafka_eos.protocol.barrier_alignment import CheckpointMode
from tests.simulation.scenario import Scenario

RUNS = 200
"""At most so many tries: a scenario that fails by standing still is slow to run."""


def shrink(scenario: Scenario, fails: Callable[[Scenario], object]) -> Scenario:
    """The smallest scenario found that ``fails`` still calls true. Repeats until nothing more can be left out."""
    left = RUNS
    while True:
        for candidate in _smaller(scenario):
            if left == 0:
                return scenario
            left -= 1
            if fails(candidate):
                scenario = candidate
                break
        else:
            return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Every scenario that is one piece smaller, the largest pieces first."""
    if len(scenario.faults) > 1:
        yield replace(scenario, faults=())
    for n in range(len(scenario.faults)):
        yield replace(scenario, faults=scenario.faults[:n] + scenario.faults[n + 1 :])
    if scenario.endings:
        yield replace(scenario, endings=())
    if scenario.renamed:
        yield replace(scenario, renamed=False)
    if scenario.rows > 1:
        yield replace(scenario, rows=scenario.rows // 2)
        yield replace(scenario, rows=scenario.rows - 1)
    if scenario.loop:
        yield replace(scenario, loop=None)
    if scenario.shortcut:
        yield replace(scenario, shortcut=None)
    if scenario.exchanges > max(1, scenario.loop[0] if scenario.loop else 0, scenario.shortcut or 0):
        yield replace(scenario, exchanges=scenario.exchanges - 1)
    if len(set(scenario.parallelism)) > 1:
        yield from (replace(scenario, parallelism=(n,)) for n in sorted(set(scenario.parallelism)))
    if scenario.slow:
        yield replace(scenario, slow=0.0)
    if scenario.saves:
        yield replace(scenario, saves=0.0)
    if scenario.retained > 1:
        yield replace(scenario, retained=1)
    if scenario.mode is CheckpointMode.UNALIGNED:
        yield replace(scenario, mode=CheckpointMode.ALIGNED)
        if scenario.aligned_timeout:
            yield replace(scenario, aligned_timeout=0.0)
