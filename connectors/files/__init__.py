"""Files in a directory: ``FileSink``.

Rule: ``names`` is the only module that forms or takes apart a file's name, ``standings`` the only one that decides
what the names in a directory mean, ``disk`` the only one that calls the operating system on behalf of a commit.
"""

from __future__ import annotations

from kafka_eos.connectors.files.committer import FileCommitter
from kafka_eos.connectors.files.sink import FileSink, FileWriter

__all__ = ["FileCommitter", "FileSink", "FileWriter"]
