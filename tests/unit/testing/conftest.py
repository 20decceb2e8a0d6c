"""Sink factories of these tests must be importable by name, from child processes too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
