"""The kinds of hostile inputs, by name."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from tests.bombs import Attempt, files, schemas, stored

KINDS: Mapping[str, Callable[[random.Random], Iterator[Attempt]]] = {
    "schemas of Avro": schemas.avro,
    "schemas of JSON": schemas.json_schemas,
    "schemas of Protobuf": schemas.protobuf,
    "files of Avro": partial(files.of_files, "avro", files.avro_file),
    "files of CSV": partial(files.of_files, "csv", files.csv_file),
    "files of JSON lines": partial(files.of_files, "jsonl", files.json_lines),
    "compressed files of JSON lines": partial(files.of_files, "jsonl.gz", files.packed_lines),
    "files of Parquet": partial(files.of_files, "parquet", files.parquet_file),
    "segments of logs": stored.segments,
    "packs of provenance": stored.provenance_packs,
    "blocks of provenance": stored.provenance_blocks,
}
