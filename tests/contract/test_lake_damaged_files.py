"""A data file of a lake that contradicts itself is named, by the audit and by a commit that replaces its rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.core.errors import ConfigError
from tests.contract.lakes import DeltaLake, IcebergLake, Lake, LakeJob, at, commit
from tests.contract.test_lake_upserts import KeyedDelta, KeyedIceberg

TWO_VALUES = re.compile(rb"(\x15\x00\x15.\x15.\x2c\x15)\x04", re.DOTALL)
"""The header of a page of data: its kind, two sizes, and the number of values."""


@pytest.mark.limits(rows_per_lake_row_group=2)
@pytest.mark.parametrize("make", [DeltaLake, IcebergLake])
def test_the_audit_names_a_file_with_fewer_rows_than_its_footer_states(
    make: Callable[[Path], Lake], tmp_path: Path
) -> None:
    lake = make(tmp_path)
    name = written_and_cut(lake)
    sink = lake.sink()
    assert isinstance(sink, DeltaSink | IcebergSink)
    sink.check(LakeJob(lake).context(2))

    with pytest.raises(ConfigError, match=rf"{name} is damaged: .*footer states 5 rows, but its pages contain 3"):
        [*sink.audit_table_rows()]


@pytest.mark.limits(rows_per_lake_row_group=2)
@pytest.mark.parametrize("make", [KeyedDelta, KeyedIceberg])
def test_a_commit_does_not_drop_rows_of_a_file_that_contradicts_itself(
    make: Callable[[Path], Lake], tmp_path: Path
) -> None:
    lake = make(tmp_path)
    name = written_and_cut(lake)
    lake_job = LakeJob(lake)
    committer = lake_job.recovered(1)

    with pytest.raises(
        ConfigError, match=rf"{name} is damaged: .*states (that it has )?5 rows, but .* (contain|has) 3"
    ):
        commit(committer, at(1, 1), lake_job.prepared(1, 1, [1]))


def written_and_cut(lake: Lake) -> str:
    """The name of a file with five rows, of which its pages have three."""
    lake_job = LakeJob(lake)
    commit(lake_job.recovered(1), at(1, 1), lake_job.prepared(1, 1, [1, 2, 3, 4, 5]))
    (path,) = lake.where.rglob("part-*.parquet")
    data = path.read_bytes()
    cut, pages = TWO_VALUES.subn(b"\\1\x02", data)
    assert pages == 4  # of two columns in two row groups; a third group has one row
    path.write_bytes(cut)
    return path.name
