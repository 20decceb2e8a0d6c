"""What the audit is told by sinks whose rows do not say where they come from: tables."""

from __future__ import annotations

from typing import Any

from kafka_eos.abc.codec import Codec
from kafka_eos.codecs import codec_for


class Unmarked:
    """A part of such a sink; see ``abc.AuditableTable``."""

    @property
    def audit_marked(self) -> bool:
        """For the audit: rows do not say where they come from."""
        return False

    @property
    def audit_codec(self) -> Codec[Any]:
        """For the audit: what tells rows."""
        return codec_for(Any)

    def audit_unfit(self) -> str | None:
        """For the audit: why rows cannot be compared; None, for they can."""
        return None
