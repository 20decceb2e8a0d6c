"""The location of the package. Rule: no other module computes it from its own path."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).absolute().parents[1]
"""The directory ``kafka_eos``."""
ROOT: Final = PACKAGE.resolve().parent
"""The entry of a process's import path with which it imports the package."""
