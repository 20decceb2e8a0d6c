"""The job of a day in production: running totals of accounts. ``TEST_VERSION=2`` is what it is upgraded to.

The upgrade changes two schemas: payments have a currency, which old ones lack, and what is kept of an account also
counts its payments.
"""

import os
import time
from pathlib import Path

import msgspec

from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter

HANG = Path(os.environ["TEST_HANG"])
"""Whoever finds this file takes it away, and never comes back."""
SLOW = Path(os.environ["TEST_SLOW"])
"""While this file is there, a payment takes 20 ms."""
UPGRADED = os.environ.get("TEST_VERSION") == "2"


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int


class PaymentWithCurrency(Payment):
    currency: str = "EUR"


class Account(msgspec.Struct):
    total: int = 0
    newest: int = 0


class CountedAccount(Account):
    payments: int = 0


class Total(msgspec.Struct):
    account: str
    total: int
    id: int


def checked(payment: Payment) -> Payment:
    if HANG.exists():
        HANG.unlink(missing_ok=True)
        while True:
            pass
    if SLOW.exists():
        time.sleep(0.02)
    if payment.amount < 0:
        raise ValueError(f"an amount of {payment.amount}")
    return payment


def add(account: Account, payment: Payment) -> Account:
    if isinstance(account, CountedAccount):
        return CountedAccount(account.total + payment.amount, payment.id, account.payments + 1)
    return Account(account.total + payment.amount, payment.id)


pipeline = Pipeline(os.environ["TEST_JOB"], checkpoint_dir=os.environ["TEST_CHECKPOINTS"])
(
    pipeline.source(
        KafkaSource(os.environ["TEST_INPUT"], value=PaymentWithCurrency if UPGRADED else Payment),
        name="payments",
        on_error=dead_letter(f"{os.environ['TEST_INPUT']}-refused"),
    )
    .map(checked, name="checked")
    .filter(lambda payment: payment.amount > 0)
    .key_by(lambda payment: payment.account)
    .fold(
        name="total",
        init=CountedAccount if UPGRADED else Account,
        step=add,
        emit=lambda key, account: Total(key, account.total, account.newest),
    )
    .sink(KafkaSink(os.environ["TEST_OUTPUT"], value=Total, key=lambda total: total.account), name="totals")
)

if __name__ == "__main__":
    pipeline.run()
