"""A logical type of Avro for datetimes with their offset, or without a zone: text in ISO 8601.

Avro's own are numbers in UTC. They are right for topics and files, which other programs read. State and rows between
subtasks use this type, since the functions of a pipeline must receive what they returned.
"""

from __future__ import annotations

import datetime
from typing import Any, Final

import fastavro.read
import fastavro.write
from fastavro import _read_py as in_python

_NAME: Final = "zoned-datetime"
ZONED_DATETIME: Final[dict[str, Any]] = {"type": "bytes", "logicalType": _NAME}


def _write(value: Any, schema: Any) -> Any:
    return value.isoformat().encode()


def _read(data: bytes, writer: Any = None, reader: Any = None) -> datetime.datetime:
    return datetime.datetime.fromisoformat(data.decode())


fastavro.write.LOGICAL_WRITERS[f"bytes-{_NAME}"] = _write
for _readers in (fastavro.read.LOGICAL_READERS, vars(in_python)["LOGICAL_READERS"]):
    _readers[f"bytes-{_NAME}"] = _read
