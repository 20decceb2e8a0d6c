"""Lines of files as the audit reads them: what a sink writes is whole, and anything behind it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kafka_eos.audit.facts.audit_subject import Directory
from kafka_eos.audit.tables import topic_tables as reads
from kafka_eos.connectors.files.file_names import files_of

NAME = "part-000000000007-0003-job.out.jsonl"
TEXT = "job.1.7/in/words/0/5/0.0"


def line(spark: Any, directory: Path, data: bytes) -> Any:
    """The only line of a file."""
    (directory / NAME).write_bytes(data)
    sink = Directory("out", str(directory), files_of(["job"], "out"))
    (table,) = reads.lines(spark, [(sink, [NAME])])
    (row,) = table.collect()
    return row


@pytest.mark.parametrize("text", ["word", "a\u2028b", "\u0085", "line\u2029", '"}'])
def test_a_value_may_hold_what_others_take_for_a_line_end(spark: Any, tmp_path: Path, text: str) -> None:
    value = '"' + text.replace('"', '\\"') + '"'
    row = line(spark, tmp_path, f'{{"provenance":"{TEXT}","value":{value}}}\n'.encode())

    assert (False, TEXT, value) == (row.torn, row.text, bytes(row.value).decode())
    assert ("out", 3, 7, 0) == (row.sink, row.partition, row.file_epoch, row.offset)


@pytest.mark.parametrize("behind", ["\r", "\u2028", " ", "x"])
def test_a_line_with_anything_behind_it_is_torn(spark: Any, tmp_path: Path, behind: str) -> None:
    row = line(spark, tmp_path, f'{{"provenance":"{TEXT}","value":1}}{behind}\n'.encode())

    assert row.torn
