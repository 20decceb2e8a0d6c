"""Files in a directory or bucket: ``FileSink`` writes JSON lines, CSV, Avro or Parquet, and ``FileSource`` reads them.

Rule: only ``file_names`` builds and parses file names, only ``sink.commit_status`` derives the meaning of the names in
a directory, and only ``disk`` calls the operating system for a commit.
"""

from __future__ import annotations

from kafka_eos.connectors.files.formats import Avro, Csv, JsonLines, Parquet
from kafka_eos.connectors.files.sink.committer import FileCommitter
from kafka_eos.connectors.files.sink.file_sink import FileSink
from kafka_eos.connectors.files.sink.open_files import Roll
from kafka_eos.connectors.files.sink.writer import FileWriter
from kafka_eos.connectors.files.source.file_source import FileSource

__all__ = ["FileSink", "FileSource", "Roll", "JsonLines", "Csv", "Avro", "Parquet", "FileCommitter", "FileWriter"]
