"""What an older program wrote, read as today's type: the one way from a stored schema to the declared one.

Codecs decide what is compatible: Avro by its rules, MessagePack and JSON by the names of fields. Rule: a codec that
contains another one asks it through here, so that one that cannot resolve is refused wherever it is.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json


@runtime_checkable
class ResolvingCodec(Protocol):
    """A codec that can read what an older schema wrote."""

    def reader_of(self, schema: Json) -> Any:
        """A codec that decodes what ``schema`` wrote into today's values. UserError if they are incompatible."""


def reader_of(codec: Any, schema: Json) -> Any:
    """The codec like ``codec`` that reads what ``schema`` wrote. UserError with the reason if there is none."""
    if not isinstance(codec, ResolvingCodec):
        raise ConfigError(f"codec {codec.name!r} cannot read what another schema wrote: it has no reader_of")
    return codec.reader_of(schema)
