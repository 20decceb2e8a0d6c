"""Keys and values that were written with a schema registry, as the text that users' expressions read.

The decoding runs inside Spark's Python workers, which ask the registry for each schema once. Rule: what cannot be
decoded is null, so that no record is compared by a part of its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.functions import arrow_udf

if TYPE_CHECKING:
    from pyspark.sql import Column


@dataclass(frozen=True)
class RegistryValues:
    """Converts bytes to text with the schemas of the registry at ``url``. ``config``: settings of its client."""

    url: str
    config: Mapping[str, str] = field(default_factory=dict, repr=False)

    def text(self, column: Column) -> Column:
        """Return the text of each value; see ``RegisteredTexts``."""

        def read_texts(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
            from kafka_eos.codecs import Registry
            from kafka_eos.codecs.registered_text import RegisteredTexts

            texts = RegisteredTexts(Registry(self.url, config=self.config))
            for values in batches:
                yield pa.array([None if data is None else texts.read(data) for data in values.to_pylist()], pa.string())

        make: Any = arrow_udf  # its stub knows no function with hints
        read: Column = make(read_texts, "string")(column)
        return read
