"""``kafka-eos schemas check|diff``, against a real schema registry and a savepoint."""

from __future__ import annotations

import json
import socket
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from kafka_eos.cli import app
from kafka_eos.codecs import Registry
from kafka_eos.codecs.registry.registry_client import Reference, RegisteredSchema
from kafka_eos.core.errors import RegistryUnavailable
from kafka_eos.savepoints.builder import SavepointBuilder
from tests.avro_witness import Schema, record
from tests.registry_server import RegistryServer

APP = """
from pydantic import BaseModel

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.codecs import Registry, avro

registry = Registry("{url}")


class Order(BaseModel):
    user: str
    amount: int


class Total(BaseModel):
    user: str
    total: int
    currency: str = "EUR"


pipeline = Pipeline("totals")
(
    pipeline.source(KafkaSource("{topic}", value=avro(Order, registry=registry)), name="orders")
    .key_by(lambda order: order.user)
    .fold(
        name="total",
        init=lambda: Total(user="", total=0),
        step=lambda total, order: total,
        emit=lambda user, total: total,
        state=Total,
    )
    .sink(KafkaSink("{topic}-out", value=avro(Total, registry=registry, auto_register={register})), name="totals")
)
"""


@dataclass
class Checked:
    """One pipeline, with topics and subjects of its own."""

    home: Path
    url: str
    topic: str

    @property
    def registry(self) -> Registry:
        return Registry(self.url)

    def write(self, auto_register: bool = False) -> None:
        text = APP.format(url=self.url, topic=self.topic, register=auto_register)
        (self.home / "app.py").write_text(text)

    def has(self, part: str, schema: Schema) -> None:
        """The subject of the input ("") or the output ("-out") gets one more version."""
        self.registry.register(f"{self.topic}{part}-value", RegisteredSchema("AVRO", json.dumps(schema)))

    def says(self, what: str, *options: str) -> tuple[int, str]:
        checkpoints = ("--checkpoint-dir", str(self.home / "checkpoints"))
        answer = CliRunner().invoke(app, ["schemas", what, str(self.home / "app.py"), *checkpoints, *options])
        assert answer.exception is None or isinstance(answer.exception, SystemExit), answer.output
        return answer.exit_code, answer.output


@pytest.fixture
def checked(tmp_path: Path, registry: RegistryServer) -> Checked:
    made = Checked(tmp_path, registry.url, f"check-{uuid4().hex[:8]}")
    made.write()
    return made


def test_schemas_that_fit_are_ok_and_what_differs_harmlessly_is_a_difference(checked: Checked) -> None:
    checked.has("", record("Order", user="string", amount="int", shop="string"))
    checked.has("-out", record("Total", user="string", total="long", currency=("string", "EUR")))

    code, said = checked.says("check")

    assert code == 0, said
    assert said.count("ok ") == 2
    assert f"version 1 of subject {checked.topic}-value of {checked.url}" in said
    code, said = checked.says("diff")
    assert code == 1
    assert said.splitlines()[1:] == ["  amount is int there, long here", "  shop (string) is only there"]


def test_where_nothing_is_registered_there_is_nothing_to_compare_with(checked: Checked) -> None:
    checked.write(auto_register=True)

    code, said = checked.says("check")

    assert code == 0, said
    assert [line.split()[:2] for line in said.splitlines()] == [["new", "source"], ["new", "sink"]]
    assert said.count(f"of {checked.url} does not exist") == 2


def test_a_source_that_cannot_be_read_is_wrong(checked: Checked) -> None:
    checked.has("-out", record("Total", user="string", total="long", currency=("string", "EUR")))
    checked.has("", record("Order", user="string", amount="string"))

    code, said = checked.says("check")

    assert code == 1
    assert "INCOMPATIBLE  source orders, value: Avro Order" in said
    assert "         amount is string there, long here" in said


@pytest.mark.parametrize(
    ("asked", "there", "fits"),
    [
        ("BACKWARD", record("Total", user="string", total="long"), True),
        ("BACKWARD", record("Total", user="string", total="string"), False),
        ("FORWARD", record("Total", user="string", total="long", shop="string"), False),
        ("FULL", record("Total", user="string", total="long"), True),
        ("NONE", record("Total", user="string", total="string"), True),
    ],
)
def test_a_sink_must_be_compatible_as_its_subject_says(checked: Checked, asked: str, there: Schema, fits: bool) -> None:
    checked.write(auto_register=True)
    checked.has("-out", there)
    demand = urllib.request.Request(
        f"{checked.url}/config/{checked.topic}-out-value", json.dumps({"compatibility": asked}).encode(),
        {"Content-Type": "application/json"}, method="PUT",
    )  # fmt: skip
    urllib.request.urlopen(demand, timeout=30).close()

    code, said = checked.says("check")

    assert code == (0 if fits else 1), said
    assert (f"not compatible: the subject requires {asked}" in said) is not fits


def test_a_sink_that_is_not_registered_is_wrong_unless_the_start_does_it(checked: Checked) -> None:
    code, said = checked.says("check")
    assert code == 1
    assert "not registered: auto_register=True does it at the start" in said

    checked.write(auto_register=True)
    assert checked.says("check")[0] == 0
    assert checked.registry.get_latest_version(f"{checked.topic}-out-value") is None  # it has only looked


def test_state_is_compared_with_a_savepoint(checked: Checked) -> None:
    class Total(BaseModel):
        total: int
        shop: str = ""

    checked.write(auto_register=True)
    with SavepointBuilder.new("totals") as builder:
        builder.bootstrap_fold("total", [("ann", Total(total=1))], accumulator=Total)
        builder.bootstrap("gone", "count", [("ann", 1)], value=int)
        builder.write(checked.home / "saved")

    code, said = checked.says("check", "--from", str(checked.home / "saved"))

    assert code == 1
    assert "INCOMPATIBLE  state total.accumulator: epoch 0 of" in said
    assert "user (string) is only here, and has no default" in said
    assert "INCOMPATIBLE  state gone.count" in said
    _, said = checked.says("diff", "--from", str(checked.home / "saved"))
    assert "  value: shop (string) is only there" in said


def test_a_registry_that_does_not_answer_is_told_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    checked = Checked(tmp_path, url, "check")
    checked.write()
    what = "source orders, value: Avro Order"
    asked = {what: ["check"], "orders-value": ["model", "orders-value", "--registry", url]}

    for name, options in asked.items():
        file = [] if options[0] == "model" else [str(tmp_path / "app.py")]
        answer = CliRunner().invoke(app, ["schemas", options[0], *file, *options[1:]])

        assert isinstance(answer.exception, RegistryUnavailable)
        assert str(answer.exception).startswith(name)
        assert f"{url} does not respond" in str(answer.exception)
        assert "Check that the registry runs at that address and accepts your credentials" in str(answer.exception)


def test_the_models_of_a_subject_are_printed_with_all_that_it_refers_to(checked: Checked) -> None:
    money = RegisteredSchema("AVRO", json.dumps(record("com.shop.Money", cents="long")))
    checked.registry.register(f"{checked.topic}-money", money)
    order = json.dumps(record("com.shop.Order", user="string", price="com.shop.Money", note=(["null", "string"], None)))
    references = (Reference("com.shop.Money", f"{checked.topic}-money", 1),)
    checked.registry.register(f"{checked.topic}-value", RegisteredSchema("AVRO", order, references))

    answer = CliRunner().invoke(app, ["schemas", "model", f"{checked.topic}-value", "--registry", checked.url])

    assert answer.exit_code == 0, answer.output
    assert answer.output.splitlines()[4:] == [
        "", "class Money(BaseModel):", "    cents: int", "", "", "class Order(BaseModel):", "    user: str",
        "    price: Money", "    note: None | str = None",
    ]  # fmt: skip
    missing = CliRunner().invoke(app, ["schemas", "model", "none-value", "--registry", checked.url])
    assert missing.exit_code != 0
