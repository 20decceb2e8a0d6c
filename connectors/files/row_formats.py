"""The rows of a file, one after the other, from any row on: as JSON lines, Avro or Parquet.

Rule: the same rows in the same order whenever a file is read. What a row holds is decoded by itself, so that one that
cannot be is named; a file that cannot be read any further is Fatal, because nobody knows what else was in it.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import fastavro
import msgspec

from kafka_eos.connectors.files.formats.avro import said
from kafka_eos.errors import ConfigError
from kafka_eos.extras import expect_extra
from kafka_eos.schemas import codec_for
from kafka_eos.schemas.types import from_plain, is_codec, is_model, reason, type_name

_BATCH: Final = 4096


@dataclass(frozen=True, slots=True)
class Reading:
    """How files of one format are read.

    ``names``   what their names match, unless the user says
    ``rows``    of a file from a row on, the first is 0; they may raise anything if the file is damaged
    ``decode``  a row to a value; ValueError if it does not fit
    ``told``    a row as bytes, for dead letters
    """

    name: str
    names: tuple[str, ...]
    rows: Callable[[Path, int], Iterator[Any]]
    decode: Callable[[Any], Any]
    told: Callable[[Any], bytes]


def reading(name: str, tp: Any) -> Reading:
    """ConfigError if there is no such format, or it cannot give values of the type. PlanError as codecs."""
    match name:
        case "jsonl":
            codec = codec_for(Any if tp is None else tp)
            return Reading(name, ("*.jsonl", "*.jsonl.gz"), _lines, codec.decode, bytes)
        case "avro":
            return Reading(name, ("*.avro",), _avro, _converter(name, tp), said)
        case "parquet":
            expect_extra("parquet", "FileSource with format=parquet")
            return Reading(name, ("*.parquet",), _parquet, _converter(name, tp), said)
    raise ConfigError(f"format={name!r}: FileSource reads jsonl, avro and parquet")


def _converter(name: str, tp: Any) -> Callable[[Any], Any]:
    """What makes values of dicts whose parts have the types of Python already."""
    if tp is None:
        return lambda row: row
    if is_codec(tp):
        raise ConfigError(f"FileSource with format={name}: value= is a type, whose fields are the columns; no codec")
    validate = tp.__pydantic_validator__.validate_python if is_model(tp) else None

    def decode(row: Any) -> Any:
        try:
            return msgspec.convert(row, tp, dec_hook=from_plain) if validate is None else validate(row)
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"not a valid {type_name(tp)}: {reason(error)}") from error

    return decode


def _lines(path: Path, first: int) -> Iterator[bytes]:
    """Lines that are not blank, as they are but for the newline."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        yield from islice((line.rstrip(b"\r\n") for line in file if not line.isspace()), first, None)


def _avro(path: Path, first: int) -> Iterator[Any]:
    with open(path, "rb") as file:
        yield from islice(fastavro.reader(file), first, None)


def _parquet(path: Path, first: int) -> Iterator[Any]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            rows = file.metadata.row_group(number).num_rows
            if first >= rows:
                first -= rows
                continue
            for batch in file.iter_batches(_BATCH, row_groups=[number]):
                yield from islice(batch.to_pylist(maps_as_pydicts="strict"), first, None)
                first = max(0, first - batch.num_rows)
