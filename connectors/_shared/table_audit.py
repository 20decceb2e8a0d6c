"""The audit interface of sinks without provenance: tables."""

from __future__ import annotations

from typing import Any

from kafka_eos.abc.auditable import AuditableTable
from kafka_eos.abc.codec import Codec
from kafka_eos.codecs import codec_for


class NoProvenance(AuditableTable):
    """An auditable table whose rows carry no provenance."""

    @property
    def audit_has_provenance(self) -> bool:
        """Return False: rows do not contain their origin."""
        return False

    @property
    def audit_codec(self) -> Codec[Any]:
        """Return the codec of audited rows."""
        return codec_for(Any)
