"""The columns that a query writes to Kafka: those of Spark's own Kafka sink, checked before the query starts.

    key        string or binary       optional
    value      string or binary       required; null is a tombstone
    topic      string                 required unless the sink has a topic, which then counts
    partition  int                    optional; null leaves the choice to the partitioner
    headers    array<struct<key: string, value: binary>>    optional
    timestamp  timestamp              optional; null means now

Rule: other columns are ignored, as Spark does; a column of a wrong type is refused with the cast that helps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kafka_eos.core.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_BYTES: Final = ("string", "binary")
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "timestamp": ("timestamp",),
}


def project_columns(df: DataFrame, topic: str | None) -> DataFrame:
    """Select the Kafka columns of a query and a hash of each row. ConfigError if it cannot be."""
    from pyspark.sql import functions as F

    columns = {name: df[name] for name in choose_columns(df.schema, topic)}
    columns["value"] = columns["value"].cast("binary")
    columns["key"] = columns["key"].cast("binary") if "key" in columns else F.lit(None).cast("binary")
    if "timestamp" in columns:
        columns["timestamp"] = F.unix_millis(columns["timestamp"])
    # A null leaves the hash as it is: without its mark, (null, x) and (x, null) would be the same row.
    marked = [part for column in columns.values() for part in (F.isnull(column), column)]
    return df.select(*(column.alias(name) for name, column in columns.items()), F.xxhash64(*marked).alias("digest"))


def choose_columns(schema: StructType, topic: str | None) -> list[str]:
    """Return the Kafka columns of a query; the column topic only if the sink has no topic. ConfigError if one is
    missing or has a wrong type.
    """
    if "value" not in schema.names:
        raise ConfigError(
            f"the query has no column 'value' (it has: {', '.join(schema.names)}). Kafka records are built from the "
            "columns key, value, topic, partition, headers and timestamp; for example: "
            "df.select(F.to_json(F.struct('*')).alias('value'))."
        )
    if topic is None and "topic" not in schema.names:
        raise ConfigError("no topic: pass topic=…, or give the query a column 'topic'.")
    chosen = [name for name in _TYPES if name in schema.names and (name != "topic" or topic is None)]
    for name in chosen:
        found = schema[name].dataType.simpleString()
        if found not in _TYPES[name]:
            raise ConfigError(
                f"the column {name!r} is {found} but must be {' or '.join(_TYPES[name])}: cast it, or convert it to "
                "text with F.to_json."
            )
    return chosen
