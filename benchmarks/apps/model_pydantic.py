"""The records as pydantic models."""

from pydantic import BaseModel


class Payment(BaseModel):
    id: int
    account: str
    amount: int
    note: str


class Doubled(BaseModel):
    id: int
    account: str
    amount: int
    note: str
    twice: int


class Total(BaseModel):
    account: str
    total: int


def doubled(payment: Payment) -> Doubled:
    return Doubled(
        id=payment.id,
        account=payment.account,
        amount=payment.amount,
        note=payment.note,
        twice=2 * payment.amount,
    )


def total(account: str, amount: int) -> Total:
    return Total(account=account, total=amount)
