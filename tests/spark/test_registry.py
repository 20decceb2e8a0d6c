"""Formats of a real schema registry on Spark: what the embedded engine has begun goes on there, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from kafka_eos.core.errors import KafkaEosError
from tests import json_witness, protobuf_witness
from tests.avro_witness import record, send, told, written
from tests.chaos.harness import create_topic
from tests.registry_server import RegistryServer
from tests.spark.kit import Job

AVRO = """
import re

from kafka_eos.codecs import Registry, avro

registry = Registry("{url}")
pipeline = Pipeline("{name}")
(
    pipeline.source(KafkaSource(re.compile("{input}.*"), value=avro(Payment, registry=registry)),
                    name="payments", on_error=dead_letter("{refused}"))
    .key_by(lambda payment: payment.account)
    .fold(name="total", init=lambda: Total("", 0, -1), step=add, emit=lambda account, total: total)
    .sink(KafkaSink("{output}", value=avro(Total, registry=registry, auto_register=True)), name="totals")
)
"""
OLD = record("com.shop.PaymentMade", account="string", id="int", amount="int", terminal="string")
NEW = record("com.shop.PaymentMade", amount="long", id="long", account="string")
SHOP = record("com.shop.Shop", street="string")
LATER = record("com.shop.PaymentMade", account="string", shop="com.shop.Shop", id="int", amount="int")


@pytest.mark.campaign
def test_a_job_in_avro_moves_between_engines(
    new_job: Callable[..., Job], spark: Any, bootstrap: str, registry: RegistryServer
) -> None:
    """The schema of the input changes in mid-stream. A topic comes later, and its schema refers to another one."""
    job = new_job(AVRO.replace("{url}", registry.url), input=1, output=1, refused=1)
    payments = [{"id": n, "account": f"a{n % 3}", "amount": n + 1, "terminal": "t"} for n in range(90)]
    later = f"{job.topics['input']}-later"
    rows = [*written(registry.url, job.topics["input"], OLD, payments[:50]),
            *written(registry.url, job.topics["input"], NEW, payments[50:70]),
            *written(registry.url, later, LATER, [{**each, "shop": {"street": "s"}} for each in payments[70:]],
                     {"com.shop.Shop": SHOP})]  # fmt: skip

    send(bootstrap, job.topics["input"], rows[:30])
    job.embedded()
    create_topic(bootstrap, later, 1)
    send(bootstrap, job.topics["input"], [*rows[30:70], rows[0][:-3]])
    send(bootstrap, later, rows[70:80])
    job.on_spark(spark)
    send(bootstrap, later, rows[80:])
    job.embedded()

    found = [told(registry.url, message.value()) for message in job.read("output")]
    sums: Counter[str] = Counter()
    for payment in payments:
        sums[payment["account"]] += payment["amount"]
    assert Counter(row["id"] for row in found) == Counter(range(90))
    assert {row["account"]: row["total"] for row in found} == sums  # the last of each account
    assert [message.value() for message in job.read("refused")] == [rows[0][:-3]]
    assert job.left_open() == []


JSON_TO_PROTOBUF = """
import sys
sys.path.insert(0, {directory!r})
from sums_pb2 import Sum

from kafka_eos.codecs import Registry, json_schema, protobuf

registry = Registry("{url}")
pipeline = Pipeline("{name}", batch_size=20)
(
    pipeline.source(KafkaSource("{input}", value=json_schema(Payment, registry=registry)), name="payments",
                    on_error=dead_letter("{refused}"))
    .filter(lambda payment: payment.id not in (13, 45, 73) or not once(f"killed-{{payment.id}}")
            or os.kill(os.getpid(), signal.SIGKILL))
    .key_by(lambda payment: payment.account)
    .fold(name="total", init=lambda: Total("", 0, -1), step=add,
          emit=lambda account, total: Sum(account=account, total={{"cents": total.total}}, id=total.id))
    .sink(KafkaSink("{output}", value=protobuf(Sum, registry=registry, auto_register=True)), name="sums")
)
"""
CENTS = protobuf_witness.proto3("message Cents { int64 cents = 1; }", package="com.money")
SUM = protobuf_witness.proto3(
    'import "cents.proto";', "message Sum { string account = 1; com.money.Cents total = 2; int64 id = 3; }"
)


def json_payment(**more: Any) -> dict[str, Any]:
    number = {"type": "integer"}
    fields = {"id": number, "account": {"type": "string"}, "amount": number, **more}
    draft = "http://json-schema.org/draft-07/schema#"
    return {
        "$schema": draft,
        "title": "Payment",
        "type": "object",
        "properties": fields,
        "required": ["id", "account", "amount"],
    }


@pytest.mark.campaign
def test_json_that_changes_in_mid_stream_becomes_protobuf_though_tasks_and_workers_are_killed(
    new_job: Callable[..., Job], spark: Any, bootstrap: str, registry: RegistryServer
) -> None:
    """The message that is written is of a file that imports another one."""
    job = new_job(JSON_TO_PROTOBUF.replace("{url}", registry.url), input=1, output=1, refused=1)
    for name, text in (("cents", CENTS), ("sums", SUM)):
        (job.directory / f"{name}_pb2.py").write_text(protobuf_witness.generated(text, f"{name}.proto"))
    payments = [{"id": n, "account": f"a{n % 3}", "amount": n + 1} for n in range(90)]
    old, new = json_payment(), json_payment(currency={"type": "string"})
    rows = [*json_witness.written(registry.url, job.topics["input"], old, payments[:50]),
            *json_witness.written(registry.url, job.topics["input"], new,
                                  [{**payment, "currency": "EUR"} for payment in payments[50:]])]  # fmt: skip

    send(bootstrap, job.topics["input"], rows[:30])
    job.embedded()
    send(bootstrap, job.topics["input"], [*rows[30:70], rows[0][:-3]])
    job.on_spark(spark)
    send(bootstrap, job.topics["input"], rows[70:])
    job.embedded()

    tp = protobuf_witness.classes(SUM, cents=CENTS)["Sum"]
    found = [protobuf_witness.told(tp, message.value()) for message in job.read("output")]
    sums: Counter[str] = Counter()
    for payment in payments:
        sums[str(payment["account"])] += int(str(payment["amount"]))
    assert Counter(row.id for row in found) == Counter(range(90))
    assert {row.account: row.total.cents for row in found} == sums  # the last of each account
    assert [message.value() for message in job.read("refused")] == [rows[0][:-3]]
    assert all((job.directory / f"killed-{n}").exists() for n in (13, 45, 73))
    assert job.left_open() == []


STORM = """
from pydantic import BaseModel
from kafka_eos.codecs import Registry, avro

registry = Registry("{url}")

class Kept(BaseModel):
    account: str
    total: int
    # more

def kept(before, payment):
    return before.model_copy(update={{"account": payment.account, "total": before.total + payment.amount}})

pipeline = Pipeline("{name}", batch_size=10)
(
    pipeline.source(KafkaSource("{input}", value=avro(Payment, registry=registry)), name="payments"
                    # letters
                    )
    .filter(lambda payment: payment.id % 17 != 16 or not once(f"killed-{{payment.id}}")
            or os.kill(os.getpid(), signal.SIGKILL))
    .key_by(lambda payment: payment.account)
    .fold(name="total", init=lambda: Kept(account="", total=0), step=kept, state=Kept,
          emit=lambda account, kept: Total(account, kept.total, 0))
    .sink(KafkaSink("{output}", value=Total), name="totals")
)
"""
BOTH = ["string", "null"]
VERSIONS = [
    OLD,
    NEW,
    record("com.shop.PaymentMade", shop=(["null", "string"], None), account="string", id="int", amount="long"),
    record("com.bank.Transfer", note=("string", "–"), amount="int", account=BOTH, id="int"),
    record("com.shop.PaymentMade", id="long", account="string", amount="long", tags={"type": "map", "values": BOTH}),
]
MORE: list[dict[str, Any]] = [{"terminal": "t"}, {}, {"shop": "s"}, {"note": "n"}, {"tags": {"a": "b", "c": None}}]
BROKEN = record("com.shop.PaymentMade", id="long", account="string", amount="string")


@pytest.mark.campaign
def test_a_storm_of_schemas_under_kills_is_read_through_and_a_breaking_one_stops_it_at_its_offset(
    new_job: Callable[..., Job], spark: Any, bootstrap: str, registry: RegistryServer
) -> None:
    """The schema of the input changes five times, the state's once; processes are killed, on both engines."""
    job = new_job(STORM.replace("{url}", registry.url), input=1, output=1, refused=1)
    topic, text = job.topics["input"], job.app.read_text()
    payments = [{"id": n, "account": f"a{n % 3}", "amount": n + 1} for n in range(100)]
    engines = [job.embedded, lambda: job.on_spark(spark)]

    for number, (schema, more) in enumerate(zip(VERSIONS, MORE, strict=True)):
        some = [{**payment, **more} for payment in payments[number * 20 :][:20]]
        send(bootstrap, topic, written(registry.url, topic, schema, some))
        if number == 3:
            job.app.write_text(text.replace("# more", "bonus: int"))
            for engine in engines:
                with pytest.raises(KafkaEosError, match="bonus"):
                    engine()
            text = text.replace("# more", "bonus: int = 0")
            job.app.write_text(text)
        engines[number % 2]()
    send(bootstrap, topic, written(registry.url, topic, BROKEN, [{**payments[0], "amount": "1"}]))
    for engine in engines:
        with pytest.raises(KafkaEosError, match=rf"{topic}/0/100.*amount is string there, long here"):
            engine()
    job.app.write_text(text.replace("# letters", ', on_error=dead_letter("' + job.topics["refused"] + '")'))
    job.on_spark(spark)

    sums: Counter[str] = Counter()
    for payment in payments:
        sums[str(payment["account"])] += int(str(payment["amount"]))
    found = job.values("output")
    assert len(found) == len(payments)
    assert {row["account"]: row["total"] for row in found} == sums
    assert len(job.read("refused")) == 1
    assert all((job.directory / f"killed-{n}").exists() for n in range(16, 100, 17))
    assert job.left_open() == []
