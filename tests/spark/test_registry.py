"""Avro with a real schema registry on Spark: what the embedded engine has begun goes on there, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.avro_witness import record, send, told, written
from tests.registry_server import RegistryServer
from tests.spark.kit import Job

AVRO = """
from kafka_eos.schemas import Registry, avro

registry = Registry("{url}")
pipeline = Pipeline("{name}")
(
    pipeline.source(KafkaSource("{input}", value=avro(Payment, registry=registry)), name="payments",
                    on_error=dead_letter("{refused}"))
    .key_by(lambda payment: payment.account)
    .fold(name="total", init=lambda: Total("", 0, -1), step=add, emit=lambda account, total: total)
    .sink(KafkaSink("{output}", value=avro(Total, registry=registry, auto_register=True)), name="totals")
)
"""
OLD = record("com.shop.PaymentMade", account="string", id="int", amount="int", terminal="string")
NEW = record("com.shop.PaymentMade", amount="long", id="long", account="string")


def test_a_job_in_avro_moves_between_engines(
    new_job: Callable[..., Job], spark: Any, bootstrap: str, registry: RegistryServer
) -> None:
    """The schema of the input changes in mid-stream, too."""
    job = new_job(AVRO.replace("{url}", registry.url), input=1, output=1, refused=1)
    payments = [{"id": n, "account": f"a{n % 3}", "amount": n + 1, "terminal": "t"} for n in range(90)]
    rows = [*written(registry.url, job.topics["input"], OLD, payments[:50]),
            *written(registry.url, job.topics["input"], NEW, payments[50:])]  # fmt: skip

    send(bootstrap, job.topics["input"], rows[:30])
    job.embedded()
    send(bootstrap, job.topics["input"], [*rows[30:70], rows[0][:-3]])
    job.on_spark(spark)
    send(bootstrap, job.topics["input"], rows[70:])
    job.embedded()

    found = [told(registry.url, message.value()) for message in job.read("output")]
    sums: Counter[str] = Counter()
    for payment in payments:
        sums[payment["account"]] += payment["amount"]
    assert Counter(row["id"] for row in found) == Counter(range(90))
    assert {row["account"]: row["total"] for row in found} == sums  # the last of each account
    assert [message.value() for message in job.read("refused")] == [rows[0][:-3]]
    assert job.left_open() == []
