"""An output record as a test writes it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from kafka_eos.core.provenance import HEADER

FED_AT = int(time.time()) * 1000
"""When every input was made, ms since the epoch. A whole second, so that windows begin where tests say; not long ago,
since retention goes by it."""
OWN = "job"
"""In a provenance, the job that a test audits. Its name takes the place when the output is written."""


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

    def said(self, job: str) -> str | None:
        """``text`` as ``job`` writes it."""
        return None if self.text is None else _named(self.text.encode(), job).decode()

    def headers_of(self, job: str) -> list[tuple[str, bytes | None]]:
        """All headers, as ``job`` writes them."""
        text = self.said(job)
        given = [(name, _named(value, job) if name == HEADER and value else value) for name, value in self.headers]
        return [*given, *([] if text is None else [(HEADER, text.encode())])]


def _named(text: bytes, job: str) -> bytes:
    own, dot, rest = text.partition(b".")
    return job.encode() + dot + rest if own == OWN.encode() else text
