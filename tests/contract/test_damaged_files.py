"""A file that contradicts itself, or that is encrypted, stops the job with its name, and gives neither fewer rows nor
other values."""

from __future__ import annotations

import base64
import bz2
import datetime
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyarrow.parquet import encryption

from kafka_eos.connectors._shared.parquet_files import read_footer
from kafka_eos.connectors.files import FileSource
from kafka_eos.core.errors import ConfigError
from tests.contract.test_file_source import opened, read
from tests.contract.test_hostile_files import TEXTS, block, header, in_snappy, sized

NUMBERS = pa.table({"a": pa.array([1, 2, 3, 4, 5], pa.int64())})
FIVE, TWO = b"\x15\x0a", b"\x15\x04"
"""A 32-bit number of Thrift with its field, one behind the last."""
FIVE_ROWS, TWO_ROWS = b"\x16\x0a", b"\x16\x04"
"""The same with 64 bits."""


def plain(path: Path, table: pa.Table = NUMBERS, **options: Any) -> bytearray:
    """The bytes of a file with one page per column, as it is in memory."""
    pyarrow.parquet.write_table(table, path, use_dictionary=False, compression="none", **options)
    return bytearray(path.read_bytes())


def refused(path: Path, why: str, **options: Any) -> None:
    reader = opened(FileSource(path.parent, format=path.suffix[1:], **options))
    with pytest.raises(ConfigError, match=rf"{path.name} cannot be read after row 0: .*{why}.*Nothing was skipped"):
        read(reader)
    assert reader.list_splits_at_end() == []


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_page_of_parquet_with_fewer_values_than_the_footer_states_is_damaged(version: str, tmp_path: Path) -> None:
    data = plain(tmp_path / "a.parquet", data_page_version=version)
    at = data.index(FIVE)
    data[at : at + 2] = TWO
    (tmp_path / "a.parquet").write_bytes(data)

    refused(tmp_path / "a.parquet", "footer states 5 values of column a, and its pages 2")


def test_a_page_of_lists_with_fewer_rows_than_the_footer_states_is_damaged(tmp_path: Path) -> None:
    """The number of values says nothing about the number of lists."""
    data = plain(tmp_path / "a.parquet", pa.table({"a": [[1, 2], [3], [4], [5, 6]]}))
    packed = _bits(bytes([0, 1, 0, 0, 0, 1]))
    at = data.index(packed)
    data[at : at + len(packed)] = _bits(bytes([0, 1, 1, 1, 0, 1]))
    (tmp_path / "a.parquet").write_bytes(data)

    reader = opened(FileSource(tmp_path, format="parquet"))
    with pytest.raises(ConfigError, match=r"a\.parquet cannot be read after row \d: .*footer states 4 rows.*contain 2"):
        read(reader)
    assert reader.list_splits_at_end() == []


def _bits(levels: bytes) -> bytes:
    """A run of up to eight levels of one bit, packed."""
    return bytes([3, sum(level << at for at, level in enumerate(levels))])


def test_a_footer_of_parquet_with_fewer_rows_than_its_row_groups_is_damaged(tmp_path: Path) -> None:
    data = plain(tmp_path / "a.parquet")
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    at = data.index(FIVE_ROWS, footer)  # of the file; those of its row group follow
    data[at : at + 2] = TWO_ROWS
    (tmp_path / "a.parquet").write_bytes(data)

    refused(tmp_path / "a.parquet", "footer states 2 rows, but its row groups contain 5")


def test_columns_of_parquet_with_more_values_than_their_row_group_has_rows_are_damaged(tmp_path: Path) -> None:
    """Otherwise its last rows would be left out."""
    data = plain(tmp_path / "a.parquet")
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for at in (data.index(FIVE_ROWS, footer), data.rindex(FIVE_ROWS)):  # of the file, and of its row group
        data[at : at + 2] = TWO_ROWS
    (tmp_path / "a.parquet").write_bytes(data)

    refused(tmp_path / "a.parquet", "footer states 5 values of column a, and its row group 2")


def test_a_changed_byte_in_a_page_of_parquet_with_a_checksum_is_damage(tmp_path: Path) -> None:
    data = plain(tmp_path / "a.parquet", write_page_checksum=True)
    data[data.index(b"".join(n.to_bytes(8, "little") for n in (1, 2, 3)))] ^= 0x40
    (tmp_path / "a.parquet").write_bytes(data)

    refused(tmp_path / "a.parquet", "CRC checksum verification failed")


def test_a_changed_byte_in_a_block_of_avro_in_snappy_is_damage(tmp_path: Path) -> None:
    packed = bytearray(in_snappy(sized(b"incompressible") + sized(b"b")))
    packed[packed.index(b"incompressible")] ^= 0x01
    (tmp_path / "a.avro").write_bytes(header(TEXTS, "snappy") + block(2, bytes(packed)))

    refused(tmp_path / "a.avro", "checksum")


@pytest.mark.parametrize(("codec", "pack"), [("bzip2", bz2.compress), ("xz", lzma.compress)])
def test_a_block_of_avro_without_the_checksum_at_its_end_is_damaged(
    codec: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    (tmp_path / "a.avro").write_bytes(header(TEXTS, codec) + block(1, pack(sized(b"a"))[:-2]))

    refused(tmp_path / "a.avro", "cut off")


class Keys(encryption.KmsClient):  # type: ignore[misc]
    """Keys that are not secret."""

    def __init__(self, _: Any) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, _: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, wrapped: bytes, _: str) -> bytes:
        return base64.b64decode(wrapped)


@pytest.mark.parametrize("plain_footer", [True, False])
def test_a_file_of_parquet_with_an_encrypted_column_is_named_and_ends_no_process(
    plain_footer: bool, tmp_path: Path
) -> None:
    table = pa.table({"a": [1, 2, 3], "secret": ["x", "y", "z"]})
    properties = encryption.CryptoFactory(Keys).file_encryption_properties(
        encryption.KmsConnectionConfig(),
        encryption.EncryptionConfiguration(
            footer_key="footer",
            column_keys={"column": ["secret"]},
            plaintext_footer=plain_footer,
            cache_lifetime=datetime.timedelta(minutes=5),
            double_wrapping=False,
        ),
    )
    with pyarrow.parquet.ParquetWriter(
        tmp_path / "a.parquet", table.schema, encryption_properties=properties
    ) as writer:
        writer.write_table(table)

    refused(tmp_path / "a.parquet", "encrypted")


def _with_histogram(level: bytes, data: bytes) -> bytes:
    """The footer of a column without lists whose histogram of definition levels is of its repetition levels."""
    empty, histogram = b"\x29\x06", b"\x19\x26" + level
    assert data.count(empty + histogram) == 1
    return data.replace(empty + histogram, b"\x29\x26" + level + b"\x19\x06")


def test_statistics_of_parquet_that_do_not_fit_the_schema_are_damage_and_end_no_process(tmp_path: Path) -> None:
    data = plain(tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes(_with_histogram(b"\x00\x0a", bytes(data)))

    refused(tmp_path / "a.parquet", "description of column a does not fit the schema")
    with pytest.raises(ValueError, match="does not fit the schema"):
        read_footer(tmp_path / "a.parquet")


def test_a_bound_of_parquet_that_is_shorter_than_its_values_is_damage_and_ends_no_process(tmp_path: Path) -> None:
    data = bytes(plain(tmp_path / "a.parquet", pa.table({"a": pa.array([b"abcd"], pa.binary(4))})))
    bound = b"\x18\x04abcd"
    assert bound in data
    (tmp_path / "a.parquet").write_bytes(data.replace(bound, b"\x18\x00\x13\x00\x13\x00"))  # and two unknown fields

    with pytest.raises(ValueError, match="a bound of column a is shorter than its values"):
        read_footer(tmp_path / "a.parquet")


def test_a_footer_of_parquet_that_describes_too_many_columns_is_not_opened(tmp_path: Path) -> None:
    schema = b"\x15\x02\x19\xfc\xe1\xd4\x03" + b"\x48\x01r\x15\xc0\xa9\x07\x00" + b"\x15\x02\x38\x01a\x00" * 60_000
    footer = schema + b"\x16\x00\x19\x0c\x00"
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    refused(tmp_path / "a.parquet", "schema has 60,001 elements, and at most 60,000 are read")

    plain(tmp_path / "a.parquet", pa.table({f"c{n}": [1] for n in range(101)}))
    refused(
        tmp_path / "a.parquet", "1 row groups have 101 columns, more than largest_part= allows", largest_part=102_400
    )


def test_a_changed_byte_in_the_footer_of_parquet_ends_no_process(tmp_path: Path) -> None:
    plain(tmp_path / "a.parquet", pa.table({"a": [[1]], "b": ["x"], "c": pa.array([b"ab"], pa.binary(2))}))

    done = subprocess.run(
        [sys.executable, "-c", _CHANGE_BYTES, tmp_path / "a.parquet"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


_CHANGE_BYTES = """
import random, sys

from pathlib import Path
from kafka_eos.connectors._shared.parquet_files import read_footer
from kafka_eos.connectors.delta.delta_log import bounds_of
from kafka_eos.connectors.files.source.row_formats import read_format
path = Path(sys.argv[1])
rows, whole = read_format("parquet", None, largest=1 << 20).rows, path.read_bytes()
for at in range(len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"), len(whole)):
    changed = bytearray(whole)
    changed[at] ^= 1 << random.randrange(8)
    path.write_bytes(changed)
    for read in (lambda: [*rows(path, 0)], lambda: bounds_of(read_footer(path), ["b", "c"])):
        try:
            read()
        except Exception:
            pass
"""
