"""What is checked of all sinks together: two names of one table would make the commit of one count for the other."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kafka_eos import Pipeline
from kafka_eos.checkpoints.storage import LocalStorage
from kafka_eos.connectors.delta import DeltaSink
from kafka_eos.connectors.iceberg import IcebergSink
from kafka_eos.coordinator.history import History
from kafka_eos.coordinator.outputs import Outputs
from kafka_eos.coordinator.patience import Patience
from kafka_eos.errors import ConfigError
from kafka_eos.ids import Term
from kafka_eos.interfaces import JobContext, Sink
from kafka_eos.testing import ListSource
from tests.contract.lakes import RestLake

CONTEXT = JobContext("orders", Term(1), {})


class Order(msgspec.Struct):
    id: int
    text: str


def check(home: Path, *sinks: Sink[Any]) -> list[str]:
    pipeline: Any = Pipeline("orders")
    orders = pipeline.source(ListSource([Order(1, "a")]), name="orders")
    for number, sink in enumerate(sinks):
        orders.sink(sink, name=f"sink-{number}")
    diary = History(LocalStorage(home / "job"), print)
    outputs = Outputs(pipeline.plan(), CONTEXT, diary, Patience(threading.Event(), print))
    return outputs.check(CONTEXT)


def test_one_delta_table_under_two_names_is_refused_and_a_copy_of_it_is_not(tmp_path: Path) -> None:
    table, link, copy = (tmp_path / name for name in ("table", "link", "copy"))
    DeltaSink(table, value=Order, create=True).check(CONTEXT)
    link.symlink_to(table)
    shutil.copytree(table, copy)

    check(tmp_path, DeltaSink(table), DeltaSink(copy), DeltaSink(f"{tmp_path}/copy/../table"))
    with pytest.raises(ConfigError, match="'sink-0' and 'sink-1' write to the same table under two names, .*/link: "):
        check(tmp_path, DeltaSink(table), DeltaSink(link))


def test_one_iceberg_table_under_two_names_is_refused(tmp_path: Path) -> None:
    lake = RestLake(tmp_path)
    with lake.server.serving():
        properties = lake.server.properties
        named = {**properties, "uri": properties["uri"] + "/"}
        sink, same, other = (IcebergSink("shop.rows", properties=each) for each in (properties, properties, named))

        check(tmp_path, sink, same)
        with pytest.raises(ConfigError, match=r"same table under two names, iceberg:.*Give both the same name"):
            check(tmp_path, sink, other)
