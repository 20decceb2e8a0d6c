"""Mutants that are no mistakes, and why: ``survivors.toml``.

Rule: an entry says why nobody could tell the mutant from the file, or why it does not matter. That a test would be long
is no reason.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

LIST = Path(__file__).with_name("survivors.toml")


def argued(file: str) -> Mapping[str, str]:
    """The reasons of a file, by the name of the mutant."""
    return tomllib.loads(LIST.read_text(encoding="utf-8")).get(file, {})
