"""Where the package lies. Rule: no other module counts its own depth."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).absolute().parents[1]
"""The directory ``kafka_eos``."""
ROOT: Final = PACKAGE.resolve().parent
"""What a process has on its path in order to import the package."""
