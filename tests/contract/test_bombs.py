"""Hostile inputs by construction (``tests/bombs``): a value or an error, in bounded memory and time, for each kind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bombs.kinds import KINDS
from tests.examples import other_seeds

ROOT = Path(__file__).parents[2]


def attacked(count: int, seed: int, *kinds: str) -> list[dict[str, Any]]:
    """The outcome of each kind, in a process of its own: an input that kills it fails this test by its number."""
    command = [sys.executable, "-m", "tests.bombs", str(count), str(seed), *kinds]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert not done.returncode, (seed, done.returncode, done.stderr[-2000:])
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_some_hostile_inputs_of_each_kind_are_read_or_refused() -> None:
    (seed,) = other_seeds(1)

    outcomes = attacked(30, seed)

    assert [each["kind"] for each in outcomes] == [*KINDS]
    assert all(each["read"] + each["refused"] == 30 for each in outcomes)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_hostile_inputs_are_read_or_refused(kind: str) -> None:
    (seed,) = other_seeds(1)

    (outcome,) = attacked(10_000, seed, kind)

    print(outcome)
    assert outcome["read"] > 0
    assert outcome["refused"] > 0
