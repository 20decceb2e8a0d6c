"""The records as msgspec Structs."""

import msgspec


class Payment(msgspec.Struct):
    id: int
    account: str
    amount: int
    note: str


class LatePayment(msgspec.Struct):
    id: int
    account: str
    amount: int
    at: int
    note: str


class Doubled(msgspec.Struct):
    id: int
    account: str
    amount: int
    note: str
    twice: int


class Total(msgspec.Struct):
    account: str
    total: int


class WindowTotal(msgspec.Struct):
    account: str
    start: int
    end: int
    total: int


def doubled(payment: Payment) -> Doubled:
    return Doubled(payment.id, payment.account, payment.amount, payment.note, 2 * payment.amount)


def total(account: str, amount: int) -> Total:
    return Total(account, amount)
