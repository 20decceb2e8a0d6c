"""What a FileSink can write: JSON lines, CSV, Avro and Parquet.

Rule: what a library cannot write is found when the row is written, and one bad row leaves its neighbours alone.
"""

from __future__ import annotations

from kafka_eos.connectors.files.formats.avro_format import Avro
from kafka_eos.connectors.files.formats.csv_format import Csv
from kafka_eos.connectors.files.formats.format import Format, Layout
from kafka_eos.connectors.files.formats.json_lines import JsonLines
from kafka_eos.connectors.files.formats.parquet_format import Parquet
from kafka_eos.core.errors import ConfigError

__all__ = ["Avro", "Csv", "Format", "JsonLines", "Layout", "Parquet", "format_of"]

_NAMED = {"jsonl": JsonLines, "csv": Csv, "avro": Avro, "parquet": Parquet}


def format_of(given: str | Format) -> Format:
    """A format by its name, as it is without options, or the given one."""
    if not isinstance(given, str):
        return given
    if given not in _NAMED:
        raise ConfigError(f"format={given!r}: FileSink writes {', '.join(_NAMED)}")
    made: Format = _NAMED[given]()
    return made
