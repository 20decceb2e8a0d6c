"""Conversion of values in binary formats to text, so that ``sums`` can compare the floats of values added up from
parts.

The decoding runs inside Spark's Python workers, with the codec of the sink in the user's file. Rule: a value stays
unchanged if the codec cannot decode it, or would encode it differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from kafka_eos import plan as plans
from kafka_eos.abc.auditable import AuditableSink
from kafka_eos.abc.codec import Codec
from kafka_eos.audit.tables.plan_cut import Cut
from kafka_eos.audit.tables.python_tasks import cut_of
from kafka_eos.codecs import BytesCodec, JsonCodec, StrCodec
from kafka_eos.codecs.type_inspection import to_plain

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class ReadableValues:
    """Converts the values of ``sinks`` to text; those of all others stay as they are.

    ``rounded``: sinks whose floats are compared separately, see ``sums``. ``sinks`` are those of them that do not write
    text.
    """

    app: str
    workers: int
    rounded: frozenset[str]
    sinks: frozenset[str]

    @classmethod
    def of(cls, app: str, parts: Cut, rounded: frozenset[str]) -> ReadableValues:
        """Create it for the sinks of a plan."""
        sinks = frozenset(sink for sink in rounded if not _is_text(_codec(parts, sink)))
        return cls(app, parts.parallelism, rounded, sinks)

    def text(self, sink: Column, value: Column) -> Column:
        """Return the text of each value, or the value itself."""
        if not self.sinks:
            return value

        def read_texts(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
            parts = cut_of(self.app, self.workers)
            texts = {name: _texts(_codec(parts, name)) for name in self.sinks}
            for sinks, values in batches:
                rows = zip(sinks.to_pylist(), values.to_pylist(), strict=True)
                yield pa.array([None if data is None else texts[name](data) for name, data in rows], pa.string())

        make: Any = arrow_udf  # its stub knows no function with hints
        texts: Column = make(read_texts, "string")(sink, F.when(sink.isin([*self.sinks]), value))
        return F.coalesce(texts.cast("binary"), value)


def _codec(parts: Cut, sink: str) -> Codec[Any] | None:
    node = parts.plan.node(sink)
    assert isinstance(node, plans.SinkNode)
    return node.sink.audit_codec if isinstance(node.sink, AuditableSink) else None


def _is_text(codec: Codec[Any] | None) -> bool:
    """Return whether values are text, or bytes of unknown content."""
    return codec is None or isinstance(codec, JsonCodec | StrCodec | BytesCodec)


def _texts(codec: Codec[Any] | None) -> Callable[[bytes], str | None]:
    return lambda data: None if codec is None else text_of(codec, data)


def text_of(codec: Codec[Any], data: bytes) -> str | None:
    """Return a value as text, floats separately; None if the text does not represent the whole value."""
    try:
        value = codec.decode(data)
        plain = msgspec.to_builtins(value, enc_hook=to_plain)
        is_all = not isinstance(plain, str) and codec.encode(value) == data
    except (ValueError, TypeError, NotImplementedError):
        return None  # another program wrote it, or the codec is a one-way one
    return repr(plain) if is_all else None
