"""Resolution of a stored schema to the declared type: the only place for it.

Codecs decide about compatibility: Avro by its rules, MessagePack and JSON by the names of fields. Rule: a codec that
contains another one calls this module for it, so that an inner codec without resolution is refused too.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json


@runtime_checkable
class ResolvingCodec(Protocol):
    """A codec that can read what an older schema wrote."""

    def reader_of(self, schema: Json) -> Any:
        """Return a codec that decodes data of ``schema`` into today's values.

        Raises UserError if they are incompatible.
        """


def reader_of(codec: Any, schema: Json) -> Any:
    """Return the variant of ``codec`` that reads data of ``schema``. UserError with the reason if there is none."""
    if not isinstance(codec, ResolvingCodec):
        raise ConfigError(f"codec {codec.name!r} cannot read what another schema wrote: it has no reader_of")
    return codec.reader_of(schema)
