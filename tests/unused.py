"""A directory for state in memory, which needs none.

Rule: each process of the tests has one of its own, since who opens a state removes what is there.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

UNUSED: Final = Path(tempfile.gettempdir(), f"kafka-eos-unused-{os.getpid()}")
