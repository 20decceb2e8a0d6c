"""The formats of a FileSink: JSON lines, CSV, Avro and Parquet.

Rule: a value that a library cannot write is found when its row is written, and one bad row does not affect its
neighbors.
"""

from __future__ import annotations

from kafka_eos.connectors.files.formats.avro_format import Avro
from kafka_eos.connectors.files.formats.csv_format import Csv
from kafka_eos.connectors.files.formats.format import FileLayout, Format
from kafka_eos.connectors.files.formats.json_lines import JsonLines
from kafka_eos.connectors.files.formats.parquet_format import Parquet
from kafka_eos.core.errors import ConfigError

__all__ = ["Avro", "Csv", "Format", "JsonLines", "FileLayout", "Parquet", "format_of"]

_NAMED = {"jsonl": JsonLines, "csv": Csv, "avro": Avro, "parquet": Parquet}


def format_of(given: str | Format) -> Format:
    """Return a format by its name, with default options, or the given format."""
    if not isinstance(given, str):
        return given
    if given not in _NAMED:
        raise ConfigError(f"format={given!r}: FileSink writes {', '.join(_NAMED)}")
    made: Format = _NAMED[given]()
    return made
