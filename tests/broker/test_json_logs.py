"""A real job that speaks JSON: each line of all of its processes is an object that says whose it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.producers import in_order
from tests.waiting import PATIENCE

APP = """
import logging
import msgspec
from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import KafkaSource

class Order(msgspec.Struct):
    item: str

def seen(order):
    logging.getLogger("orders.seen").warning("seen", extra={{"item": order.item}})
    return order

pipeline = Pipeline("spoken", checkpoint_interval=0.2, checkpoint_dir="{home}")
pipeline.source(KafkaSource("{topic}", value=Order), name="in").map(seen, name="seen") \\
    .sink(FileSink("{home}/out"), name="out")
"""


def test_every_line_is_an_object_that_says_whose_it_is(
    bootstrap: str, topic: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, app = topic(), tmp_path / "spoken.py"
    app.write_text(APP.format(topic=name, home=tmp_path))
    producer = in_order(bootstrap)
    producer.produce(name, b'{"item": "tea"}')
    assert producer.flush(PATIENCE) == 0
    command = [sys.executable, "-m", "kafka_eos", "run", str(app), "-p", "1", "--until-caught-up"]

    done = subprocess.run(
        [*command, "--log-format", "json", "--log-level", "warning,kafka_eos=debug", "-b", bootstrap],
        cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip

    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.stdout == "" and {line["job"] for line in lines} == {"spoken"}
    (users,) = [line for line in lines if line["logger"] == "orders.seen"]
    assert (users["process"], users["extra"], users["level"]) == ("worker 0", {"item": "tea"}, "warning")
    events = {line["event"]: line for line in lines if "event" in line}
    assert {"started", "running", "committed", "stopped"} <= set(events)
    assert events["committed"]["facts"]["epoch"] == events["committed"]["epoch"]
    assert (users["operator"], users["topic"], users["partition"], users["offset"]) == ("seen", name, 0, 0)
    assert users["term"] == events["running"]["facts"]["term"]
    assert lines[-1]["message"].startswith("drained and committed; input of this run: 1 from ")
