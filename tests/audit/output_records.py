"""An output record as a test writes it."""

from __future__ import annotations

import time
from dataclasses import dataclass

FED_AT = int(time.time()) * 1000
"""When every input was made, ms since the epoch. A whole second, so that windows begin where tests say; not long ago,
since retention goes by it."""


@dataclass(frozen=True)
class Out:
    """One output record to write. ``text`` is the provenance header; None writes none."""

    key: str | None
    value: bytes | None
    text: str | None
    partition: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int = FED_AT
    """Milliseconds since the Unix epoch, by default those of the input; 0 is now."""
