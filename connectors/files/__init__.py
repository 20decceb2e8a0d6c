"""Files in a directory: ``FileSink``, as JSON lines, CSV, Avro or Parquet, and ``FileSource``, which reads them.

Rule: ``names`` is the only module that forms or takes apart a file's name, ``standings`` the only one that decides
what the names in a directory mean, ``disk`` the only one that calls the operating system on behalf of a commit.
"""

from __future__ import annotations

from kafka_eos.connectors.files.formats import Avro, Csv, JsonLines, Parquet
from kafka_eos.connectors.files.sink.committer import FileCommitter
from kafka_eos.connectors.files.sink.file_sink import FileSink
from kafka_eos.connectors.files.sink.open_files import Roll
from kafka_eos.connectors.files.sink.writer import FileWriter
from kafka_eos.connectors.files.source.file_source import FileSource

__all__ = ["FileSink", "FileSource", "Roll", "JsonLines", "Csv", "Avro", "Parquet", "FileCommitter", "FileWriter"]
