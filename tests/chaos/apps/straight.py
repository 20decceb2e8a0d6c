"""A pipeline without an exchange: what one worker does has nothing to do with the others."""

import os
import re
import time
from pathlib import Path

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

HUNG, HANGS_AT = (Path(os.environ["TEST_HUNG"]) if "TEST_HUNG" in os.environ else None), 700
"""Exists from when a worker hangs on. One does, once, where a test asks for it."""
SLOW = Path(os.environ["TEST_SLOW"]) if "TEST_SLOW" in os.environ else None
"""While this file exists, each row takes 50 ms."""
TAKES_AGES = re.compile(r"(a+)+$")
"""On some texts: longer than anybody lives, in C, and no other thread runs meanwhile."""


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


def never_comes_back() -> None:
    if "TEST_HUNG_IN_C" in os.environ:
        TAKES_AGES.match("a" * 64 + "b")
    while True:
        pass


def slowly(payment: Payment) -> Payment:
    if HUNG is not None and payment.id == HANGS_AT and not HUNG.exists():
        HUNG.touch()
        never_comes_back()
    slow = SLOW is not None and SLOW.exists()
    time.sleep(0.05 if slow else float(os.environ.get("TEST_PAUSE", "0.001")))
    return payment


pipeline = Pipeline(
    os.environ["TEST_JOB"],
    checkpoint_dir=os.environ["TEST_CHECKPOINTS"],
    checkpoint_interval=float(os.environ.get("TEST_INTERVAL", "0.1")),
    batch_size=20,
    restart_backoff_initial=0.05,
)
paid = (
    pipeline.source(KafkaSource(os.environ["TEST_INPUT"], value=Payment), name="payments")
    .map(slowly)
    .filter(lambda payment: payment.amount > 0)
)
paid.sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Payment, key=lambda payment: payment.account), name="to-kafka")
paid.sink(FileSink(os.environ["TEST_FILES"], value=Payment), name="to-files")

if __name__ == "__main__":
    pipeline.run()
